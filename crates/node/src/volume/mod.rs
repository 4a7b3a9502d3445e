//! Volumes on one machine: each is a directory under the data directory, kept (`volumes/`) or gone with its Pod (`pods/`).
//!
//! The PersistentVolume object is the record of the directory: it is written before the directory is
//! made and removed after the directory is gone, so that a crash leaves no directory without a record.
//!
//! A directory is removed only when the claim of its volume is gone, no other claim has the volume, its policy is `Delete`,
//! and no Pod has a [`lease`] of it. Sandboxes of an earlier engine get their leases when the node is opened.

mod binding;
mod claimed;
mod clone;
mod files;
mod host;
mod lease;
mod ownership;
mod reclaim;
mod size;
mod source;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use asb_runtime::tree::{self, quota};
use asb_runtime::{Mount, Sandbox};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;

pub use self::binding::{PROVISIONER, is_ours};
use self::clone::{CLONING, remove_volume};
pub use self::host::HostPaths;
pub use self::lease::{Lease, Leases};
pub use self::watch::watch;
use crate::disk::Disk;
use crate::event::Recorder;
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
    events: Recorder,
    /// PersistentVolumes, one directory each.
    persistent: PathBuf,
    /// Volumes that are gone with their Pod: one directory per Pod.
    of_pods: PathBuf,
    /// What Pods may use of the machine.
    host: HostPaths,
    disk: Arc<Disk>,
    /// Whether the filesystem keeps volumes from holding more than they were given.
    sizes_hold: bool,
    /// Held while a volume is being cloned.
    cloning: Arc<tokio::sync::Mutex<()>>,
    leases: Leases,
    /// Names of volumes that a claim may be bound to.
    free: Arc<Mutex<BTreeSet<String>>>,
}

impl Volumes {
    pub fn open(
        client: Client,
        events: Recorder,
        data_dir: &Path,
        disk: Arc<Disk>,
        host: HostPaths,
    ) -> io::Result<Self> {
        let (persistent, of_pods) = (data_dir.join("volumes"), data_dir.join("pods"));
        make_private(&persistent)?;
        make_private(&of_pods)?;
        let sizes_hold = quota::are_enforced(&persistent);
        let volumes = Self {
            client,
            events,
            persistent,
            of_pods,
            host,
            disk,
            sizes_hold,
            cloning: Arc::default(),
            leases: Leases::default(),
            free: Arc::default(),
        };
        // Clones that were not through when an engine ended.
        for entry in std::fs::read_dir(&volumes.persistent)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(CLONING) {
                remove_volume(&entry.path())?;
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
            let given = matches!(
                content,
                Content::Claim { read_only: true, .. } | Content::Files(_) | Content::Host(_)
            );
            let (mut below, mut lease) = (PathBuf::new(), None);
            let (path, read_only, medium) = match content {
                Content::Empty => (self.empty_dir(pod, &volume.name)?, false, Medium::Disk),
                Content::Memory(bytes) => (self.empty_dir(pod, &volume.name)?, false, Medium::Memory(bytes)),
                Content::Claim { name, read_only } => {
                    let field = format!("spec.volumes[{at}].persistentVolumeClaim.claimName");
                    let (path, held) = self.claimed(pod, &name, &field).await?;
                    lease = Some(held);
                    (path, read_only, Medium::Disk)
                }
                Content::Host(source) => {
                    let place = self.host.place(&source, &format!("spec.volumes[{at}]"))?;
                    below = place.below;
                    (place.root, false, Medium::Disk)
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
            prepared.insert(volume.name.clone(), Prepared { path, below, read_only, medium, _lease: lease });
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

    /// Leases of the claimed volumes among the mounts of a sandbox that an earlier engine has started.
    pub fn hold(&self, sandbox: &Sandbox) -> Vec<Lease> {
        let sources = sandbox.spec().mounts.iter().map(|mount| mount.source.as_path());
        let names = sources.filter_map(|source| name_in(&self.persistent, source));
        names.filter_map(|name| self.leases.take(name)).collect()
    }

    /// The claimed volumes that Pods use.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    fn free(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where claimed volumes are, by name.
    pub fn claimed_below(&self) -> PathBuf {
        self.persistent.clone()
    }

    /// The directory of a claimed volume. Names are written by users: one that leads elsewhere is an error.
    fn place(&self, volume: &str) -> io::Result<PathBuf> {
        below(&self.persistent, volume)
    }

    /// Where volumes and records of a Pod are that are gone with it.
    pub fn of_pod(&self, uid: &str) -> PathBuf {
        self.of_pods.join(uid)
    }

    /// The same, for what removes it: never the directory of all Pods, nor anything outside.
    fn removable(&self, uid: &str) -> io::Result<PathBuf> {
        below(&self.of_pods, uid)
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
                    Slot::Ephemeral(of) => format!(".image-debug-{of}-{at}"),
                },
            )?;
            Ok(Mount { source, sub_path: PathBuf::new(), target: target.clone(), read_only: false })
        };
        paths.iter().enumerate().map(mount).collect()
    }

    /// Removes the volumes that go with a Pod, and all records of it.
    pub async fn forget_pod(&self, uid: &str) -> io::Result<()> {
        remove(self.removable(uid)?).await
    }

    /// Removes the volumes that go with a Pod; records of it stay.
    pub async fn empty_pod(&self, uid: &str) -> io::Result<()> {
        let entries = match std::fs::read_dir(self.removable(uid)?) {
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

    fn empty_dir(&self, pod: &Pod, name: &str) -> Result<PathBuf, Refusal> {
        let of_pod = self.of_pods.join(pod.metadata.uid.as_deref().unwrap_or_default());
        let path = of_pod.join(name);
        make_private(&of_pod).and_then(|()| make_volume(&path)).map_err(|error| io_refusal(&path, &error))?;
        Ok(path)
    }
}

/// The claimed volume that was mounted from `source`. The directory of all volumes may have had another path then.
fn name_in<'a>(volumes: &Path, source: &'a Path) -> Option<&'a str> {
    let parent = source.parent()?;
    (parent.file_name() == volumes.file_name()).then_some(source.file_name()?.to_str()?)
}

/// The directory of this name in `parent`. An empty name, or one that leads elsewhere, is an error.
pub fn below(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(parent.join(only)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is not the name of a directory in {}", parent.display()),
        )),
    }
}

/// Gives a volume to a group.
async fn give(path: &Path, group: FsGroup, read_only: bool) -> io::Result<()> {
    let path = path.to_owned();
    apart(move || ownership::give(&path, group, read_only)).await
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

/// Removes what sandboxes have filled.
async fn remove(path: PathBuf) -> io::Result<()> {
    apart(move || tree::remove(&path)).await
}

/// Does what goes through all of a volume: it may hold so much that others must not wait for it.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn io_refusal(path: &Path, error: &io::Error) -> Refusal {
    Refusal::new("FailedMount", format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_of_a_mount_is_found_by_its_name_whatever_the_path_of_the_data_directory_was() {
        let of = |source: &'static str| name_in(Path::new("/data/volumes"), Path::new(source));
        assert_eq!(of("/data/volumes/pvc-1"), Some("pvc-1"));
        assert_eq!(of("/link/to/data/volumes/pvc-1"), Some("pvc-1"));
        assert_eq!(of("/data/pods/7f1c/volumes"), None);
        assert_eq!(of("/data/volumes"), None);
    }

    #[test]
    fn only_one_directory_below_is_ever_removed() {
        let parent = Path::new("/data/pods");
        assert_eq!(below(parent, "7f1c").unwrap(), parent.join("7f1c"));
        assert_eq!(below(parent, ".clone-pvc").unwrap(), parent.join(".clone-pvc"));
        for name in ["", ".", "..", "/", "/etc", "a/b", "a/..", "../volumes", "a/"] {
            assert!(below(parent, name).is_err(), "{name:?}");
        }
    }
}
