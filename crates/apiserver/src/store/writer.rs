//! The one thread that writes: it gathers what is waiting, commits it once, then publishes it.
//!
//! ```text
//! handlers ─► queue ─► [check expectations · number · redb commit] ─► publish in memory ─► answer
//! ```
//!
//! Nothing is visible before it is on disk, except writes that asked for deferred durability.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use redb::{Database, Durability, TableDefinition};
use tokio::sync::oneshot;

use super::Shared;
use super::entry::{Draft, Entry, Key};
use super::state::Change;

/// Objects by revision, not by name: new ones land side by side on the last pages, so a commit writes few of them.
pub(super) const OBJECTS: TableDefinition<u64, &[u8]> = TableDefinition::new("objects");
pub(super) const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// A number that no published revision has passed; the next start counts on from it.
pub(super) const CEILING: &str = "revision-ceiling";

/// Revisions reserved at a time, so that deferred writes need no commit of their own for the counter.
const RESERVE: u64 = 4096;
const BATCH: usize = 512;
/// How long a deferred write may wait for the disk.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

pub(crate) struct Write {
    pub key: Key,
    pub expect: Expect,
    pub op: Op,
    /// Acknowledged from memory; reaches the disk with the next commit or within a second.
    pub deferred: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Absent,
    Revision(u64),
}

pub(crate) enum Op {
    Put(Draft),
    /// Removes the object; the draft, if any, is its last state as watchers will see it.
    Delete(Option<Draft>),
}

#[derive(Debug, Clone)]
pub(crate) enum WriteError {
    /// The object is not what the writer thought it was.
    Conflict,
    /// The disk refused.
    Storage(Arc<redb::Error>),
    Stopped,
}

type Result = std::result::Result<Arc<Entry>, WriteError>;
type Reply = oneshot::Sender<Result>;

pub(super) enum Command {
    Write(Box<Write>, Reply),
    Stop(oneshot::Sender<()>),
}

pub(super) struct Writer {
    pub db: Database,
    pub shared: Arc<Shared>,
    pub revision: u64,
    pub ceiling: u64,
    pub unflushed: bool,
}

impl Writer {
    pub fn run(mut self, queue: Receiver<Command>) {
        loop {
            let first = if self.unflushed {
                match queue.recv_timeout(FLUSH_AFTER) {
                    Err(RecvTimeoutError::Timeout) => {
                        self.flush(None);
                        continue;
                    }
                    other => other.ok(),
                }
            } else {
                queue.recv().ok()
            };
            let (mut batch, mut stop) = (Vec::new(), None);
            let mut next = first;
            loop {
                match next {
                    Some(Command::Write(write, reply)) => batch.push((write, reply)),
                    Some(Command::Stop(reply)) => stop = Some(Some(reply)),
                    None if batch.is_empty() && stop.is_none() => stop = Some(None),
                    None => break,
                }
                if stop.is_some() || batch.len() >= BATCH {
                    break;
                }
                next = queue.try_recv().ok();
            }
            self.commit(batch);
            if let Some(reply) = stop {
                self.flush(Some(self.revision));
                // The file is closed before anyone is told, so that it can be opened again at once.
                drop(self);
                if let Some(reply) = reply {
                    let _ = reply.send(());
                }
                return;
            }
        }
    }

    fn commit(&mut self, batch: Vec<(Box<Write>, Reply)>) {
        if batch.is_empty() {
            return;
        }
        let deferred = batch.iter().all(|(write, _)| write.deferred);
        let mut changes = Vec::with_capacity(batch.len());
        let mut replies: Vec<(Reply, Result)> = Vec::with_capacity(batch.len());
        let mut overlay: HashMap<Key, Option<Arc<Entry>>> = HashMap::new();
        for (write, reply) in batch {
            match self.stage(*write, &mut overlay) {
                Ok(change) => {
                    replies.push((reply, Ok(change.entry.clone())));
                    changes.push(Arc::new(change));
                }
                Err(error) => replies.push((reply, Err(error))),
            }
        }
        match self.persist(&changes, deferred) {
            Ok(()) => self.publish(changes),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the store could not write");
                let error = WriteError::Storage(Arc::new(error));
                replies.iter_mut().filter(|(_, r)| r.is_ok()).for_each(|(_, r)| *r = Err(error.clone()));
            }
        }
        for (reply, result) in replies {
            let _ = reply.send(result);
        }
    }

    /// Checks one write against what will be there when its turn comes, and numbers it.
    fn stage(
        &mut self,
        write: Write,
        overlay: &mut HashMap<Key, Option<Arc<Entry>>>,
    ) -> std::result::Result<Change, WriteError> {
        let Write { key, expect, op, .. } = write;
        let previous = match overlay.get(&key) {
            Some(staged) => staged.clone(),
            None => self.shared.read().get(&key).cloned(),
        };
        let met = match expect {
            Expect::Absent => previous.is_none(),
            Expect::Revision(revision) => previous.as_ref().is_some_and(|entry| entry.revision == revision),
        };
        if !met {
            return Err(WriteError::Conflict);
        }
        self.revision += 1;
        let revision = self.revision;
        let deleted = matches!(op, Op::Delete(_));
        let entry = match (op, &previous) {
            (Op::Put(draft) | Op::Delete(Some(draft)), _) => draft.seal(revision),
            (Op::Delete(None), Some(previous)) => previous.reseal(revision),
            (Op::Delete(None), None) => return Err(WriteError::Conflict),
        };
        let entry = Arc::new(entry);
        overlay.insert(key.clone(), (!deleted).then(|| entry.clone()));
        Ok(Change { revision, key, deleted, entry, previous })
    }

    fn persist(&mut self, changes: &[Arc<Change>], deferred: bool) -> std::result::Result<(), redb::Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let raise = self.revision > self.ceiling;
        let mut transaction = self.db.begin_write()?;
        if deferred && !raise {
            transaction.set_durability(Durability::None)?;
        }
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            for change in changes {
                if let Some(previous) = &change.previous {
                    objects.remove(previous.revision)?;
                }
                if !change.deleted {
                    objects.insert(change.revision, change.entry.to_disk(&change.key).as_slice())?;
                }
            }
            if raise {
                transaction.open_table(NUMBERS)?.insert(CEILING, self.revision + RESERVE)?;
            }
        }
        transaction.commit()?;
        self.unflushed = deferred && !raise;
        if raise {
            self.ceiling = self.revision + RESERVE;
        }
        Ok(())
    }

    fn publish(&self, changes: Vec<Arc<Change>>) {
        let mut touched = HashSet::new();
        let mut state = self.shared.write();
        for change in changes {
            touched.insert(change.key.collection.clone());
            state.publish(change.clone());
            (self.shared.tap)(&change);
        }
        touched.iter().for_each(|collection| state.announce(collection));
    }

    /// Makes deferred writes durable, and on a clean stop notes the exact revision.
    fn flush(&mut self, exact: Option<u64>) {
        let result = (|| {
            let transaction = self.db.begin_write()?;
            if let Some(revision) = exact {
                transaction.open_table(NUMBERS)?.insert(CEILING, revision)?;
            }
            transaction.commit()?;
            Ok::<(), redb::Error>(())
        })();
        match result {
            Ok(()) => self.unflushed = false,
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the store could not flush")
            }
        }
    }
}
