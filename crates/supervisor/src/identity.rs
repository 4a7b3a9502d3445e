//! The user namespace of a sandbox: which ids of the machine its ids are.
//!
//! The namespace belongs to the supervisor's own id, which is not among those mapped into it. So the supervisor, with
//! no capability at all on the machine, holds every right over the processes inside; and no process inside, whatever
//! id it takes, can be taken for the supervisor.

use std::os::fd::OwnedFd;

use asb_supervisor::launch::IDS;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{CapabilitySets, Gid, Uid, UnshareFlags};

use crate::fork::{Fork, exit, fork};
use crate::step::{Result, Step};

/// Makes the namespace in which id 0 is `first_id` of the machine, owned by `owner`.
pub fn namespace(first_id: u32, owner: u32) -> Result<OwnedFd> {
    let (made, tell) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
    let (wait, keep) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
    let child = match fork().step("fork")? {
        Fork::Parent(child) => child,
        Fork::Child => {
            drop((made, keep));
            let code = become_owner(owner).map_or_else(Errno::raw_os_error, |()| 0);
            let told = rustix::io::write(&tell, &[code as u8]);
            // Lives until the parent has taken hold of the namespace.
            exit(i32::from(told.is_err() || rustix::io::read(&wait, &mut [0u8; 1]).is_err()))
        }
    };
    drop((tell, wait));
    let namespace = take(child, first_id, &made);
    drop(keep);
    waitpid(Some(child), WaitOptions::empty()).step("reap")?;
    namespace
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

fn take(child: Pid, first_id: u32, made: &OwnedFd) -> Result<OwnedFd> {
    let mut code = [libc::EIO as u8];
    rustix::io::read(made, &mut code).step("wait for the user namespace")?;
    if code[0] != 0 {
        return Err(Errno::from_raw_os_error(i32::from(code[0]))).step("make a user namespace");
    }
    let process = format!("/proc/{}", child.as_raw_nonzero());
    for file in ["uid_map", "gid_map"] {
        let path = format!("{process}/{file}");
        std::fs::write(&path, format!("0 {first_id} {IDS}\n")).step_at("map ids", &path)?;
    }
    let path = format!("{process}/ns/user");
    open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step_at("open the user namespace", &path)
}
