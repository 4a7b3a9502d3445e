//! From layers that are there to an image that has a name.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Error;
use super::config::Config;
use super::digest::Digest;
use super::error::storage;
use super::reference::Reference;
use super::stack::Stack;
use super::store::{Lease, Record, Store};

/// An image whose layers, bottom first, are in the store and leased.
pub struct Assembled {
    pub manifest: Option<Digest>,
    pub id: Digest,
    pub layers: Vec<Digest>,
    pub config: Config,
}

/// Names an image.
pub fn name(store: &Store, lease: &Lease, name: &Reference, image: Assembled) -> Result<Record, Error> {
    let Assembled { manifest, id, mut layers, config } = image;
    let mut size = 0;
    for id in &layers {
        size += store.contents(id)?.bytes;
    }
    layers.extend(store.repair(lease, &layers)?);
    let volumes = empty_volumes(store, &layers, &config)?;
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    let record = Record { name: name.to_string(), manifest, id, layers, size, at, config, volumes };
    store.name(lease, &record)?;
    Ok(record)
}

/// Volumes that hold nothing in the image. The others stay in the root, where what they hold is.
fn empty_volumes(store: &Store, layers: &[Digest], config: &Config) -> Result<Vec<PathBuf>, Error> {
    if config.volumes.is_empty() {
        return Ok(Vec::new());
    }
    let paths: Vec<_> = layers.iter().rev().map(|id| store.layer(id)).collect();
    let unreadable = || storage("inspect", store.directory());
    let stack = Stack::open(&paths).map_err(unreadable())?;
    let mut empty = Vec::new();
    for path in config.volumes.keys().filter(|path| is_plain(path)) {
        let parts = stack.directory(path).map_err(unreadable())?;
        let nothing = parts.iter().map(|part| part.is_empty()).collect::<Result<Vec<_>, _>>();
        if nothing.map_err(unreadable())?.into_iter().all(|empty| empty) {
            empty.push(path.clone());
        }
    }
    Ok(empty)
}

/// An image may write anything there.
fn is_plain(path: &Path) -> bool {
    let kernel = ["/proc", "/sys", "/dev", "/.asb"].iter().any(|reserved| path.starts_with(reserved));
    let upwards = path.components().any(|part| part == std::path::Component::ParentDir);
    path.is_absolute() && path != Path::new("/") && !kernel && !upwards
}
