//! Volumes that start as a clone of another. A clone is made under another name and renamed: the volume is complete, or it
//! does not exist.

use std::io;
use std::path::Path;
use std::time::Instant;

use asb_runtime::tree::{self, quota};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;

use super::claimed::Failure;
use super::{Volumes, apart, binding, make_volume, source};

/// The prefix of the name that a clone has until it is complete. No object can have such a name.
pub const CLONING: &str = ".clone-";

impl Volumes {
    /// Makes the volume `name` with what the claim `source` holds now.
    pub(super) async fn clone_volume(
        &self,
        claim: &PersistentVolumeClaim,
        source: &str,
        field: &str,
        name: &str,
    ) -> Result<(), Failure> {
        let _one_at_a_time = self.cloning.lock().await;
        let (path, beside) = (self.place(name)?, self.place(&format!("{CLONING}{name}"))?);
        if path.is_dir() {
            return Ok(());
        }
        let claims = self.claims_of(claim);
        let found = claims.get_opt(source).await?;
        let found = found.ok_or_else(|| format!("{field}.name: no PersistentVolumeClaim {source:?}"))?;
        source::fits(claim, &found)?;
        let missing = || format!("{field}.name: {source:?} has no volume yet; use it in a Pod once");
        let volume = self.volume_of(&found).await?.ok_or_else(missing)?;
        let deleted = || format!("{field}: {source:?} cannot be cloned: it is being deleted");
        // The source stays while it is read, even if its claim is deleted.
        let _lease = self.leases.take(&volume).ok_or_else(deleted)?;
        let from = Some(self.place(&volume)?).filter(|from| from.is_dir()).ok_or_else(missing)?;
        let into = beside.clone();
        apart(move || remove_volume(&into).and_then(|()| make_volume(&into))).await?;
        self.limit(&beside, claim).await?;
        // What is left of its size, should that be less than the disk has.
        let left = rustix::fs::statvfs(&beside)?;
        let room = self.disk.room().min(left.f_bavail.saturating_mul(left.f_frsize));
        let (begin, into) = (Instant::now(), beside.clone());
        match apart(move || tree::clone(&from, &into, room)).await {
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

    /// The volume that a claim is bound to. The name alone is not enough: any claim can ask for any volume.
    async fn volume_of(&self, claim: &PersistentVolumeClaim) -> Result<Option<String>, kube::Error> {
        let Some(name) = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()) else {
            return Ok(None);
        };
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = volumes.get_opt(&name).await?;
        Ok(volume.is_some_and(|it| binding::are_bound(&it, claim)).then_some(name))
    }
}

/// Removes a claimed volume, and nothing is left of its limit.
pub fn remove_volume(path: &Path) -> io::Result<()> {
    quota::lift(path)?;
    tree::remove(path)
}
