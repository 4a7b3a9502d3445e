//! The Node object of this machine, and the signs of life that Kubernetes expects of it.
//!
//! A kubelet renews its Lease every ten seconds, for a control plane elsewhere. Here a client that can read the Lease has reached
//! the engine: a renewal every five minutes says the same, and wakes an idle machine thirty times less often. The Lease says how
//! long it holds. Its tick also writes the heartbeats of the conditions, which a kubelet writes as often.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node as NodeObject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use crate::machine;
use crate::network::NoNetwork;

const PERIOD: Duration = Duration::from_secs(300);
const FIRST: Duration = Duration::from_secs(1);
/// Two renewals may fail.
const LEASE_SECONDS: u64 = 3 * PERIOD.as_secs();
const NAMESPACE: &str = "kube-node-lease";
/// Pods that the node takes: more than any machine has had memory for. A kubelet's 110 are for nodes of a cluster that share
/// its addresses.
const PODS: u32 = 10_000;

/// Renews the Lease and writes the heartbeats, until the future is dropped.
pub async fn run(client: Client, name: String) {
    // Not at once: what begins with the engine comes first.
    let mut ticks = tokio::time::interval_at(Instant::now() + FIRST, PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = pressures(false, false);
    loop {
        ticks.tick().await;
        let now = Timestamp::now();
        if let Err(error) = renew(&client, &name, now).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the Node's Lease was not renewed");
        }
        let found = pressures(machine::is_short_of_memory(), machine::is_short_of_pids());
        let patch = json!({"status": {"conditions": beats(&told, &found, now)}});
        let nodes: Api<NodeObject> = Api::all(client.clone());
        let written = nodes.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        match written {
            Ok(_) => told = found,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the Node's heartbeat was not written"
                );
            }
        }
    }
}

async fn renew(client: &Client, name: &str, now: Timestamp) -> Result<(), kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = json!({"spec": {
        "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": MicroTime(now),
    }});
    match leases.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => return other.map(drop),
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace: Namespace = read(json!({"metadata": {"name": NAMESPACE}}))?;
    match namespaces.create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
        other => drop(other?),
    }
    let nodes: Api<NodeObject> = Api::all(client.clone());
    let node = nodes.get(name).await?;
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid});
    let lease = json!({"metadata": {"name": name, "ownerReferences": [owner]}, "spec": patch["spec"]});
    leases.create(&PostParams::default(), &read(lease)?).await.map(drop)
}

fn read<T: serde::de::DeserializeOwned>(object: Value) -> Result<T, kube::Error> {
    serde_json::from_value(object).map_err(kube::Error::SerdeError)
}

/// What a heartbeat writes: of conditions that stand, the time alone; of those that have changed, all.
fn beats(before: &[Value], found: &[Value], now: Timestamp) -> Vec<Value> {
    let stands = ["Ready", "NetworkUnavailable", "DiskPressure"].map(|kind| json!({"type": kind}));
    let measured = before.iter().zip(found).map(|(before, found)| match before == found {
        true => json!({"type": found["type"]}),
        false => {
            let mut changed = found.clone();
            changed["lastTransitionTime"] = json!(Time(now));
            changed
        }
    });
    let all = stands.into_iter().chain(measured);
    all.map(|mut condition| {
        condition["lastHeartbeatTime"] = json!(Time(now));
        condition
    })
    .collect()
}

fn plain(kind: &str, holds: bool, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": if holds { "True" } else { "False" }, "reason": reason, "message": message})
}

fn condition(kind: &str, holds: bool, reason: &str, message: &str) -> Value {
    let mut condition = plain(kind, holds, reason, message);
    let now = Time(Timestamp::now());
    (condition["lastHeartbeatTime"], condition["lastTransitionTime"]) = (json!(now), json!(now));
    condition
}

/// The Node's conditions about memory and processes, in the kubelet's words.
fn pressures(memory: bool, pids: bool) -> [Value; 2] {
    let of_memory = match memory {
        true => ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        false => ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    };
    let of_pids = match pids {
        true => ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        false => ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    };
    [
        plain("MemoryPressure", memory, of_memory.0, of_memory.1),
        plain("PIDPressure", pids, of_pids.0, of_pids.1),
    ]
}

/// The Node's condition about its disk; `low` says how low it is.
pub fn disk_pressure(low: Option<String>) -> Value {
    match low {
        Some(low) => condition(
            "DiskPressure",
            true,
            "KubeletHasDiskPressure",
            &format!("new Pods wait, and the Pod that takes most is evicted: the node is low on {low}"),
        ),
        None => condition("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    }
}

/// The Node object; `no_network` is why sandboxes have loopback only, `closed` why they reach nothing outside, `disk` what
/// the disk can hold. A condition that held in `before` keeps the time since when it does.
pub fn node(
    name: &str,
    no_network: Option<&NoNetwork>,
    closed: Option<&str>,
    disk: u64,
    before: Option<&NodeObject>,
) -> Value {
    // As a kubelet writes them.
    let kibibytes = |bytes: u64| format!("{}Ki", bytes / 1024);
    let resources = json!({
        "cpu": machine::cpus().to_string(), "memory": kibibytes(machine::memory_bytes()), "pods": PODS.to_string(),
        "ephemeral-storage": kibibytes(disk),
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
    let now = Time(Timestamp::now());
    let [mut memory, mut pids] = pressures(false, false);
    for condition in [&mut memory, &mut pids] {
        (condition["lastHeartbeatTime"], condition["lastTransitionTime"]) = (json!(now), json!(now));
    }
    let ready = condition("Ready", true, "KubeletReady", "kubelet is posting ready status");
    let conditions = [network, memory, disk_pressure(None), pids, ready].map(|it| since_before(it, before));
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": machine::architecture(),
            "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": machine::architecture(),
        }},
        "status": {
            "capacity": resources, "allocatable": resources,
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name},
            ],
            "conditions": conditions,
            "nodeInfo": machine::info(),
        },
    })
}

fn since_before(mut condition: Value, before: Option<&NodeObject>) -> Value {
    let known = before.iter().filter_map(|node| node.status.as_ref()?.conditions.as_ref()).flatten();
    let mut same = known.filter(|it| condition["type"] == it.type_ && condition["status"] == it.status);
    if let Some(since) = same.next().and_then(|it| it.last_transition_time.as_ref()) {
        condition["lastTransitionTime"] = json!(since);
    }
    condition
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_has_what_schedulers_and_people_look_for() {
        let node = node("here", None, None, 5, None);
        let labels = &node["metadata"]["labels"];
        assert_eq!(labels["kubernetes.io/arch"], machine::architecture());
        assert_eq!(labels["kubernetes.io/hostname"], node["metadata"]["name"]);
        let status: k8s_openapi::api::core::v1::NodeStatus = read(node["status"].clone()).unwrap();
        let conditions = status.conditions.unwrap();
        let of = |kind: &str| conditions.iter().find(|it| it.type_ == kind).map(|it| it.status.as_str());
        let kinds = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];
        assert_eq!(kinds.map(of), [Some("True"), Some("False"), Some("False"), Some("False"), Some("False")]);
        let info = status.node_info.unwrap();
        assert!(
            info.kubelet_version.starts_with('v') && !info.os_image.is_empty() && !info.boot_id.is_empty()
        );
        assert_eq!(status.allocatable.unwrap(), status.capacity.unwrap());
    }

    #[test]
    fn condition_that_held_before_keeps_the_time_since_when_it_does() {
        let object = |ready: &str| -> NodeObject {
            read(json!({"metadata": {}, "status": {"conditions": [
                {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]}}))
            .unwrap()
        };
        let ready = || condition("Ready", true, "KubeletReady", "");
        assert_eq!(
            since_before(ready(), Some(&object("True")))["lastTransitionTime"],
            "2026-01-01T00:00:00Z"
        );
        assert_ne!(
            since_before(ready(), Some(&object("False")))["lastTransitionTime"],
            "2026-01-01T00:00:00Z"
        );
    }

    #[test]
    fn heartbeat_changes_nothing_but_times_unless_something_has_changed() {
        let now = Timestamp::UNIX_EPOCH;
        let beats = beats(&pressures(false, false), &pressures(true, false), now);
        assert_eq!(beats[0], json!({"type": "Ready", "lastHeartbeatTime": Time(now)}));
        assert_eq!(beats[4], json!({"type": "PIDPressure", "lastHeartbeatTime": Time(now)}));
        let memory = &beats[3];
        assert_eq!((&memory["type"], &memory["status"]), (&json!("MemoryPressure"), &json!("True")));
        assert_eq!(memory["lastTransitionTime"], json!(Time(now)));
    }
}
