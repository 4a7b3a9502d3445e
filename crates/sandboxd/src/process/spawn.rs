//! Starts a process: its working directory, environment, streams and, if wanted, a terminal of its own.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::Winsize;

use super::{Child, Port};

pub struct Wanted<'a> {
    pub command: &'a [String],
    pub environment: &'a HashMap<String, String>,
    pub cwd: Cwd<'a>,
    pub input: Input,
}

pub enum Cwd<'a> {
    Path(&'a Path),
    /// Held open, so that it cannot be exchanged between the check and the use.
    Held(OwnedFd),
}

pub enum Input {
    Null,
    Pipe,
    /// A terminal for all three streams, of this size if both numbers are above 0.
    Terminal {
        cols: u16,
        rows: u16,
    },
}

pub struct Spawned {
    pub child: Arc<Child>,
    /// Of a terminal, this is the same as `stdout`.
    pub stdin: Option<Port>,
    pub stdout: Port,
    /// A terminal has none.
    pub stderr: Option<Port>,
}

#[derive(Debug)]
pub enum Failure {
    /// No command at all.
    Empty,
    /// A word or variable that no process can be given.
    Invalid(String),
    NoDirectory(io::Error),
    Terminal(io::Error),
    Start(io::Error),
}

pub fn spawn(wanted: Wanted<'_>) -> Result<Spawned, Failure> {
    let (program, arguments) = wanted.command.split_first().ok_or(Failure::Empty)?;
    check_text(wanted.command, wanted.environment)?;
    let mut command = match changed_path(program, wanted.environment) {
        Some(found) => Command::new(found.map_err(Failure::Start)?),
        None => Command::new(program),
    };
    command.arg0(program).args(arguments).envs(wanted.environment);
    match wanted.cwd {
        Cwd::Path(path) => {
            check_directory(path).map_err(Failure::NoDirectory)?;
            command.current_dir(path);
        }
        Cwd::Held(directory) => enter(&mut command, directory),
    }
    match wanted.input {
        Input::Terminal { cols, rows } => with_terminal(command, cols, rows),
        Input::Null => with_pipes(command, false).map_err(Failure::Start),
        Input::Pipe => with_pipes(command, true).map_err(Failure::Start),
    }
}

fn with_pipes(mut command: Command, input: bool) -> io::Result<Spawned> {
    let (stdout, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    command.stdout(theirs);
    let (stderr, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    command.stderr(theirs);
    let stdin = match input {
        true => {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
            command.stdin(theirs);
            Some(Port::new(ours)?)
        }
        false => {
            command.stdin(Stdio::null());
            None
        }
    };
    let (stdout, stderr) = (Port::new(stdout)?, Some(Port::new(stderr)?));
    // Without a hook that runs between fork and exec, this is a vfork.
    let child = start(command.process_group(0))?;
    Ok(Spawned { child, stdin, stdout, stderr })
}

fn with_terminal(mut command: Command, cols: u16, rows: u16) -> Result<Spawned, Failure> {
    let (master, slave) = terminal(cols, rows).map_err(Failure::Terminal)?;
    let streams = || slave.try_clone().map(Stdio::from);
    let prepared = (|| {
        command.stdin(streams()?).stdout(streams()?).stderr(streams()?);
        let stdin = Some(Port::new(master.try_clone()?)?);
        Ok((stdin, Port::new(master)?))
    })();
    let (stdin, stdout) = prepared.map_err(Failure::Terminal)?;
    // JUSTIFICATION: std has no stable way to make a child the leader of a session.
    // SAFETY: the hook makes two system calls and allocates nothing.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
        });
    }
    let child = start(&mut command).map_err(Failure::Start)?;
    Ok(Spawned { child, stdin, stdout, stderr: None })
}

fn start(command: &mut Command) -> io::Result<Arc<Child>> {
    let process = command.spawn()?;
    let pid = Pid::from_raw(process.id().cast_signed()).ok_or(Errno::SRCH)?;
    Ok(Arc::new(Child::new(pid)))
}

fn terminal(cols: u16, rows: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = match ioctl_tiocgptpeer(&master, flags) {
        Ok(slave) => slave,
        // Kernels without that call know the terminal by its name only.
        Err(_) => {
            let name = ptsname(&master, Vec::new())?;
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?
        }
    };
    if cols > 0 && rows > 0 {
        resize(&slave, cols, rows)?;
    }
    Ok((master, slave))
}

/// Sets the size of a terminal; its foreground processes get SIGWINCH.
pub fn resize(terminal: impl AsFd, cols: u16, rows: u16) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

fn enter(command: &mut Command, directory: OwnedFd) {
    // JUSTIFICATION: std can only enter a directory by its path, which may have been exchanged since the check.
    // SAFETY: the hook makes one system call and allocates nothing.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(move || Ok(rustix::process::fchdir(&directory)?));
    }
}

/// Reported apart from the command, because a failed spawn does not say which of the two is missing.
fn check_directory(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Errno::NOTDIR.into()),
        Err(error) => Err(error),
    }
}

fn check_text(command: &[String], environment: &HashMap<String, String>) -> Result<(), Failure> {
    if command.iter().any(|word| word.contains('\0')) {
        return Err(Failure::Invalid("command contains a NUL byte".to_owned()));
    }
    for (name, value) in environment {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(Failure::Invalid(format!(
                "environment variable {name:?} has an invalid name or value"
            )));
        }
    }
    Ok(())
}

/// The program by the daemon's own PATH, where the environment of the process has another one: std would search that.
fn changed_path(program: &str, environment: &HashMap<String, String>) -> Option<io::Result<PathBuf>> {
    if !environment.contains_key("PATH") || program.contains('/') {
        return None;
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let directories = path.as_bytes().split(|&byte| byte == b':').filter(|directory| !directory.is_empty());
    let mut candidates = directories.map(|directory| Path::new(OsStr::from_bytes(directory)).join(program));
    let found = candidates.find(|candidate| {
        candidate.is_file() && rustix::fs::accessat(CWD, candidate, Access::EXEC_OK, AtFlags::empty()).is_ok()
    });
    Some(found.ok_or_else(|| Errno::NOENT.into()))
}
