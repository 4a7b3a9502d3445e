//! Events: what users are told beside the status. They are `events.k8s.io/v1` and say which action led to them.

use std::time::Duration;

use jiff::Timestamp;
use kube::{Client, Resource};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::object::Key;

/// Events that wait to be written. More are dropped: they inform, nothing depends on them.
const BACKLOG: usize = 1000;

/// How long an event waits before it is written, after a pause without any.
const HOLD: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Normal,
    Warning,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: Type,
    pub reason: &'static str,
    pub action: &'static str,
    pub note: String,
}

/// The event as an object, told by `reporter` about `regarding`.
pub fn object<K>(reporter: &str, regarding: &K, event: &Event, now: Timestamp) -> Value
where
    K: Resource<DynamicType = ()>,
{
    let Key { namespace, name } = Key::of(regarding);
    let kind = match event.kind {
        Type::Normal => "Normal",
        Type::Warning => "Warning",
    };
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"generateName": format!("{name}-"), "namespace": namespace},
        // Kubernetes wants exactly six digits here.
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        "reportingController": reporter,
        "reportingInstance": reporter,
        "action": event.action,
        "type": kind,
        "reason": event.reason,
        "note": event.note,
        "regarding": {
            "apiVersion": K::api_version(&()), "kind": K::kind(&()),
            "namespace": namespace, "name": name, "uid": regarding.meta().uid,
            "resourceVersion": regarding.meta().resource_version,
        },
    })
}

/// Writes an event.
pub async fn write(client: &Client, event: &Value) -> Result<(), kube::Error> {
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
    let request = kube::core::Request::new(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"));
    let body = serde_json::to_vec(event).map_err(kube::Error::SerdeError)?;
    let request = request.create(&Default::default(), body).map_err(kube::Error::BuildRequest)?;
    client.request::<Value>(request).await.map(drop)
}

/// Takes events that somebody else writes later, so that nobody waits for them.
#[derive(Clone)]
pub struct Recorder {
    reporter: &'static str,
    events: Option<mpsc::Sender<Value>>,
}

impl Recorder {
    /// A recorder, and the work of writing what it takes, which ends when nobody has the recorder any more.
    /// Disabled, it drops everything.
    pub fn new(client: Client, reporter: &'static str, enabled: bool) -> (Self, impl Future<Output = ()>) {
        let (events, mut queue) = mpsc::channel(BACKLOG);
        let work = async move {
            while let Some(event) = queue.recv().await {
                // What it tells of has just begun, and is what users wait for.
                if queue.is_empty() {
                    tokio::time::sleep(HOLD).await;
                }
                if let Err(error) = write(&client, &event).await {
                    tracing::debug!(error = &error as &dyn std::error::Error, "event not written");
                }
            }
        };
        (Self { reporter, events: enabled.then_some(events) }, work)
    }

    pub fn record<K: Resource<DynamicType = ()>>(&self, regarding: &K, event: &Event) {
        let Some(events) = &self.events else { return };
        // A full backlog is an answer too: events must never hold up what they tell of.
        let _ = events.try_send(object(self.reporter, regarding, event, Timestamp::now()));
    }
}
