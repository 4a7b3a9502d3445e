//! Waits for changes of files that the router has read.
//!
//! A kubelet replaces the files of a Secret by swapping a symbolic link in their directory, so the directories are
//! watched and not the files.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{Inotify, WatchMask};

/// Changes come in bunches: a moment is waited for the rest of them.
pub const BUNCH: Duration = Duration::from_millis(250);
/// The files are looked at from time to time too, for changes that no directory shows.
const LOOK: Duration = Duration::from_secs(60);

pub struct Changes {
    events: Option<inotify::EventStream<[u8; 4096]>>,
}

impl Changes {
    /// Of the directories that these files are in.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Self {
        let directories = files.into_iter().map(directory).collect();
        let events = watch(&directories)
            .inspect_err(|error| tracing::warn!(%error, "files are not watched but looked at every minute"));
        Self { events: events.ok() }
    }

    /// Returns when the files may have changed.
    pub async fn next(&mut self) {
        let changed = async {
            match &mut self.events {
                Some(events) => drop(events.next().await),
                None => std::future::pending().await,
            }
            tokio::time::sleep(BUNCH).await;
        };
        let _ = tokio::time::timeout(LOOK, changed).await;
    }
}

fn directory(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn watch(directories: &BTreeSet<PathBuf>) -> io::Result<inotify::EventStream<[u8; 4096]>> {
    let inotify = Inotify::init()?;
    let changes = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE | WatchMask::DELETE;
    for directory in directories {
        inotify.watches().add(directory, changes)?;
    }
    inotify.into_event_stream([0; 4096])
}
