//! Notices that children have ended, and reaps the ones that have no owner any more.
//!
//! A child is watched by its pidfd. Where the kernel has none (gVisor), and as the first process of a container, which has
//! orphans to reap, SIGCHLD is handled instead; a handler would interrupt every wait, so it is not installed otherwise.
//!
//! Elsewhere what commands leave behind would come to the container's first process, which may reap nothing. So it comes
//! here ([`adopt_orphans`]), and is reaped when the next command has ended.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rustix::process::{
    Pid, PidfdFlags, WaitId, WaitIdOptions, getpid, pidfd_open, set_child_subreaper, waitid,
};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::register;

/// Counts SIGCHLDs.
static ENDED: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));
/// Children that an owner will reap.
static OWNED: LazyLock<Mutex<HashSet<Pid>>> = LazyLock::new(Mutex::default);
/// Children that were killed when their owner went away.
static ABANDONED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
/// Whether orphans come to this process.
static ADOPTS: AtomicBool = AtomicBool::new(false);

/// Reaps until the end of the program. Must run on the main thread, which is the one that spawns.
pub fn watch() -> std::io::Result<impl Future<Output = ()> + Send> {
    let adopts = std::process::id() == 1;
    let has_pidfd = pidfd_open(getpid(), PidfdFlags::empty()).is_ok();
    let mut signals = (adopts || !has_pidfd).then(|| signal(SignalKind::child())).transpose()?;
    Ok(async move {
        let Some(signals) = &mut signals else { return };
        while signals.recv().await.is_some() {
            ENDED.send_modify(|count| *count += 1);
            lock(&ABANDONED).retain(|&pid| !reap(pid));
            if adopts {
                reap_orphans();
            }
        }
    })
}

/// Has the processes that commands leave behind become children of this one.
pub fn adopt_orphans() {
    // Where the kernel cannot do that, they are the first process's, as in any container.
    let adopts = set_child_subreaper(Some(getpid())).is_ok();
    ADOPTS.store(adopts, Ordering::Relaxed);
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
    let reaped = reap(pid);
    reap_ended();
    if reaped {
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

/// Reaps what others left behind. It asks for each child by number: waiting for any child would return the first one that
/// has ended again and again, and that may be one with an owner.
fn reap_orphans() {
    let own = getpid().as_raw_nonzero();
    let Ok(children) = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")) else { return };
    let owned = lock(&OWNED);
    let children = children.split_ascii_whitespace().filter_map(|text| Pid::from_raw(text.parse().ok()?));
    for orphan in children.filter(|pid| !owned.contains(pid)) {
        reap(orphan);
    }
}

/// Reaps orphans, if any child has ended.
fn reap_ended() {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if ADOPTS.load(Ordering::Relaxed) && matches!(waitid(WaitId::All, options), Ok(Some(_))) {
        reap_orphans();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
