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

/// Every capability that there is, in the order of their numbers. Root of a privileged sandbox has them over what is the
/// sandbox's own.
pub const EVERY: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// Some of [`CAPABILITIES`], or of [`EVERY`] where a sandbox is privileged: what its root keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Capabilities(u64);

impl Default for Capabilities {
    /// All that any sandbox has.
    fn default() -> Self {
        Self(CAPABILITIES.iter().fold(0, |all, (_, number)| all | 1 << number))
    }
}

impl Capabilities {
    pub const NONE: Self = Self(0);
    /// What only a privileged sandbox has.
    pub const ALL: Self = Self((1 << EVERY.len()) - 1);

    /// The most that a sandbox can have.
    pub fn most(privileged: bool) -> Self {
        if privileged { Self::ALL } else { Self::default() }
    }

    /// With one more, if it is among `most`.
    pub fn with(self, name: &str, most: Self) -> Option<Self> {
        let more = number(name).map(|number| Self(self.0 | 1 << number));
        more.filter(|more| more.is_within(Self(most.0 | self.0)))
    }

    /// Without one, if it was there.
    pub fn without(self, name: &str) -> Self {
        number(name).map_or(self, |number| Self(self.0 & !(1 << number)))
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        EVERY
            .into_iter()
            .enumerate()
            .filter(move |(number, _)| self.0 & (1 << number) != 0)
            .map(|(_, name)| name)
    }

    pub fn is_within(self, most: Self) -> bool {
        self.0 & !most.0 == 0
    }

    /// As the kernel counts them; whatever was written down, no more than such a sandbox can have.
    pub fn bits(self, privileged: bool) -> u64 {
        self.0 & Self::most(privileged).0
    }
}

fn number(name: &str) -> Option<usize> {
    EVERY.iter().position(|known| *known == name)
}

/// The most files a program may have open, where the machine allows it.
pub const OPEN_FILES: u64 = 1 << 20;

/// As many terminals one sandbox may have. The kernel has some three thousand for all of them together.
pub const TERMINALS: u32 = 64;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_the_numbers_of_the_kernel() {
        for (name, at) in CAPABILITIES {
            assert_eq!(EVERY[at as usize], name);
        }
        assert_eq!((EVERY[21], EVERY[40]), ("CAP_SYS_ADMIN", "CAP_CHECKPOINT_RESTORE"));
    }

    #[test]
    fn only_a_privileged_sandbox_keeps_more_than_all_of_them_have() {
        assert_eq!(Capabilities::ALL.bits(false), Capabilities::default().bits(true));
        assert_eq!(Capabilities::NONE.with("CAP_SYS_ADMIN", Capabilities::most(false)), None);
        assert_eq!(Capabilities::ALL.names().count(), EVERY.len());
    }
}
