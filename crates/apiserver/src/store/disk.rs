//! The one thread that writes to disk: it gathers what is waiting and keeps it by one record of the journal.
//!
//! ```text
//! write ─► in memory, numbered ─► queue ─► [journal, fdatasync] ─► settled: outsiders may see it
//!                                                │
//!                          full, or all is quiet ┴─► [redb commit, fdatasync] ─► the journal begins anew
//! ```
//!
//! What cannot be written is tried again until it can: what is in memory is never taken back. Meanwhile nothing more is
//! taken in, and whoever waits for the disk is told.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use redb::{Database, ReadableTable, TableDefinition};
use tokio::sync::oneshot;

use super::Shared;
use super::journal::Journal;
use super::mark::Mark;
use super::state::Change;

/// Objects by revision, not by name: new ones land side by side on the last pages, so a commit writes few of them.
pub(super) const OBJECTS: TableDefinition<u64, &[u8]> = TableDefinition::new("objects");
pub(super) const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// The database has every change up to this revision, and none after it.
pub(super) const REVISION: &str = "revision-ceiling";
/// By chance, once: tells whose journal a journal is.
pub(super) const STORE: &str = "store";

/// A database that is being made.
const FRESH: &str = ".store.redb.new";
/// Changes in one record.
const BATCH: usize = 512;
/// Between two attempts at a write that fails.
const RETRY: Duration = Duration::from_millis(500);
/// After so long without a write the database is brought up to date.
const QUIET: Duration = Duration::from_secs(1);
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
    pub journal: Journal,
    pub mark: Mark,
    /// In the journal, and not yet in the database.
    pub pending: Vec<Arc<Change>>,
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

/// The same; a database that is not there is made under another name first, so that a start that is cut short, or meets a
/// full disk, leaves no half of one.
pub(super) fn open_or_make(path: &Path) -> Result<Database, redb::Error> {
    let io = redb::StorageError::Io;
    if std::fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        return open(path);
    }
    let fresh = path.with_file_name(FRESH);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error).into()),
        _ => {}
    }
    let database = open(&fresh)?;
    identify(&database)?;
    let named = std::fs::rename(&fresh, path)
        .and_then(|()| std::fs::File::open(path.parent().unwrap_or(path))?.sync_all());
    named.map_err(io)?;
    Ok(database)
}

/// Gives a database that has none a number by which its journal knows it.
pub(super) fn identify(db: &Database) -> Result<u64, redb::Error> {
    let transaction = db.begin_write()?;
    let known = transaction.open_table(NUMBERS)?.get(STORE)?.map(|value| value.value());
    if let Some(known) = known {
        return Ok(known);
    }
    let store = rand::random();
    transaction.open_table(NUMBERS)?.insert(STORE, store)?;
    transaction.commit()?;
    Ok(store)
}

impl Disk {
    pub fn run(mut self, queue: Receiver<Command>) {
        loop {
            let mut batch = self.gather(&queue);
            self.keep(&mut batch, &queue);
            if batch.stop.is_none() && !batch.abandoned {
                continue;
            }
            self.tidy();
            self.mark.sync();
            // The file is closed before anyone is told, so that it can be opened again at once.
            drop(self);
            if let Some(reply) = batch.stop {
                let _ = reply.send(());
            }
            return;
        }
    }

    /// Waits for something to do, and takes along what else is there.
    fn gather(&mut self, queue: &Receiver<Command>) -> Batch {
        let mut batch = Batch::default();
        if !self.pending.is_empty() {
            match queue.recv_timeout(QUIET) {
                Err(RecvTimeoutError::Timeout) => self.tidy(),
                received => batch.receive(received.ok()),
            }
        }
        if batch.is_empty() {
            batch.receive(queue.recv().ok());
        }
        while batch.stop.is_none() && batch.changes.len() < BATCH {
            match queue.try_recv() {
                Ok(command) => batch.put(command),
                Err(_) => break,
            }
        }
        batch
    }

    /// Writes a batch, however often that has to be tried, unless the store is to stop.
    fn keep(&mut self, batch: &mut Batch, queue: &Receiver<Command>) {
        while let Err(error) = self.write(&batch.changes) {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the store could not write; trying again"
            );
            self.shared.failed(Arc::new(error));
            if batch.stop.is_some() || batch.abandoned {
                return;
            }
            match queue.recv_timeout(RETRY) {
                Err(RecvTimeoutError::Timeout) => {}
                received => batch.receive(received.ok()),
            }
        }
        if let Some(last) = batch.changes.last() {
            let touched: HashSet<_> = batch.changes.iter().map(|change| &change.key.collection).collect();
            self.shared.settle(last.revision, touched.into_iter());
        }
    }

    fn write(&mut self, changes: &[Arc<Change>]) -> Result<(), redb::Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let fits = self.journal.append(changes)?;
        self.pending.extend_from_slice(changes);
        if fits {
            return Ok(());
        }
        let saved = self.save();
        if saved.is_err() {
            // They will come again.
            self.pending.truncate(self.pending.len() - changes.len());
        }
        saved
    }

    /// Brings the database up to date when nobody waits for it. What it cannot take now stays in the journal.
    fn tidy(&mut self) {
        if let Err(error) = self.save() {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the database could not be brought up to date; its journal has the rest"
            );
        }
    }

    /// Takes everything that is pending to the database; the journal begins anew.
    fn save(&mut self) -> Result<(), redb::Error> {
        let saved = self.commit();
        match saved {
            Ok(()) => {
                self.journal.restart();
                self.pending = Vec::new();
            }
            Err(_) => self.db = None,
        }
        saved
    }

    fn commit(&mut self) -> Result<(), redb::Error> {
        let Some(last) = self.pending.last().map(|change| change.revision) else { return Ok(()) };
        let database = match &mut self.db {
            Some(db) => db,
            closed => closed.insert(open(&self.path)?),
        };
        let before = |change: &Arc<Change>| change.previous.as_ref().map(|previous| previous.revision);
        // What has come and gone since the last time never gets there.
        let replaced: HashSet<u64> = self.pending.iter().filter_map(before).collect();
        let transaction = database.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            for change in &self.pending {
                if let Some(revision) = before(change) {
                    objects.remove(revision)?;
                }
                if !change.deleted && !replaced.contains(&change.revision) {
                    objects.insert(change.revision, change.entry.to_disk(&change.key).as_slice())?;
                }
            }
            transaction.open_table(NUMBERS)?.insert(REVISION, last)?;
        }
        transaction.commit()?;
        self.mark.set(last);
        Ok(())
    }
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.stop.is_none() && !self.abandoned
    }

    /// Takes a command in; without one nobody is left who could send any.
    fn receive(&mut self, command: Option<Command>) {
        match command {
            Some(command) => self.put(command),
            None => self.abandoned = true,
        }
    }

    fn put(&mut self, command: Command) {
        match command {
            Command::Keep(change) => self.changes.push(change),
            Command::Stop(reply) => self.stop = Some(reply),
        }
    }
}
