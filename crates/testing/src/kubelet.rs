//! A kubelet that only pretends: every Pod becomes Running and Ready, unless it asks for something else.
//!
//! It waits until somebody binds a Pod to its node, or does that itself where nobody else would, and until the Pod's volume
//! claims are there.
//!
//! Annotation `test/phase` on a Pod: the phase that it gets instead (`Pending`, `Failed`, `Succeeded`).

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// The annotation that chooses a phase.
pub const PHASE: &str = "test/phase";
/// How often it looks for a claim that is not there yet.
const AGAIN: Duration = Duration::from_millis(10);
/// Pods served at the same time.
const AT_ONCE: usize = 16;
/// The node that every Pod lands on.
pub const NODE: &str = "test-node";

/// Who binds Pods to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// kube-scheduler, which must know the node: see [`crate::node`].
    Kubernetes,
    /// The embedded server, when it creates a Pod; or else this kubelet.
    Nobody,
}

/// Serves the Pods of one namespace until the future is dropped.
pub async fn run(client: Client, namespace: String, scheduler: Scheduler) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let events = watcher(pods.clone(), watcher::Config::default()).default_backoff().applied_objects();
    let serve = async |pod: Result<Pod, _>| {
        if let Ok(pod) = pod
            && let Err(error) = serve(&client, &pods, &pod, scheduler).await
        {
            // Gone or changed since: the next event tells.
            assert!(
                matches!(&error, kube::Error::Api(status) if [404, 409].contains(&status.code)),
                "{error}"
            );
        }
    };
    events.for_each_concurrent(AT_ONCE, serve).await;
}

async fn serve(client: &Client, pods: &Api<Pod>, pod: &Pod, scheduler: Scheduler) -> Result<(), kube::Error> {
    let name = pod.name_any();
    let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    if !bound && scheduler == Scheduler::Kubernetes {
        return Ok(());
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return pods.delete(&name, &DeleteParams::default().grace_period(0)).await.map(drop);
    }
    if !bound {
        bind(client, pod).await?;
    }
    let phase = pod.annotations().get(PHASE).map_or("Running", String::as_str);
    if pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase) {
        return Ok(());
    }
    if !claims_are_there(client, pods, pod).await? {
        return Ok(());
    }
    let ready = if phase == "Running" { "True" } else { "False" };
    let status = json!({"status": {
        "phase": phase,
        "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}],
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}],
    }});
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.map(drop)
}

/// Waits for the volume claims of a Pod; `false` when the Pod goes meanwhile.
async fn claims_are_there(client: &Client, pods: &Api<Pod>, pod: &Pod) -> Result<bool, kube::Error> {
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    for volume in volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref()) {
        while claims.get_metadata_opt(&volume.claim_name).await?.is_none() {
            let found = pods.get_metadata_opt(&pod.name_any()).await?;
            if found.is_none_or(|it| {
                it.metadata.uid != pod.metadata.uid || it.metadata.deletion_timestamp.is_some()
            }) {
                return Ok(false);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
    Ok(true)
}

/// What a scheduler does.
async fn bind(client: &Client, pod: &Pod) -> Result<(), kube::Error> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let body = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    });
    let request = kube::core::Request::new(format!("/api/v1/namespaces/{namespace}/pods/{name}/binding"));
    let body = serde_json::to_vec(&body).map_err(kube::Error::SerdeError)?;
    let request = request.create(&Default::default(), body).map_err(kube::Error::BuildRequest)?;
    client.request::<serde_json::Value>(request).await.map(drop)
}
