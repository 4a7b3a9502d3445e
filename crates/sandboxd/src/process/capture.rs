//! Runs a process to its end and collects what it writes, within limits.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::timeout;

use super::{Exit, Held, Port, Spawned};

/// How long output is awaited from processes that a finished command has left in the background.
const DRAIN: Duration = Duration::from_secs(1);
/// Small enough that the allocator need not ask the kernel for each.
const CHUNK: usize = 4 * 1024;

pub struct Limits {
    pub time: Option<Duration>,
    /// Of each stream.
    pub bytes: usize,
    /// How many bytes of the answer one byte of output may take.
    pub cost: fn(u8) -> usize,
}

pub struct Captured {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub stdout_cut: bool,
    pub stderr_cut: bool,
    /// `None` when the time limit ended it.
    pub exit: Option<Exit>,
    /// To be dropped when the answer is out.
    pub held: Held,
}

/// Dropping the future kills the process and its group.
pub async fn run(spawned: Spawned, limits: Limits) -> Captured {
    let (stdout, stderr) = (Kept::new(&limits), Kept::new(&limits));
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
    let (stdout, stderr) = (stdout.into_state(), stderr.into_state());
    Captured {
        stdout: stdout.bytes,
        stderr: stderr.bytes,
        stdout_cut: stdout.cut,
        stderr_cut: stderr.cut,
        exit,
        held: stdout.held.join(stderr.held),
    }
}

/// The beginning of one stream.
struct Kept {
    limit: usize,
    cost: fn(u8) -> usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    held: Held,
    cut: bool,
}

impl Kept {
    fn new(limits: &Limits) -> Self {
        Self { limit: limits.bytes, cost: limits.cost, state: Mutex::default() }
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
        // Once cut, nothing is added: the text would have a hole in it.
        if state.cut {
            return;
        }
        let room = self.limit.saturating_sub(state.bytes.len()).min(bytes.len());
        let cost = bytes[..room].iter().map(|&byte| (self.cost)(byte)).sum();
        let room = if state.held.add(cost) { room } else { 0 };
        state.bytes.extend_from_slice(&bytes[..room]);
        state.cut = room < bytes.len();
    }

    fn into_state(self) -> State {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
