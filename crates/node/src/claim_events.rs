//! Events about claims: a volume was made, or why there is none.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt};

use crate::node::Node;
use crate::pod::spec::Refusal;

/// Claims that have been seen without a volume, by UID.
#[derive(Debug, Default)]
pub struct Unbound(HashSet<String>);

impl Unbound {
    /// Takes in the latest form of a claim; the name of its volume, if one has just been made for it.
    pub fn note(&mut self, claim: &PersistentVolumeClaim) -> Option<String> {
        let uid = claim.metadata.uid.clone()?;
        if !is_bound(claim) {
            self.0.insert(uid);
            return None;
        }
        let is_new = self.0.remove(&uid);
        let made = format!("pvc-{uid}");
        claim.spec.as_ref()?.volume_name.clone().filter(|name| is_new && *name == made)
    }

    pub fn forget(&mut self, claim: &PersistentVolumeClaim) {
        if let Some(uid) = &claim.metadata.uid {
            self.0.remove(uid);
        }
    }
}

/// Records that a claim has got its volume.
pub fn tell_of_volume(node: &Node, claim: &PersistentVolumeClaim, volume: &str) {
    let message = format!("Successfully provisioned volume {volume}");
    node.shared.events.tell_of_claim(claim, "ProvisioningSucceeded", message);
}

/// Records, of the claim that kept a Pod from starting, why it has no volume.
pub async fn tell_of_failure(node: &Node, pod: &Pod, refusal: &Refusal) {
    let Some(name) = failed(pod, refusal) else { return };
    let namespace = pod.namespace().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(node.shared.client.clone(), &namespace);
    let Ok(Some(claim)) = claims.get_opt(name).await else { return };
    if !is_bound(&claim) {
        node.shared.events.warn_of_claim(&claim, "ProvisioningFailed", refusal.message.clone());
    }
}

/// The claim that a refusal is about: its message begins with the path of the volume.
fn failed<'a>(pod: &'a Pod, refusal: &Refusal) -> Option<&'a str> {
    let at = refusal.message.strip_prefix("spec.volumes[")?.split_once(']')?.0;
    let volume = pod.spec.as_ref()?.volumes.as_ref()?.get(at.parse::<usize>().ok()?)?;
    Some(&volume.persistent_volume_claim.as_ref()?.claim_name)
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn volume_is_told_once_and_only_of_claims_that_waited_for_it() {
        let claim = |uid: &str, phase: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({
                "metadata": {"uid": uid}, "spec": {"volumeName": "pvc-new"}, "status": {"phase": phase},
            }))
            .unwrap()
        };
        let mut unbound = Unbound::default();
        assert_eq!(unbound.note(&claim("old", "Bound")), None, "it was there before this engine");
        assert_eq!(unbound.note(&claim("new", "Pending")), None);
        assert_eq!(unbound.note(&claim("new", "Bound")).as_deref(), Some("pvc-new"));
        assert_eq!(unbound.note(&claim("new", "Bound")), None);
        unbound.note(&claim("other", "Pending"));
        assert_eq!(unbound.note(&claim("other", "Bound")), None, "it was bound to a volume that was there");
        unbound.note(&claim("gone", "Pending"));
        unbound.forget(&claim("gone", "Pending"));
        assert!(unbound.0.is_empty());
    }

    #[test]
    fn claim_is_found_by_the_path_in_the_message() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": [
            {"name": "a", "emptyDir": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
        ]}}))
        .unwrap();
        let of = |message: &str| failed(&pod, &Refusal::new("FailedMount", message)).map(str::to_owned);
        assert_eq!(of("spec.volumes[1].persistentVolumeClaim: no space").as_deref(), Some("data"));
        for other in ["spec.volumes[0].emptyDir: no", "spec.volumes[7]: no", "spec.containers[0]: no", ""] {
            assert_eq!(of(other), None);
        }
    }
}
