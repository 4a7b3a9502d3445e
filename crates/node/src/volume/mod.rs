//! Volumes on one machine: each is a directory under the data directory, kept (`volumes/`) or gone with its Pod (`pods/`).
//!
//! The PersistentVolume object is the record of the directory: it is written before the directory is
//! made and removed after the directory is gone, so that a crash leaves nothing nobody knows of.

mod files;
mod ownership;
mod source;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use asb_runtime::{Mount, tree};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::disk::Disk;
use crate::pod::archive;
use crate::pod::container::Slot;
use crate::pod::groups::{self, FsGroup};
use crate::pod::spec::Refusal;
use crate::pod::volumes::{self, Content, Medium, Prepared, Sources};

/// The StorageClass that we provision for; also the default.
pub const STORAGE_CLASS: &str = "local";

#[derive(Clone)]
pub struct Volumes {
    client: Client,
    /// PersistentVolumes, one directory each.
    persistent: PathBuf,
    /// Volumes that are gone with their Pod: one directory per Pod.
    of_pods: PathBuf,
    disk: Arc<Disk>,
    /// Held while a volume is being cloned.
    cloning: Arc<tokio::sync::Mutex<()>>,
}

impl Volumes {
    pub fn open(client: Client, data_dir: &Path, disk: Arc<Disk>) -> io::Result<Self> {
        let (persistent, of_pods) = (data_dir.join("volumes"), data_dir.join("pods"));
        let volumes = Self { client, persistent, of_pods, disk, cloning: Arc::default() };
        make_private(&volumes.persistent)?;
        make_private(&volumes.of_pods)?;
        // Clones that were not through when an engine ended.
        for entry in std::fs::read_dir(&volumes.persistent)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(CLONING) {
                tree::remove(&entry.path())?;
            }
        }
        Ok(volumes)
    }

    /// Every volume of a Pod that does not run, made if need be.
    pub async fn of(&self, sources: &Sources<'_>) -> Result<BTreeMap<String, Prepared>, Refusal> {
        let pod = sources.pod;
        let group = groups::fs_group(pod)?;
        let mut prepared = BTreeMap::new();
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        for (at, volume) in volumes.into_iter().flatten().enumerate() {
            let content = volumes::content(volume, at, sources)?;
            // Somebody else's data, that this Pod only looks at; and files, which are made right.
            let given = matches!(content, Content::Claim { read_only: true, .. } | Content::Files(_));
            let (path, read_only, medium) = match content {
                Content::Empty => (self.empty_dir(pod, &volume.name)?, false, Medium::Disk),
                Content::Memory(bytes) => (self.empty_dir(pod, &volume.name)?, false, Medium::Memory(bytes)),
                Content::Claim { name, read_only } => {
                    let field = format!("spec.volumes[{at}].persistentVolumeClaim.claimName");
                    (self.claimed(pod, &name, &field).await?, read_only, Medium::Disk)
                }
                Content::Files(files) => {
                    let path = self.empty_dir(pod, &volume.name)?;
                    files::write(&path, &files, group).map_err(|error| io_refusal(&path, &error))?;
                    (path, true, Medium::Disk)
                }
            };
            if let Some(group) = group
                && !given
            {
                give(&path, group, read_only).await.map_err(|error| io_refusal(&path, &error))?;
            }
            prepared.insert(volume.name.clone(), Prepared { path, read_only, medium });
        }
        Ok(prepared)
    }

    /// Makes volumes that are files what they should be by now, also while sandboxes have them mounted.
    ///
    /// One that cannot be is left as it was: those who use it already have what they need.
    pub fn refresh(&self, sources: &Sources<'_>) {
        let pod = sources.pod;
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        for (at, volume) in volumes.enumerate() {
            let Ok(Content::Files(files)) = volumes::content(volume, at, sources) else { continue };
            let group = groups::fs_group(pod).unwrap_or_default();
            let path = self.of_pod(pod.metadata.uid.as_deref().unwrap_or_default()).join(&volume.name);
            if let Err(error) = files::write(&path, &files, group) {
                tracing::warn!(volume = volume.name, %error, "files of a volume not brought up to date");
            }
        }
    }

    /// Where claimed volumes are, by name.
    pub fn claimed_below(&self) -> PathBuf {
        self.persistent.clone()
    }

    /// Where volumes and records of a Pod are that are gone with it.
    pub fn of_pod(&self, uid: &str) -> PathBuf {
        self.of_pods.join(uid)
    }

    /// Directories for what an image wants outside its root. Their names are none that a Pod's volume can have.
    pub fn of_image(&self, pod: &Pod, slot: Slot, paths: &[PathBuf]) -> Result<Vec<Mount>, Refusal> {
        let mount = |(at, target): (usize, &PathBuf)| {
            let source = self.empty_dir(
                pod,
                &match slot {
                    Slot::Main(0) => format!(".image-{at}"),
                    Slot::Main(of) => format!(".image-{of}-{at}"),
                    Slot::Init(of) => format!(".image-init-{of}-{at}"),
                },
            )?;
            Ok(Mount { source, sub_path: PathBuf::new(), target: target.clone(), read_only: false })
        };
        paths.iter().enumerate().map(mount).collect()
    }

    /// Removes the volumes that go with a Pod, and all records of it.
    pub async fn forget_pod(&self, uid: &str) -> io::Result<()> {
        remove(self.of_pods.join(uid)).await
    }

    /// Removes the volumes that go with a Pod; records of it stay.
    pub async fn empty_pod(&self, uid: &str) -> io::Result<()> {
        let entries = match std::fs::read_dir(self.of_pods.join(uid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name() != archive::DIRECTORY {
                remove(entry.path()).await?;
            }
        }
        Ok(())
    }

    /// UIDs of the Pods that have such volumes here.
    pub fn pods(&self) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.of_pods)?;
        entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned())).collect()
    }

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
            if let Err(error) = remove(path).await {
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

    fn empty_dir(&self, pod: &Pod, name: &str) -> Result<PathBuf, Refusal> {
        let of_pod = self.of_pods.join(pod.metadata.uid.as_deref().unwrap_or_default());
        let path = of_pod.join(name);
        make_private(&of_pod).and_then(|()| make_volume(&path)).map_err(|error| io_refusal(&path, &error))?;
        Ok(path)
    }

    async fn claimed(&self, pod: &Pod, name: &str, field: &str) -> Result<PathBuf, Refusal> {
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
        let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
        let path = self.persistent.join(&name);
        let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        if bound && path.is_dir() {
            return Ok(path);
        }
        let spec = claim.spec.clone().unwrap_or_default();
        let size =
            spec.resources.and_then(|it| it.requests).and_then(|requests| requests.get("storage").cloned());
        let capacity = json!({"storage": size.map_or_else(|| "1Gi".to_owned(), |size| size.0)});
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
            None => make_volume(&path)?,
        }
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let params = PatchParams::default();
        let bind = json!({"metadata": {"uid": claim.metadata.uid}, "spec": {"volumeName": name}});
        claims.patch(&claim.name_any(), &params, &Patch::Merge(bind)).await?;
        let bound =
            json!({"status": {"phase": "Bound", "accessModes": spec.access_modes, "capacity": capacity}});
        claims.patch_status(&claim.name_any(), &params, &Patch::Merge(bound)).await?;
        Ok(path)
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
        remove(beside.clone()).await?;
        let (begin, room, into) = (std::time::Instant::now(), self.disk.room(), beside.clone());
        let cloned = tokio::task::spawn_blocking(move || tree::clone(&from, &into, room)).await?;
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
                remove(beside).await?;
                Err(format!("{field}: {source:?} cannot be cloned: {error}").into())
            }
        }
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a clone is called until it is whole, before the name of its volume.
const CLONING: &str = ".clone-";

/// Gives a volume to a group; it may hold so much that others must not wait for it.
async fn give(path: &Path, group: FsGroup, read_only: bool) -> io::Result<()> {
    let path = path.to_owned();
    let given = tokio::task::spawn_blocking(move || ownership::give(&path, group, read_only)).await;
    given.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// A directory that only we may look into; what sandboxes write below it may be set-user-id.
fn make_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

/// The top of a volume: usable by any user inside.
fn make_volume(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    match std::fs::create_dir(path) {
        Ok(()) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes what sandboxes have filled; that may take its time.
async fn remove(path: PathBuf) -> io::Result<()> {
    let removed = tokio::task::spawn_blocking(move || tree::remove(&path)).await;
    removed.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn io_refusal(path: &Path, error: &io::Error) -> Refusal {
    Refusal::new("FailedMount", format!("{}: {error}", path.display()))
}
