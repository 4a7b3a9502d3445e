//! A Pod that has to go because of what it takes of the disk, and what every Pod gives back at its end.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::spec::Refusal;
use super::worker::Worker;
use crate::disk::EVICTED;
use crate::node::uid;

/// What the API server says of a Pod that it rejects in the kubelet's place, and its reasons.
const REJECTED: &str = "Pod was rejected: ";
const REJECTIONS: [&str; 6] =
    ["OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods", "NodeAffinity", "TaintToleration"];

/// The grace period of an evicted Pod, as short as the kubelet's: the Pod may be filling the disk.
const GRACE: Duration = Duration::from_secs(1);

/// Why an earlier engine evicted a Pod, if it did.
pub fn known(pod: &Pod) -> Option<Refusal> {
    let status = pod.status.as_ref().filter(|status| status.reason.as_deref() == Some(EVICTED))?;
    Some(Refusal::new(EVICTED, status.message.clone().unwrap_or_default()))
}

/// Why the API server found that a Pod which somebody else bound here does not fit, if it did.
pub fn rejected(pod: &Pod) -> Option<Refusal> {
    let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Failed"))?;
    let message = status.message.as_deref().filter(|message| message.starts_with(REJECTED))?;
    let known = REJECTIONS.iter().find(|reason| status.reason.as_deref() == Some(reason));
    Some(Refusal::new(known.copied().unwrap_or("UnexpectedAdmissionError"), message))
}

impl Worker {
    /// Takes in that the Pod has to go.
    pub(super) fn evict(&mut self, refusal: Refusal) {
        if self.refused.is_some() {
            return;
        }
        self.cancel.cancel();
        self.node.shared.events.warn(&self.pod, refusal.reason, &refusal.message);
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn pod_that_was_rejected_or_evicted_is_known_by_its_status() {
        let pod = |status: Value| -> Pod { serde_json::from_value(json!({"status": status})).unwrap() };
        let of = |phase: &str, reason: &str, message: &str| {
            pod(json!({"phase": phase, "reason": reason, "message": message}))
        };
        let why = "Pod was rejected: Node didn't have enough resource: cpu";
        assert_eq!(rejected(&of("Failed", "OutOfcpu", why)), Some(Refusal::new("OutOfcpu", why)));
        assert_eq!(rejected(&of("Failed", "NodeAffinity", why)), Some(Refusal::new("NodeAffinity", why)));
        assert_eq!(rejected(&of("Failed", "Error", "no such file")), None);
        assert_eq!(rejected(&of("Pending", "OutOfcpu", why)), None);
        assert_eq!(known(&of("Failed", EVICTED, "disk")), Some(Refusal::new(EVICTED, "disk")));
    }
}
