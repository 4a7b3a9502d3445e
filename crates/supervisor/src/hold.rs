//! Holds a network namespace that no sandbox is in: it lives as long as this process, whatever becomes of the engine.

use std::io::{Read, Write};
use std::process::ExitCode;

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::UnshareFlags;

use crate::step::{Result, Step};
use crate::{init, launcher, loopback, rights};

/// The first argument of the program that makes it do this.
pub const COMMAND: &str = "hold";

/// Says on standard output that there is a namespace, and stays if it is then told to on standard input.
pub fn run() -> ExitCode {
    match hold() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("failed to {}: errno {}", failure.step, failure.errno);
            ExitCode::FAILURE
        }
    }
}

fn hold() -> Result<()> {
    launcher::close_inherited();
    // Fails only when this process already leads a session.
    let _ = rustix::process::setsid();
    // SAFETY: the descriptor table is not among what is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.step("make a network namespace")?;
    loopback::bring_up(None)?;
    let null =
        open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step_at("open", "/dev/null")?;
    // Without any right it is also no obstacle: whoever is the same user may look at its namespace.
    rights::drop_capabilities()?;
    std::io::stdout().write_all(b"1").and_then(|()| std::io::stdout().flush()).step("say that it is made")?;
    if std::io::stdin().read(&mut [0]).step("wait for a word")? == 0 {
        return Ok(()); // nobody has written down that this is here
    }
    init::detach_from_launcher(&null)?;
    loop {
        // SAFETY: has no conditions.
        unsafe { libc::pause() };
    }
}
