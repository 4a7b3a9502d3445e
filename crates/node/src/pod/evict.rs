//! A Pod that has to go because of what it takes of the disk, and what every Pod gives back at its end.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::spec::Refusal;
use super::worker::Worker;
use crate::disk::EVICTED;
use crate::event;
use crate::node::uid;

/// What an evicted Pod has to end by itself, as with the kubelet: it may be filling the disk.
const GRACE: Duration = Duration::from_secs(1);

/// Why an earlier engine evicted a Pod, if it did.
pub fn known(pod: &Pod) -> Option<Refusal> {
    let status = pod.status.as_ref().filter(|status| status.reason.as_deref() == Some(EVICTED))?;
    Some(Refusal::new(EVICTED, status.message.clone().unwrap_or_default()))
}

impl Worker {
    /// Takes in that the Pod has to go.
    pub(super) async fn evict(&mut self, refusal: Refusal) {
        if self.refused.is_some() {
            return;
        }
        self.cancel.cancel();
        event::warn(&self.node.shared.client, &self.pod, refusal.reason, &refusal.message).await;
        self.refused = Some(refusal);
    }

    pub(super) fn eviction_grace(&self) -> Option<Duration> {
        self.refused.as_ref().filter(|refusal| refusal.reason == EVICTED).map(|_| GRACE)
    }

    /// Gives back what a Pod that is over has in memory and on the disk: its roots, and the volumes that go with it. The object may
    /// stay for long; logs and how containers ended stay with it.
    pub(super) async fn shed(&mut self) {
        for sandbox in self.hands.iter().filter_map(|hand| hand.sandbox.as_ref()) {
            if let Err(error) = sandbox.shed().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the root of a sandbox was not removed"
                );
            }
        }
        self.drop_common().await;
        if let Err(error) = self.node.shared.volumes.empty_pod(&uid(&self.pod)).await {
            tracing::warn!(%error, "volumes of the Pod were not removed");
        }
        self.tenancy = None;
    }
}
