//! Limits by cgroup, on whichever hierarchy really has the controller: v1, v2, or each for some.

mod cpuset;
mod delegated;
mod freeze;
mod shown;
mod usage;

use std::io;
use std::path::{Path, PathBuf};

pub use self::usage::Stats;
use crate::{Limits, Powers, SandboxId};

/// One file operation that failed.
#[derive(Debug)]
pub struct Failure {
    pub step: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

/// The parent of all cgroups of one state directory, in every hierarchy that is used.
#[derive(Debug, Clone)]
pub struct Cgroups {
    memory: Option<Hierarchy>,
    pids: Option<Hierarchy>,
    cpu: Option<Hierarchy>,
    /// Counts processor time.
    cpuacct: Option<Hierarchy>,
    /// Limits nothing. A JVM reads limits of the first version only where it finds this hierarchy too.
    cpuset: Option<Hierarchy>,
    /// Not joined at a start, but without root: sandboxes are moved there when they are frozen for the first time.
    freezer: Option<Hierarchy>,
    /// `asb/HASH`: which state directory the sandboxes in it belong to.
    parent: PathBuf,
    /// As whom: without root, what is not there is not asked for.
    powers: Powers,
}

/// Which limits hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforced {
    pub memory: bool,
    pub cpu: bool,
    /// For all users of a sandbox together.
    pub processes: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    mount: PathBuf,
    /// The controllers of one of the first version, as the kernel lists them: `cpu,cpuacct`.
    controllers: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Cgroups {
    /// Looks which controllers this machine has where.
    pub fn detect(state: &Path, powers: Powers) -> io::Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        if powers.is_rootless() {
            let own = std::fs::read_to_string("/proc/self/cgroup")?;
            return Ok(Self::delegated(state, powers, &mounts, &own));
        }
        let find = |controller| find(&mounts, controller, read);
        let (pids, freezer) = (find("pids"), find("freezer"));
        // The second version freezes whatever a cgroup is otherwise for.
        let freezer = freezer.or_else(|| pids.clone().filter(|pids| pids.version == Version::V2));
        let cpuacct = usage::find_cpuacct(&mounts, read);
        let parent = parent_of(state);
        let cpuset = find("cpuset").filter(|cpuset| cpuset.version == Version::V1);
        // No start fails for want of it.
        let cpuset = cpuset.filter(|cpuset| cpuset::works(&cpuset.mount, &parent));
        Ok(Self { memory: find("memory"), pids, cpu: find("cpu"), cpuacct, cpuset, freezer, parent, powers })
    }

    /// Makes cgroups without limits; answers with the files to write `0` to in order to join.
    pub fn create(&self, slot: &SandboxId) -> Result<Vec<PathBuf>, Failure> {
        for hierarchy in self.hierarchies() {
            self.make(hierarchy, slot)?;
        }
        let joins = self.hierarchies().into_iter().map(|hierarchy| {
            let file = match hierarchy.version {
                Version::V1 => "tasks",
                Version::V2 => "cgroup.procs",
            };
            self.place(hierarchy, slot).join(file)
        });
        Ok(joins.collect())
    }

    /// Puts limits in force, before anything of the sandbox runs.
    pub fn limit(&self, slot: &SandboxId, limits: &Limits) -> Result<(), Failure> {
        let wanted = |there: bool| there || !self.powers.is_rootless();
        let Enforced { memory, cpu, processes } = self.enforced();
        if let Some(bytes) = limits.memory_bytes.filter(|_| wanted(memory)) {
            self.limit_memory(slot, bytes)?;
        }
        if let Some(millis) = limits.cpu_millis.filter(|_| wanted(cpu)) {
            self.limit_cpu(slot, millis)?;
        }
        if let Some(millis) = limits.cpu_share_millis.filter(|_| cpu) {
            self.share_cpu(slot, millis)?;
        }
        if !wanted(processes) {
            return Ok(());
        }
        let (_, pids) = self.require(&self.pids, "pids", slot)?;
        write(&pids.join("pids.max"), &limits.pids.to_string())
    }

    pub fn enforced(&self) -> Enforced {
        Enforced { memory: self.memory.is_some(), cpu: self.cpu.is_some(), processes: self.pids.is_some() }
    }

    /// The cgroups of a slot or sandbox, whether they exist or not.
    pub fn places(&self, slot: &SandboxId) -> Vec<PathBuf> {
        self.with_freezer().into_iter().map(|hierarchy| self.place(hierarchy, slot)).collect()
    }

    /// Directories that hold the sandboxes' cgroups.
    pub fn parents(&self) -> Vec<PathBuf> {
        self.with_freezer().into_iter().map(|hierarchy| hierarchy.mount.join(&self.parent)).collect()
    }

    /// Which controllers there are, by name and version of their hierarchy.
    pub fn controllers(&self) -> Vec<(&'static str, Option<u8>)> {
        let version =
            |of: &Option<Hierarchy>| of.as_ref().map(|it| if it.version == Version::V1 { 1 } else { 2 });
        [("memory", &self.memory), ("pids", &self.pids), ("cpu", &self.cpu), ("freezer", &self.freezer)]
            .map(|(name, of)| (name, version(of)))
            .to_vec()
    }

    /// How many processes of the sandbox the kernel has killed for want of memory.
    pub fn oom_kills(&self, slot: &SandboxId) -> u64 {
        let Some(hierarchy) = &self.memory else { return 0 };
        let file = match hierarchy.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let text = std::fs::read_to_string(self.place(hierarchy, slot).join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or(0)
    }

    /// The hierarchies in use, each once.
    fn hierarchies(&self) -> Vec<&Hierarchy> {
        let mut all: Vec<&Hierarchy> = Vec::new();
        // Without root nobody can be moved who has become another user meanwhile, as supervisors do.
        let freezer = self.freezer.as_ref().filter(|_| self.powers.is_rootless());
        for hierarchy in [&self.memory, &self.pids, &self.cpu, &self.cpuacct, &self.cpuset]
            .into_iter()
            .flatten()
            .chain(freezer)
        {
            if !all.contains(&hierarchy) {
                all.push(hierarchy);
            }
        }
        all
    }

    /// Those, and the one that is joined only to be frozen.
    fn with_freezer(&self) -> Vec<&Hierarchy> {
        let mut all = self.hierarchies();
        all.extend(self.freezer.as_ref().filter(|freezer| !all.contains(freezer)));
        all
    }

    fn place(&self, hierarchy: &Hierarchy, slot: &SandboxId) -> PathBuf {
        hierarchy.mount.join(&self.parent).join(slot.as_str())
    }

    fn make(&self, hierarchy: &Hierarchy, slot: &SandboxId) -> Result<(), Failure> {
        let place = self.place(hierarchy, slot);
        // Parents are removed with their last sandbox, perhaps at this very moment: then they are made again.
        for _ in 0..16 {
            match self.make_parents(hierarchy) {
                Err(failure) if failure.source.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            }
            match std::fs::create_dir(&place) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => return other.map_err(|source| Failure { step: "make cgroup", path: place, source }),
            }
        }
        Err(Failure { step: "make cgroup", path: place, source: io::ErrorKind::NotFound.into() })
    }

    fn make_parents(&self, hierarchy: &Hierarchy) -> Result<(), Failure> {
        let parent = hierarchy.mount.join(&self.parent);
        if hierarchy.version == Version::V2 {
            let mut place = hierarchy.mount.clone();
            if self.powers.is_rootless() {
                delegated::make_room(&place)?;
            }
            self.delegate(hierarchy, &place)?;
            for part in &self.parent {
                place.push(part);
                make_directory(&place)?;
                self.delegate(hierarchy, &place)?;
            }
            return Ok(());
        }
        if self.cpuset.as_ref() == Some(hierarchy) {
            return cpuset::make(&hierarchy.mount, &self.parent);
        }
        match std::fs::create_dir_all(&parent) {
            // `create_dir_all` gives up when a directory vanishes under its hands: before it could make the next one
            // inside (not found), or after it was told that it exists and before it looked (already exists).
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {
                Err(Failure { step: "make cgroup", path: parent, source: error })
            }
            _ => Ok(()),
        }
    }

    /// Lets the children of a v2 cgroup have the controllers that this hierarchy is used for.
    fn delegate(&self, hierarchy: &Hierarchy, place: &Path) -> Result<(), Failure> {
        let controllers = [("memory", &self.memory), ("pids", &self.pids), ("cpu", &self.cpu)];
        for (name, of) in controllers {
            if of.as_ref() == Some(hierarchy) {
                write(&place.join("cgroup.subtree_control"), &format!("+{name}"))?;
            }
        }
        // Only counts; a machine that does not have it, or does not give it to us, runs sandboxes all the same.
        let _ = write(&place.join("cgroup.subtree_control"), "+io");
        Ok(())
    }

    fn limit_memory(&self, slot: &SandboxId, bytes: u64) -> Result<(), Failure> {
        let (version, place) = self.require(&self.memory, "memory", slot)?;
        match version {
            Version::V1 => {
                write(&place.join("memory.limit_in_bytes"), &bytes.to_string())?;
                // Absent where the kernel does not account for swap.
                write_if_there(&place.join("memory.memsw.limit_in_bytes"), &bytes.to_string())
            }
            Version::V2 => {
                write(&place.join("memory.max"), &bytes.to_string())?;
                write_if_there(&place.join("memory.swap.max"), "0")
            }
        }
    }

    fn limit_cpu(&self, slot: &SandboxId, millis: u32) -> Result<(), Failure> {
        const PERIOD: u64 = 100_000;
        let (version, place) = self.require(&self.cpu, "cpu", slot)?;
        // The kernel takes no quota below a millisecond.
        let quota = (u64::from(millis) * PERIOD / 1000).max(1000);
        match version {
            Version::V1 => {
                write(&place.join("cpu.cfs_period_us"), &PERIOD.to_string())?;
                write(&place.join("cpu.cfs_quota_us"), &quota.to_string())
            }
            Version::V2 => write(&place.join("cpu.max"), &format!("{quota} {PERIOD}")),
        }
    }

    fn share_cpu(&self, slot: &SandboxId, millis: u32) -> Result<(), Failure> {
        let (version, place) = self.require(&self.cpu, "cpu", slot)?;
        let shares = shares(millis);
        match version {
            Version::V1 => write(&place.join("cpu.shares"), &shares.to_string()),
            Version::V2 => write(&place.join("cpu.weight"), &weight(shares).to_string()),
        }
    }

    fn require(
        &self,
        hierarchy: &Option<Hierarchy>,
        controller: &'static str,
        slot: &SandboxId,
    ) -> Result<(Version, PathBuf), Failure> {
        match hierarchy {
            Some(hierarchy) => Ok((hierarchy.version, self.place(hierarchy, slot))),
            None => Err(Failure {
                step: "find a cgroup hierarchy for controller",
                path: controller.into(),
                source: io::Error::new(
                    io::ErrorKind::Unsupported,
                    "no cgroups of this kind are this user's; `asb doctor` tells how to get them",
                ),
            }),
        }
    }
}

/// A processor is 1024 shares, in the first version of cgroups.
fn shares(millis: u32) -> u64 {
    (u64::from(millis) * 1024 / 1000).clamp(2, 262_144)
}

/// The same in the second, whose range is another.
fn weight(shares: u64) -> u64 {
    1 + (shares - 2) * 9999 / 262_142
}

/// Finds the hierarchy that has a controller. `read` gives the contents of `cgroup.controllers`.
fn find(mounts: &str, controller: &str, read: impl Fn(&Path) -> String) -> Option<Hierarchy> {
    mounts.lines().find_map(|line| {
        let (place, filesystem) = line.split_once(" - ")?;
        let mount = PathBuf::from(place.split(' ').nth(4)?);
        let mut filesystem = filesystem.split(' ');
        let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
        match kind {
            "cgroup" if options.split(',').any(|option| option == controller) => {
                Some(Hierarchy { version: Version::V1, mount, controllers: shown::controllers(options) })
            }
            "cgroup2"
                if read(&mount.join("cgroup.controllers"))
                    .split_whitespace()
                    .any(|name| name == controller) =>
            {
                Some(Hierarchy { version: Version::V2, mount, controllers: String::new() })
            }
            _ => None,
        }
    })
}

/// Where the cgroups of a state directory's sandboxes are, below the top of each hierarchy.
fn parent_of(state: &Path) -> PathBuf {
    Path::new("asb").join(format!("{:016x}", fnv(state.as_os_str().as_encoded_bytes())))
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Failure { step: "make cgroup", path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, value: &str) -> Result<(), Failure> {
    std::fs::write(path, value).map_err(|source| Failure { step: "write", path: path.to_owned(), source })
}

fn write_if_there(path: &Path, value: &str) -> Result<(), Failure> {
    if path.exists() { write(path, value) } else { Ok(()) }
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw";

    #[test]
    fn shares_are_those_that_kubernetes_gives() {
        assert_eq!([0, 1, 250, 1000, 4000].map(shares), [2, 2, 256, 1024, 4096]);
        assert_eq!([2, 256, 1024, 262_144].map(weight), [1, 10, 39, 10_000]);
    }

    #[test]
    fn controller_is_found_where_it_really_is() {
        let unified = |_: &Path| "hugetlb pids\n".to_owned();
        let memory = find(HYBRID, "memory", unified).expect("there");
        assert_eq!((memory.version, memory.mount.to_str()), (Version::V1, Some("/sys/fs/cgroup/memory")));
        let pids = find(HYBRID, "pids", unified).expect("there");
        assert_eq!((pids.version, pids.mount.to_str()), (Version::V2, Some("/sys/fs/cgroup/unified")));
        assert_eq!(find(HYBRID, "io", unified), None);
    }
}
