//! Events about Pods and claims, so that `kubectl describe` tells the story.

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt};

/// Records a warning about a Pod. A lost event is no reason to stop: it is only logged.
pub async fn warn(client: &Client, pod: &Pod, reason: &str, message: &str) {
    record(client, pod, "Warning", reason, message).await;
}

/// The same about a claim.
pub async fn warn_of_claim(client: &Client, claim: &PersistentVolumeClaim, reason: &str, message: &str) {
    record(client, claim, "Warning", reason, message).await;
}

/// Records that something went as it should.
pub async fn tell(client: &Client, pod: &Pod, reason: &str, message: &str) {
    record(client, pod, "Normal", reason, message).await;
}

async fn record(
    client: &Client,
    about: &impl Resource<DynamicType = ()>,
    kind: &str,
    reason: &str,
    message: &str,
) {
    let namespace = about.namespace().unwrap_or_default();
    let now = Time(jiff::Timestamp::now());
    let mut event = Event {
        type_: Some(kind.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        source: Some(EventSource { component: Some("asb-node".to_owned()), host: None }),
        reporting_component: Some("asb-node".to_owned()),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        involved_object: ObjectReference { resource_version: None, ..about.object_ref(&()) },
        ..Default::default()
    };
    event.metadata.generate_name = Some(format!("{}.", about.name_any()));
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    if let Err(error) = api.create(&PostParams::default(), &event).await {
        tracing::warn!(about = %about.name_any(), reason, error = &error as &dyn std::error::Error, "event not recorded");
    }
}
