//! Images on disk.
//!
//! ```text
//! DIR/layers/HEX/fs/      an unpacked layer, by its diff id; shared by every image that has it
//!              layer.json what is in it
//!              boot       there until it is known to be on disk: the boot in which it was written
//! DIR/names/HEX.json      an image under one name: its layers and how it wants to run
//! DIR/leases/NAME         a locked list of layers that somebody is about to use or to name
//! DIR/tmp/NAME/           the half-made things of that somebody; removed by the next one when it is gone
//! DIR/downloads/HEX       a layer that is being fetched, or whose fetching was cut short
//! DIR/store.lock          held for moments: whoever names, leases or removes layers
//! ```
//!
//! A layer and a name appear whole or not at all: both are made in `tmp` and renamed. Layers are removed only while the lock
//! is held and neither a name nor a lease nor a sandbox has them.

mod backup;
mod clean;
mod lease;
mod record;
mod repair;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use clean::{Removed, User};
pub use lease::Lease;
pub use record::Record;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::Error;
use super::digest::{Digest, Hashing};
use super::error::{malformed, storage};
use super::layer::compression::Decompressed;
use super::layer::unpack::{Contents, Purpose, unpack};
use super::limits::{Budget, Limits};
use super::reference::Reference;

/// In a layer that may not be on disk yet: the id of the boot in which it was written.
const UNSYNCED: &str = "boot";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// A download that nobody went on with is worth keeping for this long.
const STALE_DOWNLOAD: Duration = Duration::from_secs(24 * 60 * 60);

/// The images below one directory. Cheap to clone; any number of programs may have it open.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
    pub limits: Limits,
}

/// A blob that is said to hold a layer.
pub struct Blob<'a> {
    pub digest: &'a Digest,
    pub size: u64,
}

impl Store {
    /// Opens the store, making it if need be, and removes what was left half made.
    pub fn open(directory: &Path, limits: Limits) -> Result<Self, Error> {
        for name in ["layers", "names", "leases", "tmp", "downloads"] {
            let path = directory.join(name);
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(storage("make", &path))?;
        }
        let directory = directory.canonicalize().map_err(storage("resolve", directory))?;
        // Layers hold set-user-id programs of root: nobody else of the machine gets near them.
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o700))
            .map_err(storage("close to others", &directory))?;
        let store = Self { directory, limits };
        lease::sweep(&store)?;
        store.remove_unsynced()?;
        store.forget_old_downloads()?;
        Ok(store)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits for the lock of the store; held until dropped.
    fn lock(&self) -> Result<File, Error> {
        let path = self.directory.join("store.lock");
        let opened =
            std::fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        opened.and_then(|file| file.lock().map(|()| file)).map_err(storage("lock", &path))
    }

    /// What an unpacked image may take at most, here and now.
    pub fn budget(&self) -> Result<Budget, Error> {
        let found = rustix::fs::statvfs(&self.directory).map_err(|errno| errno.into());
        let found = found.map_err(storage("inspect", &self.directory))?;
        Ok(Budget::new(self.limits, found.f_bavail.saturating_mul(found.f_frsize)))
    }

    /// The root of an unpacked layer.
    pub fn layer(&self, id: &Digest) -> PathBuf {
        self.directory.join("layers").join(id.hex()).join("fs")
    }

    pub fn has_layer(&self, id: &Digest) -> bool {
        self.layer(id).is_dir()
    }

    /// What is in a layer.
    pub fn contents(&self, id: &Digest) -> Result<Contents, Error> {
        let path = self.directory.join("layers").join(id.hex()).join("layer.json");
        let text = std::fs::read(&path).map_err(storage("read", &path))?;
        serde_json::from_slice(&text).map_err(|error| malformed(path.display().to_string(), error))
    }

    /// Where a blob is downloaded to.
    pub fn download(&self, digest: &Digest) -> PathBuf {
        self.directory.join("downloads").join(digest.hex())
    }

    /// Unpacks a layer, whatever its compression. It is kept only if its digests are those it should have.
    ///
    /// `None` as diff id: whatever it turns out to be. The lease must have been given the layer before.
    pub fn add_layer(
        &self,
        lease: &Lease,
        source: impl Read,
        blob: Option<&Blob<'_>>,
        id: Option<&Digest>,
        budget: &Budget,
    ) -> Result<Digest, Error> {
        let unreadable = |source| Error::Read { what: "a layer".to_owned(), source };
        let half_made = lease.place("layer")?;
        let root = half_made.join("fs");
        // Not by the mode of its making: the mask of this process takes bits from that.
        std::fs::create_dir(&root)
            .and_then(|()| std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)))
            .map_err(storage("make", &root))?;
        let opened = open_directory(&root).map_err(storage("open", &root))?;
        let plain = Hashing::new(Decompressed::new(source, budget.limits).map_err(unreadable)?);
        let (contents, plain) = unpack(plain, opened, budget, Purpose::Layer)?;
        let (compressed, found) = plain.take();
        let (digest, size) = compressed.finish().map_err(unreadable)?;
        if let Some(blob) = blob {
            if digest != *blob.digest {
                return Err(wrong_digest("a layer", blob.digest, digest));
            }
            if size != blob.size {
                return Err(malformed("a layer", format!("it has {size} bytes, not {}", blob.size)));
            }
        }
        if let Some(id) = id.filter(|id| **id != found) {
            return Err(wrong_digest("an unpacked layer", id, found));
        }
        lease.add(self, std::slice::from_ref(&found))?;
        self.keep(&half_made, &found, &contents)?;
        Ok(found)
    }

    /// Gives a layer that is whole its place. Another one that was quicker is as good.
    fn keep(&self, half_made: &Path, id: &Digest, contents: &Contents) -> Result<(), Error> {
        let path = half_made.join("layer.json");
        let text = serde_json::to_vec(contents).map_err(|error| malformed("a layer", error))?;
        std::fs::write(&path, text).map_err(storage("write", &path))?;
        let path = half_made.join(UNSYNCED);
        std::fs::write(&path, boot_id().map_err(storage("read", Path::new(BOOT_ID)))?)
            .map_err(storage("write", &path))?;
        let place = self.directory.join("layers").join(id.hex());
        match renameat_with(CWD, half_made, CWD, &place, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => crate::remove::directory(half_made).map_err(storage("remove", half_made)),
            Err(errno) => Err(storage("name", &place)(errno.into())),
        }
    }

    /// Names an image. Its layers are there, and leased by the caller.
    pub fn name(&self, lease: &Lease, record: &Record) -> Result<(), Error> {
        self.sync(&record.layers)?;
        let _lock = self.lock()?;
        if let Some(lost) = record.layers.iter().find(|id| !self.has_layer(id)) {
            return Err(malformed("the image", format!("its layer {lost} is not there")));
        }
        record.write(&self.names(), &lease.file("record")?)
    }

    /// Makes sure that layers survive a crash of the machine. Once for all of them: it waits for the whole disk.
    fn sync(&self, layers: &[Digest]) -> Result<(), Error> {
        let marks: Vec<_> =
            layers.iter().map(|id| self.directory.join("layers").join(id.hex()).join(UNSYNCED)).collect();
        let marks: Vec<_> = marks.into_iter().filter(|mark| mark.exists()).collect();
        if marks.is_empty() {
            return Ok(());
        }
        let synced = open_directory(&self.directory).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
        synced.map_err(storage("write to disk", &self.directory))?;
        // Another program may be doing the same.
        marks.iter().for_each(|mark| drop(std::fs::remove_file(mark)));
        Ok(())
    }

    /// Removes layers that were being written when the machine went down, unless a name or a lease has them: what has a name was
    /// on disk before, whether or not the mark's removal was.
    fn remove_unsynced(&self) -> Result<(), Error> {
        let boot = boot_id().map_err(storage("read", Path::new(BOOT_ID)))?;
        let _lock = self.lock()?;
        let place = |id: &Digest| self.directory.join("layers").join(id.hex());
        let of_another_boot =
            |id: &Digest| std::fs::read(place(id).join(UNSYNCED)).is_ok_and(|of| of != boot);
        let mut unsynced: Vec<_> = self.stored_layers()?.into_iter().filter(of_another_boot).collect();
        if unsynced.is_empty() {
            return Ok(());
        }
        let mut kept = lease::leased(self)?;
        kept.extend(self.list()?.into_iter().flat_map(|record| record.layers));
        unsynced.retain(|id| !kept.contains(id));
        for layer in unsynced.iter().map(place) {
            crate::remove::directory(&layer).map_err(storage("remove", &layer))?;
        }
        Ok(())
    }

    /// The image that a name stands for here.
    pub fn find(&self, reference: &Reference) -> Result<Option<Record>, Error> {
        if let Some(record) = Record::read(&self.names(), &reference.to_string())? {
            return Ok(Some(record));
        }
        // A digest may also be that of an image which was pulled by its tag.
        let Some(digest) = &reference.digest else { return Ok(None) };
        let place = reference.place();
        let same = |record: &Record| {
            record.manifest.as_ref() == Some(digest)
                && Reference::parse(&record.name).is_ok_and(|name| name.place() == place)
        };
        Ok(self.list()?.into_iter().find(same))
    }

    /// Every image by name.
    pub fn list(&self) -> Result<Vec<Record>, Error> {
        record::all(&self.names())
    }

    fn names(&self) -> PathBuf {
        self.directory.join("names")
    }

    /// Diff ids of all layers that are here.
    fn stored_layers(&self) -> Result<BTreeSet<Digest>, Error> {
        let path = self.directory.join("layers");
        let entries = std::fs::read_dir(&path).map_err(storage("read", &path))?;
        let id = |entry: io::Result<std::fs::DirEntry>| -> Option<Digest> {
            format!("sha256:{}", entry.ok()?.file_name().to_str()?).parse().ok()
        };
        Ok(entries.filter_map(id).collect())
    }

    fn forget_old_downloads(&self) -> Result<(), Error> {
        let path = self.directory.join("downloads");
        let entries = std::fs::read_dir(&path).map_err(storage("read", &path))?;
        for entry in entries.flatten() {
            let age =
                entry.metadata().and_then(|it| it.modified()).map(|at| SystemTime::now().duration_since(at));
            // Locked by the process that writes to it.
            let is_free = || File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
            if age.is_ok_and(|age| age.is_ok_and(|age| age > STALE_DOWNLOAD)) && is_free() {
                // Another process may be doing the same.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

pub fn wrong_digest(what: &str, expected: &Digest, found: Digest) -> Error {
    Error::Digest { what: what.to_owned(), expected: expected.clone(), found }
}

fn boot_id() -> io::Result<Vec<u8>> {
    std::fs::read(BOOT_ID)
}

fn open_directory(path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    Ok(open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}
