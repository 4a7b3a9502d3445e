//! Process 1 of a container that another runtime has made: starts the main process, passes signals on, reaps.
//!
//! So a program ends by the signals that end programs, and leaves nobody unreaped, as in a sandbox of our own. With no
//! program it idles until it is told to stop.

use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use rustix::process::{Pid, WaitOptions};

use crate::fork::{Fork, exit, fork};
use crate::spawn::{self, Prepared, Program};

/// What makes the supervisor's program do this.
pub const COMMAND: &str = "init";

/// What a shell answers for a program that is not there, or cannot be executed.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

pub fn run(argv: Vec<String>) -> ExitCode {
    let signals = match signals() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("could not watch for signals: {error}");
            exit(NOT_EXECUTABLE)
        }
    };
    let main = if argv.is_empty() { None } else { Some(start(argv)) };
    ExitCode::from(serve(&signals, main))
}

/// Stands in for a main process: reaps, until it is told to stop.
pub fn idle() -> ! {
    exit(signals().map_or(NOT_EXECUTABLE, |signals| i32::from(serve(&signals, None))))
}

/// Until the main process ends, or a signal ends this one; answers with the exit code.
fn serve(signals: &OwnedFd, main: Option<Pid>) -> u8 {
    loop {
        let signal = next_signal(signals);
        match (signal, main) {
            (libc::SIGCHLD, _) => {
                if let Some(code) = reap(main) {
                    return code;
                }
            }
            (libc::SIGTERM | libc::SIGINT | libc::SIGQUIT, None) => return 0,
            (_, None) => {}
            // SAFETY: has no memory effects. The pid is that of a child not yet reaped.
            (_, Some(main)) => drop(unsafe { libc::kill(main.as_raw_nonzero().get(), signal) }),
        }
    }
}

/// Forks the main process. What it cannot do it says where its output goes.
fn start(argv: Vec<String>) -> Pid {
    match fork() {
        Ok(Fork::Parent(pid)) => pid,
        Ok(Fork::Child) => {
            let name = argv.first().cloned().unwrap_or_default();
            let env = std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect();
            // Everything else this process has already been given by the runtime.
            let program = Program { argv, env, cwd: String::new(), uid: 0, gid: 0, groups: Vec::new() };
            lead();
            spawn::reset_signals();
            let failed = match Prepared::new(&program) {
                Ok(prepared) => spawn::not_executed(spawn::execute(&prepared), &name),
                Err(failed) => failed,
            };
            eprintln!("{}", failed.message);
            exit(if failed.errno == libc::ENOENT { NOT_FOUND } else { NOT_EXECUTABLE })
        }
        Err(errno) => {
            eprintln!("could not start a process: {errno}");
            exit(NOT_EXECUTABLE)
        }
    }
}

/// A session of its own; or, with a terminal, which belongs to this one's, a group of its own in front of it.
fn lead() {
    if !rustix::termios::isatty(rustix::stdio::stdin()) {
        let _ = rustix::process::setsid();
        return;
    }
    let own = rustix::process::getpid();
    // Signals are still blocked, so nobody is stopped for asking.
    let _ = rustix::process::setpgid(None, None)
        .and_then(|()| rustix::termios::tcsetpgrp(rustix::stdio::stdin(), own));
}

/// Collects the ended; answers with the exit code to end with when the main process is among them.
fn reap(main: Option<Pid>) -> Option<u8> {
    let mut code = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if Some(pid) == main {
            let ended = status.terminating_signal().map(|signal| 128 + signal).or(status.exit_status());
            code = Some(ended.unwrap_or(0) as u8);
        }
    }
    code
}

/// Blocks every signal, to be read later.
pub fn block_signals() -> std::io::Result<libc::sigset_t> {
    // SAFETY: the set lives through all calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        match libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) {
            0 => Ok(set),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

/// Blocks every signal and makes them readable. Not waited for by name: then they would count as unblocked meanwhile.
fn signals() -> std::io::Result<OwnedFd> {
    let set = block_signals()?;
    // SAFETY: the set lives through the call; the descriptor is new and owned by nobody else.
    unsafe {
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC);
        if fd < 0 { Err(std::io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// The number of the next one: the first field of what the kernel writes.
fn next_signal(signals: &OwnedFd) -> i32 {
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(signals, &mut info) {
        Ok(_) => i32::from_ne_bytes([info[0], info[1], info[2], info[3]]),
        Err(_) => 0,
    }
}
