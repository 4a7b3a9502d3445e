//! Volumes that claims ask for: found or made, limited and grown.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use asb_runtime::tree::quota;
use asb_types::volume;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::binding::{self, Claims, PROVISIONED_BY, PROVISIONER, claim_ref, made_for, reference};
use super::lease::Lease;
use super::{STORAGE_CLASS, Volumes, apart, make_volume, size, source};
use crate::pod::spec::Refusal;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Volumes {
    /// The directory of a claim that a Pod uses. It is not removed before the lease is dropped.
    pub(super) async fn claimed(
        &self,
        pod: &Pod,
        name: &str,
        field: &str,
    ) -> Result<(PathBuf, Arc<Lease>), Refusal> {
        let refusal = |message: String| Refusal::new("FailedMount", format!("{field}: {message}"));
        let namespace = pod.namespace().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        let claim = api.get(name).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 => {
                refusal(format!("no PersistentVolumeClaim {name:?} in {namespace:?}"))
            }
            other => refusal(other.to_string()),
        })?;
        if came_too_late(pod, &claim) {
            return Err(refusal(format!("the PersistentVolumeClaim {name:?} is being deleted")));
        }
        let (volume, lease) = self.bind(&claim).await.map_err(|error| refusal(error.to_string()))?;
        let path = self.place(&volume).map_err(|error| refusal(error.to_string()))?;
        if !path.is_dir() {
            return Err(refusal(gone(&volume, &path)));
        }
        self.limit(&path, &claim).await.map_err(|error| refusal(error.to_string()))?;
        Ok((path, Arc::new(lease)))
    }

    /// The volume of a claim; quick when the claim was bound before.
    async fn bind(&self, claim: &PersistentVolumeClaim) -> Result<(String, Lease), Failure> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let Some(named) = named.filter(|name| !name.is_empty()) else {
            return match self.find_free(claim).await? {
                Some(volume) => self.bind_to(claim, &volume).await,
                None => self.provision(claim).await,
            };
        };
        self.place(named).map_err(|error| format!("spec.volumeName: {error}"))?;
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        match volumes.get_opt(named).await? {
            Some(volume) if binding::are_bound(&volume, claim) => Ok((named.to_owned(), self.lease(named)?)),
            Some(volume) => self.bind_to(claim, &volume).await,
            None if phase == Some("Pending") || phase.is_none() => {
                Err(format!("spec.volumeName: no PersistentVolume {named:?}").into())
            }
            None => Err(format!("the claim has lost its PersistentVolume {named:?}").into()),
        }
    }

    /// A volume that no claim has and that this one may have.
    async fn find_free(&self, claim: &PersistentVolumeClaim) -> Result<Option<PersistentVolume>, Failure> {
        let has_source = source::of(claim)?.is_some();
        let free: Vec<String> = self.free().iter().cloned().collect();
        if has_source || free.is_empty() {
            return Ok(None);
        }
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let mut found = Vec::new();
        for name in free {
            // A volume that another provisioner or a user has made is not in the data directory.
            if self.place(&name).is_ok_and(|path| path.is_dir()) {
                found.extend(volumes.get_opt(&name).await?);
            }
        }
        Ok(binding::choose(claim, class_of(claim), &found).cloned())
    }

    /// Binds a claim to a volume that is there. The volume's side first: it decides between two claims.
    async fn bind_to(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(String, Lease), Failure> {
        let name = volume.name_any();
        let (path, lease) = (self.place(&name)?, self.lease(&name)?);
        if !path.is_dir() {
            return Err(match binding::is_ours(volume) {
                true => gone(&name, &path),
                false => format!("PersistentVolume {name:?} is not of the provisioner {PROVISIONER:?}"),
            }
            .into());
        }
        // After the volume was read: a claim that takes it from now on makes the patch fail.
        let others = Api::<PersistentVolumeClaim>::all(self.client.clone());
        let others = others.list(&ListParams::default()).await?.items;
        let has_another = Claims::new(&others).holder(&name).is_some_and(|it| it.uid() != claim.uid());
        if has_another || !binding::admits(volume, claim) {
            return Err(other_claim(&name).into());
        }
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let patch = Patch::Merge(reference(volume, claim));
        volumes.patch(&name, &PatchParams::default(), &patch).await?;
        let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.clone());
        self.settle(claim, &name, json!(capacity), class_of(claim)).await?;
        Ok((name, lease))
    }

    /// Makes a volume for a claim. Its object is written first, so that a crash leaves no directory that nobody knows.
    ///
    /// With the lease from the beginning, a volume whose claim goes meanwhile is removed only when it is complete. A removal
    /// before that would leave a directory without an object.
    async fn provision(&self, claim: &PersistentVolumeClaim) -> Result<(String, Lease), Failure> {
        let name = made_for(claim);
        let (path, lease) = (self.place(&name)?, self.lease(&name)?);
        if claim.spec.as_ref().is_some_and(|spec| spec.storage_class_name.is_none()) {
            return Err("no persistent volumes available for this claim and no storage class is set".into());
        }
        let class = self.class(class_of(claim)).await?;
        let spec = claim.spec.clone().unwrap_or_default();
        let capacity = json!({"storage": size::asked(claim)});
        let volume = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
            "spec": {
                "capacity": capacity, "accessModes": spec.access_modes, "storageClassName": class.name_any(),
                "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
                "volumeMode": "Filesystem", "hostPath": {"path": path}, "claimRef": claim_ref(claim),
            },
            "status": {"phase": "Bound"},
        }))?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        match volumes.create(&PostParams::default(), &volume).await {
            // Of an earlier attempt.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let found = volumes.get(&name).await?;
                if binding::claim_uid(&found) != claim.metadata.uid.as_deref() {
                    return Err(other_claim(&name).into());
                }
            }
            other => drop(other?),
        }
        match source::of(claim)? {
            Some((source, field)) => self.clone_volume(claim, source, field, &name).await?,
            None => make_volume(&path)?,
        }
        self.settle(claim, &name, capacity, &class.name_any()).await?;
        Ok((name, lease))
    }

    fn lease(&self, volume: &str) -> Result<Lease, Failure> {
        self.leases.take(volume).ok_or_else(|| format!("volume {volume:?} is being removed").into())
    }

    /// Writes on both objects that they belong together.
    async fn settle(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &str,
        capacity: Value,
        class: &str,
    ) -> Result<(), kube::Error> {
        let claims = self.claims_of(claim);
        let params = PatchParams::default();
        let chosen = json!({"volumeName": volume, "storageClassName": class});
        let bind = json!({"metadata": {"uid": claim.metadata.uid}, "spec": chosen});
        claims.patch(&claim.name_any(), &params, &Patch::Merge(bind)).await?;
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.clone());
        let bound = json!({"status": {"phase": "Bound", "accessModes": modes, "capacity": capacity}});
        claims.patch_status(&claim.name_any(), &params, &Patch::Merge(bound)).await?;
        Ok(())
    }

    /// A class that this node makes volumes for.
    async fn class(&self, name: &str) -> Result<StorageClass, Failure> {
        if name.is_empty() {
            let message = "no PersistentVolume fits, and spec.storageClassName \"\" asks that none is made";
            return Err(message.into());
        }
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        let class = classes.get_opt(name).await?.ok_or_else(|| {
            format!("spec.storageClassName: no StorageClass {name:?}; this machine has {STORAGE_CLASS:?}")
        })?;
        match class.provisioner == PROVISIONER {
            true => Ok(class),
            false => Err(format!(
                "spec.storageClassName: the provisioner {:?} of {name:?} does not run here; use {STORAGE_CLASS:?}",
                class.provisioner
            )
            .into()),
        }
    }

    /// Sees to it that a volume holds no more than its claim was given, where the filesystem can.
    pub(super) async fn limit(&self, path: &Path, claim: &PersistentVolumeClaim) -> io::Result<()> {
        let (path, most) = (path.to_owned(), size::given(claim).filter(|_| self.sizes_hold));
        match most {
            Some(most) => apart(move || quota::limit(&path, most)).await,
            None => Ok(()),
        }
    }

    /// Gives a claim that asks for more than it was given that much.
    pub async fn grow(&self, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let (Some(volume), Some(size)) = (volume, size::growth(claim)) else { return Ok(()) };
        let path = self.place(volume)?;
        if !path.is_dir() {
            return Ok(()); // of another provisioner
        }
        self.limit(&path, claim).await?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let (params, capacity) = (PatchParams::default(), json!({"capacity": {"storage": size}}));
        volumes.patch(volume, &params, &Patch::Merge(json!({"spec": capacity}))).await?;
        let given = json!({"metadata": {"uid": claim.metadata.uid}, "status": capacity});
        self.claims_of(claim).patch_status(&claim.name_any(), &params, &Patch::Merge(given)).await?;
        Ok(())
    }

    /// The claims of the namespace of one of them.
    pub(super) fn claims_of(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }
}

/// The class of a claim; `""` for none. The API server has written the default one, if there is one.
fn class_of(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default()
}

fn other_claim(volume: &str) -> String {
    format!("volume {volume:?} already bound to a different claim")
}

/// Whether a Pod was created after the claim was deleted, and has never started. The API server does not keep the claim for such
/// a Pod, so the Pod must not use it.
fn came_too_late(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let deleted = claim.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    volume::came_too_late(created, deleted, &json!(pod.status))
}

fn gone(volume: &str, path: &Path) -> String {
    let path = path.display();
    format!(
        "the directory {path} of volume {volume:?} is gone; put it back, or delete the claim to start with an empty volume"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_was_created_after_the_claim_was_deleted_does_not_use_it() {
        let pod = |created: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"creationTimestamp": created}})).unwrap()
        };
        let claim = |deleted: Value| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"deletionTimestamp": deleted}})).unwrap()
        };
        let deleted = json!("2026-01-01T00:00:05Z");
        assert!(came_too_late(&pod("2026-01-01T00:00:06Z"), &claim(deleted.clone())));
        assert!(!came_too_late(&pod("2026-01-01T00:00:05Z"), &claim(deleted.clone())));
        assert!(!came_too_late(&pod("2026-01-01T00:00:04Z"), &claim(deleted)));
        assert!(!came_too_late(&pod("2026-01-01T00:00:06Z"), &claim(Value::Null)));
        let mut running = pod("2026-01-01T00:00:06Z");
        running.status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
        assert!(!came_too_late(&running, &claim(json!("2026-01-01T00:00:05Z"))), "the clock was set back");
    }
}
