//! Forking, in a program that never has a second thread.

use rustix::io::Errno;
use rustix::process::Pid;

use crate::mount::last_errno;

pub enum Fork {
    Parent(Pid),
    Child,
}

pub fn fork() -> Result<Fork, Errno> {
    // SAFETY: this program has one thread, so the child may do whatever the parent could.
    match unsafe { libc::fork() } {
        -1 => Err(last_errno()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(Pid::from_raw(pid).expect("fork answers with a positive pid"))),
    }
}

/// Ends this process without running anything that the parent also would.
pub fn exit(code: i32) -> ! {
    // SAFETY: has no conditions; the process is gone afterwards.
    unsafe { libc::_exit(code) }
}
