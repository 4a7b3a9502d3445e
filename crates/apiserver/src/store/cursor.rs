//! A place in a collection's history. Watchers hold no queue: one that falls behind the history is told so.

use std::sync::Arc;

use tokio::sync::watch;

use super::Shared;
use super::state::{Change, Compacted};

/// Changes handed out at a time, so that no watcher holds the lock for long.
const BATCH: usize = 256;

pub(crate) struct Cursor {
    shared: Arc<Shared>,
    collection: Arc<str>,
    /// Everything up to here has been handed out.
    revision: u64,
    /// Whether changes are handed out before they are on disk.
    ahead: bool,
    changed: watch::Receiver<()>,
}

impl Cursor {
    pub(super) fn new(
        shared: Arc<Shared>,
        collection: Arc<str>,
        revision: u64,
        ahead: bool,
        changed: watch::Receiver<()>,
    ) -> Self {
        Self { shared, collection, revision, ahead, changed }
    }

    /// No change at or below this revision will be handed out any more.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether the history has moved on without this cursor.
    pub fn is_compacted(&self) -> bool {
        self.shared.read().peek(&self.collection).is_some_and(|found| found.since(self.revision).is_err())
    }

    /// What happened since the last call, without waiting.
    pub fn poll(&mut self) -> Result<Vec<Arc<Change>>, Compacted> {
        let state = self.shared.read();
        let Some(collection) = state.peek(&self.collection) else { return Ok(Vec::new()) };
        let end = if self.ahead { state.revision } else { state.settled };
        let new = collection.since(self.revision)?.take_while(|change| change.revision <= end);
        let changes: Vec<_> = new.take(BATCH).cloned().collect();
        self.revision = match changes.last() {
            Some(last) if changes.len() == BATCH => last.revision,
            _ => end.max(self.revision),
        };
        Ok(changes)
    }

    /// Waits until [`Cursor::poll`] may have something.
    pub async fn changed(&mut self) {
        if self.changed.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
