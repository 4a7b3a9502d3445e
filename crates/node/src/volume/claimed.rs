//! Volumes that claims ask for: made, cloned, limited, grown, and removed after their claims.

use std::io;
use std::path::{Path, PathBuf};

use asb_runtime::tree::{self, quota};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{STORAGE_CLASS, Volumes, apart, make_volume, size, source};
use crate::pod::spec::Refusal;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a clone is called until it is whole, before the name of its volume.
pub const CLONING: &str = ".clone-";

impl Volumes {
    /// Removes every volume whose claim is gone, data first, then the object.
    pub async fn reclaim(&self) -> Result<(), kube::Error> {
        let claims: Api<PersistentVolumeClaim> = Api::all(self.client.clone());
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        // Volumes first: a claim that is made in between still finds its volume.
        let known = volumes.list(&ListParams::default()).await?;
        let wanted: Vec<_> = claims
            .list(&ListParams::default())
            .await?
            .into_iter()
            .filter_map(|claim| claim.metadata.uid)
            .collect();
        for volume in known {
            let spec = volume.spec.clone().unwrap_or_default();
            let claim = spec.claim_ref.and_then(|claim| claim.uid).unwrap_or_default();
            let ours = spec.storage_class_name.as_deref() == Some(STORAGE_CLASS);
            if !ours || wanted.contains(&claim) {
                continue;
            }
            let path = self.persistent.join(volume.name_any());
            if let Err(error) = apart(move || remove_volume(&path)).await {
                tracing::warn!(volume = %volume.name_any(), %error, "volume not removed; will be tried again");
                continue;
            }
            match volumes.delete(&volume.name_any(), &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// The directory of a claim that a Pod uses.
    pub(super) async fn claimed(&self, pod: &Pod, name: &str, field: &str) -> Result<PathBuf, Refusal> {
        let namespace = pod.namespace().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        let claim = api.get(name).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 => Refusal::new(
                "FailedMount",
                format!("{field}: no PersistentVolumeClaim {name:?} in {namespace:?}"),
            ),
            other => Refusal::new("FailedMount", format!("{field}: {other}")),
        })?;
        let class =
            claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or(STORAGE_CLASS);
        if class != STORAGE_CLASS {
            let message =
                format!("{field}: {name:?} asks for storageClassName {class:?}; this machine has \"local\"");
            return Err(Refusal::new("FailedMount", message));
        }
        self.provision(&claim).await.map_err(|error| Refusal::new("FailedMount", format!("{field}: {error}")))
    }

    /// Binds a claim to a directory of its own; quick when that was done before.
    async fn provision(&self, claim: &PersistentVolumeClaim) -> Result<PathBuf, Failure> {
        let name = name(claim);
        let path = self.persistent.join(&name);
        let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        if bound && path.is_dir() {
            self.hold(&path, claim).await?;
            return Ok(path);
        }
        let spec = claim.spec.clone().unwrap_or_default();
        let capacity = json!({"storage": size::asked(claim)});
        let volume = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": capacity, "accessModes": spec.access_modes, "storageClassName": STORAGE_CLASS,
                "persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": path},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
                    "name": claim.metadata.name, "uid": claim.metadata.uid,
                },
            },
            "status": {"phase": "Bound"},
        }))?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        match volumes.create(&PostParams::default(), &volume).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => drop(other?),
        }
        match source::of(claim)? {
            Some((source, field)) => self.clone_volume(claim, source, field, &name).await?,
            None => {
                make_volume(&path)?;
                self.hold(&path, claim).await?;
            }
        }
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let params = PatchParams::default();
        // A claim that asked for no class gets the default one, as Kubernetes notes it on the claim.
        let chosen = json!({"volumeName": name, "storageClassName": STORAGE_CLASS});
        let bind = json!({"metadata": {"uid": claim.metadata.uid}, "spec": chosen});
        claims.patch(&claim.name_any(), &params, &Patch::Merge(bind)).await?;
        let bound =
            json!({"status": {"phase": "Bound", "accessModes": spec.access_modes, "capacity": capacity}});
        claims.patch_status(&claim.name_any(), &params, &Patch::Merge(bound)).await?;
        Ok(path)
    }

    /// Sees to it that a volume holds no more than its claim was given, where the filesystem can.
    async fn hold(&self, path: &Path, claim: &PersistentVolumeClaim) -> io::Result<()> {
        let (path, most) = (path.to_owned(), size::given(claim).filter(|_| self.sizes_hold));
        match most {
            Some(most) => apart(move || quota::limit(&path, most)).await,
            None => Ok(()),
        }
    }

    /// Gives a claim that asks for more than it was given that much.
    pub async fn grow(&self, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
        let (volume, Some(size)) = (name(claim), size::growth(claim)) else { return Ok(()) };
        let path = self.persistent.join(&volume);
        if !path.is_dir() {
            return Ok(()); // somebody else's
        }
        self.hold(&path, claim).await?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let (params, capacity) = (PatchParams::default(), json!({"capacity": {"storage": size}}));
        volumes.patch(&volume, &params, &Patch::Merge(json!({"spec": capacity}))).await?;
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let given = json!({"metadata": {"uid": claim.metadata.uid}, "status": capacity});
        claims.patch_status(&claim.name_any(), &params, &Patch::Merge(given)).await?;
        Ok(())
    }

    /// Makes a volume that begins with what another claim holds now: made beside and renamed, so it is whole or not there.
    async fn clone_volume(
        &self,
        claim: &PersistentVolumeClaim,
        source: &str,
        field: &str,
        name: &str,
    ) -> Result<(), Failure> {
        let _one_at_a_time = self.cloning.lock().await;
        let (path, beside) = (self.persistent.join(name), self.persistent.join(format!("{CLONING}{name}")));
        if path.is_dir() {
            return Ok(());
        }
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let found = claims.get_opt(source).await?;
        let found = found.ok_or_else(|| format!("{field}.name: no PersistentVolumeClaim {source:?}"))?;
        source::fits(claim, &found)?;
        let volume = found.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
        let from = volume.map(|volume| self.persistent.join(volume)).filter(|from| from.is_dir());
        let from =
            from.ok_or_else(|| format!("{field}.name: {source:?} has no volume yet; use it in a Pod once"))?;
        let into = beside.clone();
        apart(move || remove_volume(&into).and_then(|()| make_volume(&into))).await?;
        self.hold(&beside, claim).await?;
        // What is left of its size, should that be less than the disk has.
        let left = rustix::fs::statvfs(&beside)?;
        let room = self.disk.room().min(left.f_bavail.saturating_mul(left.f_frsize));
        let (begin, into) = (std::time::Instant::now(), beside.clone());
        let cloned = apart(move || tree::clone(&from, &into, room)).await;
        // One whose claim went meanwhile was being removed while it was read.
        let still = claims.get_opt(source).await?.is_some_and(|it| it.metadata.uid == found.metadata.uid);
        let done = cloned.map_err(Failure::from).and_then(|done| match still {
            true => Ok(done),
            false => Err("it was deleted meanwhile".into()),
        });
        match done {
            Ok(done) => {
                std::fs::rename(&beside, &path)?;
                let (files, copied) = (done.files, done.copied);
                tracing::info!(volume = name, source, files, copied, elapsed = ?begin.elapsed(), "volume cloned");
                Ok(())
            }
            Err(error) => {
                apart(move || remove_volume(&beside)).await?;
                Err(format!("{field}: {source:?} cannot be cloned: {error}").into())
            }
        }
    }
}

/// The volume that we make for a claim.
fn name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// Removes a claimed volume, and nothing is left of its limit.
pub fn remove_volume(path: &Path) -> io::Result<()> {
    quota::lift(path)?;
    tree::remove(path)
}
