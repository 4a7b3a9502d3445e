//! Notices that children have ended, and reaps the ones that no owner will reap.
//!
//! A child is watched by its pidfd. SIGCHLD is handled as well: where the kernel has no pidfd (gVisor) it takes its place, and
//! it announces the end of orphans.
//!
//! Orphans of commands become children of this process ([`adopt_orphans`]). The container's first process may reap nothing,
//! and every zombie counts against the sandbox's limit on processes.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rustix::process::{
    Pid, PidfdFlags, WaitId, WaitIdOptions, getpid, pidfd_open, set_child_subreaper, waitid,
};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep_until};

use super::register;

/// How long an orphan may stay a zombie. Looking for orphans reads a file, so it is done once for many that end together,
/// and not while the answer of a command that has just ended is on its way.
const BATCH: Duration = Duration::from_millis(20);

/// Counts SIGCHLDs.
static ENDED: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));
/// Children that an owner will reap.
static OWNED: LazyLock<Mutex<HashSet<Pid>>> = LazyLock::new(Mutex::default);
/// Children that were killed when their owner went away.
static ABANDONED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Reaps until the end of the program. Must run on the main thread, which is the one that spawns.
pub fn watch() -> std::io::Result<impl Future<Output = ()> + Send> {
    let mut signals = signal(SignalKind::child())?;
    Ok(async move {
        let mut due = None;
        loop {
            tokio::select! {
                received = signals.recv() => {
                    if received.is_none() {
                        return;
                    }
                    ENDED.send_modify(|count| *count += 1);
                    lock(&ABANDONED).retain(|&pid| !reap(pid));
                    due.get_or_insert_with(|| Instant::now() + BATCH);
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = None;
                    reap_orphans();
                }
            }
        }
    })
}

/// Makes the orphans of commands children of this process.
pub fn adopt_orphans() {
    // A kernel that refuses gives them to the first process, as in any container.
    let _ = set_child_subreaper(Some(getpid()));
}

pub fn subscribe() -> watch::Receiver<u64> {
    ENDED.subscribe()
}

pub fn own(pid: Pid) {
    lock(&OWNED).insert(pid);
}

/// Reaps `pid` now, or as soon as it has ended.
pub fn release(pid: Pid, handle: Option<Arc<AsyncFd<OwnedFd>>>) {
    lock(&OWNED).remove(&pid);
    lock(&ABANDONED).retain(|&pid| !reap(pid));
    if reap(pid) {
        return;
    }
    match (handle, tokio::runtime::Handle::try_current()) {
        (Some(handle), Ok(runtime)) => drop(runtime.spawn(async move {
            let _ = handle.readable().await;
            reap(pid);
        })),
        _ => lock(&ABANDONED).push(pid),
    }
}

/// Readable when the process has ended.
pub fn handle(pid: Pid) -> Option<AsyncFd<OwnedFd>> {
    register(pidfd_open(pid, PidfdFlags::NONBLOCK).or_else(|_| pidfd_open(pid, PidfdFlags::empty())).ok()?)
        .ok()
}

/// Whether there is nothing left to reap.
fn reap(pid: Pid) -> bool {
    !matches!(waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(None))
}

/// Reaps the children that have no owner. Each is asked for by number: a wait for any child would return the same ended child
/// again and again if that has an owner.
fn reap_orphans() {
    let own = getpid().as_raw_nonzero();
    let Ok(children) = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")) else { return };
    let owned = lock(&OWNED);
    let children = children.split_ascii_whitespace().filter_map(|text| Pid::from_raw(text.parse().ok()?));
    for orphan in children.filter(|pid| !owned.contains(pid)) {
        reap(orphan);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
