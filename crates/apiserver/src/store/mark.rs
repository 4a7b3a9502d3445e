//! How far the database was at least, noted outside of it: an older copy that takes its place is noticed.
//!
//! Written over in place after a commit, without waiting for the disk: the note may be behind the database, never ahead.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

pub(super) struct Mark {
    file: File,
    store: u64,
}

impl Mark {
    /// Opens the mark of a store, or makes it; returns the revision that was noted.
    pub fn open(path: &Path, store: u64, saved: u64) -> io::Result<(Self, Option<u64>)> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut text = String::new();
        // One that cannot be read says nothing: a reset of the machine can leave it so.
        let reached = file.read_to_string(&mut text).ok().and_then(|_| parse(&text, store));
        let mark = Self { file, store };
        if reached.is_none() {
            mark.set(saved);
        }
        Ok((mark, reached))
    }

    /// The revision that the mark of a store has. Changes nothing.
    pub fn read(path: &Path, store: u64) -> Option<u64> {
        parse(&std::fs::read_to_string(path).ok()?, store)
    }

    pub fn set(&self, revision: u64) {
        if let Err(error) = self.file.write_all_at(text(self.store, revision).as_bytes(), 0) {
            tracing::warn!(%error, "failed to note the revision of the store");
        }
    }

    pub fn sync(&self) {
        if let Err(error) = self.file.sync_all() {
            tracing::warn!(%error, "failed to note the revision of the store");
        }
    }
}

/// Always of the same length, so that one replaces another whole.
fn text(store: u64, revision: u64) -> String {
    format!("{store:016x} {revision:020}\n")
}

fn parse(text: &str, store: u64) -> Option<u64> {
    let (of, revision) = text.strip_suffix('\n')?.split_once(' ')?;
    (u64::from_str_radix(of, 16).ok()? == store).then(|| revision.parse().ok())?
}
