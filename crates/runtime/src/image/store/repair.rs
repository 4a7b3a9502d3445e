//! Directories that a layer uses without describing them.
//!
//! A layer may hold `tmp/file` and no entry for `tmp`. Unpacked by itself, its `tmp` is an ordinary directory, and overlayfs
//! would show that one instead of the world-writable one of the layer below. Since a layer is shared by images with
//! different layers below, it cannot be corrected in itself: such an image gets one more layer on top, which holds nothing
//! but these directories as the layers below describe them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Stat, Uid, fchmod, fchown, fstat};

use super::{Contents, Lease, Store, open_directory};
use crate::image::Error;
use crate::image::digest::Digest;
use crate::image::error::storage;
use crate::image::stack::{Part, Stack};

/// Mode, owner and group.
type Attributes = (u32, u32, u32);

impl Store {
    /// The layer that an image needs on top of its own, bottom first; `None` for nearly all.
    pub fn repair(&self, lease: &Lease, layers: &[Digest]) -> Result<Option<Digest>, Error> {
        let implied: Vec<BTreeSet<PathBuf>> = layers
            .iter()
            .rev()
            .map(|id| Ok(self.contents(id)?.implied.into_iter().collect()))
            .collect::<Result<_, Error>>()?;
        if implied.iter().all(BTreeSet::is_empty) {
            return Ok(None);
        }
        let paths: Vec<_> = layers.iter().rev().map(|id| self.layer(id)).collect();
        let stack = Stack::open(&paths).map_err(storage("open", &self.directory))?;
        let wrong = wrong(&stack, &implied).map_err(storage("inspect", &self.directory))?;
        if wrong.is_empty() {
            return Ok(None);
        }
        let text =
            serde_json::to_vec(&wrong).map_err(|error| crate::image::error::malformed("a layer", error))?;
        let id = Digest::of(&text);
        lease.add(self, std::slice::from_ref(&id))?;
        if !self.has_layer(&id) {
            let half_made = lease.place("layer")?;
            make(&half_made.join("fs"), &wrong).map_err(storage("make", &half_made))?;
            let contents = Contents { entries: wrong.len() as u64, ..Contents::default() };
            self.keep(&half_made, &id, &contents)?;
        }
        Ok(Some(id))
    }
}

/// Directories that would be shown with other attributes than they were given, and those on the way to them.
fn wrong(stack: &Stack, implied: &[BTreeSet<PathBuf>]) -> std::io::Result<BTreeMap<PathBuf, Attributes>> {
    let mut wrong = BTreeMap::new();
    let all: BTreeSet<&PathBuf> = implied.iter().flatten().collect();
    for path in all {
        let (shown, meant) = judge(&stack.directory(path)?, path, implied)?;
        if shown == meant {
            continue;
        }
        for way in path.ancestors().skip(1) {
            let (_, meant) = judge(&stack.directory(way)?, way, implied)?;
            wrong.extend(meant.map(|meant| (way.to_owned(), meant)));
        }
        wrong.extend(meant.map(|meant| (path.clone(), meant)));
    }
    Ok(wrong)
}

/// What is shown of a directory, and what it was meant to be like: as the topmost layer says that says anything.
fn judge(
    parts: &[Part],
    path: &Path,
    implied: &[BTreeSet<PathBuf>],
) -> std::io::Result<(Option<Attributes>, Option<Attributes>)> {
    let attributes = |part: &Part| fstat(&part.directory).map(|stat| of(&stat));
    let shown = parts.first().map(attributes).transpose()?;
    let described = parts.iter().find(|part| !implied[part.layer].contains(path));
    Ok((shown, described.map(attributes).transpose()?.or(shown)))
}

fn of(stat: &Stat) -> Attributes {
    (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid)
}

fn make(root: &Path, directories: &BTreeMap<PathBuf, Attributes>) -> std::io::Result<()> {
    // Sorted: a directory comes before what is in it, and the root, with an empty path, first of all.
    for (path, (mode, uid, gid)) in directories {
        let path = if path.as_os_str().is_empty() { root.to_owned() } else { root.join(path) };
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        let directory = open_directory(&path)?;
        fchown(&directory, Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)))?;
        fchmod(&directory, Mode::from_raw_mode(*mode))?;
    }
    Ok(())
}
