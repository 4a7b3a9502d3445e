//! What of the kernel sandboxes are made from, and whether it is there. For people: drivers are judged by using them.

use std::path::Path;

use serde::Serialize;

use crate::cgroup::Cgroups;
use crate::rootless::Lack;
use crate::{Powers, powers, rootless};

/// One thing that sandboxes need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    pub name: &'static str,
    pub value: String,
    /// What does not work without it, and what to do.
    pub problem: Option<String>,
}

/// Looks at the machine; changes nothing.
pub fn facts() -> Vec<Fact> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let uname = rustix::system::uname();
    let memory = rustix::system::sysinfo();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let gigabytes = memory.totalram.saturating_mul(u64::from(memory.mem_unit)) >> 30;
    vec![
        fact("kernel", uname.release().to_string_lossy(), None),
        fact("machine", format!("{cpus} processors, {gigabytes} GiB of memory"), None),
        user_ids(powers::here(), rootless::lack()),
        cgroups(),
        user_namespaces(&read("/proc/sys/user/max_user_namespaces")),
        overlay(&read("/proc/filesystems")),
        seccomp(&read("/proc/sys/kernel/seccomp/actions_avail")),
    ]
}

fn fact(name: &'static str, value: impl Into<String>, problem: Option<&str>) -> Fact {
    Fact { name, value: value.into(), problem: problem.map(str::to_owned) }
}

/// Whom programs in sandboxes are on the machine.
fn user_ids(powers: Powers, lack: Option<Lack>) -> Fact {
    let as_root = "for ids of their own, run the engine as root";
    match powers {
        Powers::Machine => fact("user ids", "65536 of its own for each sandbox", None),
        Powers::Range => {
            let problem = format!(
                "weaker than as root: all sandboxes have the same, and root inside is this user outside; {as_root}"
            );
            fact("user ids", "65536 for all sandboxes together", Some(&problem))
        }
        Powers::One => {
            let lack = lack.map(|lack| format!("; for more, {lack}")).unwrap_or_default();
            let problem = format!(
                "weaker than as root: whoever runs inside is this user outside, with this user's groups; all files of \
                 images are root's; Pods cannot have fsGroup or supplementalGroups{lack}; {as_root}"
            );
            fact("user ids", "one for all sandboxes", Some(&problem))
        }
    }
}

fn cgroups() -> Fact {
    let controllers = Cgroups::detect(Path::new("/"), powers::here())
        .map(|cgroups| cgroups.controllers())
        .unwrap_or_default();
    let there = controllers.iter().filter_map(|(name, version)| Some(format!("{name} (v{})", (*version)?)));
    let missing: Vec<_> =
        controllers.iter().filter(|(_, version)| version.is_none()).map(|(name, _)| *name).collect();
    let value = there.collect::<Vec<_>>().join(", ");
    let problem = (!missing.is_empty() || controllers.is_empty()).then(|| {
        let missing = missing.join(", ");
        match powers::here().is_rootless() {
            true => format!(
                "weaker than as root: no {missing}, so no limits but 1024 processes for each user of a sandbox, and no \
                 freezing; start the engine where cgroups are delegated to this user, as with \
                 `systemd-run --user --scope -p Delegate=yes asb up`, or as root"
            ),
            false => format!(
                "no controller for {missing}: mount the cgroup file system, or enable it in the kernel"
            ),
        }
    });
    let value = if value.is_empty() { "none".to_owned() } else { value };
    Fact { name: "cgroups", value, problem }
}

fn user_namespaces(most: &str) -> Fact {
    match most.parse::<u64>() {
        Ok(most) if most > 0 => fact("user namespaces", format!("up to {most}"), None),
        _ => {
            let problem = "no sandbox can be made; allow them with `sysctl user.max_user_namespaces=15000`";
            fact("user namespaces", "none", Some(problem))
        }
    }
}

fn overlay(filesystems: &str) -> Fact {
    let there = filesystems.split_whitespace().any(|name| name == "overlay");
    match there {
        true => fact("overlay", "there", None),
        false => {
            fact("overlay", "not loaded", Some("images cannot be stacked; load it with `modprobe overlay`"))
        }
    }
}

fn seccomp(actions: &str) -> Fact {
    match actions.split_whitespace().any(|action| action == "errno") {
        true => fact("seccomp", "filters", None),
        false => fact(
            "seccomp",
            "none",
            Some("system calls cannot be filtered; the kernel needs CONFIG_SECCOMP_FILTER"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_what_to_do() {
        assert!(user_namespaces("0").problem.is_some_and(|problem| problem.contains("sysctl")));
        assert!(overlay("nodev\tproc\n\text4").problem.is_some_and(|problem| problem.contains("modprobe")));
        assert!(seccomp("").problem.is_some());
        assert_eq!(overlay("nodev\toverlay").problem, None);
        assert_eq!(user_namespaces("1000").problem, None);
    }

    #[test]
    fn fewer_ids_are_told_with_how_to_get_more() {
        assert_eq!(user_ids(Powers::Machine, None).problem, None);
        let range = user_ids(Powers::Range, None).problem.expect("is weaker");
        assert!(range.contains("weaker than as root") && range.contains("run the engine as root"), "{range}");
        let one = user_ids(Powers::One, Some(Lack::Program("newuidmap"))).problem.expect("is weaker");
        assert!(one.contains("package `uidmap`") && one.contains("fsGroup"), "{one}");
    }
}
