//! What the kernel says about a process.

use std::path::Path;

use anyhow::Context;

/// Memory in kilobytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    pub rss: u64,
    /// Shared pages count by how many share them.
    pub pss: u64,
    /// Of the resident pages, those that are not from a file.
    pub anonymous: u64,
}

/// What a process has used and has.
#[derive(Debug, Clone, Copy)]
pub struct Activity {
    pub threads: u64,
    /// User and system time, in clock ticks of 10 ms.
    pub ticks: u64,
    /// How often its threads have gone to sleep, which is how often something woke them.
    pub wakeups: u64,
}

pub fn of(pid: u32) -> anyhow::Result<Memory> {
    let text = read(pid, "smaps_rollup")?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Ok(Memory { rss: field("Rss:"), pss: field("Pss:"), anonymous: field("Anonymous:") })
}

pub fn activity(pid: u32) -> anyhow::Result<Activity> {
    let stat = read(pid, "stat")?;
    // The second field is the command's name in parentheses, and may hold spaces.
    let fields: Vec<_> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|it| it.parse::<u64>().ok()).unwrap_or(0);
    let mut wakeups = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        wakeups += line.and_then(|line| line.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Activity { threads: field(20), ticks: field(14) + field(15), wakeups })
}

/// Every process, with its parent.
pub fn processes() -> Vec<(u32, u32)> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid| {
        let stat = read(pid, "stat").ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// The file name of the program a process runs, if that is below `directory`.
pub fn program_below(pid: u32, directory: &Path) -> Option<String> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = program.strip_prefix(directory).ok()?.file_name()?;
    Some(name.to_string_lossy().into_owned())
}

fn read(pid: u32, file: &str) -> anyhow::Result<String> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))
}
