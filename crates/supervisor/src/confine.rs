//! What every sandbox is kept from, whoever enforces it: our own supervisor, or a runtime that is told to.

/// What root inside keeps, and why package managers and servers need it: names and numbers. All of it reaches only ids
/// and files of the sandbox's own user namespace; the network, mounts and host name belong to the machine's.
pub const CAPABILITIES: [(&str, u32); 11] = [
    ("CAP_CHOWN", 0),             // install files for other users
    ("CAP_DAC_OVERRIDE", 1),      // root reads what users own
    ("CAP_FOWNER", 3),            // ... and changes its mode
    ("CAP_FSETID", 4),            // ... keeping set-group-id on directories
    ("CAP_KILL", 5),              // root stops what users run
    ("CAP_SETGID", 6),            // su, and servers that give up root
    ("CAP_SETUID", 7),            // likewise
    ("CAP_SETPCAP", 8),           // lets a program give up capabilities for good
    ("CAP_NET_BIND_SERVICE", 10), // expected by servers; the port floor inside is 0 anyway
    ("CAP_SYS_CHROOT", 18),       // package managers and build tools
    ("CAP_SETFCAP", 31),          // packages that carry file capabilities
];

/// Some of [`CAPABILITIES`]: what root of one sandbox keeps of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Capabilities(u64);

impl Default for Capabilities {
    /// All of them.
    fn default() -> Self {
        Self(CAPABILITIES.iter().fold(0, |all, (_, number)| all | 1 << number))
    }
}

impl Capabilities {
    pub const NONE: Self = Self(0);

    /// With one more; `None` for a capability that no sandbox has.
    pub fn with(self, name: &str) -> Option<Self> {
        number(name).map(|number| Self(self.0 | 1 << number))
    }

    /// Without one, if it was there.
    pub fn without(self, name: &str) -> Self {
        number(name).map_or(self, |number| Self(self.0 & !(1 << number)))
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        CAPABILITIES.into_iter().filter(move |(_, number)| self.0 & (1 << number) != 0).map(|(name, _)| name)
    }

    /// As the kernel counts them.
    pub fn bits(self) -> u64 {
        // Whatever was written down: no more than any sandbox has.
        self.0 & Self::default().0
    }
}

fn number(name: &str) -> Option<u32> {
    CAPABILITIES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The most files a program may have open, where the machine allows it.
pub const OPEN_FILES: u64 = 1 << 20;

/// Shown, but never written to: they speak of the whole machine.
pub const READ_ONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Not shown at all: they tell about the machine or its other users.
pub const MASKED_IN_PROC: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];
pub const MASKED_IN_SYS: [&str; 2] = ["/sys/devices/virtual/powercap", "/sys/firmware"];
