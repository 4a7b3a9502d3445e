//! Processes that are not our children: told apart by start time, killed and waited for by descriptor.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use asb_supervisor::launch::Identity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process that was alive when it was opened. Whatever becomes of its pid, this stays the same process.
pub struct Process(OwnedFd);

impl Process {
    /// Opens the very process described; `None` when it is no more.
    pub fn find(identity: &Identity) -> io::Result<Option<Self>> {
        let Some(process) = Self::open(identity.pid)? else { return Ok(None) };
        // Read after opening: if the pid has been given to another process, its start time is different.
        let same = start_time(identity.pid) == Some(identity.start_time) && boot_id()? == identity.boot_id;
        Ok(same.then_some(process))
    }

    /// What a process of ours can be found by later.
    pub fn identify(pid: u32) -> io::Result<Identity> {
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        let start_time = start_time(pid).ok_or(io::ErrorKind::NotFound)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Identity { pid, start_time, boot_id: boot_id()?, at: since.as_nanos() as u64 })
    }

    /// Opens whatever process has the pid now.
    pub fn open(pid: i32) -> io::Result<Option<Self>> {
        let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(Self(fd))),
            Err(Errno::SRCH) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether it has ended by now, be it that nobody has collected it.
    pub fn has_ended(&self) -> bool {
        let mut watched = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.0, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits until the process has ended and, if it was the first of a pid namespace, all others in there too.
    pub async fn ended(self) -> io::Result<()> {
        watch(self.0, Interest::READABLE)?.readable().await.map(drop)
    }
}

/// A descriptor whose readiness can be awaited.
#[allow(unsafe_code)]
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` that is moved in stays open, and the same, until the result is dropped.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}

fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn boot_id() -> io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned())
}
