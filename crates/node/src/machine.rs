//! Properties of this machine: its host name, memory, processors and operating system.

use asb_runtime::Stats;
use serde_json::{Value, json};

pub use crate::heartbeat::disk_pressure;

/// A kubelet evicts Pods when less than this is available, in bytes.
const LEAST_MEMORY: u64 = 100 << 20;

/// Ticks per second in `/proc/stat`, on every architecture that we build for.
const TICKS: u64 = 100;

/// The host name, in the form of an object name.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What the whole machine uses.
pub fn stats() -> Stats {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (total, available) = memory(&read("/proc/meminfo"));
    let used = total.zip(available).map(|(total, available)| total.saturating_sub(available));
    Stats {
        cpu_nanos: busy_ticks(&read("/proc/stat")).map(|busy| busy.saturating_mul(1_000_000_000 / TICKS)),
        memory_bytes: used,
        working_set_bytes: used,
        ..Stats::default()
    }
}

/// Time that processors were not idle, in ticks: the first line of `/proc/stat`.
fn busy_ticks(stat: &str) -> Option<u64> {
    let numbers: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map_while(|it| it.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guests are counted as users already.
    let busy = numbers.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4));
    Some(busy.map(|(_, ticks)| ticks).sum())
}

/// Bytes there are, and bytes that programs could have without others giving any up.
fn memory(meminfo: &str) -> (Option<u64>, Option<u64>) {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    (field("MemTotal:"), field("MemAvailable:"))
}

/// Which architecture this is, as Go names it and Kubernetes with it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// Whether so little memory is left that a kubelet would say so.
pub fn is_short_of_memory() -> bool {
    let (_, available) = memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
    available.is_some_and(|available| available < LEAST_MEMORY)
}

/// Whether nearly every process id is taken.
pub fn is_short_of_pids() -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let most = read("/proc/sys/kernel/pid_max").trim().parse::<u64>().ok();
    threads(&read("/proc/loadavg")).zip(most).is_some_and(|(threads, most)| threads > most / 20 * 19)
}

/// Threads that there are: `0.10 0.20 0.30 RUNNING/ALL LAST`.
fn threads(loadavg: &str) -> Option<u64> {
    loadavg.split(' ').nth(3)?.split_once('/')?.1.parse().ok()
}

/// What the distribution calls itself.
fn os_image(os_release: &str) -> String {
    let field = |name: &str| os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let name = field("PRETTY_NAME").or_else(|| field("NAME")).unwrap_or("Linux");
    name.trim_matches(['"', '\'']).to_owned()
}

/// What the machine and its programs are, for `status.nodeInfo`.
pub fn info() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    json!({
        "kubeletVersion": concat!("v1.36.0+asb-", env!("CARGO_PKG_VERSION")),
        "containerRuntimeVersion": concat!("asb://", env!("CARGO_PKG_VERSION")),
        "operatingSystem": "linux", "architecture": architecture(),
        "kernelVersion": rustix::system::uname().release().to_string_lossy(),
        "osImage": os_image(&read("/etc/os-release")),
        "machineID": read("/etc/machine-id"), "bootID": read("/proc/sys/kernel/random/boot_id"),
        "systemUUID": read("/sys/class/dmi/id/product_uuid"), "kubeProxyVersion": "",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_processors_are_not_busy() {
        assert_eq!(busy_ticks("cpu  10 1 5 1000 300 2 3 4 7 0\ncpu0 1 1 1\n"), Some(25));
        assert_eq!(busy_ticks(""), None);
    }

    #[test]
    fn distribution_and_threads_are_read_as_the_kernel_and_it_write_them() {
        assert_eq!(os_image("NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n"), "Debian GNU/Linux 12");
        assert_eq!(os_image("NAME=Alpine\n"), "Alpine");
        assert_eq!(os_image(""), "Linux");
        assert_eq!(threads("0.50 0.43 0.36 2/345 6789\n"), Some(345));
        assert_eq!(threads(""), None);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       2048 kB\nMemFree:  1 kB\nMemAvailable:   1024 kB\n";
        assert_eq!(memory(text), (Some(2 << 20), Some(1 << 20)));
    }
}
