//! What Pods and this machine use: `metrics.k8s.io` for `kubectl top`, and the kubelet's `stats/summary`.
//!
//! The API server narrows the lists down to what was asked for; here everything is measured at once.

use std::time::Duration;

use asb_runtime::{Sandbox, Stats};
use axum::extract::{Extension, State};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{Failure, sandbox_of};
use crate::machine;
use crate::node::{Node, uid};
use crate::usage::{Samples, Subject, Usage};

/// Samples of Pods and of the machine.
#[derive(Default)]
pub struct Meter {
    pods: Samples,
    machine: Samples,
}

type Shared = Extension<std::sync::Arc<Meter>>;

pub async fn pods(State(node): State<Node>, Extension(meter): Shared) -> Result<axum::Json<Value>, Failure> {
    let now = Timestamp::now();
    let items: Vec<_> = measure(&node, &meter.pods).await?.iter().map(|pod| pod.metrics(now)).collect();
    Ok(list("PodMetricsList", items))
}

pub async fn nodes(State(node): State<Node>, Extension(meter): Shared) -> axum::Json<Value> {
    let usage = of_machine(&meter.machine).await;
    let item = json!({
        "kind": "NodeMetrics", "apiVersion": VERSION,
        "metadata": {
            "name": node.name(), "creationTimestamp": Timestamp::now(),
            "labels": {"kubernetes.io/hostname": node.name(), "kubernetes.io/os": "linux"},
        },
        "timestamp": Timestamp::now(), "window": window(usage.window), "usage": quantities(&usage),
    });
    list("NodeMetricsList", vec![item])
}

/// What tools that ask a kubelet directly read.
pub async fn summary(
    State(node): State<Node>,
    Extension(meter): Shared,
) -> Result<axum::Json<Value>, Failure> {
    let (pods, machine) = tokio::join!(measure(&node, &meter.pods), of_machine(&meter.machine));
    let now = Timestamp::now();
    let pods: Vec<_> = pods?.iter().map(|pod| pod.summary(now)).collect();
    let mut of_node = counters(&machine, now);
    of_node["nodeName"] = node.name().into();
    Ok(axum::Json(json!({"node": of_node, "pods": pods})))
}

const VERSION: &str = "metrics.k8s.io/v1beta1";

fn list(kind: &str, items: Vec<Value>) -> axum::Json<Value> {
    axum::Json(json!({"kind": kind, "apiVersion": VERSION, "metadata": {}, "items": items}))
}

struct Measured {
    pod: Pod,
    containers: Vec<(String, Sandbox, Usage)>,
}

/// Every container that runs.
async fn measure(node: &Node, samples: &Samples) -> Result<Vec<Measured>, Failure> {
    let api: Api<Pod> = Api::all(node.shared.client.clone());
    let pods =
        api.list(&ListParams::default()).await.map_err(|error| Failure::internal(error.to_string()))?;
    let mut subjects = Vec::new();
    for (at, pod) in pods.items.iter().enumerate() {
        for container in running(pod) {
            // One that has just ended is not measured.
            if let Ok(sandbox) = sandbox_of(node, pod, Some(container)) {
                let key = format!("{}/{container}/{:?}", uid(pod), sandbox.started_at());
                let started = Some(sandbox.started_at());
                subjects.push(Subject { key, started, what: (at, container.to_owned(), sandbox) });
            }
        }
    }
    let mut measured: Vec<_> =
        pods.items.iter().map(|pod| Measured { pod: pod.clone(), containers: Vec::new() }).collect();
    for ((at, name, sandbox), usage) in samples.measure(subjects, |(_, _, sandbox)| sandbox.stats()).await {
        measured[at].containers.push((name, sandbox, usage));
    }
    measured.retain(|pod| !pod.containers.is_empty());
    Ok(measured)
}

fn running(pod: &Pod) -> impl Iterator<Item = &str> {
    let statuses = pod.status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        let added = status.ephemeral_container_statuses.iter().flatten();
        status.container_statuses.iter().flatten().chain(init).chain(added)
    });
    let runs = |status: &&k8s_openapi::api::core::v1::ContainerStatus| {
        status.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    statuses.filter(runs).map(|status| status.name.as_str())
}

impl Measured {
    fn metrics(&self, now: Timestamp) -> Value {
        let longest = self.containers.iter().map(|(_, _, usage)| usage.window).max().unwrap_or_default();
        let containers: Vec<_> = self
            .containers
            .iter()
            .map(|(name, _, usage)| json!({"name": name, "usage": quantities(usage)}))
            .collect();
        json!({
            "kind": "PodMetrics", "apiVersion": VERSION,
            "metadata": {
                "name": self.pod.name_any(), "namespace": self.pod.namespace(), "creationTimestamp": now,
                "labels": self.pod.labels(),
            },
            "timestamp": now, "window": window(longest), "containers": containers,
        })
    }

    fn summary(&self, now: Timestamp) -> Value {
        let containers: Vec<_> = self
            .containers
            .iter()
            .map(|(name, sandbox, usage)| {
                let mut container = counters(usage, now);
                container["name"] = name.as_str().into();
                container["startTime"] = json!(Timestamp::try_from(sandbox.started_at()).ok());
                container
            })
            .collect();
        let processes: u64 = self.containers.iter().filter_map(|(_, _, usage)| usage.stats.pids).sum();
        json!({
            "podRef": {"name": self.pod.name_any(), "namespace": self.pod.namespace(), "uid": uid(&self.pod)},
            "startTime": self.pod.status.as_ref().and_then(|status| status.start_time.clone()),
            "containers": containers, "process_stats": {"process_count": processes},
        })
    }
}

async fn of_machine(samples: &Samples) -> Usage {
    let subject = Subject { key: "machine".to_owned(), started: None, what: () };
    let measured = samples.measure(vec![subject], |()| machine::stats()).await;
    measured
        .first()
        .map_or(Usage { stats: Stats::default(), nanocores: 0, window: Duration::ZERO }, |it| it.1)
}

/// As every server of metrics writes them.
fn quantities(usage: &Usage) -> Value {
    let memory = usage.stats.working_set_bytes.unwrap_or(0) / 1024;
    json!({"cpu": format!("{}n", usage.nanocores), "memory": format!("{memory}Ki")})
}

fn counters(usage: &Usage, now: Timestamp) -> Value {
    let stats = &usage.stats;
    json!({
        "cpu": {"time": now, "usageNanoCores": usage.nanocores, "usageCoreNanoSeconds": stats.cpu_nanos},
        "memory": {
            "time": now, "usageBytes": stats.memory_bytes, "workingSetBytes": stats.working_set_bytes,
            "rssBytes": stats.rss_bytes,
        },
    })
}

/// A duration as Go writes it.
fn window(window: Duration) -> String {
    format!("{}.{:03}s", window.as_secs(), window.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_kubernetes_reads_them() {
        let stats = Stats { working_set_bytes: Some(3 << 20), ..Stats::default() };
        let usage = Usage { stats, nanocores: 1_500_000, window: Duration::from_millis(2050) };
        assert_eq!(quantities(&usage), json!({"cpu": "1500000n", "memory": "3072Ki"}));
        assert_eq!(window(usage.window), "2.050s");
    }

    #[test]
    fn only_containers_that_run_are_measured() {
        let pod: Pod = serde_json::from_value(json!({"status": {"containerStatuses": [
            {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}},
            {"name": "b", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {}}},
        ]}}))
        .unwrap();
        assert_eq!(running(&pod).collect::<Vec<_>>(), ["a"]);
    }
}
