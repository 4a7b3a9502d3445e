//! Removing images, and layers that nobody has any more.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::lease::leased;
use super::{Lease, Record, Store};
use crate::image::Error;
use crate::image::digest::Digest;
use crate::image::error::storage;
use crate::image::reference::Reference;

/// A sandbox that stands on layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// How people know it.
    pub name: String,
    pub layers: Vec<PathBuf>,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    pub layers: usize,
    /// Bytes of their files and of downloads.
    pub bytes: u64,
}

impl Store {
    /// Takes a name away, and with it the layers that only it had. `users` are the sandboxes there are.
    pub fn remove(
        &self,
        reference: &Reference,
        users: impl FnOnce() -> Result<Vec<User>, Error>,
    ) -> Result<(Record, Removed), Error> {
        let lease = Lease::new(self, &[])?;
        let (record, doomed) = {
            let _lock = self.lock()?;
            let missing = || Error::Missing { name: reference.to_string() };
            let record = self.find(reference)?.ok_or_else(missing)?;
            let users = users()?;
            let others =
                self.list()?.iter().any(|other| other.name != record.name && other.layers == record.layers);
            let by: Vec<_> = users
                .iter()
                .filter(|user| self.stands_on(user, &record.layers))
                .map(|user| user.name.clone())
                .collect();
            // Under another name the image stays: this one may go.
            if !by.is_empty() && !others {
                return Err(Error::InUse { name: record.name, by });
            }
            record.remove(&self.names())?;
            (record, self.doom(&lease, &users)?)
        };
        Ok((record, self.discard(doomed)?))
    }

    /// Removes layers that no name, lease or sandbox has, and downloads that nobody goes on with.
    pub fn prune(&self, users: impl FnOnce() -> Result<Vec<User>, Error>) -> Result<Removed, Error> {
        let lease = Lease::new(self, &[])?;
        let doomed = {
            let _lock = self.lock()?;
            self.doom(&lease, &users()?)?
        };
        let mut removed = self.discard(doomed)?;
        removed.bytes += self.remove_downloads()?;
        Ok(removed)
    }

    fn stands_on(&self, user: &User, layers: &[Digest]) -> bool {
        let top = layers.last().map(|id| self.layer(id));
        user.layers.first() == top.as_ref() && user.layers.len() == layers.len()
    }

    /// Moves layers that nobody has out of sight. The caller holds the lock.
    fn doom(&self, lease: &Lease, users: &[User]) -> Result<Vec<PathBuf>, Error> {
        let mut kept: BTreeSet<Digest> = leased(self)?.into_iter().collect();
        kept.extend(self.list()?.into_iter().flat_map(|record| record.layers));
        let used: BTreeSet<&PathBuf> = users.iter().flat_map(|user| &user.layers).collect();
        let mut doomed = Vec::new();
        for id in self.stored_layers()?.difference(&kept).filter(|id| !used.contains(&self.layer(id))) {
            let (from, to) = (self.directory.join("layers").join(id.hex()), lease.file("removed")?);
            std::fs::rename(&from, &to).map_err(storage("remove", &from))?;
            doomed.push(to);
        }
        Ok(doomed)
    }

    fn discard(&self, doomed: Vec<PathBuf>) -> Result<Removed, Error> {
        let mut removed = Removed::default();
        for path in doomed {
            removed.layers += 1;
            removed.bytes += size(&path);
            crate::remove::directory(&path).map_err(storage("remove", &path))?;
        }
        Ok(removed)
    }

    fn remove_downloads(&self) -> Result<u64, Error> {
        let path = self.directory.join("downloads");
        let mut bytes = 0;
        for entry in std::fs::read_dir(&path).map_err(storage("read", &path))?.flatten() {
            let Ok(file) = std::fs::File::open(entry.path()) else { continue };
            // Locked: somebody is writing to it.
            if file.try_lock().is_ok() && std::fs::remove_file(entry.path()).is_ok() {
                bytes += file.metadata().map_or(0, |it| it.len());
            }
        }
        Ok(bytes)
    }
}

fn size(layer: &Path) -> u64 {
    let contents = std::fs::read(layer.join("layer.json")).unwrap_or_default();
    serde_json::from_slice(&contents).map_or(0, |contents: super::Contents| contents.bytes)
}
