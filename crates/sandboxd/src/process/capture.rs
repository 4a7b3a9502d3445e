//! Runs a process to its end and collects what it writes, within limits.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::timeout;

use super::{Exit, Port, Spawned};

/// How long output is awaited from processes that a finished command has left in the background.
const DRAIN: Duration = Duration::from_secs(1);
/// Of all commands together.
const MAX_BUFFERED: usize = 256 << 20;
/// Small enough that the allocator need not ask the kernel for each.
const CHUNK: usize = 4 * 1024;

static BUFFERED: AtomicUsize = AtomicUsize::new(0);

pub struct Limits {
    pub time: Option<Duration>,
    /// Of each stream.
    pub bytes: usize,
}

pub struct Captured {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub stdout_cut: bool,
    pub stderr_cut: bool,
    /// `None` when the time limit ended it.
    pub exit: Option<Exit>,
}

/// Dropping the future kills the process and its group.
pub async fn run(spawned: Spawned, limits: Limits) -> Captured {
    let (stdout, stderr) = (Kept::new(limits.bytes), Kept::new(limits.bytes));
    let exit = {
        let mut reading = std::pin::pin!(async {
            tokio::join!(stdout.fill(Some(&spawned.stdout)), stderr.fill(spawned.stderr.as_ref()))
        });
        let mut read = false;
        let ended = async {
            loop {
                tokio::select! {
                    exit = spawned.child.exited() => break exit,
                    _ = &mut reading, if !read => read = true,
                }
            }
        };
        let exit = match limits.time {
            Some(limit) => timeout(limit, ended).await.ok(),
            None => Some(ended.await),
        };
        if exit.is_none() {
            spawned.child.signal(Signal::KILL);
        }
        if !read {
            let _ = timeout(DRAIN, reading).await;
        }
        exit
    };
    spawned.child.finish();
    let ((stdout, stdout_cut), (stderr, stderr_cut)) = (stdout.take(), stderr.take());
    Captured { stdout, stderr, stdout_cut, stderr_cut, exit }
}

/// The beginning of one stream.
struct Kept {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    cut: bool,
}

impl Kept {
    fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    /// Reads to the end. Beyond the limit the stream is still emptied, so that the writer never blocks or breaks.
    async fn fill(&self, port: Option<&Port>) -> io::Result<()> {
        let Some(port) = port else { return Ok(()) };
        let mut buffer = vec![0; CHUNK];
        loop {
            match port.read(&mut buffer).await? {
                0 => return Ok(()),
                read => self.add(&buffer[..read]),
            }
        }
    }

    fn add(&self, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.limit.saturating_sub(state.bytes.len()).min(bytes.len());
        let room = if reserve(room) { room } else { 0 };
        // Once cut, nothing is added: the text would have a hole in it.
        if state.cut {
            release(room);
            return;
        }
        state.bytes.extend_from_slice(&bytes[..room]);
        state.cut = room < bytes.len();
    }

    fn take(&self) -> (Vec<u8>, bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        release(state.bytes.len());
        (std::mem::take(&mut state.bytes), state.cut)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.take();
    }
}

fn reserve(bytes: usize) -> bool {
    let fits = |buffered: usize| Some(buffered + bytes).filter(|&sum| sum <= MAX_BUFFERED);
    BUFFERED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
}

fn release(bytes: usize) {
    BUFFERED.fetch_sub(bytes, Ordering::Relaxed);
}
