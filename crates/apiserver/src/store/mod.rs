//! The durable store: every read from memory, every write through one thread and redb.

mod cursor;
mod entry;
mod state;
mod writer;

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use redb::{Database, ReadableDatabase, ReadableTable};
use tokio::sync::oneshot;

pub(crate) use cursor::Cursor;
pub(crate) use entry::{Draft, Entry, Key, Meta};
pub(crate) use state::{Change, Compacted};
pub(crate) use writer::{Expect, Op, Write, WriteError};

use state::State;
use writer::{CEILING, Command, NUMBERS, OBJECTS, Writer};

/// redb's page cache; reads never touch it after the start.
const CACHE_BYTES: usize = 4 << 20;

/// Called for every published change, under the store's lock: it must be quick and must not call back.
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
}

impl Store {
    pub fn open(path: &Path, fields: Fields, tap: Tap) -> Result<Self, redb::Error> {
        // Secrets are in here: nobody else may read it, not even if the directory is opened up.
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = file.map_err(redb::StorageError::Io)?;
        let db = Database::builder().set_cache_size(CACHE_BYTES).create_file(file)?;
        let (state, ceiling) = load(&db, fields)?;
        let revision = state.revision;
        let shared = Arc::new(Shared { state: RwLock::new(state), tap });
        let (queue, commands) = mpsc::channel();
        let writer = Writer { db, shared: shared.clone(), revision, ceiling, unflushed: false };
        std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run(commands))
            .map_err(redb::StorageError::Io)?;
        Ok(Self { shared, queue })
    }

    pub async fn write(&self, write: Write) -> Result<Arc<Entry>, WriteError> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(Command::Write(Box::new(write), reply)).map_err(|_| WriteError::Stopped)?;
        answer.await.unwrap_or(Err(WriteError::Stopped))
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

    /// Follows a collection's changes after `revision`.
    pub fn watch(&self, collection: &Arc<str>, revision: u64) -> Cursor {
        let known = self.shared.read().peek(collection).map(|found| found.changed.subscribe());
        let changed = known.unwrap_or_else(|| self.shared.write().collection(collection).changed.subscribe());
        Cursor::new(self.shared.clone(), collection.clone(), revision, changed)
    }
}

fn load(db: &Database, fields: Fields) -> Result<(State, u64), redb::Error> {
    let mut state = State::default();
    let transaction = db.begin_read()?;
    let ceiling = match transaction.open_table(NUMBERS) {
        Ok(numbers) => numbers.get(CEILING)?.map_or(0, |value| value.value()),
        Err(redb::TableError::TableDoesNotExist(_)) => 0,
        Err(error) => return Err(error.into()),
    };
    state.revision = ceiling;
    state.started = ceiling;
    let objects = match transaction.open_table(OBJECTS) {
        Ok(objects) => objects,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok((state, ceiling)),
        Err(error) => return Err(error.into()),
    };
    let mut names: HashMap<Arc<str>, Arc<str>> = HashMap::new();
    for row in objects.iter()? {
        let (revision, value) = row?;
        let (mut key, entry) = Entry::from_disk(value.value(), fields).ok_or_else(|| {
            redb::Error::Corrupted(format!(
                "the object stored at revision {} is not readable",
                revision.value()
            ))
        })?;
        // One name for all objects of a collection.
        key.collection = names.entry(key.collection.clone()).or_insert(key.collection).clone();
        state.load(key, entry);
    }
    Ok((state, ceiling))
}
