//! One child process and its group.
//!
//! The leader of the group stays unreaped until its owner is done with it. As long as it is, its number cannot be given
//! to another process, so a signal to the group never reaches a process that is not the caller's.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, kill_process, kill_process_group, waitid,
};
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::reaper;

const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Kills the whole group when dropped, unless [`Child::finish`] was called.
pub struct Child {
    pid: Pid,
    /// Readable when the leader has ended; not every kernel has one, and none is left once the child is finished.
    handle: Mutex<Option<Handle>>,
    finished: AtomicBool,
}

type Handle = Arc<AsyncFd<OwnedFd>>;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Child {
    pub fn new(pid: Pid) -> Self {
        reaper::own(pid);
        Self { pid, handle: Mutex::new(reaper::handle(pid).map(Arc::new)), finished: AtomicBool::new(false) }
    }

    /// Waits for the leader; others of its group may go on.
    pub async fn exited(&self) -> Exit {
        let mut ended = reaper::subscribe();
        loop {
            if let Some(exit) = self.peek() {
                return exit;
            }
            let handle = self.handle().clone();
            match handle {
                Some(handle) => drop(handle.readable().await),
                // By SIGCHLD, or by looking again where only this one handle could not be had.
                None => drop(timeout(LOOK_AGAIN, ended.changed()).await),
            }
        }
    }

    fn peek(&self) -> Option<Exit> {
        if self.finished.load(Ordering::Relaxed) {
            return Some(Exit::Code(1)); // reaped, so the number may belong to another process
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(self.pid), options) {
            Ok(None) | Err(rustix::io::Errno::INTR) => None,
            Ok(Some(status)) => Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, signal) => Exit::Signal(signal.unwrap_or_default()),
            }),
            Err(_) => Some(Exit::Code(1)),
        }
    }

    /// Sends a signal to the group; nothing happens once the child is finished.
    pub fn signal(&self, signal: Signal) {
        if self.finished.load(Ordering::Relaxed) {
            return;
        }
        let _ = kill_process_group(self.pid, signal);
        // A process can join another group, and must not escape its timeout by that.
        if getpgid(Some(self.pid)).is_ok_and(|group| group != self.pid) {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Reaps the leader and leaves alone what it has left in the background.
    pub fn finish(&self) {
        if !self.finished.swap(true, Ordering::Relaxed) {
            let handle = self.handle().take();
            reaper::release(self.pid, handle);
        }
    }

    fn handle(&self) -> std::sync::MutexGuard<'_, Option<Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_leader_that_has_left_its_group_gets_the_signal_too() {
        // Never put into a group of its own, as if it had joined that of the test.
        #[allow(clippy::zombie_processes)]
        let process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let child = Child::new(Pid::from_raw(process.id().cast_signed()).unwrap());
        child.signal(Signal::TERM);
        assert_eq!(timeout(Duration::from_secs(10), child.exited()).await, Ok(Exit::Signal(15)));
    }
}
