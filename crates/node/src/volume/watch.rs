//! Watches claims and volumes, and keeps volumes as their claims and their policies want them: at the start, whenever
//! one of these objects changes, and when a Pod has let go of a volume that is to be removed.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::runtime::watcher::{Event, Result};
use kube::runtime::{WatchStreamExt, watcher};

use crate::claim_events::{self, Unbound};
use crate::node::Node;

/// Between two attempts to remove a volume that could not be removed.
const REMOVE_AGAIN: Duration = Duration::from_secs(10);

/// Runs until the future is dropped.
pub async fn watch(node: Node) {
    let (claims, volumes) = (Api::all(node.shared.client.clone()), Api::all(node.shared.client.clone()));
    let mut claims = watcher(claims, watcher::Config::default()).default_backoff().boxed();
    let mut volumes = watcher(volumes, watcher::Config::default()).default_backoff().boxed();
    let mut unbound = Unbound::default();
    // Some volume could not be removed yet.
    let mut left = false;
    loop {
        let changed = tokio::select! {
            Some(event) = claims.next() => claim_changed(&node, &mut unbound, event).await,
            Some(event) = volumes.next() => volume_changed(&node, event).await,
            () = node.shared.volumes.leases().released() => left,
            () = tokio::time::sleep(REMOVE_AGAIN), if left => true,
        };
        if !changed {
            continue;
        }
        match node.shared.volumes.reconcile().await {
            Ok(more) => left = more,
            Err(error) => {
                left = true;
                tracing::warn!(error = &error as &dyn std::error::Error, "failed to reconcile volumes");
            }
        }
    }
}

/// Returns whether volumes have to be looked at. A claim that asks for more than it has gets it here.
async fn claim_changed(
    node: &Node,
    unbound: &mut Unbound,
    event: Result<Event<PersistentVolumeClaim>>,
) -> bool {
    match event {
        // Bound by the Pod that uses it.
        Ok(Event::InitApply(claim) | Event::Apply(claim)) => {
            if let Some(volume) = unbound.note(&claim) {
                claim_events::tell_of_volume(node, &claim, &volume);
            }
            if let Err(error) = node.shared.volumes.grow(&claim).await {
                tracing::warn!(claim = claim.metadata.name, %error, "failed to grow a volume");
            }
            false
        }
        Ok(Event::Delete(claim)) => {
            unbound.forget(&claim);
            true
        }
        Ok(Event::InitDone) => true,
        Ok(Event::Init) | Err(_) => false,
    }
}

/// Returns whether volumes have to be looked at. Most changes are those of a volume that is bound to its claim.
async fn volume_changed(node: &Node, event: Result<Event<PersistentVolume>>) -> bool {
    match event {
        Ok(Event::Apply(volume)) => !node.shared.volumes.is_settled(&volume).await,
        Ok(Event::InitDone | Event::Delete(_)) => true,
        Ok(Event::Init | Event::InitApply(_)) | Err(_) => false,
    }
}
