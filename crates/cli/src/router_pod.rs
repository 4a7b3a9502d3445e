//! The engine's router as clients of a cluster look for it: Service `sandbox-router-svc` and a Pod behind it.
//!
//! `kubectl port-forward svc/sandbox-router-svc` finds the Service, by its selector a Pod that runs, and asks the API
//! server for `pods/portforward`. On one machine the router is a part of the engine, so its Pod is a mirror of it: an
//! object without containers, as a kubelet's static Pods have one. The objects are made again whenever they go.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use asb_node::{EnginePod, MIRROR_ANNOTATION, Node};
use asb_router::Connections;
use futures::stream::{BoxStream, select_all};
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

const NAMESPACE: &str = "agent-sandbox-system";
const SERVICE: &str = "sandbox-router-svc";
const CONTAINER: &str = "router";
const PORT: u16 = 8080;
/// Marks the mirror as ours.
const MIRROR_OF: &str = "asb-router";
/// The pause after something that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// What has to be done about the Pod object.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Create,
    /// A user asked for its deletion, which only its node can finish.
    FinishDeletion,
    WriteStatus,
    /// Another Pod has the name: it is its owner's business, and port-forward leads to it.
    LeaveAlone,
    Settle,
}

/// The router behind the Pod, once it runs.
pub type Router = Arc<OnceLock<Connections>>;

/// Tells the node which Pod stands for `router`.
pub fn register(node: &Node, router: Router) {
    let connect = move |port: u16| {
        let router = router.get().cloned();
        async move {
            let refused =
                |message: String| std::io::Error::new(std::io::ErrorKind::ConnectionRefused, message);
            if port != PORT {
                return Err(refused(format!("the router listens on port {PORT} only")));
            }
            router
                .ok_or_else(|| refused("the router has not started yet".to_owned()))?
                .connect_trusted()
                .await
        }
        .boxed()
    };
    node.set_engine_pod(EnginePod {
        namespace: NAMESPACE.to_owned(),
        name: pod_name(node.name()),
        connect: Arc::new(connect),
    });
}

/// Makes the objects on the Node of this name, calls `ready`, and makes them again whenever they go, until it is dropped.
pub async fn keep(client: Client, node: &str, ready: impl FnOnce()) {
    let started = Timestamp::now();
    let mut ready = Some(ready);
    let mut changes = changes(&client, node);
    loop {
        match ensure(&client, node, started).await {
            Ok(()) => {
                if let Some(ready) = ready.take() {
                    ready();
                }
                if changes.next().await.is_none() {
                    return;
                }
            }
            Err(error) => {
                // Usual while its namespace is being deleted.
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "the router's Pod and Service not made"
                );
                tokio::time::sleep(AGAIN).await;
            }
        }
        // One look answers all changes until now.
        while changes.next().now_or_never().flatten().is_some() {}
    }
}

fn pod_name(node: &str) -> String {
    format!("sandbox-router-{node}")
}

/// An item for whatever happens to one of the objects.
fn changes(client: &Client, node: &str) -> BoxStream<'static, ()> {
    let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
    let namespaces = watcher(Api::<Namespace>::all(client.clone()), named(NAMESPACE)).default_backoff();
    let services =
        watcher(Api::<Service>::namespaced(client.clone(), NAMESPACE), named(SERVICE)).default_backoff();
    let pods =
        watcher(Api::<Pod>::namespaced(client.clone(), NAMESPACE), named(&pod_name(node))).default_backoff();
    select_all([namespaces.map(drop).boxed(), services.map(drop).boxed(), pods.map(drop).boxed()]).boxed()
}

async fn ensure(client: &Client, node: &str, started: Timestamp) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let name = pod_name(node);
    // First, because a namespace that is being deleted waits for this Pod.
    let mut pod = pods.get_opt(&name).await?;
    if decide(pod.as_ref(), started) == Step::FinishDeletion {
        finish_deletion(&pods, pod.take()).await?;
    }
    create(&Api::<Namespace>::all(client.clone()), json!({"metadata": {"name": NAMESPACE}})).await?;
    create(&Api::<Service>::namespaced(client.clone(), NAMESPACE), service()).await?;
    match decide(pod.as_ref(), started) {
        Step::Create => {
            create(&pods, mirror(&name, node)).await?;
            write_status(&pods, &name, started).await
        }
        Step::WriteStatus => write_status(&pods, &name, started).await,
        Step::LeaveAlone => {
            tracing::warn!(namespace = NAMESPACE, pod = name, "another Pod has the name of the router's own");
            Ok(())
        }
        Step::FinishDeletion | Step::Settle => Ok(()),
    }
}

fn decide(pod: Option<&Pod>, started: Timestamp) -> Step {
    let Some(pod) = pod else { return Step::Create };
    if pod.annotations().get(MIRROR_ANNOTATION).is_none_or(|of| of != MIRROR_OF) {
        return Step::LeaveAlone;
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Step::FinishDeletion;
    }
    let status = serde_json::to_value(&pod.status).unwrap_or_default();
    let running = &status["containerStatuses"][0]["state"]["running"]["startedAt"];
    match status["phase"] == "Running" && *running == whole_seconds(started) {
        true => Step::Settle,
        false => Step::WriteStatus,
    }
}

async fn finish_deletion(pods: &Api<Pod>, pod: Option<Pod>) -> Result<(), kube::Error> {
    let Some(pod) = pod else { return Ok(()) };
    let only_this = Preconditions { uid: pod.uid(), resource_version: None };
    let now =
        DeleteParams { grace_period_seconds: Some(0), preconditions: Some(only_this), ..Default::default() };
    match pods.delete(&pod.name_any(), &now).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Creates an object unless one of its name exists.
async fn create<K>(api: &Api<K>, object: Value) -> Result<(), kube::Error>
where
    K: serde::de::DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        other => other.map(drop),
    }
}

async fn write_status(pods: &Api<Pod>, name: &str, started: Timestamp) -> Result<(), kube::Error> {
    let patch = Patch::Merge(json!({"status": status(started)}));
    pods.patch_status(name, &PatchParams::default(), &patch).await.map(drop)
}

fn service() -> Value {
    json!({
        "metadata": {"name": SERVICE, "labels": {"app.kubernetes.io/name": "sandbox-router"}},
        "spec": {
            "selector": {"app": "sandbox-router"},
            "ports": [{"name": "proxy", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
        },
    })
}

fn mirror(name: &str, node: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {"app": "sandbox-router", "app.kubernetes.io/name": "sandbox-router"},
            "annotations": {
                MIRROR_ANNOTATION: MIRROR_OF,
                "kubernetes.io/config.source": "engine",
            },
        },
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
            "containers": [{
                "name": CONTAINER, "image": image(),
                "ports": [{"name": "proxy", "containerPort": PORT, "protocol": "TCP"}],
            }],
        },
    })
}

fn image() -> &'static str {
    concat!("sandbox-router:", env!("CARGO_PKG_VERSION"))
}

fn status(started: Timestamp) -> Value {
    let started = whole_seconds(started);
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": started});
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    json!({
        "phase": "Running", "startTime": started, "conditions": conditions,
        "containerStatuses": [{
            "name": CONTAINER, "image": image(), "imageID": "", "ready": true, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": started}},
        }],
    })
}

/// Times in objects have no fractions.
fn whole_seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = mirror("router", "here");
        pod["status"] = status(Timestamp::UNIX_EPOCH);
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn the_pod_is_made_mended_and_let_go() {
        let now = Timestamp::UNIX_EPOCH;
        let step = |pod: Pod| decide(Some(&pod), now);
        assert_eq!(decide(None, now), Step::Create);
        assert_eq!(step(pod(|_| ())), Step::Settle);
        assert_eq!(step(pod(|pod| pod["status"]["phase"] = "Pending".into())), Step::WriteStatus);
        assert_eq!(
            decide(Some(&pod(|_| ())), now + Duration::from_secs(1)),
            Step::WriteStatus,
            "another engine"
        );
        let deleted = pod(|pod| pod["metadata"]["deletionTimestamp"] = whole_seconds(now).into());
        assert_eq!(step(deleted), Step::FinishDeletion);
    }

    #[test]
    fn a_pod_of_a_user_is_left_alone_even_when_it_has_the_name() {
        let foreign = pod(|pod| {
            pod["metadata"]["annotations"] = json!({});
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
        assert_eq!(decide(Some(&foreign), Timestamp::UNIX_EPOCH), Step::LeaveAlone);
    }
}
