//! What a sandbox uses, counted over its processes: for engines that have no cgroups.

use std::collections::HashMap;

use crate::Stats;

/// Nanoseconds of a tick in `/proc/PID/stat`, on every architecture that we build for.
const TICK: u64 = 10_000_000;

/// What a process and all its descendants use together. An orphan inside a sandbox remains a descendant of the supervisor: the
/// kernel makes it a child of another process inside.
pub fn usage(first: i32) -> Stats {
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let stats: HashMap<i32, String> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(number)
        .filter_map(|pid| Some((pid, std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)))
        .collect();
    let mut total = Counted::default();
    for pid in family(first, stats.iter().filter_map(|(pid, stat)| Some((*pid, parent(stat)?)))) {
        let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        total.add(stats.get(&pid).map_or("", String::as_str), &smaps);
    }
    if total.threads == 0 {
        return Stats::default();
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

/// The process of this number and all that descend from it, among processes and their parents.
fn family(first: i32, parents: impl Iterator<Item = (i32, i32)>) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, parent) in parents {
        children.entry(parent).or_default().push(pid);
    }
    let (mut family, mut next) = (vec![first], 0);
    while let Some(pid) = family.get(next) {
        // Taken out, so that a number that was given twice meanwhile leads round in no circle.
        let born = children.remove(pid).unwrap_or_default();
        family.extend(born);
        next += 1;
    }
    family
}

fn parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
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
    fn children_of_children_are_of_the_family_and_nobody_else() {
        let parents = [(2, 1), (3, 1), (4, 2), (5, 4), (9, 8), (8, 7)];
        let mut found = family(2, parents.into_iter());
        found.sort_unstable();
        assert_eq!(found, [2, 4, 5]);
        assert_eq!(family(6, parents.into_iter()), [6]);
        assert_eq!(family(7, [(7, 8), (8, 7)].into_iter()), [7, 8, 7], "no circle is followed for ever");
        assert_eq!(parent("7 (a) b) S 1 7 7 0"), Some(1));
    }

    #[test]
    fn this_process_uses_something() {
        let stats = usage(std::process::id() as i32);
        assert!(stats.memory_bytes > Some(1 << 20) && stats.pids > Some(1), "{stats:?}");
        assert_eq!(usage(i32::MAX), Stats::default());
    }
}
