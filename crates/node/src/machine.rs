//! What this machine is called and has.

use asb_runtime::Stats;
use serde_json::{Value, json};

use crate::network::NoNetwork;

/// Ticks per second in `/proc/stat`, on every architecture that we build for.
const TICKS: u64 = 100;

/// The name of the Node: the host name, in the form of an object name.
pub fn name() -> String {
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

fn condition(kind: &str, status: bool, reason: &str, message: &str) -> Value {
    let (now, status) = (jiff::Timestamp::now(), if status { "True" } else { "False" });
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    })
}

/// The Node's condition about its disk; `low` says how low it is.
pub fn disk_pressure(low: Option<String>) -> Value {
    match low {
        Some(low) => condition(
            "DiskPressure",
            true,
            "KubeletHasDiskPressure",
            &format!("new Pods wait, and whoever takes most is evicted: the node is low on {low}"),
        ),
        None => condition("DiskPressure", false, "KubeletHasNoDiskPressure", "the disk has room"),
    }
}

/// The Node object; `no_network` is why sandboxes have loopback only, `closed` why they reach nothing outside, `disk` what
/// the disk can hold.
pub fn node(no_network: Option<&NoNetwork>, closed: Option<&str>, disk: u64) -> Value {
    let resources = json!({
        "cpu": cpus().to_string(), "memory": memory_bytes().to_string(), "pods": "1000",
        "ephemeral-storage": disk.to_string(),
    });
    let network = match no_network {
        None => {
            let outside = closed.map(|why| format!("; nothing leads outside: {why}")).unwrap_or_default();
            let message = format!("each Pod has an address and a wire of its own{outside}");
            condition("NetworkUnavailable", false, "WiresReady", &message)
        }
        Some(NoNetwork(why)) => {
            let message = format!("Pods have no network but their own loopback interface: {why}");
            condition("NetworkUnavailable", true, "LoopbackOnly", &message)
        }
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name(), "labels": {"kubernetes.io/hostname": name(), "kubernetes.io/os": "linux"}},
        "status": {
            "capacity": resources, "allocatable": resources,
            "addresses": [
                {"type": "Hostname", "address": name()}, {"type": "InternalIP", "address": "127.0.0.1"},
            ],
            "conditions": [
                condition("Ready", true, "EngineReady", "asb is running Pods"), network, disk_pressure(None),
            ],
            "nodeInfo": {
                "kubeletVersion": concat!("asb-", env!("CARGO_PKG_VERSION")), "containerRuntimeVersion": "native",
                "operatingSystem": "linux", "architecture": std::env::consts::ARCH,
                "kernelVersion": rustix::system::uname().release().to_string_lossy(),
                "osImage": "", "machineID": "", "systemUUID": "", "bootID": "", "kubeProxyVersion": "",
            },
        },
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
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       2048 kB\nMemFree:  1 kB\nMemAvailable:   1024 kB\n";
        assert_eq!(memory(text), (Some(2 << 20), Some(1 << 20)));
    }
}
