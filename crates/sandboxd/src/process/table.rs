//! All processes of this daemon: how many may run, which of them callers know by a number, and how they end with it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use rustix::termios::{SpecialCodeIndex, tcgetattr};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::spawn::{Failure, Spawned, Wanted, resize, spawn};
use super::{Child, Port, Ring};

pub const MAX_PROCESSES: usize = 128;
/// Detached processes that have ended are remembered for so long, and so many of them.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
const REMEMBERED: usize = 64;
/// Callers that wait until one process reads its input. Each may hold a message of 4 MiB.
const MAX_WRITERS: usize = 8;
/// Bytes of a command that are kept to be listed: a list of all processes must fit into one message of 4 MiB.
const MAX_SHOWN: usize = 4096;

pub struct Table {
    slots: Arc<Semaphore>,
    closing: AtomicBool,
    live: Mutex<Vec<Weak<Child>>>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    last_id: i32,
    known: BTreeMap<i32, Arc<Entry>>,
}

/// Counts as one running process until it is dropped.
pub type Slot = OwnedSemaphorePermit;

#[derive(Debug)]
pub enum Refused {
    TooMany,
    Closing,
    Failed(Failure),
}

/// A process that callers know by its number.
pub struct Entry {
    pub id: i32,
    /// To be shown; the end of a long one is cut.
    pub command: Vec<String>,
    pub started: SystemTime,
    pub child: Arc<Child>,
    /// Only detached processes have one.
    pub ring: Option<Ring>,
    /// Exit code and time.
    pub ended: OnceLock<(i32, SystemTime)>,
    pub has_terminal: bool,
    /// Open until the process has ended, as is `input`.
    terminal: Mutex<Option<OwnedFd>>,
    input: tokio::sync::Mutex<Option<Port>>,
    writers: Semaphore,
}

#[derive(Debug)]
pub enum InputError {
    TooManyWriters,
    Closed,
    Ended,
    Io(io::Error),
}

// === impl Table ===

impl Default for Table {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(MAX_PROCESSES)),
            closing: AtomicBool::new(false),
            live: Mutex::default(),
            entries: Mutex::default(),
        }
    }
}

impl Table {
    pub fn spawn(&self, wanted: Wanted<'_>) -> Result<(Spawned, Slot), Refused> {
        if self.is_closing() {
            return Err(Refused::Closing);
        }
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| Refused::TooMany)?;
        let spawned = spawn(wanted).map_err(Refused::Failed)?;
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|child| child.strong_count() > 0);
        live.push(Arc::downgrade(&spawned.child));
        Ok((spawned, slot))
    }

    /// Gives a process a number. Takes its input: callers write to it by that number.
    pub fn add(&self, spawned: &mut Spawned, command: Vec<String>, ring: Option<Ring>) -> Arc<Entry> {
        let input = spawned.stdin.take();
        let has_terminal = spawned.stderr.is_none();
        let terminal =
            input.as_ref().filter(|_| has_terminal).and_then(|port| port.descriptor().try_clone().ok());
        let mut entries = self.entries();
        entries.last_id = entries.last_id.checked_add(1).unwrap_or(1);
        let entry = Arc::new(Entry {
            id: entries.last_id,
            command: shown(command),
            started: SystemTime::now(),
            child: spawned.child.clone(),
            ring,
            ended: OnceLock::new(),
            has_terminal,
            terminal: Mutex::new(terminal),
            input: tokio::sync::Mutex::new(input),
            writers: Semaphore::new(MAX_WRITERS),
        });
        entries.known.insert(entry.id, entry.clone());
        entry
    }

    pub fn find(&self, id: i32) -> Option<Arc<Entry>> {
        self.entries().known.get(&id).cloned()
    }

    pub fn list(&self) -> Vec<Arc<Entry>> {
        self.entries().known.values().cloned().collect()
    }

    pub fn remove(&self, id: i32) {
        self.entries().known.remove(&id);
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// From now on no process starts.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Asks all processes to end, and kills what still runs after `patience`.
    pub async fn end_all(&self, patience: Duration) {
        let children: Vec<Arc<Child>> = self
            .live
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .filter_map(|child| child.upgrade())
            .collect();
        for child in &children {
            child.signal(Signal::TERM);
        }
        let deadline = Instant::now() + patience;
        for child in &children {
            let _ = timeout_at(deadline, child.exited()).await;
        }
        for child in &children {
            child.signal(Signal::KILL);
        }
    }

    /// Forgets the oldest of the detached processes that have ended.
    fn entries(&self) -> std::sync::MutexGuard<'_, Entries> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let ended: Vec<(i32, SystemTime)> =
            entries.known.values().filter_map(|entry| Some((entry.id, entry.ended.get()?.1))).collect();
        for id in forgotten(ended, SystemTime::now()) {
            entries.known.remove(&id);
        }
        entries
    }
}

/// The beginning of a command; an ellipsis marks where it was cut.
fn shown(command: Vec<String>) -> Vec<String> {
    let mut room = MAX_SHOWN;
    let mut kept = Vec::new();
    for word in command {
        // A word costs a little even when it is empty.
        let cost = word.len() + 2;
        if cost > room {
            let end = word.floor_char_boundary(room.saturating_sub(2));
            kept.push(format!("{}…", &word[..end]));
            break;
        }
        room -= cost;
        kept.push(word);
    }
    kept
}

/// Which of the processes that have `ended` are too old or too many.
fn forgotten(mut ended: Vec<(i32, SystemTime)>, now: SystemTime) -> Vec<i32> {
    ended.sort_by_key(|&(_, at)| std::cmp::Reverse(at));
    let old = |at: SystemTime| now.duration_since(at).is_ok_and(|age| age > REMEMBERED_FOR);
    let listed = ended.into_iter().enumerate();
    listed.filter(|&(index, (_, at))| index >= REMEMBERED || old(at)).map(|(_, (id, _))| id).collect()
}

// === impl Entry ===

impl Entry {
    /// Returns when the process has taken all of it.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), InputError> {
        let _writer = self.writers.try_acquire().map_err(|_| InputError::TooManyWriters)?;
        let input = self.input.lock().await;
        let port = input.as_ref().ok_or(InputError::Closed)?;
        tokio::select! {
            written = port.write_all(bytes) => written.map_err(InputError::Io),
            _ = self.child.exited() => Err(InputError::Ended),
        }
    }

    /// Closes the input. A terminal stays open and gets its end-of-file character.
    pub async fn end_input(&self) -> Result<(), InputError> {
        if !self.has_terminal {
            return self.input.lock().await.take().map(drop).ok_or(InputError::Closed);
        }
        let attributes = self.terminal().as_ref().map(tcgetattr).ok_or(InputError::Ended)?;
        let attributes = attributes.map_err(|error| InputError::Io(error.into()))?;
        self.write(&[attributes.special_codes[SpecialCodeIndex::VEOF]]).await
    }

    /// `None` where there is no terminal, or none any more.
    pub fn resize(&self, cols: u16, rows: u16) -> Option<io::Result<()>> {
        self.terminal().as_ref().map(|terminal| resize(terminal, cols, rows))
    }

    /// Remembers how the process ended. Nothing stays open: what it left in the background gets the end of its input.
    pub async fn end(&self, exit_code: i32) {
        let _ = self.ended.set((exit_code, SystemTime::now()));
        drop(self.terminal().take());
        drop(self.input.lock().await.take());
    }

    fn terminal(&self) -> std::sync::MutexGuard<'_, Option<OwnedFd>> {
        self.terminal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_ended_long_ago_or_are_too_many_are_forgotten() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
        let ago = |seconds| now - Duration::from_secs(seconds);
        assert_eq!(forgotten(vec![(1, ago(601)), (2, ago(599)), (3, ago(0))], now), [1]);
        let many = (1..=70).map(|id| (id, ago(100 - id as u64))).collect();
        assert_eq!(forgotten(many, now), [6, 5, 4, 3, 2, 1]);
    }
}
