//! Going to the background, and serving without the streams of the caller.

use std::io;

/// Closes what whoever started us left open by mistake: a daemon would hold it for ever, and hand it to every command.
///
/// Must be the first thing that is done, before anything of ours is open.
pub fn close_inherited() {
    // JUSTIFICATION: there is no safe wrapper, because it can close what others own.
    // SAFETY: nothing is open yet but the three standard streams, which are left alone. Where the call does not exist,
    // nothing happens.
    #[allow(unsafe_code)]
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
    }
}

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
    drop_streams()
}

/// Prints that it listens, and replaces the standard streams: the caller closes its ends of them.
pub fn announce() -> io::Result<()> {
    io::Write::write_all(&mut io::stdout(), b"listening\n")?;
    io::Write::flush(&mut io::stdout())?;
    drop_streams()
}

fn drop_streams() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
