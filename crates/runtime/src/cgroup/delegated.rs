//! Cgroups without root: those below the one this program was started in, where its user may make some.
//!
//! Whoever starts the engine delegates: `systemd-run --user --scope -p Delegate=yes asb up`, for example.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::{Cgroups, Failure, Hierarchy, Version, find, make_directory, parent_of, usage, write};
use crate::Powers;

/// Where the engine itself goes: a cgroup of the second version has processes or children with limits, not both.
const ENGINE: &str = "asb-engine";

impl Cgroups {
    /// Those that this user may make: `own` is `/proc/self/cgroup`.
    pub(super) fn delegated(state: &Path, powers: Powers, mounts: &str, own: &str) -> Self {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let delegated = |controller: &str| {
            let hierarchy = find(mounts, controller, read)?;
            let mount = usable(&place(&hierarchy, controller, own)?)?;
            let hierarchy = Hierarchy { mount, ..hierarchy };
            let there = hierarchy.version == Version::V1
                || read(&hierarchy.mount.join("cgroup.controllers"))
                    .split_whitespace()
                    .any(|it| it == controller);
            there.then_some(hierarchy)
        };
        let (pids, cpu) = (delegated("pids"), delegated("cpu"));
        let freezer =
            delegated("freezer").or_else(|| pids.clone().filter(|pids| pids.version == Version::V2));
        let counted = usage::find_cpuacct(mounts, read).is_some_and(|it| it.version == Version::V1);
        let cpuacct = if counted { delegated("cpuacct") } else { cpu.clone() };
        let (memory, parent) = (delegated("memory"), parent_of(state));
        Self { memory, pids, cpu, cpuacct, cpuset: None, freezer, parent, powers }
    }
}

/// The cgroup that this program is in, in the hierarchy of a controller.
fn place(hierarchy: &Hierarchy, controller: &str, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_it = match hierarchy.version {
            Version::V1 => controllers.split(',').any(|name| name == controller),
            Version::V2 => controllers.is_empty(),
        };
        is_it.then_some(path)
    })?;
    // An engine that was started by one that has moved is in the same place.
    let path = path.strip_suffix(ENGINE).unwrap_or(path);
    Some(hierarchy.mount.join(path.trim_matches('/')))
}

/// The same if this user may make cgroups there and put processes into them.
fn usable(place: &Path) -> Option<PathBuf> {
    let may = |path: &Path, what| accessat(CWD, path, what, AtFlags::EACCESS).is_ok();
    let all =
        may(place, Access::WRITE_OK | Access::EXEC_OK) && may(&place.join("cgroup.procs"), Access::WRITE_OK);
    all.then(|| place.to_owned())
}

/// Moves this program out of the way, so that the cgroups beside it can have limits.
pub(super) fn make_room(place: &Path) -> Result<(), Failure> {
    let own = place.join(ENGINE);
    make_directory(&own)?;
    write(&own.join("cgroup.procs"), "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cgroup_is_found_in_each_version() {
        let at = |version, controller, own| {
            let hierarchy = Hierarchy { version, mount: "/c".into(), controllers: String::new() };
            place(&hierarchy, controller, own).map(|path| path.display().to_string())
        };
        let own = "4:memory:/users/a\n1:cpu,cpuacct:/\n0::/user.slice/scope/asb-engine\n";
        assert_eq!(at(Version::V1, "memory", own).as_deref(), Some("/c/users/a"));
        assert_eq!(at(Version::V1, "cpuacct", own).as_deref(), Some("/c/"));
        assert_eq!(at(Version::V2, "pids", own).as_deref(), Some("/c/user.slice/scope"));
        assert_eq!(at(Version::V1, "pids", own), None);
    }

    #[test]
    fn only_controllers_that_were_delegated_are_used() {
        let top = tempfile::tempdir().expect("temporary directory");
        let scope = top.path().join("scope");
        std::fs::create_dir(&scope).expect("made");
        let mounts = format!("1 1 0:1 / {} rw - cgroup2 cgroup2 rw", top.path().display());
        std::fs::write(top.path().join("cgroup.controllers"), "cpu memory pids").expect("written");
        let detect = || Cgroups::delegated(Path::new("/s"), Powers::Range, &mounts, "0::/scope\n").enforced();
        assert!(!detect().memory, "without cgroup.procs nothing can be put there");
        std::fs::write(scope.join("cgroup.procs"), "").expect("written");
        std::fs::write(scope.join("cgroup.controllers"), "memory pids").expect("written");
        let enforced = detect();
        assert_eq!((enforced.memory, enforced.processes, enforced.cpu), (true, true, false));
    }
}
