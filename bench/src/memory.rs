//! What the kernel says about a process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

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
#[derive(Debug, Clone)]
pub struct Activity {
    /// User and system time, in steps of 10 ms.
    pub cpu: Duration,
    /// How often each thread has gone to sleep, which is how often something woke it.
    sleeps: BTreeMap<OsString, u64>,
}

impl Activity {
    pub fn threads(&self) -> usize {
        self.sleeps.len()
    }

    /// How often threads were woken since. Those that have ended meanwhile are not counted.
    pub fn wakeups_since(&self, earlier: &Self) -> u64 {
        self.sleeps.iter().map(|(thread, count)| count - earlier.sleeps.get(thread).unwrap_or(&0)).sum()
    }
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
    let mut sleeps = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sleeps.insert(task.file_name(), line.and_then(|line| line.trim().parse().ok()).unwrap_or(0));
    }
    Ok(Activity { cpu: Duration::from_millis(10 * (field(14) + field(15))), sleeps })
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
