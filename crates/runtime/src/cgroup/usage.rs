//! What a sandbox uses, as its cgroups count it: v1 and v2 spell the same facts differently.

use std::path::Path;

use super::{Cgroups, Hierarchy, Version};
use crate::SandboxId;

/// What a sandbox uses at one moment. A fact that this machine does not count is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Processor time since the start.
    pub cpu_nanos: Option<u64>,
    /// All memory charged to it, with the page cache of its files.
    pub memory_bytes: Option<u64>,
    /// What of that cannot be given back at once: without the cache of files that nobody used lately.
    pub working_set_bytes: Option<u64>,
    /// Memory of processes that is backed by no file.
    pub rss_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Bytes read from and written to disks.
    pub io_bytes: Option<(u64, u64)>,
}

impl Stats {
    /// With as much of what others use as each of so many has of it.
    pub(crate) fn with_part_of(self, all: Stats, heads: u64) -> Self {
        let part = |own: Option<u64>, all: Option<u64>| match (own, all) {
            (None, None) => None,
            _ => Some(own.unwrap_or(0) + all.unwrap_or(0) / heads.max(1)),
        };
        let (own_io, all_io) = (self.io_bytes.unzip(), all.io_bytes.unzip());
        Self {
            cpu_nanos: part(self.cpu_nanos, all.cpu_nanos),
            memory_bytes: part(self.memory_bytes, all.memory_bytes),
            working_set_bytes: part(self.working_set_bytes, all.working_set_bytes),
            rss_bytes: part(self.rss_bytes, all.rss_bytes),
            pids: part(self.pids, all.pids),
            io_bytes: part(own_io.0, all_io.0).zip(part(own_io.1, all_io.1)),
        }
    }
}

impl Cgroups {
    /// Reads the counters of a sandbox, by the slot it began as; those of one that is gone are all missing.
    pub fn usage(&self, slot: &SandboxId) -> Stats {
        let read = |hierarchy: &Hierarchy, file: &str| {
            std::fs::read_to_string(self.place(hierarchy, slot).join(file)).ok()
        };
        let mut stats = Stats::default();
        if let Some(hierarchy) = &self.cpuacct {
            stats.cpu_nanos = match hierarchy.version {
                Version::V1 => read(hierarchy, "cpuacct.usage").as_deref().and_then(number),
                Version::V2 => read(hierarchy, "cpu.stat")
                    .as_deref()
                    .and_then(|text| field(text, "usage_usec"))
                    .map(|micros| micros.saturating_mul(1000)),
            };
        }
        if let Some(hierarchy) = &self.memory {
            let (usage, inactive, rss) = match hierarchy.version {
                Version::V1 => ("memory.usage_in_bytes", "total_inactive_file", "total_rss"),
                Version::V2 => ("memory.current", "inactive_file", "anon"),
            };
            let detail = read(hierarchy, "memory.stat").unwrap_or_default();
            stats.memory_bytes = read(hierarchy, usage).as_deref().and_then(number);
            stats.working_set_bytes =
                stats.memory_bytes.map(|bytes| bytes.saturating_sub(field(&detail, inactive).unwrap_or(0)));
            stats.rss_bytes = field(&detail, rss);
        }
        if let Some(hierarchy) = &self.pids {
            stats.pids = read(hierarchy, "pids.current").as_deref().and_then(number);
            if hierarchy.version == Version::V2 {
                // Only there where the machine has the controller and lets this cgroup have it.
                stats.io_bytes = read(hierarchy, "io.stat").as_deref().map(io);
            }
        }
        stats
    }
}

/// Where processor time is counted: a controller of its own in v1, part of every cgroup in v2.
pub(super) fn find_cpuacct(mounts: &str, read: impl Fn(&Path) -> String) -> Option<Hierarchy> {
    super::find(mounts, "cpuacct", &read)
        .or_else(|| super::find(mounts, "cpu", &read).filter(|hierarchy| hierarchy.version == Version::V2))
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| number(line.strip_prefix(name)?.strip_prefix(' ')?))
}

/// Bytes read and written, of all devices together: `8:0 rbytes=1 wbytes=2 rios=…`.
fn io(text: &str) -> (u64, u64) {
    let sum = |name: &str| {
        let of = |word: &str| number(word.strip_prefix(name)?);
        text.split_whitespace().filter_map(of).sum()
    };
    (sum("rbytes="), sum("wbytes="))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn cgroups(mount: &Path, version: Version) -> (Cgroups, SandboxId) {
        let hierarchy = Some(Hierarchy { version, mount: mount.to_owned(), controllers: String::new() });
        let cgroups = Cgroups {
            memory: hierarchy.clone(),
            pids: hierarchy.clone(),
            cpu: hierarchy.clone(),
            cpuacct: hierarchy,
            cpuset: None,
            freezer: None,
            parent: PathBuf::from("asb/x"),
            powers: crate::Powers::Machine,
        };
        (cgroups, SandboxId::new("a").expect("valid"))
    }

    fn with_files(version: Version, files: &[(&str, &str)]) -> Stats {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("asb/x/a");
        std::fs::create_dir_all(&place).expect("made");
        files.iter().for_each(|(name, text)| std::fs::write(place.join(name), text).expect("written"));
        let (cgroups, sandbox) = cgroups(dir.path(), version);
        cgroups.usage(&sandbox)
    }

    #[test]
    fn both_versions_tell_the_same() {
        let old = with_files(
            Version::V1,
            &[
                ("cpuacct.usage", "7000\n"),
                ("memory.usage_in_bytes", "900\n"),
                ("memory.stat", "rss 1\ninactive_file 2\ntotal_rss 300\ntotal_inactive_file 100\n"),
                ("pids.current", "3\n"),
            ],
        );
        let new = with_files(
            Version::V2,
            &[
                ("cpu.stat", "usage_usec 7\nuser_usec 5\n"),
                ("memory.current", "900\n"),
                ("memory.stat", "anon 300\nfile 600\ninactive_file 100\n"),
                ("pids.current", "3\n"),
            ],
        );
        let expected = Stats {
            cpu_nanos: Some(7000),
            memory_bytes: Some(900),
            working_set_bytes: Some(800),
            rss_bytes: Some(300),
            pids: Some(3),
            io_bytes: None,
        };
        assert_eq!((old, new), (expected, expected));
    }

    #[test]
    fn bytes_of_all_disks_are_summed_up() {
        let text = "8:0 rbytes=10 wbytes=1 rios=1\n8:16 rbytes=5 wbytes=2 rios=9\n";
        assert_eq!(with_files(Version::V2, &[("io.stat", text)]).io_bytes, Some((15, 3)));
    }

    #[test]
    fn sandbox_without_cgroups_uses_nothing_that_is_known() {
        assert_eq!(with_files(Version::V1, &[]), Stats::default());
    }

    #[test]
    fn processor_time_is_found_in_either_version() {
        let separate = "1 1 0:1 / /a rw - cgroup cgroup rw,cpu\n1 1 0:1 / /b rw - cgroup cgroup rw,cpuacct";
        let found = find_cpuacct(separate, |_| String::new()).expect("there");
        assert_eq!((found.version, found.mount.to_str()), (Version::V1, Some("/b")));
        let unified = "1 1 0:1 / /c rw - cgroup2 cgroup2 rw";
        let found = find_cpuacct(unified, |_| "cpu memory pids".to_owned()).expect("there");
        assert_eq!((found.version, found.mount.to_str()), (Version::V2, Some("/c")));
    }
}
