//! Commands to a runtime on behalf of a connection: begun, left alone, and looked at again when they have ended.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use asb_supervisor::wire::{Exec, Failed, FailureKind, Size, Status};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use rustix::termios::Winsize;
use serde_json::json;

use super::{Container, find, pid_of, process, read_pid, said};
use crate::peer::{Running, receive, refusal};
use crate::spawn::{Program, failed};

/// A command that runs.
pub struct Asked {
    pub child: Pid,
    pub what: What,
    /// Its files begin like this.
    files: PathBuf,
}

pub enum What {
    /// A program to start, perhaps with a terminal.
    Exec(Option<Console>),
    /// A connection to a port, which arrives on the socket.
    Dial(OwnedFd),
    Signal,
}

/// A terminal on its way from the runtime that has made it.
pub struct Console {
    size: Size,
    state: State,
}

enum State {
    Listening(OwnedFd),
    Connected(OwnedFd),
    Received(OwnedFd),
}

impl Console {
    /// Where the runtime is to send it.
    pub fn listen(path: &Path, size: Size) -> Result<Self, Failed> {
        Ok(Self { size, state: State::Listening(listen(path)?) })
    }

    /// The terminal, once the runtime has ended: so whatever it was to send is there.
    pub fn terminal(mut self) -> Result<OwnedFd, Failed> {
        self.progress()?;
        match self.state {
            State::Received(terminal) => Ok(terminal),
            _ => Err(internal(Errno::BADF)),
        }
    }

    /// What becomes readable when there is more to take.
    pub fn pending(&self) -> Option<&OwnedFd> {
        match &self.state {
            State::Listening(socket) | State::Connected(socket) => Some(socket),
            State::Received(_) => None,
        }
    }

    /// Takes what is there, at once: the program must not see its terminal before it has its size.
    pub fn progress(&mut self) -> Result<(), Failed> {
        if let State::Listening(socket) = &self.state {
            self.state = match rustix::net::accept_with(socket, SocketFlags::CLOEXEC) {
                Ok(connection) => State::Connected(connection),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(internal(errno)),
            };
        }
        let State::Connected(connection) = &self.state else { return Ok(()) };
        let terminal = match receive(connection.as_fd(), &mut [0; 4096], RecvFlags::DONTWAIT) {
            Ok((_, mut fds)) => fds.pop().ok_or_else(|| internal(Errno::BADF))?,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(errno) => return Err(internal(errno)),
        };
        let Size { columns, rows } = self.size;
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&terminal, size).map_err(internal)?;
        self.state = State::Received(terminal);
        Ok(())
    }
}

impl Asked {
    fn file(&self, kind: &str) -> PathBuf {
        self.files.with_extension(kind)
    }
}

/// All that a command may leave.
const KINDS: [&str; 5] = ["log", "json", "pid", "inside", "sock"];

impl Drop for Asked {
    fn drop(&mut self) {
        for kind in KINDS {
            let _ = std::fs::remove_file(self.file(kind));
        }
    }
}

impl Container {
    /// Starts a program beside the main process.
    pub fn exec(&mut self, exec: Exec, stdio: [Option<OwnedFd>; 3]) -> Result<Asked, Failed> {
        let Exec { argv, env, cwd, uid, gid, groups, terminal, .. } = exec;
        let program = Program { argv, env, cwd, uid, gid, groups };
        find::program(&self.inside, &program)?;
        let files = self.files();
        let json = files.with_extension("json");
        let mut process = process(&self.process, &program, program.argv.iter().cloned(), terminal.is_some());
        if let Some(Size { columns, rows }) = terminal {
            process["consoleSize"] = json!({"width": columns, "height": rows});
        }
        std::fs::write(&json, process.to_string()).map_err(internal)?;
        let mut command = self.command(&files.with_extension("log"));
        command.args(["exec", "--detach", "--pid-file"]).arg(files.with_extension("pid"));
        if self.gvisor {
            command.arg("--internal-pid-file").arg(files.with_extension("inside"));
        }
        let mut console = None;
        if let Some(size) = terminal {
            let path = files.with_extension("sock");
            console = Some(Console::listen(&path, size)?);
            command.arg("--console-socket").arg(path);
        }
        command.arg("--process").arg(json).arg(&self.name);
        let [stdin, stdout, stderr] = stdio.map(|file| file.map_or_else(Stdio::null, Stdio::from));
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        begin(command, What::Exec(console), files)
    }

    /// Connects to a port inside, where the loopback interface is not the kernel's.
    pub fn dial(&mut self, port: u16) -> Result<Asked, Failed> {
        let files = self.files();
        let path = files.with_extension("sock");
        let socket = listen(&path)?;
        let mut command = self.command(&files.with_extension("log"));
        command.args(["port-forward", "--stream"]).arg(path).arg(&self.name).arg(port.to_string());
        begin(quiet(command), What::Dial(socket), files)
    }

    /// Signals the main process, or the one called `inside`.
    pub fn signal(&mut self, inside: Option<i32>, signal: i32) -> Result<Asked, Failed> {
        let files = self.files();
        // Only about the main process does anybody wait for what it says.
        let log = inside.map_or_else(|| files.with_extension("log"), |_| "/dev/null".into());
        let mut command = self.command(&log);
        command.arg("kill");
        if let Some(inside) = inside {
            command.arg("--pid").arg(inside.to_string());
        }
        command.arg(&self.name).arg(signal.to_string());
        begin(quiet(command), What::Signal, files)
    }

    fn files(&mut self) -> PathBuf {
        self.commands += 1;
        self.place.join(format!("command-{}", self.commands))
    }
}

impl Asked {
    /// The program that has been started, and its terminal.
    pub fn started(&mut self, status: Status) -> Result<(Running, Option<OwnedFd>), Failed> {
        self.succeeded(status, FailureKind::NotExecutable)?;
        let pid = read_pid(&self.file("pid")).map_err(internal)?;
        let inside = read_pid(&self.file("inside")).ok().map(|pid| pid.as_raw_nonzero().get());
        let terminal = match &mut self.what {
            What::Exec(console) => console.take().map(Console::terminal).transpose()?,
            _ => None,
        };
        Ok((Running { pid, inside }, terminal))
    }

    /// The connection that has been made.
    pub fn connected(&self, status: Status) -> Result<OwnedFd, Failed> {
        self.succeeded(status, FailureKind::Refused)?;
        match &self.what {
            What::Dial(socket) => accept(socket),
            _ => Err(internal(Errno::INVAL)),
        }
    }

    /// Whether the command did what it was to do; otherwise what it said, as a failure of this kind.
    pub fn succeeded(&self, status: Status, kind: FailureKind) -> Result<(), Failed> {
        match status {
            Status::Code(0) => Ok(()),
            _ => Err(refusal(kind, &said(&self.file("log")))),
        }
    }
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn begin(mut command: Command, what: What, files: PathBuf) -> Result<Asked, Failed> {
    match command.spawn() {
        // Reaped with all others, by its pid.
        Ok(child) => Ok(Asked { child: pid_of(&child), what, files }),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOMEM) => {
                Err(refusal(FailureKind::Limit, "the sandbox has no process left for the runtime"))
            }
            _ => Err(internal(error)),
        },
    }
}

fn listen(path: &Path) -> Result<OwnedFd, Failed> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let bound = made.and_then(|socket| {
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 1)?;
        Ok(socket)
    });
    bound.map_err(internal)
}

fn accept(socket: &OwnedFd) -> Result<OwnedFd, Failed> {
    rustix::net::accept_with(socket, SocketFlags::CLOEXEC).map_err(internal)
}

fn internal(error: impl Into<std::io::Error>) -> Failed {
    let errno = error.into().raw_os_error().unwrap_or(libc::EIO);
    failed(FailureKind::Internal, Errno::from_raw_os_error(errno), "could not use the runtime")
}
