//! What sandboxes have left behind. For tests: after everything was deleted, there must be nothing.

use std::path::Path;

use crate::cgroup::Cgroups;

/// Every trace that sandboxes of this state directory have left on the machine, one sentence each.
///
/// Looks for processes and mounts in every mount namespace, for cgroups, and for files. Namespaces cannot outlive the
/// processes in them, since nothing here ever pins one; what a network leaves is the network's to look for.
pub fn check(dir: &Path) -> Vec<String> {
    let Ok(directory) = dir.canonicalize() else { return Vec::new() };
    let mut traces = Vec::new();
    processes(&directory, &mut traces);
    cgroups(&directory, &mut traces);
    for name in ["sandbox", "slot", "ids"] {
        for entry in std::fs::read_dir(directory.join(name)).into_iter().flatten().flatten() {
            traces.push(format!("file {}", entry.path().display()));
        }
    }
    traces
}

fn processes(directory: &Path, traces: &mut Vec<String>) {
    let programs = directory.join("bin");
    // The kernel writes spaces and the like in octal there.
    let mounted = directory.to_string_lossy().replace(' ', "\\040");
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let process = entry.path();
        if std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe.starts_with(&programs)) {
            traces.push(format!("process {pid} runs a program of {}", directory.display()));
        }
        let mounts = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
        for line in mounts.lines().filter(|line| line.contains(&mounted)) {
            traces.push(format!("process {pid} sees the mount {line}"));
        }
    }
}

fn cgroups(directory: &Path, traces: &mut Vec<String>) {
    let Ok(cgroups) = Cgroups::detect(directory) else { return };
    for parent in cgroups.parents().iter().filter(|parent| parent.exists()) {
        traces.push(format!("cgroup {}", parent.display()));
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                traces.push(format!("cgroup {}", entry.path().display()));
            }
        }
    }
}
