//! The one thread that writes to disk: it gathers what is waiting and commits it once.
//!
//! ```text
//! write ─► in memory, numbered ─► queue ─► [redb commit, fsync] ─► settled: outsiders may see it
//! ```
//!
//! A commit that fails is tried again until it succeeds: what is in memory is never taken back. Meanwhile nothing
//! more is taken in, and whoever waits for the disk is told.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use redb::{Database, TableDefinition};
use tokio::sync::oneshot;

use super::Shared;
use super::state::Change;

/// Objects by revision, not by name: new ones land side by side on the last pages, so a commit writes few of them.
pub(super) const OBJECTS: TableDefinition<u64, &[u8]> = TableDefinition::new("objects");
pub(super) const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// A number that no settled revision has passed; the next start counts on from it.
pub(super) const CEILING: &str = "revision-ceiling";

/// Revisions reserved at a time, so that not every commit has to write the counter.
const RESERVE: u64 = 4096;
/// Changes in one commit.
const BATCH: usize = 512;
/// Between two attempts at a commit that fails.
const RETRY: Duration = Duration::from_millis(500);
/// redb's page cache; reads never touch it after the start.
const CACHE_BYTES: usize = 4 << 20;

pub(super) enum Command {
    Keep(Arc<Change>),
    Stop(oneshot::Sender<()>),
}

pub(super) struct Disk {
    pub path: PathBuf,
    /// None after a failure: redb wants to be opened again.
    pub db: Option<Database>,
    pub shared: Arc<Shared>,
    pub ceiling: u64,
}

/// What was waiting.
#[derive(Default)]
struct Batch {
    changes: Vec<Arc<Change>>,
    stop: Option<oneshot::Sender<()>>,
    /// Nobody is left who could write.
    abandoned: bool,
}

pub(super) fn open(path: &Path) -> Result<Database, redb::Error> {
    // Secrets are in here: nobody else may read it, not even if the directory is opened up.
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(redb::StorageError::Io)?;
    Ok(Database::builder().set_cache_size(CACHE_BYTES).create_file(file)?)
}

impl Disk {
    pub fn run(mut self, queue: Receiver<Command>) {
        loop {
            let mut batch = gather(&queue);
            self.keep(&mut batch, &queue);
            if batch.stop.is_none() && !batch.abandoned {
                continue;
            }
            if let Err(error) = self.note_exact_revision() {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the store could not note where it stopped"
                );
            }
            // The file is closed before anyone is told, so that it can be opened again at once.
            drop(self);
            if let Some(reply) = batch.stop {
                let _ = reply.send(());
            }
            return;
        }
    }

    /// Commits a batch, however often that has to be tried, unless the store is to stop.
    fn keep(&mut self, batch: &mut Batch, queue: &Receiver<Command>) {
        while let Err(error) = self.commit(&batch.changes) {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the store could not write; trying again"
            );
            self.db = None;
            self.shared.failed(Arc::new(error));
            if batch.stop.is_some() || batch.abandoned {
                return;
            }
            match queue.recv_timeout(RETRY) {
                Ok(command) => batch.put(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => batch.abandoned = true,
            }
        }
        if let Some(last) = batch.changes.last() {
            let touched: HashSet<_> = batch.changes.iter().map(|change| &change.key.collection).collect();
            self.shared.settle(last.revision, touched.into_iter());
        }
    }

    fn commit(&mut self, changes: &[Arc<Change>]) -> Result<(), redb::Error> {
        let Some(last) = changes.last() else { return Ok(()) };
        let raised = (last.revision > self.ceiling).then_some(last.revision + RESERVE);
        let transaction = self.db()?.begin_write()?;
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
            if let Some(ceiling) = raised {
                transaction.open_table(NUMBERS)?.insert(CEILING, ceiling)?;
            }
        }
        transaction.commit()?;
        self.ceiling = raised.unwrap_or(self.ceiling);
        Ok(())
    }

    /// On a clean stop no number is skipped.
    fn note_exact_revision(&mut self) -> Result<(), redb::Error> {
        let revision = self.shared.read().settled;
        let transaction = self.db()?.begin_write()?;
        transaction.open_table(NUMBERS)?.insert(CEILING, revision)?;
        Ok(transaction.commit()?)
    }

    fn db(&mut self) -> Result<&Database, redb::Error> {
        match &mut self.db {
            Some(db) => Ok(db),
            closed => Ok(closed.insert(open(&self.path)?)),
        }
    }
}

impl Batch {
    fn put(&mut self, command: Command) {
        match command {
            Command::Keep(change) => self.changes.push(change),
            Command::Stop(reply) => self.stop = Some(reply),
        }
    }
}

/// Waits for something to do, and takes along what else is there.
fn gather(queue: &Receiver<Command>) -> Batch {
    let mut batch = Batch::default();
    match queue.recv() {
        Ok(command) => batch.put(command),
        Err(_) => batch.abandoned = true,
    }
    while batch.stop.is_none() && batch.changes.len() < BATCH {
        match queue.try_recv() {
            Ok(command) => batch.put(command),
            Err(_) => break,
        }
    }
    batch
}
