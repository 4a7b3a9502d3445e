//! The durable store: reads and writes happen in memory, and one thread takes every change to disk.
//!
//! A change is *settled* when it is on disk. Who only ever writes here may look ahead of that, because what follows
//! from a change settles after it or is lost with it; everybody else sees settled changes only.

mod backup;
mod cursor;
mod disk;
mod entry;
mod identity;
mod journal;
mod mark;
mod state;
#[cfg(test)]
mod tests;
mod write;

use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use redb::{Database, ReadableDatabase, ReadableTable};
use tokio::sync::{oneshot, watch};

pub(crate) use backup::make;
pub(crate) use cursor::Cursor;
pub(crate) use entry::{Draft, Entry, Key, Meta};
pub(crate) use identity::{Unfit, identify};
pub(crate) use state::{Change, Compacted};
pub(crate) use write::{Expect, Op, Write, WriteError};

use disk::{Command, Disk, NUMBERS, OBJECTS, REVISION};
use journal::{Journal, Kept};
use mark::Mark;
use state::State;

/// Called for every change, under the store's lock: it must be quick and must not call back.
pub(crate) type Tap = Box<dyn Fn(&Arc<Change>) + Send + Sync>;
/// Names the selectable fields of a collection.
pub(crate) type Fields = fn(&str) -> &'static [&'static str];

#[derive(Clone)]
pub(crate) struct Store {
    shared: Arc<Shared>,
    queue: Sender<Command>,
}

struct Shared {
    state: RwLock<State>,
    tap: Tap,
    progress: watch::Sender<Progress>,
}

/// How far the disk is.
#[derive(Default)]
struct Progress {
    settled: u64,
    /// Why it is stuck.
    failure: Option<Arc<redb::Error>>,
}

/// What a list sees.
pub(crate) struct Snapshot {
    pub revision: u64,
    pub entries: Vec<Arc<Entry>>,
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes in that all changes up to `revision` are on disk, the last of them in these collections.
    fn settle<'a>(&self, revision: u64, touched: impl Iterator<Item = &'a Arc<str>>) {
        let mut state = self.write();
        state.settled = revision;
        touched.for_each(|collection| state.announce_settled(collection));
        drop(state);
        self.progress.send_replace(Progress { settled: revision, failure: None });
    }

    fn failed(&self, error: Arc<redb::Error>) {
        self.progress.send_modify(|progress| progress.failure = Some(error));
    }
}

impl Store {
    pub fn open(path: &Path, fields: Fields, tap: Tap) -> Result<Self, redb::Error> {
        let db = disk::open_or_make(path)?;
        let Loaded { state, journal, mark, pending } = load(&db, path, fields)?;
        let progress = watch::Sender::new(Progress { settled: state.settled, failure: None });
        let shared = Arc::new(Shared { state: RwLock::new(state), tap, progress });
        let (queue, commands) = mpsc::channel();
        let disk =
            Disk { path: path.to_owned(), db: Some(db), shared: shared.clone(), journal, mark, pending };
        std::thread::Builder::new()
            .name("store-disk".into())
            .spawn(move || disk.run(commands))
            .map_err(redb::StorageError::Io)?;
        Ok(Self { shared, queue })
    }

    /// Takes a write in. It is in memory when this returns, and on disk when it is settled.
    pub fn write(&self, write: Write) -> Result<Arc<Entry>, WriteError> {
        let mut state = self.shared.write();
        if let Some(failure) = &self.shared.progress.borrow().failure {
            return Err(WriteError::Storage(failure.clone()));
        }
        let change = Arc::new(write.onto(&state)?);
        // In the order of their numbers: the state is locked.
        self.queue.send(Command::Keep(change.clone())).map_err(|_| WriteError::Stopped)?;
        state.publish(change.clone());
        (self.shared.tap)(&change);
        state.announce(&change.key.collection);
        Ok(change.entry.clone())
    }

    /// Waits until everything up to `revision` is on disk.
    pub async fn settled(&self, revision: u64) -> Result<(), WriteError> {
        let mut progress = self.shared.progress.subscribe();
        let moved = progress.wait_for(|now| now.settled >= revision || now.failure.is_some()).await;
        match moved {
            Ok(now) if now.settled >= revision => Ok(()),
            Ok(now) => Err(now.failure.clone().map_or(WriteError::Stopped, WriteError::Storage)),
            Err(_) => Err(WriteError::Stopped),
        }
    }

    /// Writes everything out and closes the file. Later writes fail, reads go on from memory.
    pub async fn stop(&self) {
        let (reply, answer) = oneshot::channel();
        if self.queue.send(Command::Stop(reply)).is_ok() {
            let _ = answer.await;
        }
    }

    pub fn revision(&self) -> u64 {
        self.shared.read().revision
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.shared.read().get(key).cloned()
    }

    /// The same at an earlier revision, if the history reaches back that far.
    pub fn get_at(&self, key: &Key, revision: u64) -> Result<Option<Arc<Entry>>, Compacted> {
        self.shared.read().get_at(key, revision)
    }

    /// What is on disk, while that takes nothing more.
    pub fn stuck(&self) -> Option<u64> {
        let progress = self.shared.progress.borrow();
        progress.failure.as_ref().map(|_| progress.settled)
    }

    /// The object with this uid.
    pub fn find(&self, uid: &str) -> Option<(Key, Arc<Entry>)> {
        let state = self.shared.read();
        let key = state.by_uid(uid)?;
        Some((key.clone(), state.get(key)?.clone()))
    }

    /// The objects that name this uid as an owner.
    pub fn dependents(&self, uid: &str) -> Vec<Key> {
        self.shared.read().dependents(uid)
    }

    pub fn collections(&self) -> Vec<Arc<str>> {
        self.shared.read().names()
    }

    /// All objects of a collection whose path starts with `prefix`, now.
    pub fn list(&self, collection: &str, prefix: &str) -> Snapshot {
        let state = self.shared.read();
        let entries = state.range(collection, prefix).map(|(_, entry)| entry.clone()).collect();
        Snapshot { revision: state.revision, entries }
    }

    /// The same at an earlier revision, if the history reaches back that far.
    pub fn list_at(&self, collection: &str, prefix: &str, revision: u64) -> Result<Snapshot, Compacted> {
        let entries = self.shared.read().range_at(collection, prefix, revision)?.into_values().collect();
        Ok(Snapshot { revision, entries })
    }

    pub fn is_empty(&self, collection: &str, prefix: &str) -> bool {
        self.shared.read().range(collection, prefix).next().is_none()
    }

    /// Follows a collection's changes after `revision`: when they are settled, or ahead of that.
    pub fn watch(&self, collection: &Arc<str>, revision: u64, ahead: bool) -> Cursor {
        let known = self.shared.read().peek(collection).map(|found| found.subscribe(ahead));
        let changed = known.unwrap_or_else(|| self.shared.write().collection(collection).subscribe(ahead));
        Cursor::new(self.shared.clone(), collection.clone(), revision, ahead, changed)
    }
}

/// What was on disk.
struct Loaded {
    state: State,
    journal: Journal,
    mark: Mark,
    /// In the journal, and not yet in the database.
    pending: Vec<Arc<Change>>,
}

fn load(db: &Database, path: &Path, fields: Fields) -> Result<Loaded, redb::Error> {
    let store = disk::identify(db)?;
    let transaction = db.begin_read()?;
    let saved = transaction.open_table(NUMBERS)?.get(REVISION)?.map_or(0, |value| value.value());
    let (journal, kept) =
        Journal::open(&path.with_extension("journal"), store, saved).map_err(redb::StorageError::Io)?;
    let (mark, reached) =
        Mark::open(&path.with_extension("mark"), store, saved).map_err(redb::StorageError::Io)?;
    let revisions: Vec<u64> = kept.iter().map(|change| change.revision).collect();
    identity::check(saved, &revisions, reached).map_err(|unfit| redb::Error::Corrupted(unfit.to_string()))?;
    let revision = kept.last().map_or(saved, |last| last.revision);
    let mut state = State::at(revision);

    let mut names: HashMap<Arc<str>, Arc<str>> = HashMap::new();
    // One name for all objects of a collection.
    let mut shared = |key: Key| Key {
        collection: names.entry(key.collection.clone()).or_insert(key.collection).clone(),
        path: key.path,
    };
    let unreadable = |revision: u64| {
        redb::Error::Corrupted(format!("what was stored at revision {revision} is not readable"))
    };
    match transaction.open_table(OBJECTS) {
        Ok(objects) => {
            for row in objects.iter()? {
                let (revision, value) = row?;
                let read = Entry::from_disk(value.value(), fields);
                let (key, entry) = read.ok_or_else(|| unreadable(revision.value()))?;
                state.load(shared(key), entry);
            }
        }
        Err(redb::TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let mut pending = Vec::new();
    for kept in kept {
        let (key, entry) = written(&kept, fields).ok_or_else(|| unreadable(kept.revision))?;
        pending.push(Arc::new(
            state.replay(kept.revision, shared(key), entry).ok_or_else(|| unreadable(kept.revision))?,
        ));
    }
    Ok(Loaded { state, journal, mark, pending })
}

/// What a change of the journal did to which object; `None` for one that was deleted.
fn written(kept: &Kept, fields: Fields) -> Option<(Key, Option<Entry>)> {
    if !kept.deleted {
        return Entry::from_disk(&kept.text, fields).map(|(key, entry)| (key, Some(entry)));
    }
    let (collection, path) = std::str::from_utf8(&kept.text).ok()?.split_once('/')?;
    Some((Key { collection: collection.into(), path: path.into() }, None))
}
