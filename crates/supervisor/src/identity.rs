//! The user namespace of a sandbox: which ids of the machine its ids are.
//!
//! The namespace belongs to the supervisor's own id, which is not among those mapped into it. So the supervisor, with
//! no capability at all on the machine, holds every right over the processes inside; and no process inside, whatever
//! id it takes, can be taken for the supervisor. (Where there is one id in all, the supervisor has that one too: it is
//! kept apart by having no capability, by not being traceable, and by being in a pid namespace that nobody inside sees.)

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use asb_supervisor::launch::{ExtraIds, IDS};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitOptions, waitpid};
use rustix::thread::{CapabilitySets, Gid, Uid, UnshareFlags};

use crate::fork::{Fork, exit, fork};
use crate::step::{Result, Step};

/// A namespace whose ids can be mapped, once.
pub struct Unmapped {
    namespace: OwnedFd,
    uids: File,
    gids: File,
}

impl Unmapped {
    /// Makes one that `owner` owns.
    pub fn make(owner: u32) -> Result<Self> {
        with_child("make a user namespace", || become_owner(owner), take)
    }

    /// Maps id *n* inside to `first + n`, and the extra ids to theirs.
    pub fn map(self, first: u32, extra: &ExtraIds) -> Result<OwnedFd> {
        let extents =
            extents(first, extra).map(|[inside, outside, count]| format!("{inside} {outside} {count}\n"));
        let map: String = extents.collect();
        self.write([map.clone(), map])
    }

    /// Makes every id inside the same as here, where 0 is a piece of its own: no piece may be part of two.
    pub fn map_same(self) -> Result<OwnedFd> {
        let map = format!("0 0 1\n1 1 {}\n", IDS - 1);
        self.write([map.clone(), map])
    }

    /// Makes every id that there is the same inside.
    pub fn map_all(self) -> Result<OwnedFd> {
        let map = format!("0 0 {}\n", u32::MAX);
        self.write([map.clone(), map])
    }

    /// Makes the one id that there is this user, and this group, inside.
    pub fn map_one(self, uid: u32, gid: u32) -> Result<OwnedFd> {
        self.write([uid, gid].map(|id| format!("{id} 0 1\n")))
    }

    fn write(self, maps: [String; 2]) -> Result<OwnedFd> {
        for (mut file, map) in [self.uids, self.gids].into_iter().zip(maps) {
            // With one call: the kernel takes a map once.
            file.write_all(map.as_bytes()).step("map ids")?;
        }
        Ok(self.namespace)
    }
}

/// Pieces of a map: the first id inside, the first outside, how many.
pub fn extents(first: u32, extra: &ExtraIds) -> impl Iterator<Item = [u32; 3]> {
    let extra = extra.inside.iter().zip(extra.first..).map(|(inside, outside)| [*inside, outside, 1]);
    std::iter::once([0, first, IDS]).chain(extra)
}

/// Has a child become something that can be taken hold of by its pid, while it lives.
pub fn with_child<T>(
    step: &str,
    becomes: impl FnOnce() -> std::result::Result<(), Errno>,
    take: impl FnOnce(i32) -> Result<T>,
) -> Result<T> {
    let (made, tell) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
    let (wait, keep) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
    let child = match fork().step("fork")? {
        Fork::Parent(child) => child,
        Fork::Child => {
            drop((made, keep));
            // Asked before: what it becomes may see another `/proc`.
            let said = own_pid().and_then(|pid| becomes().map(|()| pid));
            let said = said.unwrap_or_else(|errno| -errno.raw_os_error());
            let told = rustix::io::write(&tell, &said.to_ne_bytes());
            // Lives until the parent has taken hold of it.
            exit(i32::from(told.is_err() || rustix::io::read(&wait, &mut [0u8; 1]).is_err()))
        }
    };
    drop((tell, wait));
    let taken = pid_said(step, &made).and_then(take);
    drop(keep);
    waitpid(Some(child), WaitOptions::empty()).step("reap")?;
    taken
}

fn become_owner(owner: u32) -> std::result::Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
    rustix::thread::set_thread_res_gid(None, gid, None)?;
    rustix::thread::set_thread_res_uid(None, uid, None)?;
    // Capabilities were set aside with the effective id; some distributions let only their holders make namespaces.
    let sets = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(None, CapabilitySets { effective: sets.permitted, ..sets })?;
    // SAFETY: the descriptor table is not among what is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }
}

/// What this process is called in the `/proc` that is mounted here, which need not be of its own pid namespace.
fn own_pid() -> std::result::Result<i32, Errno> {
    let name = rustix::fs::readlink("/proc/self", Vec::new())?;
    name.to_str().ok().and_then(|name| name.parse().ok()).ok_or(Errno::SRCH)
}

/// The child says its pid, or the number of an error below zero.
fn pid_said(step: &str, made: &OwnedFd) -> Result<i32> {
    let mut said = (-libc::EIO).to_ne_bytes();
    rustix::io::read(made, &mut said).step(step)?;
    match i32::from_ne_bytes(said) {
        errno if errno < 0 => Err(Errno::from_raw_os_error(-errno)).step(step),
        pid => Ok(pid),
    }
}

fn take(pid: i32) -> Result<Unmapped> {
    let process = format!("/proc/{pid}");
    // What is opened stays with the namespace, not with the process.
    let map = |file: &str| {
        let path = format!("{process}/{file}");
        File::options().write(true).open(&path).step_at("open", path)
    };
    let path = format!("{process}/ns/user");
    let namespace = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    Ok(Unmapped {
        uids: map("uid_map")?,
        gids: map("gid_map")?,
        namespace: namespace.step_at("open the user namespace", path)?,
    })
}
