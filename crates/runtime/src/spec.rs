//! What a sandbox is made from: plain data, complete before anything is started.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

pub use asb_supervisor::confine::Capabilities;
use asb_supervisor::launch::IDS;
pub use asb_supervisor::launch::{EXTRA_IDS, Stdin};
use serde::{Deserialize, Serialize};

use crate::{RootFs, driver, powers};

/// More bytes of `resolv.conf` than any resolver reads; and of `hosts` than anybody needs.
const NAMES: usize = 16 << 10;

/// Names one sandbox for its whole life: `[a-z0-9-]{1,63}`. The node uses the Pod's UID.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct SandboxId(String);

/// Everything needed to start one sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    pub id: SandboxId,
    /// What makes it. Never changes.
    #[serde(default)]
    pub driver: driver::Name,
    #[serde(default)]
    pub kernel: Kernel,
    pub hostname: String,
    pub root: RootFs,
    pub read_only_root: bool,
    /// What root inside may do, in its own user namespace.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Root inside has every right over namespaces of the sandbox's own, so that it can mount and nest. Ids, limits and the
    /// network stay what they are. Only for an engine that root runs: without root, cgroups would be the sandbox's as well.
    #[serde(default)]
    pub privileged: bool,
    pub mounts: Vec<Mount>,
    /// Sources of mounts that are in memory instead of on disk; gone with the sandbox.
    #[serde(default)]
    pub memory_dirs: Vec<MemoryDir>,
    /// Ids above 65535 that exist inside as well, at most [`EXTRA_IDS`]; the same, in the same order, for all that share ids.
    #[serde(default)]
    pub extra_ids: Vec<u32>,
    /// A sandbox of [`crate::Native::common`] that runs: ids, IPC, `/dev/shm` and the memory dirs are that one's.
    #[serde(default)]
    pub beside: Option<SandboxId>,
    pub process: Process,
    pub limits: Limits,
    /// An address of its own: that of the namespace it is started in, or else one on its loopback interface.
    pub address: Option<Ipv4Addr>,
    /// Whether it was started in a network namespace of the caller's. Set by [`crate::Native::start_in`].
    #[serde(default)]
    pub network: bool,
    /// Contents of `/etc/resolv.conf`. `None`: lookups are refused at once.
    #[serde(default)]
    pub resolv_conf: Option<String>,
    /// Contents of `/etc/hosts`. `None`: loopback, and its own name at its own address.
    #[serde(default)]
    pub hosts: Option<String>,
    /// A file inside, made at the start, whose contents outlive the main process: [`crate::Sandbox::last_words`].
    #[serde(default)]
    pub last_words: Option<PathBuf>,
    /// The caller's own notes, stored with the sandbox and given back by [`crate::Native::list`].
    pub labels: std::collections::BTreeMap<String, String>,
}

/// Which kernel programs run on, under a driver that brings one: [`driver::Abilities::kernel_of_the_machine`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// One for this sandbox alone; otherwise that of the machine.
    #[default]
    Own,
    /// One that others may join. It ends with this sandbox, and they with it. Limits are for all of them.
    Shared,
    /// That of another sandbox, with its network and its ids; started in the same network namespace.
    Of(SandboxId),
}

/// A host directory or file made visible inside, ids mapped so that inside uid 0 is uid 0 on disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mount {
    pub source: PathBuf,
    /// What of `source` is shown; empty: all of it. Missing directories are made. No link in `source` leads out of it.
    #[serde(default)]
    pub sub_path: PathBuf,
    /// Absolute path inside; missing directories are made. Can never lead outside the root.
    pub target: PathBuf,
    pub read_only: bool,
}

/// A host directory over which the sandbox, and nobody else, sees a filesystem in memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemoryDir {
    pub path: PathBuf,
    /// How much it holds. What it holds counts as memory of the sandbox.
    pub bytes: u64,
    /// The group that owns it, inside.
    pub group: u32,
}

/// A program to run inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Process {
    /// Empty: the supervisor idles until it is told to stop.
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Made when it is missing.
    pub cwd: PathBuf,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    #[serde(default)]
    pub groups: Vec<u32>,
    #[serde(default)]
    pub stdin: Stdin,
    /// Whether its streams are a terminal.
    #[serde(default)]
    pub terminal: bool,
}

impl Process {
    /// None: the supervisor idles, and whoever asks later is root.
    pub fn idle() -> Self {
        Self {
            argv: Vec::new(),
            env: Vec::new(),
            cwd: "/".into(),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            stdin: Stdin::Empty,
            terminal: false,
        }
    }
}

/// Limits by cgroup, v1 or v2.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Limits {
    /// Swap included.
    pub memory_bytes: Option<u64>,
    pub cpu_millis: Option<u32>,
    /// What it gets, in proportion to others, when all of them want more than there is. `None`: as much as any.
    #[serde(default)]
    pub cpu_share_millis: Option<u32>,
    pub pids: u32,
    /// Log bytes kept on disk before the oldest are dropped.
    pub log_bytes: u64,
}

/// A field that cannot be what it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    pub field: String,
    pub problem: String,
}

impl SandboxId {
    pub fn new(id: impl Into<String>) -> Result<Self, Invalid> {
        let id = id.into();
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if (1..=63).contains(&id.len()) && id.bytes().all(allowed) {
            return Ok(Self(id));
        }
        Err(invalid("id", format!("{id:?} is not 1 to 63 of the characters a-z, 0-9 and `-`")))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for SandboxId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for SandboxId {
    type Error = Invalid;

    fn try_from(id: String) -> Result<Self, Invalid> {
        Self::new(id)
    }
}

impl Spec {
    /// Finds the first field that could not work, before anything is made.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(1..=64).contains(&self.hostname.len()) || self.hostname.contains(char::is_whitespace) {
            return Err(invalid(
                "hostname",
                format!("{:?} is not 1 to 64 characters without spaces", self.hostname),
            ));
        }
        if self.kernel != Kernel::Own && self.driver != driver::Name::Gvisor {
            return Err(invalid("kernel", format!("{} has none that sandboxes could share", self.driver)));
        }
        if self.privileged && powers::here().is_rootless() {
            return Err(invalid("privileged", "needs an engine that root runs".to_owned()));
        }
        if !self.capabilities.is_within(Capabilities::most(self.privileged)) {
            return Err(invalid("capabilities", "only a privileged sandbox has that many".to_owned()));
        }
        for (at, mount) in self.mounts.iter().enumerate() {
            absolute(&format!("mounts[{at}].source"), &mount.source)?;
            absolute(&format!("mounts[{at}].target"), &mount.target)?;
            relative(&format!("mounts[{at}].sub_path"), &mount.sub_path)?;
            let reserved = ["/proc", "/sys", "/.asb"].iter().find(|path| mount.target.starts_with(path));
            if let Some(path) = reserved.or((mount.target == Path::new("/")).then_some(&"/")) {
                return Err(invalid(
                    &format!("mounts[{at}].target"),
                    format!("nothing can be mounted over {path}"),
                ));
            }
        }
        if self.beside.is_some() && self.driver == driver::Name::Gvisor {
            return Err(invalid("beside", "a kernel of its own shares nothing".to_owned()));
        }
        for (at, memory) in self.memory_dirs.iter().enumerate() {
            absolute(&format!("memory_dirs[{at}].path"), &memory.path)?;
            if memory.bytes == 0 || !self.has_id(memory.group) {
                let problem = "needs a size, and a group below 65536 or in extra_ids".to_owned();
                return Err(invalid(&format!("memory_dirs[{at}]"), problem));
            }
        }
        self.check_extra_ids()?;
        absolute("process.cwd", &self.process.cwd)?;
        self.last_words.iter().try_for_each(|path| absolute("last_words", path))?;
        let groups = self.process.groups.iter().map(|id| ("process.groups", *id));
        let ids = [("process.uid", self.process.uid), ("process.gid", self.process.gid)];
        for (field, id) in ids.into_iter().chain(groups) {
            if !self.has_id(id) {
                let problem = format!("{id} is not between 0 and {}, nor in extra_ids", IDS - 1);
                return Err(invalid(field, problem));
            }
        }
        for (field, text) in [("resolv_conf", &self.resolv_conf), ("hosts", &self.hosts)] {
            if let Some(size) = text.as_ref().map(String::len).filter(|size| *size > NAMES) {
                return Err(invalid(field, format!("{size} bytes are more than {NAMES}")));
            }
        }
        environment("process.env", &self.process.env)?;
        if self.limits.pids == 0 {
            return Err(invalid("limits.pids", "must leave room for at least one process".to_owned()));
        }
        Ok(())
    }
}

impl Spec {
    /// Whether an id exists inside.
    fn has_id(&self, id: u32) -> bool {
        id < IDS || self.extra_ids.contains(&id)
    }

    fn check_extra_ids(&self) -> Result<(), Invalid> {
        let refuse = |problem: String| Err(invalid("extra_ids", problem));
        if self.extra_ids.len() > EXTRA_IDS {
            return refuse(format!("{} are more than {EXTRA_IDS}", self.extra_ids.len()));
        }
        if !self.extra_ids.is_empty() && powers::here().is_rootless() {
            return refuse("an engine that root does not run has no ids above 65535".to_owned());
        }
        for (at, id) in self.extra_ids.iter().enumerate() {
            // The last one means "no id" to the kernel.
            if *id < IDS || *id == u32::MAX || self.extra_ids[..at].contains(id) {
                return refuse(format!("{id} is below {IDS}, no id, or there twice"));
            }
        }
        Ok(())
    }
}

/// Refuses variables that no program could be given.
pub(crate) fn environment(field: &str, env: &[(String, String)]) -> Result<(), Invalid> {
    match env.iter().find(|(key, value)| key.is_empty() || key.contains(['=', '\0']) || value.contains('\0'))
    {
        Some((key, _)) => {
            Err(invalid(field, format!("{key:?} cannot be the name of a variable, or its value holds a NUL")))
        }
        None => Ok(()),
    }
}

fn absolute(field: &str, path: &Path) -> Result<(), Invalid> {
    let plain = path.components().all(|part| !matches!(part, std::path::Component::ParentDir));
    if path.is_absolute() && plain && path.to_str().is_some_and(|text| !text.contains('\0')) {
        return Ok(());
    }
    Err(invalid(field, format!("{path:?} is not an absolute path without `..`")))
}

fn relative(field: &str, path: &Path) -> Result<(), Invalid> {
    let plain = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if plain && path.to_str().is_some_and(|text| !text.contains('\0')) {
        return Ok(());
    }
    Err(invalid(field, format!("{path:?} is not a relative path without `..`")))
}

fn invalid(field: &str, problem: String) -> Invalid {
    Invalid { field: field.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_could_leave_their_directory_are_refused() {
        for id in ["", ".", "..", "a/b", "A", "a b", &"a".repeat(64)] {
            assert!(SandboxId::new(id).is_err(), "{id:?} was taken");
        }
        assert_eq!(SandboxId::new("0f3-a").expect("valid").as_str(), "0f3-a");
    }

    #[test]
    fn stored_id_is_checked_when_read_back() {
        assert!(serde_json::from_str::<SandboxId>(r#""../x""#).is_err());
    }
}
