//! The `native` driver: our own namespaces, through one supervisor process per sandbox.

use std::path::PathBuf;

use crate::{SandboxId, Spec};

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The kernel killed it for want of memory.
    OutOfMemory,
}

/// A program to run inside a running sandbox.
#[derive(Debug, Clone)]
pub struct Exec {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    /// `None`: as the main process.
    pub cwd: Option<PathBuf>,
    pub stdin: bool,
    pub terminal: Option<TerminalSize>,
}

#[derive(Debug, Clone, Copy)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

/// The driver over one state directory. Cheap to clone.
#[derive(Clone)]
pub struct Native {}

/// One sandbox, running or ended. Cheap to clone; holds no resource of the sandbox.
#[derive(Clone)]
pub struct Sandbox {}

/// A program started by [`Sandbox::exec`].
pub struct Session {
    pub stdin: Option<WriteEnd>,
    pub stdout: ReadEnd,
    /// `None` with a terminal: there is one stream.
    pub stderr: Option<ReadEnd>,
    pub control: SessionControl,
}

/// Resizes, signals and outlives the streams of a [`Session`].
pub struct SessionControl {}

impl SessionControl {
    pub async fn resize(&mut self, _size: TerminalSize) -> Result<(), Error> {
        unreachable!()
    }

    pub async fn signal(&mut self, _signal: i32) -> Result<(), Error> {
        unreachable!()
    }

    /// Waits for the program to end.
    pub async fn wait(&mut self) -> Result<Exit, Error> {
        unreachable!()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("io")]
    Io(#[from] std::io::Error),
}

impl Native {
    /// Opens the state directory and puts the embedded programs into it.
    pub fn open(_dir: &std::path::Path) -> Result<Self, Error> {
        Ok(Self {})
    }

    /// Starts a sandbox; returns when its main process has been executed (or has failed to).
    ///
    /// Nothing is left behind when it fails.
    pub async fn start(&self, _spec: &Spec) -> Result<Sandbox, Error> {
        unreachable!()
    }

    /// Every sandbox that has not been deleted, started by this process or an earlier one.
    pub async fn list(&self) -> Result<Vec<Sandbox>, Error> {
        Ok(Vec::new())
    }
}

impl Sandbox {
    /// What it was started from.
    pub fn spec(&self) -> &Spec {
        unreachable!()
    }

    pub fn id(&self) -> &SandboxId {
        &self.spec().id
    }

    /// When the main process was started.
    pub fn started_at(&self) -> std::time::SystemTime {
        unreachable!()
    }

    /// Waits for the main process to end. Answers at once, and always the same, when it has ended.
    pub async fn wait(&self) -> Result<Ended, Error> {
        unreachable!()
    }

    /// Runs a program inside, beside the main process.
    pub async fn exec(&self, _exec: &Exec) -> Result<Session, Error> {
        unreachable!()
    }

    /// Connects to a TCP port on the sandbox's loopback interface.
    ///
    /// When nothing listens on [`SANDBOXD_PORT`], `sandboxd` is started inside first.
    pub async fn dial(&self, _port: u16) -> Result<tokio::net::TcpStream, Error> {
        unreachable!()
    }

    /// Sends a signal to the main process.
    pub async fn signal(&self, _signal: i32) -> Result<(), Error> {
        unreachable!()
    }

    /// The log files, oldest first: lines of `<RFC 3339 time> stdout|stderr F|P <text>`.
    pub fn logs(&self) -> Vec<PathBuf> {
        unreachable!()
    }

    /// Kills whatever runs and removes every trace: processes, mounts, cgroups, directories.
    pub async fn delete(&self) -> Result<(), Error> {
        unreachable!()
    }
}

/// The end of a main process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub exit: Exit,
    pub at: std::time::SystemTime,
}

/// Where the legacy runtime API listens inside a sandbox.
pub const SANDBOXD_PORT: u16 = 8888;

/// One end of a program's standard stream.
pub type ReadEnd = Box<dyn tokio::io::AsyncRead + Send + Unpin>;
pub type WriteEnd = Box<dyn tokio::io::AsyncWrite + Send + Unpin>;
