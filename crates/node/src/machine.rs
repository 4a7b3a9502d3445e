//! What this machine is called and has.

use serde_json::{Value, json};

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

/// The Node object.
pub fn node() -> Value {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let resources = json!({"cpu": cpus.to_string(), "memory": memory_bytes().to_string(), "pods": "1000"});
    let now = jiff::Timestamp::now();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name(), "labels": {"kubernetes.io/hostname": name(), "kubernetes.io/os": "linux"}},
        "status": {
            "capacity": resources, "allocatable": resources,
            "addresses": [
                {"type": "Hostname", "address": name()}, {"type": "InternalIP", "address": "127.0.0.1"},
            ],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "EngineReady", "message": "asb is running Pods",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
            "nodeInfo": {
                "kubeletVersion": concat!("asb-", env!("CARGO_PKG_VERSION")), "containerRuntimeVersion": "native",
                "operatingSystem": "linux", "architecture": std::env::consts::ARCH,
                "kernelVersion": rustix::system::uname().release().to_string_lossy(),
                "osImage": "", "machineID": "", "systemUUID": "", "bootID": "", "kubeProxyVersion": "",
            },
        },
    })
}
