//! Keeps the phases of volumes and claims true, and removes volumes whose claims are gone, if their policy says so.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use asb_types::volume::VOLUME_PROTECTION;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::binding::{self, Next, Phase};
use super::clone::remove_volume;
use super::{Volumes, apart};
use crate::event;

impl Volumes {
    /// Does what [`binding::next`] says for every volume. Returns whether one has to be removed later, because it is
    /// still in use or could not be removed.
    ///
    /// `mounted` are the directories that sandboxes have mounted now.
    pub async fn reconcile(&self, mounted: impl Fn() -> HashSet<PathBuf>) -> Result<bool, kube::Error> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        // Volumes first: the claim of a volume that is made in between is seen.
        let known = volumes.list(&ListParams::default()).await?.items;
        let claims = Api::<PersistentVolumeClaim>::all(self.client.clone());
        let claims = claims.list(&ListParams::default()).await?.items;
        let uids: HashSet<_> = claims.iter().filter_map(|claim| claim.metadata.uid.as_deref()).collect();
        let mut left = false;
        for volume in &known {
            match binding::next(volume, |uid| uids.contains(uid)) {
                Next::Phase(phase) => self.set_phase(&volumes, volume, phase).await?,
                Next::Remove => left |= !self.remove(&volumes, volume, &mounted).await?,
            }
        }
        self.free().retain(|name| known.iter().any(|volume| volume.name_any() == *name));
        self.mark_lost(&claims, &known).await?;
        Ok(left)
    }

    /// Whether a volume is bound to a claim that exists and knows it.
    pub async fn is_settled(&self, volume: &PersistentVolume) -> bool {
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let (Some("Bound"), Some(claim)) = (phase, claim) else { return false };
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), claim.namespace.as_deref().unwrap_or_default());
        let Ok(Some(found)) = claims.get_opt(claim.name.as_deref().unwrap_or_default()).await else {
            return false;
        };
        let is_lost = found.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Lost"));
        found.metadata.uid == claim.uid && !is_lost
    }

    async fn set_phase(
        &self,
        volumes: &Api<PersistentVolume>,
        volume: &PersistentVolume,
        phase: Phase,
    ) -> Result<(), kube::Error> {
        let name = volume.name_any();
        // Before the phase is written: a user who has seen `Available` can rely on it.
        match phase {
            Phase::Available => drop(self.free().insert(name.clone())),
            Phase::Bound | Phase::Released => drop(self.free().remove(&name)),
        }
        let known = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        if known == Some(phase.name()) {
            return Ok(());
        }
        write_phase(volumes, volume, phase).await.map(drop)
    }

    /// Data first, then the object, so that a crash leaves no directory without an object. The API server protects the object
    /// until then, also when it was deleted before its claim. Returns whether it is done.
    ///
    /// What is seen here may be old. So the volume is written to before anything is removed, if it is still what was seen: who
    /// has changed its policy or claim before that keeps the data, and who does it later sees that it is `Released`.
    async fn remove(
        &self,
        volumes: &Api<PersistentVolume>,
        volume: &PersistentVolume,
        mounted: impl Fn() -> HashSet<PathBuf>,
    ) -> Result<bool, kube::Error> {
        let name = volume.name_any();
        let Ok(path) = super::below(&self.persistent, &name) else { return Ok(true) };
        let Some(removal) = self.leases.remove(&path) else { return Ok(false) };
        if mounted().contains(&path) {
            tracing::debug!(volume = name, "volume without a claim is still mounted");
            return Ok(false);
        }
        self.free().remove(&name);
        if !write_phase(volumes, volume, Phase::Released).await? {
            return Ok(false);
        }
        let directory = path.clone();
        if let Err(error) = apart(move || remove_volume(&directory)).await {
            tracing::warn!(volume = name, %error, "failed to remove a volume");
            return Ok(false);
        }
        drop(removal);
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: volume.metadata.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        match volumes.delete(&name, &params).await {
            Ok(deleted) => match deleted.left() {
                Some(kept) => unprotect(volumes, &kept).await,
                None => Ok(true),
            },
            failed => gone_or_changed(failed).map(|()| true),
        }
    }

    /// A claim whose volume has no object any more says so, and stops saying so when the object is back.
    async fn mark_lost(
        &self,
        claims: &[PersistentVolumeClaim],
        volumes: &[PersistentVolume],
    ) -> Result<(), kube::Error> {
        let uids: HashMap<_, _> =
            volumes.iter().map(|volume| (volume.name_any(), claim_uid(volume))).collect();
        for claim in claims {
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            let Some(volume) = volume else { continue };
            let next = match (phase, uids.get(volume)) {
                (Some("Bound"), None) => "Lost",
                (Some("Lost"), Some(uid)) if *uid == claim.metadata.uid => "Bound",
                _ => continue,
            };
            let status = json!({"metadata": {"uid": claim.metadata.uid}, "status": {"phase": next}});
            let (name, params, api) = (claim.name_any(), PatchParams::default(), self.claims_of(claim));
            gone_or_changed(api.patch_status(&name, &params, &Patch::Merge(status)).await)?;
            if next == "Lost" {
                let message = format!(
                    "PersistentVolume {volume:?} no longer exists; its data is kept where it was if it was not removed by hand"
                );
                event::warn_of_claim(&self.client, claim, "ClaimLost", &message).await;
            }
        }
        Ok(())
    }
}

/// Writes the phase of a volume that has not changed since it was read. Returns whether that is so.
async fn write_phase(
    volumes: &Api<PersistentVolume>,
    volume: &PersistentVolume,
    phase: Phase,
) -> Result<bool, kube::Error> {
    let status = json!({
        "metadata": {"uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version},
        "status": {"phase": phase.name()},
    });
    let params = PatchParams::default();
    match volumes.patch_status(&volume.name_any(), &params, &Patch::Merge(status)).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        written => written.map(|_| true),
    }
}

/// Lets a volume go that was kept until its data was removed. Returns whether that is done.
async fn unprotect(volumes: &Api<PersistentVolume>, volume: &PersistentVolume) -> Result<bool, kube::Error> {
    let (name, params) = (volume.name_any(), PatchParams::default());
    match volumes.patch(&name, &params, &Patch::Merge(unprotected(volume))).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        written => written.map(|_| true),
    }
}

/// A patch that takes the protection off a volume, if that is still what was read.
fn unprotected(volume: &PersistentVolume) -> Value {
    let kept: Vec<_> = volume.finalizers().iter().filter(|it| **it != VOLUME_PROTECTION).collect();
    json!({"metadata": {
        "uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version, "finalizers": kept,
    }})
}

fn claim_uid(volume: &PersistentVolume) -> Option<String> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone()
}

/// An object that is gone or has changed meanwhile is looked at again when its change is seen.
fn gone_or_changed<T>(written: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match written {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(value: Value) -> PersistentVolume {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_volume_is_let_go_as_it_was_read_and_other_finalizers_stay() {
        let finalizers = json!([VOLUME_PROTECTION, "example.com/hold"]);
        let meta = json!({"name": "v", "uid": "u", "resourceVersion": "7", "finalizers": finalizers});
        let expected = json!({"uid": "u", "resourceVersion": "7", "finalizers": ["example.com/hold"]});
        assert_eq!(unprotected(&volume(json!({"metadata": meta})))["metadata"], expected);
    }

    #[test]
    fn the_api_server_protects_the_volumes_whose_data_is_removed_here() {
        for annotations in [
            json!({}),
            json!({binding::PROVISIONED_BY: binding::PROVISIONER}),
            json!({binding::PROVISIONED_BY: "other"}),
        ] {
            for (name, class) in [("pvc-1", "local"), ("pvc-1", "keep"), ("disk", "local")] {
                for policy in ["Delete", "Retain"] {
                    let object = json!({
                        "metadata": {"name": name, "annotations": annotations},
                        "spec": {
                            "storageClassName": class, "persistentVolumeReclaimPolicy": policy,
                            "claimRef": {"uid": "gone"},
                        },
                    });
                    let removes = binding::next(&volume(object.clone()), |_| false) == Next::Remove;
                    assert_eq!(asb_types::volume::is_removed(&object), removes, "{object}");
                }
            }
        }
    }
}
