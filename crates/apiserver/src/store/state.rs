//! The published state in memory: objects, recent changes and who owns whom.
//!
//! A batch of writes becomes visible under one lock, so a list and a watch that starts at the list's revision
//! neither miss a change nor see one twice.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::watch;

use super::entry::{Entry, Key};

/// Changes kept per collection for watchers that resume; whichever limit is met first.
const HISTORY_CHANGES: usize = 4096;
const HISTORY_BYTES: usize = 4 << 20;

/// One committed write.
#[derive(Debug)]
pub(crate) struct Change {
    pub revision: u64,
    pub key: Key,
    pub deleted: bool,
    pub entry: Arc<Entry>,
    pub previous: Option<Arc<Entry>>,
}

/// The history no longer reaches back to the asked revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compacted;

#[derive(Default)]
pub(super) struct State {
    pub revision: u64,
    /// Everything up to this revision is on disk.
    pub settled: u64,
    /// The revision this process started from: nothing older is known.
    pub started: u64,
    collections: HashMap<Arc<str>, Collection>,
    by_uid: HashMap<Box<str>, Key>,
    dependents: HashMap<Box<str>, BTreeSet<Key>>,
}

pub(super) struct Collection {
    objects: BTreeMap<Box<str>, Arc<Entry>>,
    history: VecDeque<Arc<Change>>,
    history_bytes: usize,
    /// Changes up to and including this revision are forgotten.
    compacted: u64,
    changed: watch::Sender<()>,
    settled: watch::Sender<()>,
}

impl Collection {
    fn new(compacted: u64) -> Self {
        Self {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            compacted,
            changed: watch::Sender::default(),
            settled: watch::Sender::default(),
        }
    }

    /// Wakes whenever there is something new: for everybody, or for those who look ahead.
    pub fn subscribe(&self, ahead: bool) -> watch::Receiver<()> {
        if ahead { self.changed.subscribe() } else { self.settled.subscribe() }
    }

    fn remember(&mut self, change: Arc<Change>) {
        self.history_bytes += change.entry.bytes.len();
        self.history.push_back(change);
        while self.history.len() > HISTORY_CHANGES || self.history_bytes > HISTORY_BYTES {
            let Some(old) = self.history.pop_front() else { break };
            self.history_bytes -= old.entry.bytes.len();
            self.compacted = old.revision;
        }
    }

    /// The changes after `revision`.
    pub fn since(&self, revision: u64) -> Result<impl DoubleEndedIterator<Item = &Arc<Change>>, Compacted> {
        if revision < self.compacted {
            return Err(Compacted);
        }
        let start = self.history.partition_point(|change| change.revision <= revision);
        Ok(self.history.range(start..))
    }
}

impl State {
    /// The state of a process that starts from here.
    pub fn at(revision: u64) -> Self {
        Self { revision, settled: revision, started: revision, ..Self::default() }
    }

    pub fn collection(&mut self, name: &Arc<str>) -> &mut Collection {
        let start = self.started;
        self.collections.entry(name.clone()).or_insert_with(|| Collection::new(start))
    }

    pub fn peek(&self, name: &str) -> Option<&Collection> {
        self.collections.get(name)
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.collections.get(&key.collection)?.objects.get(&key.path)
    }

    pub fn get_at(&self, key: &Key, revision: u64) -> Result<Option<Arc<Entry>>, Compacted> {
        let Some(found) = self.collections.get(&key.collection) else { return Ok(None) };
        let mut later = found.since(revision)?.filter(|change| change.key == *key);
        Ok(later.next().map_or_else(|| found.objects.get(&key.path).cloned(), |it| it.previous.clone()))
    }

    pub fn by_uid(&self, uid: &str) -> Option<&Key> {
        self.by_uid.get(uid)
    }

    pub fn dependents(&self, uid: &str) -> Vec<Key> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    pub fn names(&self) -> Vec<Arc<str>> {
        self.collections.keys().cloned().collect()
    }

    /// The objects whose path starts with `prefix` and comes after `after`, as they are now.
    pub fn range<'a>(
        &'a self,
        collection: &str,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a Box<str>, &'a Arc<Entry>)> {
        self.collections
            .get(collection)
            .into_iter()
            .flat_map(move |c| {
                c.objects.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded))
            })
            .take_while(move |(path, _)| path.starts_with(prefix))
    }

    /// The objects under `prefix` as they were at `revision`.
    pub fn range_at(
        &self,
        collection: &str,
        prefix: &str,
        revision: u64,
    ) -> Result<BTreeMap<Box<str>, Arc<Entry>>, Compacted> {
        let mut objects: BTreeMap<_, _> =
            self.range(collection, prefix).map(|(path, entry)| (path.clone(), entry.clone())).collect();
        let Some(found) = self.collections.get(collection) else { return Ok(objects) };
        for change in found.since(revision)?.rev() {
            if !change.key.path.starts_with(prefix) {
                continue;
            }
            match &change.previous {
                Some(previous) => objects.insert(change.key.path.clone(), previous.clone()),
                None => objects.remove(&change.key.path),
            };
        }
        Ok(objects)
    }

    /// Puts an object read from disk in its place.
    pub fn load(&mut self, key: Key, entry: Entry) {
        self.index(&key, None, Some(&entry));
        self.collection(&key.collection).objects.insert(key.path, Arc::new(entry));
    }

    /// Does once more what was done before the start; without an entry the object was deleted. Answers with the change that it
    /// was; `None` when something is deleted that is not there.
    pub fn replay(&mut self, revision: u64, key: Key, entry: Option<Entry>) -> Option<Change> {
        let previous = self.get(&key).cloned();
        let deleted = entry.is_none();
        let entry = entry.map(Arc::new).or_else(|| previous.clone())?;
        let change = Change { revision, key, deleted, entry, previous };
        self.put(&change);
        Some(change)
    }

    pub fn publish(&mut self, change: Arc<Change>) {
        self.put(&change);
        self.revision = change.revision;
        self.collection(&change.key.collection).remember(change);
    }

    fn put(&mut self, change: &Change) {
        let current = (!change.deleted).then_some(&*change.entry);
        self.index(&change.key, change.previous.as_deref(), current);
        let objects = &mut self.collection(&change.key.collection).objects;
        match change.deleted {
            true => objects.remove(&change.key.path),
            false => objects.insert(change.key.path.clone(), change.entry.clone()),
        };
    }

    /// Wakes the watchers of a collection that look ahead.
    pub fn announce(&self, collection: &str) {
        if let Some(collection) = self.collections.get(collection) {
            collection.changed.send_replace(());
        }
    }

    /// Wakes the others.
    pub fn announce_settled(&self, collection: &str) {
        if let Some(collection) = self.collections.get(collection) {
            collection.settled.send_replace(());
        }
    }

    fn index(&mut self, key: &Key, previous: Option<&Entry>, current: Option<&Entry>) {
        for owner in previous.iter().flat_map(|entry| &entry.meta.owners) {
            if let Some(set) = self.dependents.get_mut(&owner.uid) {
                set.remove(key);
                if set.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
        if let Some(entry) = previous {
            self.by_uid.remove(&entry.meta.uid);
        }
        let Some(entry) = current else { return };
        self.by_uid.insert(entry.meta.uid.clone(), key.clone());
        for owner in &entry.meta.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(key.clone());
        }
    }
}
