//! A program started inside, its streams, and what can be done to it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Weak;

use asb_supervisor::wire::{self, Reply, Request, Size};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

use super::client::{Connection, is_of_program, unexpected};
use super::terminal::Terminal;
use super::{Attach, Exec, Exit, ReadEnd, Sandbox, TerminalSize, WriteEnd};
use crate::Error;

/// A program started by [`Sandbox::exec`], or the main process.
pub struct Session {
    pub stdin: Option<WriteEnd>,
    pub stdout: ReadEnd,
    /// `None` with a terminal: there is one stream.
    pub stderr: Option<ReadEnd>,
    pub control: SessionControl,
}

/// Resizes, signals and outlives the streams of a [`Session`].
pub struct SessionControl {
    sandbox: Sandbox,
    connection: Connection,
    terminal: Weak<AsyncFd<OwnedFd>>,
    /// The main process's terminal, which is not hung up on when nobody is attached.
    #[expect(dead_code, reason = "held, not read")]
    shared_terminal: Option<Terminal>,
    oom_kills: u64,
    exit: Option<Exit>,
}

impl SessionControl {
    /// Tells the program that its terminal has another size. Without a terminal nothing happens.
    pub async fn resize(&mut self, size: TerminalSize) -> Result<(), Error> {
        let Some(terminal) = self.terminal.upgrade() else { return Ok(()) };
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(terminal.get_ref(), size).map_err(|errno| self.sandbox.talk(errno.into()))
    }

    pub async fn signal(&mut self, signal: i32) -> Result<(), Error> {
        if self.exit.is_some() {
            return Ok(());
        }
        match self.connection.send(&Request::Signal { signal }, &[]).await {
            // Ended just now: there is nothing left to signal.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(|error| self.sandbox.talk(error)),
        }
    }

    /// Waits for the program to end.
    pub async fn wait(&mut self) -> Result<Exit, Error> {
        loop {
            if let Some(exit) = self.exit {
                return Ok(exit);
            }
            let status = match self.connection.reply().await.map_err(|error| self.sandbox.talk(error))? {
                Some((Reply::Exited { status }, _)) => status,
                // The supervisor is gone, and everything inside with it.
                None => wire::Status::Signal(libc::SIGKILL),
                // An answer to a signal that came too late, or something of a later generation.
                Some(_) => continue,
            };
            self.exit = Some(self.sandbox.judge(status, self.oom_kills));
        }
    }
}

/// The supervisor's ends of a program's streams and ours.
struct Pipes {
    theirs: Vec<OwnedFd>,
    stdin: Option<WriteEnd>,
    stdout: ReadEnd,
    stderr: ReadEnd,
}

pub async fn start(sandbox: &Sandbox, exec: &Exec) -> Result<Session, Error> {
    let request = request(sandbox, exec, true)?;
    let connection = sandbox.connect().await?;
    let oom_kills = sandbox.oom_kills();
    let control = |connection, terminal| SessionControl {
        sandbox: sandbox.clone(),
        connection,
        terminal,
        shared_terminal: None,
        oom_kills,
        exit: None,
    };
    let talk = |error| sandbox.talk(error);
    if exec.terminal.is_some() {
        let terminal = begin(sandbox, &connection, request, &[]).await?;
        let terminal = terminal.ok_or_else(|| talk(io::Error::other("the supervisor sent no terminal")))?;
        let terminal = Terminal::new(terminal).map_err(talk)?;
        return Ok(Session {
            stdin: exec.stdin.then(|| Box::new(terminal.clone()) as WriteEnd),
            stdout: Box::new(terminal.clone()),
            stderr: None,
            control: control(connection, std::sync::Arc::downgrade(&terminal.fd)),
        });
    }
    let Pipes { theirs, stdin, stdout, stderr } = pipes(exec.stdin).map_err(talk)?;
    begin(sandbox, &connection, request, &theirs).await?;
    Ok(Session { stdin, stdout, stderr: Some(stderr), control: control(connection, Weak::new()) })
}

/// Runs a program without streams to its end.
pub async fn run(sandbox: &Sandbox, argv: Vec<String>) -> Result<Exit, Error> {
    let exec = Exec { argv, env: Vec::new(), cwd: None, stdin: false, terminal: None };
    let connection = sandbox.connect().await?;
    begin(sandbox, &connection, request(sandbox, &exec, false)?, &[]).await?;
    let (oom_kills, terminal) = (sandbox.oom_kills(), Weak::new());
    let (sandbox, shared_terminal) = (sandbox.clone(), None);
    SessionControl { sandbox, connection, terminal, shared_terminal, oom_kills, exit: None }.wait().await
}

/// Starts a program and lets it go once it has printed `word`. It goes on without a connection.
///
/// Answers with how it ended if it printed nothing of the kind.
pub async fn run_until(sandbox: &Sandbox, argv: Vec<String>, word: &str) -> Result<Option<Exit>, Error> {
    let exec = Exec { argv, env: Vec::new(), cwd: None, stdin: false, terminal: None };
    let Session { mut stdout, mut control, .. } = start(sandbox, &exec).await?;
    let mut printed = vec![0; word.len()];
    match stdout.read_exact(&mut printed).await {
        Ok(_) if printed == word.as_bytes() => Ok(None),
        _ => control.wait().await.map(Some),
    }
}

/// Joins the streams of the main process.
pub async fn attach(sandbox: &Sandbox, attach: Attach) -> Result<Session, Error> {
    let talk = |error: io::Error| sandbox.talk(error);
    let connection = sandbox.connect().await?;
    let Pipes { theirs, stdout, stderr, .. } = pipes(false).map_err(talk)?;
    let wanted = [attach.stdout, attach.stderr];
    let theirs: Vec<_> = theirs.into_iter().zip(wanted).filter_map(|(end, it)| it.then_some(end)).collect();
    let Attach { stdin, stdout: out, stderr: err } = attach;
    let request = Request::Attach(wire::Attach { stdin, stdout: out, stderr: err });
    let oom_kills = sandbox.oom_kills();
    let given = begin(sandbox, &connection, request, &theirs).await?;
    let (mut input, mut shared_terminal): (Option<WriteEnd>, _) = (None, None);
    match given {
        Some(fd) if sandbox.spec().process.terminal => {
            let terminal = Terminal::new(fd).map_err(talk)?;
            input = stdin.then(|| Box::new(terminal.clone()) as WriteEnd);
            shared_terminal = Some(terminal);
        }
        Some(fd) => input = Some(Box::new(pipe::Sender::from_owned_fd(fd).map_err(talk)?)),
        None => {}
    }
    let terminal = shared_terminal.as_ref().map_or_else(Weak::new, |it| std::sync::Arc::downgrade(&it.fd));
    let sandbox = sandbox.clone();
    let control = SessionControl { sandbox, connection, terminal, shared_terminal, oom_kills, exit: None };
    Ok(Session { stdin: input, stdout, stderr: Some(stderr), control })
}

fn request(sandbox: &Sandbox, exec: &Exec, output: bool) -> Result<Request, Error> {
    crate::spec::environment("env", &exec.env)?;
    let main = &sandbox.spec().process;
    let mut env = main.env.clone();
    env.retain(|(name, _)| !exec.env.iter().any(|(other, _)| other == name));
    env.extend(exec.env.iter().cloned());
    let cwd = exec.cwd.as_ref().unwrap_or(&main.cwd).to_string_lossy().into_owned();
    Ok(Request::Exec(wire::Exec {
        argv: exec.argv.clone(),
        env,
        cwd,
        uid: main.uid,
        gid: main.gid,
        groups: main.groups.clone(),
        terminal: exec.terminal.map(|size| Size { columns: size.columns, rows: size.rows }),
        stdin: exec.stdin && exec.terminal.is_none(),
        output: output && exec.terminal.is_none(),
    }))
}

/// Sends the request and waits until the program runs; answers with its terminal, if it has one.
async fn begin(
    sandbox: &Sandbox,
    connection: &Connection,
    request: Request,
    fds: &[OwnedFd],
) -> Result<Option<OwnedFd>, Error> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    connection.send(&request, &fds).await.map_err(|error| sandbox.talk(error))?;
    match connection.reply().await.map_err(|error| sandbox.talk(error))? {
        Some((Reply::Started { .. }, terminal)) => Ok(terminal),
        Some((Reply::Failed(failed), _)) if is_of_program(&failed) => {
            let wire::Failed { kind, errno, message } = failed;
            Err(Error::Program { sandbox: sandbox.id().clone(), kind, message, errno })
        }
        Some((Reply::Failed(failed), _)) => Err(sandbox.refused(failed)),
        Some((other, _)) => Err(sandbox.talk(unexpected(&other))),
        None => Err(Error::Ended(sandbox.id().clone())),
    }
}

fn pipes(with_stdin: bool) -> io::Result<Pipes> {
    let mut theirs = Vec::new();
    let mut stdin = None;
    if with_stdin {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        theirs.push(read);
        stdin = Some(Box::new(pipe::Sender::from_owned_fd(write)?) as WriteEnd);
    }
    let mut output = || -> io::Result<ReadEnd> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        theirs.push(write);
        Ok(Box::new(pipe::Receiver::from_owned_fd(read)?))
    };
    let (stdout, stderr) = (output()?, output()?);
    Ok(Pipes { theirs, stdin, stdout, stderr })
}
