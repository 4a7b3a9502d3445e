//! Events about Pods and claims, in the kubelet's words, so that `kubectl describe` tells the story.
//!
//! An event never holds up what it tells of: the caller hands it to a queue, and a task writes it when no container has been
//! started for a moment. What happens again and again is one object with a count (`series`).

mod series;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Event, EventSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::pod::container::Slot;
use series::{Series, Write};

/// Events that wait to be written. More are dropped: nothing depends on them.
const BACKLOG: usize = 4096;
/// How long after the last start an event is written.
const QUIET: Duration = Duration::from_millis(250);
/// An event is not held back for longer, however many containers start.
const LONGEST: Duration = Duration::from_secs(3);

/// Which part of Kubernetes an event comes from. This engine is all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    Kubelet,
    Scheduler,
    /// Reports claims that are bound, or are not.
    Volumes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Type {
    Normal,
    Warning,
}

/// An event that is to be written.
struct Note {
    source: Source,
    kind: Type,
    reason: &'static str,
    message: String,
    about: ObjectReference,
    at: Timestamp,
    taken: Instant,
}

/// Takes events for the task that writes them. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    notes: mpsc::Sender<Note>,
    pace: Arc<Pace>,
    node: Arc<str>,
}

impl Recorder {
    /// A recorder of the node of this name, and the work of writing what it takes, which ends with the last clone of the
    /// recorder.
    pub fn new(client: Client, node: String) -> (Self, impl Future<Output = ()>) {
        let (notes, queue) = mpsc::channel(BACKLOG);
        let pace = Arc::new(Pace { origin: Instant::now(), last: AtomicU64::new(0) });
        let node: Arc<str> = node.into();
        let writer = Writer { client, node: node.clone() };
        (Self { notes, pace: pace.clone(), node }, write_all(writer, queue, pace))
    }

    /// A container is being started: what waits to be written can wait a little longer.
    pub fn hold(&self) {
        self.pace.last.store(self.pace.origin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Records that something about a Pod went as it should.
    pub fn tell(&self, pod: &Pod, reason: &'static str, message: impl Into<String>) {
        self.record(Source::Kubelet, Type::Normal, about(pod), reason, message.into());
    }

    /// Records a warning about a Pod.
    pub fn warn(&self, pod: &Pod, reason: &'static str, message: impl Into<String>) {
        self.record(Source::Kubelet, Type::Warning, about(pod), reason, message.into());
    }

    /// The same about one of its containers.
    pub fn tell_of(&self, pod: &Pod, slot: Slot, reason: &'static str, message: impl Into<String>) {
        self.record(Source::Kubelet, Type::Normal, container(pod, slot), reason, message.into());
    }

    pub fn warn_of(&self, pod: &Pod, slot: Slot, reason: &'static str, message: impl Into<String>) {
        self.record(Source::Kubelet, Type::Warning, container(pod, slot), reason, message.into());
    }

    /// Records that a Pod was bound to this node.
    pub fn scheduled(&self, pod: &Pod) {
        let place = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        let message = format!("Successfully assigned {place} to {}", self.node);
        self.record(Source::Scheduler, Type::Normal, about(pod), "Scheduled", message);
    }

    /// Records that something about a claim went as it should.
    pub fn tell_of_claim(&self, claim: &PersistentVolumeClaim, reason: &'static str, message: String) {
        self.record(Source::Volumes, Type::Normal, about(claim), reason, message);
    }

    /// Records a warning about a claim.
    pub fn warn_of_claim(&self, claim: &PersistentVolumeClaim, reason: &'static str, message: String) {
        self.record(Source::Volumes, Type::Warning, about(claim), reason, message);
    }

    /// Records a warning about a volume.
    pub fn warn_of_volume(&self, volume: &PersistentVolume, reason: &'static str, message: String) {
        self.record(Source::Volumes, Type::Warning, about(volume), reason, message);
    }

    fn record(
        &self,
        source: Source,
        kind: Type,
        about: ObjectReference,
        reason: &'static str,
        message: String,
    ) {
        let (at, taken) = (Timestamp::now(), Instant::now());
        // A full backlog drops it: an event must never hold up what it tells of.
        let _ = self.notes.try_send(Note { source, kind, reason, message, about, at, taken });
    }
}

/// When events are written: not while containers start.
struct Pace {
    origin: Instant,
    /// Milliseconds from the origin to the last start.
    last: AtomicU64,
}

impl Pace {
    async fn quiet(&self, taken: Instant) {
        loop {
            let last = self.origin + Duration::from_millis(self.last.load(Ordering::Relaxed));
            let until = (last.max(taken) + QUIET).min(taken + LONGEST);
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

async fn write_all(writer: Writer, mut notes: mpsc::Receiver<Note>, pace: Arc<Pace>) {
    let mut series = Series::default();
    while let Some(note) = notes.recv().await {
        pace.quiet(note.taken).await;
        match series.note(key(&note), note.at) {
            Write::Create { stamp } => writer.create(&note, stamp).await,
            Write::Count { stamp, count } => {
                if !writer.count(&note, stamp, count).await {
                    series.forget(key(&note));
                    if let Write::Create { stamp } = series.note(key(&note), note.at) {
                        writer.create(&note, stamp).await;
                    }
                }
            }
            Write::Nothing => {}
        }
    }
}

/// Equal for events that are told as one.
fn key(note: &Note) -> u64 {
    let mut hasher = DefaultHasher::new();
    (note.source, note.kind, note.reason, &note.message).hash(&mut hasher);
    (&note.about.uid, &note.about.kind, &note.about.name, &note.about.field_path).hash(&mut hasher);
    hasher.finish()
}

/// Writes events of the node of this name.
struct Writer {
    client: Client,
    node: Arc<str>,
}

impl Writer {
    async fn create(&self, note: &Note, stamp: u64) {
        let event = object(note, &self.node, stamp);
        if let Err(error) = self.api(note).create(&PostParams::default(), &event).await {
            let about = note.about.name.as_deref().unwrap_or_default();
            tracing::warn!(
                about,
                reason = note.reason,
                error = &error as &dyn std::error::Error,
                "event not recorded"
            );
        }
    }

    /// Counts the event once more; whether it is still there.
    async fn count(&self, note: &Note, stamp: u64, count: u32) -> bool {
        let patch = Patch::Merge(json!({"count": count, "lastTimestamp": Time(note.at)}));
        match self.api(note).patch(&name(note, stamp), &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => false,
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "event not counted");
                true
            }
            Ok(_) => true,
        }
    }

    fn api(&self, note: &Note) -> Api<Event> {
        Api::namespaced(self.client.clone(), note.about.namespace.as_deref().unwrap_or("default"))
    }
}

/// As client-go names them.
fn name(note: &Note, stamp: u64) -> String {
    format!("{}.{stamp:x}", note.about.name.as_deref().unwrap_or_default())
}

fn object(note: &Note, node: &str, stamp: u64) -> Event {
    let (component, host, action) = match note.source {
        Source::Kubelet => ("kubelet", Some(node.to_owned()), None),
        Source::Scheduler => ("default-scheduler", None, Some("Binding".to_owned())),
        Source::Volumes => ("persistentvolume-controller", None, None),
    };
    let kind = match note.kind {
        Type::Normal => "Normal",
        Type::Warning => "Warning",
    };
    let mut event = Event {
        type_: Some(kind.to_owned()),
        reason: Some(note.reason.to_owned()),
        message: Some(note.message.clone()),
        event_time: action.is_some().then_some(MicroTime(note.at)),
        action,
        reporting_component: Some(component.to_owned()),
        reporting_instance: Some(host.clone().unwrap_or_else(|| format!("{component}-{node}"))),
        source: Some(EventSource { component: Some(component.to_owned()), host }),
        first_timestamp: Some(Time(note.at)),
        last_timestamp: Some(Time(note.at)),
        count: Some(1),
        involved_object: note.about.clone(),
        ..Default::default()
    };
    event.metadata.name = Some(name(note, stamp));
    event.metadata.namespace = note.about.namespace.clone();
    event
}

fn about(object: &impl Resource<DynamicType = ()>) -> ObjectReference {
    ObjectReference { resource_version: None, ..object.object_ref(&()) }
}

fn container(pod: &Pod, slot: Slot) -> ObjectReference {
    let name = slot.name(pod);
    let list = match slot {
        Slot::Main(_) => "containers",
        Slot::Init(_) => "initContainers",
        Slot::Ephemeral(_) => "ephemeralContainers",
    };
    ObjectReference { field_path: Some(format!("spec.{list}{{{name}}}")), ..about(pod) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        let container = |name: &str| json!({"name": name});
        serde_json::from_value(json!({
            "metadata": {"name": "box", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
            "spec": {"initContainers": [container("side")], "containers": [container("main")]},
        }))
        .unwrap()
    }

    fn note(source: Source, about: ObjectReference) -> Note {
        let (at, taken) = (Timestamp::UNIX_EPOCH, Instant::now());
        Note { source, kind: Type::Normal, reason: "Started", message: "it did".to_owned(), about, at, taken }
    }

    #[test]
    fn event_names_the_container_and_comes_from_the_kubelet() {
        let event = json!(object(&note(Source::Kubelet, container(&pod(), Slot::Init(0))), "here", 0xabc));
        assert_eq!(event["metadata"]["name"], "box.abc");
        let about = &event["involvedObject"];
        assert_eq!((&about["kind"], &about["uid"]), (&json!("Pod"), &json!("u")));
        assert_eq!(about["fieldPath"], "spec.initContainers{side}");
        assert!(about["resourceVersion"].is_null());
        assert_eq!((&event["source"]["component"], &event["count"]), (&json!("kubelet"), &json!(1)));
        assert_eq!(event["source"]["host"], "here");
        let scheduled = json!(object(&note(Source::Scheduler, about_pod()), "here", 1));
        assert_eq!(scheduled["source"]["component"], "default-scheduler");
        assert_eq!((&scheduled["action"], scheduled["eventTime"].is_string()), (&json!("Binding"), true));
    }

    fn about_pod() -> ObjectReference {
        about(&pod())
    }

    #[test]
    fn same_words_about_the_same_object_are_one_event() {
        let one = key(&note(Source::Kubelet, about_pod()));
        assert_eq!(one, key(&note(Source::Kubelet, about_pod())));
        assert_ne!(one, key(&note(Source::Kubelet, container(&pod(), Slot::Main(0)))));
        assert_ne!(
            one,
            key(&Note { message: "it did not".to_owned(), ..note(Source::Kubelet, about_pod()) })
        );
    }

    #[tokio::test(start_paused = true)]
    async fn event_waits_for_starts_but_not_for_ever() {
        let begun = Instant::now();
        let pace = Pace { origin: begun, last: AtomicU64::new(0) };
        pace.quiet(begun).await;
        assert_eq!(begun.elapsed(), QUIET);
        pace.last.store(u64::MAX / 2_000_000, Ordering::Relaxed);
        pace.quiet(begun).await;
        assert!(begun.elapsed() >= LONGEST && begun.elapsed() < LONGEST + QUIET);
    }
}
