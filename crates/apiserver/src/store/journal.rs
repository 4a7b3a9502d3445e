//! What was written since the database was last brought up to date, one record behind the other.
//!
//! A commit of the database writes half a dozen pages all over its file, and a disk takes its time for each; a record
//! here is one visit. The file has its size from the start, so that nothing but the record has to reach the disk, and there is
//! room also where the disk is full.
//!
//! ```text
//! ┌ store ┬ length ┬ CRC ┬ changes ┐┌ store ┬ … ┐┌ older than what stands before it: left from the last time around
//! ```
//!
//! Nothing says where it ends: whole records count up to the first that is older than the one before it, and of those the changes that
//! the database does not have.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::state::Change;

/// Small, because the changes in it are also held in memory.
const SIZE: usize = 1 << 20;
/// Store, length and CRC.
const HEAD: usize = 16;

pub(super) struct Journal {
    file: File,
    /// Whose it is. Records of a store that was there before are none.
    store: u64,
    /// Where the next record goes.
    end: usize,
    record: Vec<u8>,
}

/// A change as it was read back.
#[derive(Debug, PartialEq)]
pub(super) struct Kept {
    pub revision: u64,
    pub deleted: bool,
    /// As [`super::entry::Entry::to_disk`] makes it; of what was deleted only `collection/path`.
    pub text: Vec<u8>,
}

impl Journal {
    /// Opens the journal of a store, or makes it, and reads what was written after a revision.
    pub fn open(path: &Path, store: u64, after: u64) -> io::Result<(Self, Vec<Kept>)> {
        // Secrets are in here as well.
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        if text.len() < SIZE {
            // Written, not only reserved: a disk has more to note where that is done later.
            file.write_all_at(&vec![0; SIZE - text.len()], text.len() as u64)?;
            file.sync_all()?;
            File::open(path.parent().unwrap_or(path))?.sync_all()?;
        }
        let (mut kept, end) = read(&text, store);
        kept.retain(|change| change.revision > after);
        let end = if kept.is_empty() { 0 } else { end };
        Ok((Self { file, store, end, record: Vec::new() }, kept))
    }

    /// The revisions that the journal of a store has after one, in their order. Changes nothing.
    pub fn revisions(path: &Path, store: u64, after: u64) -> io::Result<Vec<u64>> {
        let text = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        let revisions = read(&text, store).0.into_iter().map(|change| change.revision);
        Ok(revisions.filter(|revision| *revision > after).collect())
    }

    /// Begins anew: the database has everything.
    pub fn restart(&mut self) {
        self.end = 0;
    }

    /// Writes a record; `false` when there is no room for it. It is on disk when this returns.
    pub fn append(&mut self, changes: &[Arc<Change>]) -> io::Result<bool> {
        self.record.clear();
        self.record.resize(HEAD, 0);
        changes.iter().for_each(|change| encode(change, &mut self.record));
        if self.end + self.record.len() > SIZE {
            self.record = Vec::new();
            return Ok(false);
        }
        let length = (self.record.len() - HEAD) as u32;
        let crc = crc(self.store, &self.record[HEAD..]);
        self.record[..8].copy_from_slice(&self.store.to_le_bytes());
        self.record[8..12].copy_from_slice(&length.to_le_bytes());
        self.record[12..HEAD].copy_from_slice(&crc.to_le_bytes());
        self.file.write_all_at(&self.record, self.end as u64)?;
        self.file.sync_data()?;
        self.end += self.record.len();
        Ok(true)
    }
}

fn encode(change: &Change, out: &mut Vec<u8>) {
    let text = match change.deleted {
        true => format!("{}/{}", change.key.collection, change.key.path).into_bytes(),
        false => change.entry.to_disk(&change.key),
    };
    out.extend_from_slice(&change.revision.to_le_bytes());
    out.push(change.deleted.into());
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(&text);
}

/// The changes in the records at the beginning, and where those end.
fn read(text: &[u8], store: u64) -> (Vec<Kept>, usize) {
    let (mut kept, mut end) = (Vec::<Kept>::new(), 0);
    while let Some((changes, length)) = text.get(end..).and_then(|rest| record(rest, store)) {
        let last = kept.last().map_or(0, |change| change.revision);
        if changes.first().is_none_or(|first| first.revision <= last) {
            break;
        }
        kept.extend(changes);
        end += length;
    }
    (kept, end)
}

/// The record at the beginning, and its length; `None` when there is none, or not all of it had reached the disk.
fn record(text: &[u8], store: u64) -> Option<(Vec<Kept>, usize)> {
    let (found, rest) = text.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let body = rest.get(..u32::from_le_bytes(*length) as usize)?;
    if u64::from_le_bytes(*found) != store || u32::from_le_bytes(*sum) != crc(store, body) {
        return None;
    }
    let (mut changes, mut rest) = (Vec::new(), body);
    while !rest.is_empty() {
        let (change, after) = decode(rest)?;
        changes.push(change);
        rest = after;
    }
    Some((changes, HEAD + body.len()))
}

fn decode(text: &[u8]) -> Option<(Kept, &[u8])> {
    let (revision, rest) = text.split_first_chunk::<8>()?;
    let (&deleted, rest) = rest.split_first()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let revision = u64::from_le_bytes(*revision);
    Some((Kept { revision, deleted: deleted != 0, text: text.to_vec() }, rest))
}

fn crc(store: u64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&store.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::entry::{Draft, Key};
    use super::*;

    fn change(revision: u64, name: &str, deleted: bool) -> Arc<Change> {
        let object =
            json!({ "apiVersion": "v1", "kind": "Thing", "metadata": { "name": name, "uid": name } });
        let entry = Arc::new(Draft::of(&object, &[]).preview(revision));
        Arc::new(Change {
            revision,
            key: Key::new(&"things".into(), "ns", name),
            deleted,
            entry,
            previous: None,
        })
    }

    fn kept(change: &Change) -> Kept {
        let text = match change.deleted {
            true => format!("things/{}", change.key.path).into_bytes(),
            false => change.entry.to_disk(&change.key),
        };
        Kept { revision: change.revision, deleted: change.deleted, text }
    }

    #[test]
    fn what_the_database_does_not_have_is_read_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("journal");
        let open = |store, after| Journal::open(&path, store, after).expect("opened");
        let (mut journal, none) = open(3, 0);
        assert_eq!(none, []);
        let changes = [change(7, "a", false), change(8, "b", false), change(9, "a", true)];
        assert!(journal.append(&changes[..2]).expect("written"));
        assert!(journal.append(&changes[2..]).expect("written"));
        assert_eq!(open(3, 6).1, changes.each_ref().map(|change| kept(change)));
        assert_eq!(open(3, 8).1, [kept(&changes[2])]);
        assert_eq!(open(4, 0).1, [], "they are another store's");

        // It goes on behind what is needed.
        let (mut journal, _) = open(3, 6);
        assert!(journal.append(&[change(10, "c", false)]).expect("written"));
        assert_eq!(open(3, 6).1.len(), 4);
        // What is left from the last time around is none of it, also where the records have the same length.
        let (mut journal, none) = open(3, 10);
        assert_eq!(none, []);
        assert!(journal.append(&[change(11, "d", false), change(12, "e", false)]).expect("written"));
        assert_eq!(open(3, 10).1.len(), 2);
    }

    #[test]
    fn record_that_the_disk_has_only_a_part_of_is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path, 1, 0).expect("made");
        assert!(journal.append(&[change(1, "a", false)]).expect("written"));
        let first = journal.end;
        assert!(journal.append(&[change(2, "b", false)]).expect("written"));
        let text = std::fs::read(&path).expect("read");
        for cut in 0..journal.end {
            let torn: Vec<u8> =
                text[..cut].iter().copied().chain(std::iter::repeat_n(0, SIZE - cut)).collect();
            let (kept, end) = read(&torn, 1);
            assert_eq!((kept.len(), end), if cut < first { (0, 0) } else { (1, first) }, "cut at {cut}");
        }
        for at in 0..first {
            let mut wrong = text.clone();
            wrong[at] ^= 1;
            assert_eq!(read(&wrong, 1).0, [], "bit {at} was changed");
        }
    }

    #[test]
    fn record_that_does_not_fit_is_refused_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path, 1, 0).expect("made");
        let changes =
            |number: u64| -> Vec<_> { (1..=1000).map(|it| change(number * 1000 + it, "a", false)).collect() };
        let full = (0..).find(|number| !journal.append(&changes(*number)).expect("written")).expect("an end");
        assert!(full > 1);
        assert_eq!(Journal::open(&path, 1, 0).expect("opened").1.len() as u64, full * 1000);
        assert!(journal.append(&changes(full)[..1]).expect("written"), "a smaller one has room");
    }
}
