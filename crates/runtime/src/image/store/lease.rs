//! A lease: layers that somebody is about to use, and the temporary directory of that somebody.
//!
//! The file is locked for as long as its maker lives. Whoever opens the store and gets the lock of a lease knows that its
//! maker is gone, and removes what it left.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Error, Store};
use crate::image::digest::Digest;
use crate::image::error::storage;

/// Holds layers until dropped.
#[derive(Debug)]
pub struct Lease {
    file: File,
    path: PathBuf,
    temporary: PathBuf,
    next: AtomicU64,
}

impl Lease {
    /// A lease on layers, which may but need not be there.
    pub fn new(store: &Store, layers: &[Digest]) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let _lock = store.lock()?;
        let options = || {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            options
        };
        loop {
            let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = store.directory.join("leases").join(&name);
            let file = match options().open(&path) {
                // Of an earlier process with the same id.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                file => file.map_err(storage("make", &path))?,
            };
            file.lock().map_err(storage("lock", &path))?;
            let temporary = store.directory.join("tmp").join(&name);
            let lease = Self { file, path, temporary, next: AtomicU64::new(0) };
            lease.write(layers)?;
            return Ok(lease);
        }
    }

    /// Holds further layers from now on.
    pub fn add(&self, store: &Store, layers: &[Digest]) -> Result<(), Error> {
        let _lock = store.lock()?;
        self.write(layers)
    }

    /// A new directory for something half made.
    pub fn place(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.file(name)?;
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(storage("make", &path))?;
        Ok(path)
    }

    /// A path for a temporary file.
    pub fn file(&self, name: &str) -> Result<PathBuf, Error> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.temporary);
        made.map_err(storage("make", &self.temporary))?;
        Ok(self.temporary.join(format!("{name}-{}", self.next.fetch_add(1, Ordering::Relaxed))))
    }

    fn write(&self, layers: &[Digest]) -> Result<(), Error> {
        let text: String = layers.iter().map(|id| format!("{id}\n")).collect();
        (&self.file).write_all(text.as_bytes()).map_err(storage("write", &self.path))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Whatever fails here is done by the next one that opens the store.
        let _ = crate::remove::directory(&self.temporary);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Layers that are leased now. The caller holds the lock of the store.
pub fn leased(store: &Store) -> Result<Vec<Digest>, Error> {
    let mut layers = Vec::new();
    for path in files(store)? {
        // Gone by now: given back.
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        layers.extend(text.lines().filter_map(|line| line.parse().ok()));
    }
    Ok(layers)
}

/// Removes leases whose makers are gone, with all that they left half made.
pub fn sweep(store: &Store) -> Result<(), Error> {
    let mut dead = Vec::new();
    {
        let _lock = store.lock()?;
        for path in files(store)? {
            let Ok(file) = File::open(&path) else { continue };
            if file.try_lock().is_ok() {
                dead.push((path, file));
            }
        }
        // A temporary directory whose lease is gone: its removal was cut short.
        let temporary = store.directory.join("tmp");
        for entry in std::fs::read_dir(&temporary).map_err(storage("read", &temporary))?.flatten() {
            let lease = store.directory.join("leases").join(entry.file_name());
            if !lease.exists() {
                crate::remove::directory(&entry.path()).map_err(storage("remove", &entry.path()))?;
            }
        }
    }
    for (path, _held) in dead {
        let temporary = store.directory.join("tmp").join(path.file_name().unwrap_or_default());
        crate::remove::directory(&temporary).map_err(storage("remove", &temporary))?;
        let _ = std::fs::remove_file(&path);
    }
    Ok(())
}

fn files(store: &Store) -> Result<Vec<PathBuf>, Error> {
    let path = store.directory.join("leases");
    let entries = std::fs::read_dir(&path).map_err(storage("read", &path))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}
