//! What sandboxes have left behind. For tests: after everything was deleted, there must be nothing.

use std::collections::HashSet;
use std::path::Path;

use crate::cgroup::Cgroups;
use crate::powers;

/// Every trace that sandboxes of this state directory have left on the machine, one sentence each.
///
/// Looks for processes and mounts in every mount namespace, for cgroups, and for files. Namespaces cannot outlive the
/// processes in them, since nothing here ever pins one; what a network leaves is the network's to look for.
pub fn check(dir: &Path) -> Vec<String> {
    look(dir, &HashSet::new())
}

/// The same beside a running program, whose parked slots are not left behind but waiting.
pub fn check_but_parked(dir: &Path) -> Vec<String> {
    look(dir, &names(&dir.join("slot")).into_iter().collect())
}

fn look(dir: &Path, parked: &HashSet<String>) -> Vec<String> {
    let Ok(directory) = dir.canonicalize() else { return Vec::new() };
    let mut traces = Vec::new();
    let waiting = cgroups(&directory, parked, &mut traces);
    processes(&directory, &waiting, &mut traces);
    for folder in ["sandbox", "slot"].map(|name| directory.join(name)) {
        let left = names(&folder).into_iter().filter(|name| !parked.contains(name));
        traces.extend(left.map(|name| format!("file {}", folder.join(name).display())));
    }
    let ids = directory.join("ids");
    for link in names(&ids).into_iter().map(|name| ids.join(name)) {
        let holder = std::fs::read_link(&link).unwrap_or_default();
        if !holder.to_str().is_some_and(|holder| parked.contains(holder)) {
            traces.push(format!("file {}", link.display()));
        }
    }
    traces
}

fn processes(directory: &Path, waiting: &HashSet<u32>, traces: &mut Vec<String>) {
    let programs = directory.join("bin");
    // The kernel writes spaces and the like in octal there.
    let mounted = directory.to_string_lossy().replace(' ', "\\040");
    for name in names(Path::new("/proc")) {
        let Some(pid) = name.parse().ok().filter(|pid| !waiting.contains(pid)) else { continue };
        let process = Path::new("/proc").join(name);
        if std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe.starts_with(&programs)) {
            traces.push(format!("process {pid} runs a program of {}", directory.display()));
        }
        let mounts = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
        for line in mounts.lines().filter(|line| line.contains(&mounted)) {
            traces.push(format!("process {pid} sees the mount {line}"));
        }
    }
}

/// Answers with the processes in the cgroups of parked slots.
fn cgroups(directory: &Path, parked: &HashSet<String>, traces: &mut Vec<String>) -> HashSet<u32> {
    let mut waiting = HashSet::new();
    let Ok(cgroups) = Cgroups::detect(directory, powers::here()) else { return waiting };
    for parent in cgroups.parents().iter().filter(|parent| parent.exists()) {
        let children = names(parent).into_iter().filter(|name| parent.join(name).is_dir());
        let (slots, left): (Vec<_>, Vec<_>) = children.partition(|name| parked.contains(name));
        for slot in &slots {
            let inside = std::fs::read_to_string(parent.join(slot).join("cgroup.procs")).unwrap_or_default();
            waiting.extend(inside.lines().filter_map(|line| line.parse::<u32>().ok()));
        }
        if slots.is_empty() {
            traces.push(format!("cgroup {}", parent.display()));
        }
        traces.extend(left.into_iter().map(|name| format!("cgroup {}", parent.join(name).display())));
    }
    waiting
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
