//! What a sandbox sees of its own cgroups, below `/sys/fs/cgroup`. Pure.

use asb_supervisor::launch::CgroupView;

use super::{Cgroups, Version};
use crate::SandboxId;

/// Every controller of the first version of cgroups, to tell them from other options of a mount.
const CONTROLLERS: [&str; 14] = [
    "cpuset",
    "cpu",
    "cpuacct",
    "blkio",
    "memory",
    "devices",
    "freezer",
    "net_cls",
    "perf_event",
    "net_prio",
    "hugetlb",
    "pids",
    "rdma",
    "misc",
];

impl Cgroups {
    /// The cgroups that a slot joins: those, and no others, are its own.
    pub fn shown(&self, slot: &SandboxId) -> Vec<CgroupView> {
        let view = |hierarchy| CgroupView { name: name(hierarchy), path: self.place(hierarchy, slot) };
        self.hierarchies().into_iter().map(view).collect()
    }
}

/// Where a hierarchy is mounted by custom, below `/sys/fs/cgroup`.
fn name(hierarchy: &super::Hierarchy) -> Option<String> {
    (hierarchy.version == Version::V1).then(|| hierarchy.controllers.clone())
}

/// The controllers among the options of a mount, in the kernel's order.
pub(super) fn controllers(options: &str) -> String {
    let controllers: Vec<_> = options.split(',').filter(|option| CONTROLLERS.contains(option)).collect();
    controllers.join(",")
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::super::Hierarchy;
    use super::*;
    use crate::Powers;

    fn hierarchy(version: Version, mount: &str, controllers: &str) -> Option<Hierarchy> {
        Some(Hierarchy { version, mount: mount.into(), controllers: controllers.to_owned() })
    }

    #[test]
    fn controllers_are_told_from_other_options() {
        assert_eq!(controllers("rw,cpu,cpuacct"), "cpu,cpuacct");
        assert_eq!(controllers("rw,xattr,name=systemd"), "");
        assert_eq!(controllers("rw,memory,release_agent=/sbin/x"), "memory");
    }

    #[test]
    fn only_what_the_slot_joins_is_shown_and_once() {
        let cpu = hierarchy(Version::V1, "/c/cpu", "cpu,cpuacct");
        let cgroups = Cgroups {
            memory: hierarchy(Version::V1, "/c/memory", "memory"),
            pids: hierarchy(Version::V2, "/c/unified", ""),
            cpu: cpu.clone(),
            cpuacct: cpu,
            cpuset: None,
            freezer: hierarchy(Version::V1, "/c/freezer", "freezer"),
            parent: PathBuf::from("asb/0"),
            powers: Powers::Machine,
        };
        let shown = cgroups.shown(&SandboxId::new("s").unwrap());
        let names: Vec<_> = shown.iter().map(|view| (view.name.as_deref(), view.path.as_path())).collect();
        let expected = [
            (Some("memory"), Path::new("/c/memory/asb/0/s")),
            (None, Path::new("/c/unified/asb/0/s")),
            (Some("cpu,cpuacct"), Path::new("/c/cpu/asb/0/s")),
        ];
        assert_eq!(names, expected);
    }
}
