//! What a sandbox uses, counted over its processes: for engines that have no cgroups.

use std::path::Path;

use crate::Stats;

/// Nanoseconds of a tick in `/proc/PID/stat`, on every architecture that we build for.
const TICK: u64 = 10_000_000;

/// What the processes of a pid namespace use together, by the process that is its first.
pub fn usage(first: i32) -> Stats {
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/pid")).ok();
    let Some(ours) = namespace(&Path::new("/proc").join(first.to_string())) else { return Stats::default() };
    let is_process = |name: &std::ffi::OsStr| {
        name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = all.filter(|entry| is_process(&entry.file_name())).map(|entry| entry.path());
    let mut total = Counted::default();
    for process in processes.filter(|process| namespace(process).as_ref() == Some(&ours)) {
        let read = |name: &str| std::fs::read_to_string(process.join(name)).unwrap_or_default();
        total.add(&read("stat"), &read("smaps_rollup"));
    }
    let Counted { ticks, kibibytes, threads } = total;
    let memory = kibibytes * 1024;
    Stats {
        cpu_nanos: Some(ticks * TICK),
        memory_bytes: Some(memory),
        working_set_bytes: Some(memory),
        pids: Some(threads),
        ..Stats::default()
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    ticks: u64,
    kibibytes: u64,
    threads: u64,
}

impl Counted {
    /// Adds a process, and those of its children that have ended and been collected.
    fn add(&mut self, stat: &str, smaps: &str) {
        // The second field is the command's name in parentheses, and may itself hold any character.
        let fields: Vec<u64> = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
            .unwrap_or_default();
        self.ticks += fields.iter().skip(11).take(4).sum::<u64>();
        self.threads += fields.get(17).copied().unwrap_or(0);
        // What is shared with others is counted in parts.
        let share = smaps
            .lines()
            .find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok());
        self.kibibytes += share.unwrap_or(0u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_processes_are_summed_up() {
        let mut total = Counted::default();
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 10 20 3 4 20 0 5 0 1234 0 0\n";
        total.add(stat, "55d0-7ffe ---p 0 00:00 0 [rollup]\nRss:  900 kB\nPss:      120 kB\n");
        total.add(stat, "");
        assert_eq!(total, Counted { ticks: 74, kibibytes: 120, threads: 10 });
        total.add("", "");
        assert_eq!(total.ticks, 74);
    }

    #[test]
    fn own_namespace_has_processes_that_use_something() {
        let stats = usage(std::process::id() as i32);
        assert!(stats.memory_bytes > Some(1 << 20) && stats.pids > Some(1), "{stats:?}");
        assert_eq!(usage(i32::MAX), Stats::default());
    }
}
