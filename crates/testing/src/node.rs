//! A node that kube-scheduler chooses: it is registered and takes every Pod, and every volume can be used on it.
//!
//! ```text
//! PersistentVolumeClaim ── bound here ──┐
//! Pod ──────────────────────────────────┴─► kube-scheduler binds the Pod ─► the fake kubelet makes it Ready
//! ```

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kubelet::{self, NODE, Scheduler};

/// One volume stands for all: a scheduler only asks on which nodes it can be used.
const VOLUME: &str = "test-volume";

/// Registers the node and serves one namespace until the future is dropped. Namespaces share the node.
pub async fn run(client: Client, namespace: String) {
    register(&client).await;
    let volumes = bind_claims(Api::namespaced(client.clone(), &namespace));
    tokio::join!(volumes, kubelet::run(client, namespace, Scheduler::Kubernetes));
}

/// Registers the node alone, where the API server itself binds Pods to it.
pub async fn add(client: &Client) {
    let room = json!({"cpu": "10k", "memory": "1Pi", "ephemeral-storage": "1Pi", "pods": "1M"});
    let node = json!({
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    create::<Node>(client, node).await;
    // The API server takes every new node for one that is not ready, and nobody here would correct it.
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.patch(NODE, &PatchParams::default(), &untainted).await.expect("the node can be changed");
}

async fn register(client: &Client) {
    let volume = json!({
        "metadata": {"name": VOLUME},
        "spec": {"capacity": {"storage": "1Pi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/nowhere"}},
    });
    create::<PersistentVolume>(client, volume).await;
    add(client).await;
}

/// Creates what another test of this process may have created already.
async fn create<K>(client: &Client, object: Value)
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>,
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let object: K = serde_json::from_value(object).expect("an object of that kind");
    match Api::all(client.clone()).create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        created => drop(created.expect("the object is accepted")),
    }
}

async fn bind_claims(claims: Api<PersistentVolumeClaim>) {
    let mut found =
        watcher(claims.clone(), watcher::Config::default()).default_backoff().applied_objects().boxed();
    while let Some(claim) = found.next().await {
        let Ok(claim) = claim else { continue };
        let bound = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some());
        if bound || claim.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if let Err(error) = bind(&claims, &claim.name_any()).await {
            // Gone since.
            assert!(matches!(&error, kube::Error::Api(status) if status.code == 404), "{error}");
        }
    }
}

/// What Kubernetes' volume controller does when it has found a volume.
async fn bind(claims: &Api<PersistentVolumeClaim>, name: &str) -> Result<(), kube::Error> {
    let params = PatchParams::default();
    let status = json!({"status": {"phase": "Bound"}});
    claims.patch_status(name, &params, &Patch::Merge(status)).await?;
    let spec = json!({
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": VOLUME},
    });
    claims.patch(name, &params, &Patch::Merge(spec)).await.map(drop)
}
