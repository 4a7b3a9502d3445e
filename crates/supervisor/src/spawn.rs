//! Starting a program inside: from a fork of the supervisor to `execve` or a reason why not.

use std::ffi::{CString, OsStr};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use asb_supervisor::launch::Main;
use asb_supervisor::wire::{Failed, FailureKind, Size};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use rustix::process::Pid;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::fork::{Fork, exit, fork};
use crate::main_process;
use crate::mount::last_errno;
use crate::own::Own;
use crate::rights::{self, Bounds};
use crate::seccomp::Filter;

/// What every program inside is started with.
pub struct Ground {
    pub namespace: OwnedFd,
    /// What root inside has every right over, if it is privileged.
    pub own: Option<Own>,
    /// The directory of the sandbox's terminals.
    pub terminals: OwnedFd,
    pub null: OwnedFd,
    pub filter: Filter,
    pub bounds: Bounds,
}

pub struct Program {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: String,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl From<Main> for Program {
    fn from(Main { argv, env, cwd, uid, gid, groups, .. }: Main) -> Self {
        Self { argv, env, cwd, uid, gid, groups }
    }
}

pub enum Stdio {
    Terminal(Size),
    /// Standard input, output and error; the null device for those not given.
    Files([Option<OwnedFd>; 3]),
}

/// A program on its way to `execve`.
pub struct Spawning {
    pub pid: Pid,
    /// Becomes readable when the outcome is known.
    pub status: OwnedFd,
    /// The master side of its terminal, as soon as the child has sent it.
    terminal: Option<OwnedFd>,
}

/// What came of a [`Spawning`] program.
pub enum Outcome {
    Pending,
    Executed(Option<OwnedFd>),
    Failed(Failed),
}

/// What the child says when it cannot go on: kind and errno, 8 bytes in all. With a terminal it first sends `[0; 8]`.
const MESSAGE: usize = 8;

pub fn start(ground: &Ground, program: &Program, stdio: Stdio) -> Result<Spawning, Failed> {
    let prepared = Prepared::new(program)?;
    let (status, tell) = Spawning::channel().map_err(internal)?;
    match fork() {
        Ok(Fork::Parent(pid)) => Ok(Spawning::new(pid, status)),
        Ok(Fork::Child) => {
            tell_failure(&tell, run(ground, program, &prepared, stdio, &tell));
            exit(127)
        }
        // The kernel's word for a pid namespace whose process 1 is going.
        Err(errno @ Errno::NOMEM) if main_process::is_ending() => {
            Err(failed(FailureKind::Ended, errno, "the sandbox is ending"))
        }
        Err(errno @ (Errno::AGAIN | Errno::NOMEM)) => {
            Err(failed(FailureKind::Limit, errno, "the sandbox has no process left"))
        }
        Err(errno) => Err(internal(errno)),
    }
}

/// Becomes the main program, of which the supervisor has looked at the arguments. Only returns when something failed.
pub fn execute_main(ground: &Ground, program: &Program, stdio: Stdio, tell: &OwnedFd) -> (Stage, Errno) {
    match Prepared::new(program) {
        Ok(prepared) => run(ground, program, &prepared, stdio, tell),
        Err(_) => (Stage::Execute, Errno::INVAL),
    }
}

fn run(
    ground: &Ground,
    program: &Program,
    prepared: &Prepared,
    stdio: Stdio,
    tell: &OwnedFd,
) -> (Stage, Errno) {
    match become_program(ground, program, stdio, tell) {
        Ok(()) => (Stage::Execute, execute(prepared)),
        Err(failed) => failed,
    }
}

/// Says to the other end why there is no program.
pub fn tell_failure(tell: &OwnedFd, (stage, errno): (Stage, Errno)) {
    let mut message = [0; MESSAGE];
    message[..4].copy_from_slice(&(stage as u32 + 1).to_ne_bytes());
    message[4..].copy_from_slice(&errno.raw_os_error().to_ne_bytes());
    let _ = rustix::net::send(tell, &message, SendFlags::NOSIGNAL);
}

impl Spawning {
    /// Two ends: what to watch, and what the child reports to until `execve` closes it.
    pub fn channel() -> Result<(OwnedFd, OwnedFd), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
    }

    /// `status` is the end of [`Spawning::channel`] to watch.
    pub fn new(pid: Pid, status: OwnedFd) -> Self {
        Self { pid, status, terminal: None }
    }

    /// Looks whether the outcome is known by now.
    pub fn outcome(&mut self, argv: &[String], cwd: &str) -> Outcome {
        loop {
            let mut message = [0; MESSAGE];
            let (length, fd) =
                match crate::peer::receive(self.status.as_fd(), &mut message, RecvFlags::empty()) {
                    Ok((length, mut fds)) => (length, fds.pop()),
                    Err(Errno::AGAIN | Errno::INTR) => return Outcome::Pending,
                    Err(_) => (0, None),
                };
            if length == 0 {
                // Closed by `execve`.
                return Outcome::Executed(self.terminal.take());
            }
            if fd.is_some() {
                self.terminal = fd;
                continue;
            }
            let number =
                |range: std::ops::Range<usize>| message[range].try_into().map_or(0, i32::from_ne_bytes);
            return Outcome::Failed(describe(
                number(0..4),
                Errno::from_raw_os_error(number(4..8)),
                argv,
                cwd,
            ));
        }
    }
}

/// Steps of the child that can fail, as sent in its message.
#[derive(Clone, Copy)]
pub enum Stage {
    Launch,
    Namespaces,
    Rights,
    Terminal,
    Directory,
    Filter,
    Execute,
}

fn describe(stage: i32, errno: Errno, argv: &[String], cwd: &str) -> Failed {
    let name = argv.first().map_or("", String::as_str);
    match stage - 1 {
        n if n == Stage::Launch as i32 => {
            failed(FailureKind::Internal, errno, "could not read the launch file")
        }
        n if n == Stage::Namespaces as i32 => failed(
            FailureKind::Internal,
            errno,
            "could not enter the network of the sandbox, or what it shares",
        ),
        n if n == Stage::Rights as i32 => {
            failed(FailureKind::Internal, errno, "could not take the user's rights")
        }
        n if n == Stage::Terminal as i32 => failed(FailureKind::Internal, errno, "could not open a terminal"),
        n if n == Stage::Directory as i32 => not_entered(errno, cwd),
        n if n == Stage::Filter as i32 => {
            failed(FailureKind::Internal, errno, "could not apply the system call filter")
        }
        _ => not_executed(errno, name),
    }
}

/// Why `execve` has failed.
pub fn not_executed(errno: Errno, name: &str) -> Failed {
    match errno {
        Errno::NOENT if !name.contains('/') => {
            failed(FailureKind::NotFound, errno, &format!("no such file on PATH: `{name}`"))
        }
        Errno::NOENT => failed(FailureKind::NotFound, errno, &format!("no such file: `{name}`")),
        _ if errno == Errno::TOOBIG => {
            failed(FailureKind::TooLarge, errno, "arguments and environment are larger than the kernel takes")
        }
        _ if errno == Errno::NOMEM || errno == Errno::AGAIN => {
            failed(FailureKind::Limit, errno, &format!("the sandbox has no memory left for `{name}`"))
        }
        _ => failed(FailureKind::NotExecutable, errno, &format!("could not execute `{name}`")),
    }
}

/// Why the working directory is none.
pub fn not_entered(errno: Errno, cwd: &str) -> Failed {
    failed(FailureKind::Directory, errno, &format!("could not enter the working directory `{cwd}`"))
}

pub fn failed(kind: FailureKind, errno: Errno, message: &str) -> Failed {
    Failed { kind, errno: errno.raw_os_error(), message: message.to_owned() }
}

fn internal(errno: Errno) -> Failed {
    failed(FailureKind::Internal, errno, "could not start a process")
}

/// Arguments as the kernel wants them, and every place the program may be at.
pub struct Prepared {
    argv: Vec<CString>,
    env: Vec<CString>,
    candidates: Vec<CString>,
}

impl Prepared {
    /// Every place the program may be at, as seen from its working directory.
    pub fn candidates(&self) -> impl Iterator<Item = &OsStr> {
        self.candidates.iter().map(|path| OsStr::from_bytes(path.as_bytes()))
    }

    pub fn new(program: &Program) -> Result<Self, Failed> {
        let malformed =
            |what: &str| Failed { kind: FailureKind::Malformed, errno: 0, message: what.to_owned() };
        let c_string =
            |text: String| CString::new(text).map_err(|_| malformed("a NUL byte in the arguments"));
        let name = program.argv.first().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| malformed("no program was named"))?;
        let path = program.env.iter().rev().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_str());
        let path = path.unwrap_or("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let candidates: Vec<String> = if name.contains('/') {
            vec![name.clone()]
        } else {
            path.split(':')
                .map(|place| if place.is_empty() { "." } else { place })
                .map(|place| format!("{place}/{name}"))
                .collect()
        };
        Ok(Self {
            argv: program.argv.iter().cloned().map(c_string).collect::<Result<_, _>>()?,
            env: program
                .env
                .iter()
                .map(|(key, value)| c_string(format!("{key}={value}")))
                .collect::<Result<_, _>>()?,
            candidates: candidates.into_iter().map(c_string).collect::<Result<_, _>>()?,
        })
    }
}

/// Gives this process everything that the program will have: rights, streams, working directory.
pub fn become_program(
    ground: &Ground,
    program: &Program,
    stdio: Stdio,
    tell: &OwnedFd,
) -> Result<(), (Stage, Errno)> {
    let at = |stage| move |errno| (stage, errno);
    let _ = rustix::process::setsid();
    rights::enter(&ground.namespace, ground.own.as_ref()).map_err(at(Stage::Rights))?;
    // Where programs may get new privileges, only who has some can bind itself.
    if ground.bounds.privileged {
        ground.filter.apply().map_err(at(Stage::Filter))?;
    }
    rights::become_user(ground.bounds, program).map_err(at(Stage::Rights))?;
    rights::limit_resources(ground.bounds.processes).map_err(at(Stage::Rights))?;
    let streams = match stdio {
        Stdio::Terminal(size) => terminal(ground, size, tell),
        Stdio::Files(files) => files_or_null(ground, &files),
    };
    streams.map_err(at(Stage::Terminal))?;
    rustix::process::chdir(OsStr::from_bytes(program.cwd.as_bytes())).map_err(at(Stage::Directory))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    reset_signals();
    close_all_but(tell);
    if !ground.bounds.privileged {
        ground.filter.apply().map_err(at(Stage::Filter))?;
    }
    Ok(())
}

/// Opens a terminal as the user, so that it is the user's, makes it the controlling one, and sends its other side back.
fn terminal(ground: &Ground, size: Size, tell: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = openat(&ground.terminals, "ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(
        &master,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?;
    rustix::termios::tcsetwinsize(
        &slave,
        Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 },
    )?;
    rustix::process::ioctl_tiocsctty(&slave)?;
    standard_streams([slave.as_fd(); 3])?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [master.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(tell, &[IoSlice::new(&[0; MESSAGE])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn files_or_null(ground: &Ground, files: &[Option<OwnedFd>; 3]) -> Result<(), Errno> {
    standard_streams(std::array::from_fn(|index| files[index].as_ref().unwrap_or(&ground.null).as_fd()))
}

fn standard_streams([stdin, stdout, stderr]: [BorrowedFd<'_>; 3]) -> Result<(), Errno> {
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(stderr)
}

/// Every signal as a new program expects it: unblocked, with its default effect.
pub fn reset_signals() {
    // SAFETY: `signal` with a default disposition and `sigprocmask` with an empty set touch no memory but the set.
    unsafe {
        for number in 1..=libc::SIGRTMAX() {
            libc::signal(number, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Closes all that the supervisor has open, but for the standard streams and one more, which `execve` closes.
///
/// All of it is close-on-exec; but `execve` takes the program's memory before it closes anything, and from then on the process
/// can be looked into by whoever has the right to trace in its user namespace, as root of a privileged sandbox does.
pub fn close_all_but(kept: &OwnedFd) {
    let kept = kept.as_raw_fd() as u32;
    // SAFETY: nothing but `kept` is used from here on: to `execve`, or to the end.
    unsafe {
        if kept > 3 {
            libc::syscall(libc::SYS_close_range, 3, kept - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, kept.max(2) + 1, u32::MAX, 0);
    }
}

/// Tries each candidate as a shell would: a missing one is passed over, a forbidden one is remembered.
pub fn execute(prepared: &Prepared) -> Errno {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(&prepared.argv), pointers(&prepared.env));
    let mut reason = Errno::NOENT;
    for candidate in &prepared.candidates {
        // SAFETY: all three are C strings or NULL-terminated arrays of them, and outlive the call.
        unsafe { libc::execve(candidate.as_ptr(), argv.as_ptr(), env.as_ptr()) };
        match last_errno() {
            Errno::NOENT | Errno::NOTDIR => {}
            Errno::ACCESS => reason = Errno::ACCESS,
            errno => return errno,
        }
    }
    reason
}
