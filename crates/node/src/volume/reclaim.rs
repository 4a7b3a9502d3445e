//! Keeps the phases of volumes and claims true, and removes volumes whose claims are gone, if their policy says so.

use std::collections::HashMap;
use std::time::Duration;

use asb_types::volume::VOLUME_PROTECTION;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::binding::{self, Claims, Next, Phase, made_for, reference};
use super::claimed::Failure;
use super::clone::remove_volume;
use super::{Volumes, apart};

/// Between two attempts to remove a volume that could not be removed.
pub const REMOVE_AGAIN: Duration = Duration::from_secs(10);

/// What came of an attempt to remove a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removed {
    Done,
    /// A Pod uses it; it is removed after that.
    InUse,
    /// The object is another than the one that was to be removed.
    Changed,
}

impl Volumes {
    /// Does what [`binding::next`] says for every volume. Returns those that are to be removed.
    pub async fn reconcile(&self) -> Result<Vec<PersistentVolume>, kube::Error> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        // Volumes first: the claim of a volume that is made in between is seen.
        let known = volumes.list(&ListParams::default()).await?.items;
        let claims = Api::<PersistentVolumeClaim>::all(self.client.clone());
        let claims = claims.list(&ListParams::default()).await?.items;
        let existing = Claims::new(&claims);
        let mut unwanted = Vec::new();
        for volume in &known {
            match binding::next(volume, &existing) {
                Next::Rebind(claim) => self.rebind(&volumes, volume, claim).await?,
                Next::Phase(phase) => self.set_phase(&volumes, volume, phase).await?,
                Next::Remove => unwanted.push(volume.clone()),
            }
        }
        self.free().retain(|name| known.iter().any(|volume| volume.name_any() == *name));
        self.mark_lost(&claims, &known).await?;
        Ok(unwanted)
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
        let named = found.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        // A volume that is just being made for the claim has its name from it; the claim does not name it yet.
        let named = named.or_else(|| Some(made_for(&found)));
        found.metadata.uid == claim.uid && named == volume.metadata.name && !is_lost
    }

    /// Writes on a volume again which claim has it, if the volume is still as it was seen.
    async fn rebind(
        &self,
        volumes: &Api<PersistentVolume>,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
    ) -> Result<(), kube::Error> {
        let name = volume.name_any();
        self.free().remove(&name);
        tracing::warn!(
            volume = name,
            claim = claim.name_any(),
            "binding a volume again to the claim that has it"
        );
        gone_or_changed(
            volumes.patch(&name, &PatchParams::default(), &Patch::Merge(reference(volume, claim))).await,
        )
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
            Phase::Bound | Phase::Released | Phase::Failed => drop(self.free().remove(&name)),
        }
        let known = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        if known == Some(phase.name()) {
            return Ok(());
        }
        write_phase(volumes, volume, phase).await.map(drop)
    }

    /// Removes a volume. Returns whether volumes have to be looked at again at once. A failed attempt takes some time, so
    /// that the next one does not follow it at once.
    pub async fn remove_unwanted(self, volume: PersistentVolume) -> bool {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let error = match self.remove(&volumes, &volume).await {
            Ok(outcome) => return outcome == Removed::Changed,
            Err(error) => error,
        };
        let (name, message) = (volume.name_any(), error.to_string());
        tracing::warn!(volume = name, error = &*error as &dyn std::error::Error, "failed to remove a volume");
        self.events.warn_of_volume(&volume, "VolumeFailedDelete", message);
        if let Err(error) = self.mark_failed(&volumes, &volume).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(volume = name, error, "failed to write the phase of a volume");
        }
        tokio::time::sleep(REMOVE_AGAIN).await;
        true
    }

    /// Writes that the removal of a volume failed, unless it is bound again.
    async fn mark_failed(
        &self,
        volumes: &Api<PersistentVolume>,
        volume: &PersistentVolume,
    ) -> Result<(), kube::Error> {
        let Some(now) = volumes.get_opt(&volume.name_any()).await? else { return Ok(()) };
        let is_same = now.uid() == volume.uid() && binding::claim_uid(&now) == binding::claim_uid(volume);
        match is_same {
            true => write_phase(volumes, &now, Phase::Failed).await.map(drop),
            false => Ok(()),
        }
    }

    /// Data first, then the object, so that a crash leaves no directory without an object. The API server protects the object
    /// until then, also when it was deleted before its claim. A volume that is in use stays.
    ///
    /// `volume` may be old. So its phase is written before anything is removed, and only if the object has not changed since:
    /// a change of its policy or claim before that write keeps the data; a client that makes one later finds it `Released`.
    async fn remove(
        &self,
        volumes: &Api<PersistentVolume>,
        volume: &PersistentVolume,
    ) -> Result<Removed, Failure> {
        let name = volume.name_any();
        let path = self.place(&name)?;
        let Some(removal) = self.leases.remove(&name) else { return Ok(Removed::InUse) };
        self.free().remove(&name);
        if !write_phase(volumes, volume, Phase::Released).await? {
            return Ok(Removed::Changed);
        }
        let directory = path.clone();
        apart(move || remove_volume(&directory))
            .await
            .map_err(|error| format!("failed to remove {}: {error}", path.display()))?;
        drop(removal);
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: volume.metadata.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        match volumes.delete(&name, &params).await {
            Ok(deleted) => match deleted.left() {
                Some(kept) => unprotect(volumes, &kept).await,
                None => Ok(Removed::Done),
            },
            failed => gone_or_changed(failed).map(|()| Removed::Done).map_err(Into::into),
        }
    }

    /// Marks claims whose PersistentVolume is gone or bound to another claim as `Lost`, and as `Bound` once it is back.
    async fn mark_lost(
        &self,
        claims: &[PersistentVolumeClaim],
        volumes: &[PersistentVolume],
    ) -> Result<(), kube::Error> {
        let volumes: HashMap<_, _> = volumes.iter().map(|volume| (volume.name_any(), volume)).collect();
        for claim in claims {
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            let Some(volume) = volume else { continue };
            let known = volumes.get(volume);
            let next = match phase {
                Some("Bound") if !known.is_some_and(|it| binding::admits(it, claim)) => "Lost",
                Some("Lost") if known.is_some_and(|it| is_of(it, claim)) => "Bound",
                _ => continue,
            };
            if next == "Lost" {
                // The list of volumes is older than that of claims: the volume may have been made in between.
                let now = Api::<PersistentVolume>::all(self.client.clone()).get_opt(volume).await?;
                if now.is_some_and(|it| binding::admits(&it, claim)) {
                    continue;
                }
            }
            let status = json!({"metadata": {"uid": claim.metadata.uid}, "status": {"phase": next}});
            let (name, params, api) = (claim.name_any(), PatchParams::default(), self.claims_of(claim));
            gone_or_changed(api.patch_status(&name, &params, &Patch::Merge(status)).await)?;
            if next == "Lost" {
                let (reason, what) = match known {
                    None => ("ClaimLost", "no longer exists"),
                    Some(_) => ("ClaimMisbound", "is bound to another claim"),
                };
                let message = format!(
                    "PersistentVolume {volume:?} {what}; its data is kept where it was if it was not removed by hand"
                );
                self.events.warn_of_claim(claim, reason, message);
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

fn is_of(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    binding::claim_uid(volume).is_some_and(|uid| claim.metadata.uid.as_deref() == Some(uid))
}

/// Lets a volume go that was kept until its data was removed.
async fn unprotect(volumes: &Api<PersistentVolume>, volume: &PersistentVolume) -> Result<Removed, Failure> {
    let (name, params) = (volume.name_any(), PatchParams::default());
    match volumes.patch(&name, &params, &Patch::Merge(unprotected(volume))).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Removed::Done),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Removed::Changed),
        written => Ok(written.map(|_| Removed::Done)?),
    }
}

/// A patch that takes the protection off a volume, if that is still what was read.
fn unprotected(volume: &PersistentVolume) -> Value {
    let kept: Vec<_> = volume.finalizers().iter().filter(|it| **it != VOLUME_PROTECTION).collect();
    json!({"metadata": {
        "uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version, "finalizers": kept,
    }})
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
                    let removes = binding::next(&volume(object.clone()), &Claims::default()) == Next::Remove;
                    assert_eq!(asb_types::volume::is_removed(&object), removes, "{object}");
                }
            }
        }
    }
}
