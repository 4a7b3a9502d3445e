//! Events about Pods that wait or have to leave, in the words of kube-scheduler and of the taint eviction controller.
//!
//! They are written by a task of their own: no Pod waits for one. One that comes again is counted on the object that is there.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Scheduling;
use crate::background;
use crate::ops::{Api, Part, WriteOptions};

const EVENTS: &str = "events";
/// Events that are remembered in order to count them. With more, all are forgotten, and counts begin again.
const KNOWN: usize = 4096;

/// Something that has to be told about a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Failure {
    source: Source,
    namespace: String,
    name: String,
    uid: String,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Source {
    Scheduler,
    Taints,
}

impl Failure {
    pub fn unschedulable(namespace: &str, name: &str, uid: &str, message: String) -> Self {
        Self::new(Source::Scheduler, namespace, name, uid, message)
    }

    pub fn taint(namespace: &str, name: &str, uid: &str, message: String) -> Self {
        Self::new(Source::Taints, namespace, name, uid, message)
    }

    fn new(source: Source, namespace: &str, name: &str, uid: &str, message: String) -> Self {
        Self { source, namespace: namespace.into(), name: name.into(), uid: uid.into(), message }
    }

    /// The event as its source writes it on a cluster.
    fn event(&self, name: &str, host: &str, at: Timestamp) -> Value {
        let about = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": self.namespace, "name": self.name, "uid": self.uid,
        });
        let mut event = json!({
            "metadata": {"name": name, "namespace": self.namespace},
            "involvedObject": about, "message": self.message,
        });
        let more = match self.source {
            Source::Scheduler => json!({
                "type": "Warning", "reason": "FailedScheduling", "action": "Scheduling", "eventTime": micro(at),
                "reportingComponent": "default-scheduler", "reportingInstance": format!("default-scheduler-{host}"),
                "source": {}, "firstTimestamp": null, "lastTimestamp": null,
            }),
            Source::Taints => json!({
                "type": "Normal", "reason": "TaintManagerEviction", "source": {"component": "taint-eviction-controller"},
                "reportingComponent": "taint-eviction-controller", "reportingInstance": "", "count": 1,
                "firstTimestamp": second(at), "lastTimestamp": second(at),
            }),
        };
        if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
            event.extend(more);
        }
        event
    }

    /// The same event, once more.
    fn count(&self, event: &Value, count: u64, at: Timestamp) -> Value {
        let mut event = event.clone();
        match self.source {
            Source::Scheduler => event["series"] = json!({"count": count, "lastObservedTime": micro(at)}),
            Source::Taints => (event["count"], event["lastTimestamp"]) = (count.into(), second(at).into()),
        }
        event
    }
}

fn micro(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn second(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Scheduling {
    pub(super) fn report(&self, failure: Failure) {
        // A full backlog drops it: nothing may wait for an event.
        let _ = self.failures.try_send(failure);
    }
}

/// Writes events until the server stops.
pub(super) async fn run(api: Arc<Api>, mut failures: mpsc::Receiver<Failure>) {
    let mut known: HashMap<Failure, (String, u64)> = HashMap::new();
    loop {
        let failure = tokio::select! {
            () = api.stopping.cancelled() => return,
            failure = failures.recv() => failure,
        };
        let (Some(failure), Some(scheduling)) = (failure, &api.scheduling) else { return };
        background::step("scheduling events", async { write(&api, &scheduling.node, &mut known, failure) })
            .await;
    }
}

/// Writes an event, or counts it on the one that is there.
fn write(api: &Api, node: &str, known: &mut HashMap<Failure, (String, u64)>, failure: Failure) {
    let at = Timestamp::now();
    if let Some((name, count)) = known.get_mut(&failure) {
        *count += 1;
        if recount(api, &failure, name, *count, at) {
            return;
        }
    }
    if known.len() >= KNOWN {
        known.clear();
    }
    let name = format!("{}.{:x}", failure.name, at.as_nanosecond());
    create(api, &failure, failure.event(&name, node, at));
    known.insert(failure, (name, 1));
}

/// Whether the event is still there and was counted.
fn recount(api: &Api, failure: &Failure, name: &str, count: u64, at: Timestamp) -> bool {
    let Some(events) = api.registry.stored_in(EVENTS) else { return false };
    let step = |event: &Value| Ok(failure.count(event, count, at));
    let options = WriteOptions::default();
    api.change(&events, &failure.namespace, name, Part::Main, &options, None, step).is_ok()
}

fn create(api: &Api, failure: &Failure, event: Value) {
    let Some(events) = api.registry.stored_in(EVENTS) else { return };
    if let Err(error) = api.create(&events, &failure.namespace, event, &WriteOptions::default()) {
        // Usual while the namespace is being deleted.
        tracing::debug!(about = failure.name, error = error.message, "event not recorded");
    }
}
