//! Going to the background.

use std::io;

/// Continues in a background process with a session of its own; the calling process ends here with exit code 0.
///
/// Must be called while the process has one thread. What is open stays open, so a listener bound before the call is
/// already accepting when the foreground process ends.
pub fn detach() -> io::Result<()> {
    // JUSTIFICATION: std cannot fork without exec, and exec would need our own file to be readable in the sandbox.
    // SAFETY: the caller has one thread (tokio starts later), so the child's memory and locks are consistent.
    #[allow(unsafe_code)]
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        _ => std::process::exit(0),
    }
    rustix::process::setsid()?;
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
