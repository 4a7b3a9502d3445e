//! Volumes that begin as a clone of another: made beside and renamed, so that a volume is whole or not there.

use std::io;
use std::path::Path;
use std::time::Instant;

use asb_runtime::tree::{self, quota};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::claimed::Failure;
use super::{Volumes, apart, make_volume, source};

/// What a clone is called until it is whole, before the name of its volume. No object can have such a name.
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
        let (path, beside) = (self.persistent.join(name), self.persistent.join(format!("{CLONING}{name}")));
        if path.is_dir() {
            return Ok(());
        }
        let claims = self.claims_of(claim);
        let found = claims.get_opt(source).await?;
        let found = found.ok_or_else(|| format!("{field}.name: no PersistentVolumeClaim {source:?}"))?;
        source::fits(claim, &found)?;
        let volume = found.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
        let from = volume.map(|volume| self.persistent.join(volume)).filter(|from| from.is_dir());
        let from =
            from.ok_or_else(|| format!("{field}.name: {source:?} has no volume yet; use it in a Pod once"))?;
        let deleted = || format!("{field}: {source:?} cannot be cloned: it is being deleted");
        // The source stays while it is read, also if its claim is deleted meanwhile.
        let _lease = self.leases.take(&from).ok_or_else(deleted)?;
        let into = beside.clone();
        apart(move || remove_volume(&into).and_then(|()| make_volume(&into))).await?;
        self.hold(&beside, claim).await?;
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
}

/// Removes a claimed volume, and nothing is left of its limit.
pub fn remove_volume(path: &Path) -> io::Result<()> {
    quota::lift(path)?;
    tree::remove(path)
}
