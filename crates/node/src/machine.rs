//! What this machine is called and has.

use serde_json::{Value, json};

use crate::network::NoNetwork;

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

/// The Node object; `no_network` is why sandboxes have loopback only.
pub fn node(no_network: Option<&NoNetwork>) -> Value {
    let resources = json!({"cpu": cpus().to_string(), "memory": memory_bytes().to_string(), "pods": "1000"});
    let now = jiff::Timestamp::now();
    let condition = |kind: &str, status: bool, reason: &str, message: &str| {
        let status = if status { "True" } else { "False" };
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    let network = match no_network {
        None => condition(
            "NetworkUnavailable",
            false,
            "WiresReady",
            "each Pod has an address and a wire of its own",
        ),
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
            "conditions": [condition("Ready", true, "EngineReady", "asb is running Pods"), network],
            "nodeInfo": {
                "kubeletVersion": concat!("asb-", env!("CARGO_PKG_VERSION")), "containerRuntimeVersion": "native",
                "operatingSystem": "linux", "architecture": std::env::consts::ARCH,
                "kernelVersion": rustix::system::uname().release().to_string_lossy(),
                "osImage": "", "machineID": "", "systemUUID": "", "bootID": "", "kubeProxyVersion": "",
            },
        },
    })
}
