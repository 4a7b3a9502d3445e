//! Watches claims and volumes, and keeps volumes as their claims and their policies want them: at the start, whenever
//! one of these objects changes, and when a Pod has let go of a volume that is to be removed.

use std::collections::HashMap;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::watcher::{Event, Result};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio::task::{AbortHandle, JoinSet};

use super::reclaim::REMOVE_AGAIN;
use crate::claim_events::{self, Unbound};
use crate::node::Node;

/// Runs until the future is dropped.
pub async fn watch(node: Node) {
    let (claims, volumes) = (Api::all(node.shared.client.clone()), Api::all(node.shared.client.clone()));
    let mut claims = watcher(claims, watcher::Config::default()).default_backoff().boxed();
    let mut volumes = watcher(volumes, watcher::Config::default()).default_backoff().boxed();
    let mut unbound = Unbound::default();
    // One task for each volume: one with many files does not hold up the others.
    let (mut removals, mut under_way) = (JoinSet::new(), HashMap::new());
    // Some volume is still to be removed.
    let mut left = false;
    loop {
        let changed = tokio::select! {
            Some(event) = claims.next() => claim_changed(&node, &mut unbound, event).await,
            Some(event) = volumes.next() => volume_changed(&node, event).await,
            Some(ended) = removals.join_next_with_id() => {
                let (id, again) = ended.unwrap_or_else(|error| (error.id(), false));
                under_way.retain(|_, task: &mut AbortHandle| task.id() != id);
                again
            }
            () = node.shared.volumes.leases().released() => left,
            () = tokio::time::sleep(REMOVE_AGAIN), if left => true,
        };
        if !changed {
            continue;
        }
        match node.shared.volumes.reconcile().await {
            Ok(unwanted) => {
                left = !unwanted.is_empty();
                for volume in unwanted {
                    under_way.entry(volume.name_any()).or_insert_with(|| {
                        removals.spawn(node.shared.volumes.clone().remove_unwanted(volume))
                    });
                }
            }
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
