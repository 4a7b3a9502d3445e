//! A handle on one sandbox of whatever driver. Holds nothing of it open: all state is the supervisor's or on disk.

mod client;
mod kernel;
mod session;
mod terminal;

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use asb_supervisor::launch::{ExitRecord, Identity, SANDBOXD, file};
use asb_supervisor::wire::{Failed, Reply, Request, Status};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use asb_supervisor::wire::FailureKind;

use self::client::{Connection, unexpected};
pub use self::session::{Session, SessionControl};
use crate::native::{Shared, delete};
use crate::process::Process;
use crate::tree::{self, Enough, Size};
use crate::{Error, SandboxId, Spec, Stats, count, driver};

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The kernel killed it for want of memory.
    OutOfMemory,
}

/// A program to run inside a running sandbox, as the same user as the main process.
#[derive(Debug, Clone)]
pub struct Exec {
    pub argv: Vec<String>,
    /// On top of the main process's variables.
    pub env: Vec<(String, String)>,
    /// `None`: as the main process.
    pub cwd: Option<PathBuf>,
    pub stdin: bool,
    pub terminal: Option<TerminalSize>,
}

/// Which streams of the main process to join.
#[derive(Debug, Clone, Copy)]
pub struct Attach {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

/// The end of a main process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub exit: Exit,
    pub at: std::time::SystemTime,
}

/// The ports on which clients expect `sandboxd`: its legacy API, REST and gRPC. Every one of them serves all three.
pub const SANDBOXD_PORTS: [u16; 3] = [8888, 8080, 9090];
/// Where a `sandboxd` that we start listens, on loopback: the ports above are left to the programs of the sandbox.
const SANDBOXD_OWN_PORT: u16 = 28888;

/// One end of a program's standard stream.
pub type ReadEnd = Box<dyn tokio::io::AsyncRead + Send + Unpin>;
pub type WriteEnd = Box<dyn tokio::io::AsyncWrite + Send + Unpin>;

/// One sandbox, running or ended. Cheap to clone; holds no resource of the sandbox.
#[derive(Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    spec: Spec,
    /// The name under which its ids and cgroups are held.
    slot: SandboxId,
    identity: Identity,
    ended: OnceLock<Ended>,
    /// Held while `sandboxd` is being started, so that it is started once.
    sandboxd: tokio::sync::Mutex<()>,
    /// Held while the sandbox is being deleted.
    deletion: tokio::sync::Mutex<()>,
}

impl Sandbox {
    pub(crate) fn new(shared: Arc<Shared>, spec: Spec, slot: SandboxId, identity: Identity) -> Self {
        let (ended, sandboxd, deletion) = Default::default();
        Self { inner: Arc::new(Inner { shared, spec, slot, identity, ended, sandboxd, deletion }) }
    }

    pub(crate) fn slot(&self) -> &SandboxId {
        &self.inner.slot
    }

    /// What it was started from.
    pub fn spec(&self) -> &Spec {
        &self.inner.spec
    }

    pub fn id(&self) -> &SandboxId {
        &self.spec().id
    }

    /// When the main process was started.
    pub fn started_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.inner.identity.at)
    }

    /// Waits for the main process to end. Answers at once, and always the same, when it has ended.
    pub async fn wait(&self) -> Result<Ended, Error> {
        if let Some(ended) = self.inner.ended.get() {
            return Ok(*ended);
        }
        let state = |source| self.state("watch the supervisor", None, source);
        if let Some(process) = Process::find(&self.inner.identity).map_err(state)? {
            process.ended().await.map_err(state)?;
        }
        self.settle()
    }

    /// Runs a program inside, beside the main process.
    pub async fn exec(&self, exec: &Exec) -> Result<Session, Error> {
        session::start(self, exec).await
    }

    /// Joins the streams of the main process, from now on.
    ///
    /// The session ends with the main process. With a terminal, standard error has nothing.
    pub async fn attach(&self, attach: Attach) -> Result<Session, Error> {
        session::attach(self, attach).await
    }

    /// Connects to a TCP port on the sandbox's loopback interface.
    ///
    /// When nothing listens on one of [`SANDBOXD_PORTS`], the connection leads to a `sandboxd` that is started inside.
    pub async fn dial(&self, port: u16) -> Result<tokio::net::TcpStream, Error> {
        match self.dial_once(port, None).await {
            Err(Error::Refused { .. }) if SANDBOXD_PORTS.contains(&port) => self.dial_sandboxd().await,
            other => other,
        }
    }

    /// Connects to our own `sandboxd`, which is started if it does not run.
    pub async fn dial_sandboxd(&self) -> Result<tokio::net::TcpStream, Error> {
        match self.dial_once(SANDBOXD_OWN_PORT, None).await {
            Err(Error::Refused { .. }) => {}
            other => return other,
        }
        let _one_at_a_time = self.inner.sandboxd.lock().await;
        match self.dial_once(SANDBOXD_OWN_PORT, None).await {
            Err(Error::Refused { .. }) => {}
            other => return other,
        }
        self.start_sandboxd().await?;
        self.dial_once(SANDBOXD_OWN_PORT, None).await
    }

    /// Connects to what listens now, on loopback or on the sandbox's own address. Starts nothing.
    pub async fn reach(&self, port: u16) -> Result<tokio::net::TcpStream, Error> {
        self.dial_once(port, self.spec().address).await
    }

    /// The network namespace of a running sandbox; `None` when it has ended.
    pub fn network(&self) -> io::Result<Option<OwnedFd>> {
        self.namespace("net")
    }

    /// A namespace of the supervisor's; `None` when the sandbox has ended.
    pub(crate) fn namespace(&self, kind: &str) -> io::Result<Option<OwnedFd>> {
        let path = format!("/proc/{}/ns/{kind}", self.inner.identity.pid);
        let namespace = match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            // One that ended and that nobody has collected has none either.
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        // Looked at after opening: if the pid is another process's by now, so is the namespace.
        Ok(Process::find(&self.inner.identity)?.map(|_| namespace))
    }

    /// What the main process left in the file of [`Spec::last_words`], once it has ended.
    pub fn last_words(&self) -> Option<String> {
        let text = std::fs::read(self.place().join(file::RUN).join(file::EXIT)).ok()?;
        serde_json::from_slice::<ExitRecord>(&text).ok()?.last_words
    }

    /// Sends a signal to the main process.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        match self.ask(&Request::SignalMain { signal }).await? {
            (Reply::Done, _) => Ok(()),
            (other, _) => Err(self.talk(unexpected(&other))),
        }
    }

    /// What it uses right now. Costs a few small reads, and nothing while nobody asks.
    ///
    /// Of a kernel that several share each is said to use the same.
    pub fn stats(&self) -> Stats {
        let counted = self.inner.shared.cgroups.usage(self.slot());
        match self.inner.shared.powers.is_rootless() && counted == Stats::default() {
            true => count::usage(self.inner.identity.pid),
            false => self.with_part_of_kernel(counted),
        }
    }

    /// What it has written to its root and its log, on the disk. Volumes are not part of it.
    pub fn disk(&self, enough: Enough) -> io::Result<Size> {
        tree::measure(&self.place(), enough)
    }

    /// Removes what an ended sandbox wrote to its root. Its log and how it ended stay.
    pub async fn shed(&self) -> Result<(), Error> {
        let _one_at_a_time = self.inner.deletion.lock().await;
        for path in ["upper", "work"].map(|name| self.place().join(name)) {
            let directory = path.clone();
            let removed = tokio::task::spawn_blocking(move || tree::remove(&directory)).await;
            let removed = removed.unwrap_or_else(|error| Err(io::Error::other(error)));
            removed.map_err(|source| self.state("remove", Some(path), source))?;
        }
        Ok(())
    }

    /// The log files, oldest first: lines of `<RFC 3339 time> stdout|stderr F|P <text>`.
    ///
    /// `F` ends a line. After `P` it goes on: the line was too long for one entry, or the output ended without one.
    pub fn logs(&self) -> Vec<PathBuf> {
        let run = self.place().join(file::RUN);
        [file::OLD_LOG, file::LOG]
            .map(|name| run.join(name))
            .into_iter()
            .filter(|path| path.exists())
            .collect()
    }

    /// Stops every process where it is. Until it is thawed nothing can be asked of the sandbox but to thaw or go.
    pub async fn freeze(&self) -> Result<(), Error> {
        if self.kernel().is_some() {
            let problem = "it shares its kernel with others, and only all of them can be frozen";
            return Err(self.state("freeze the processes", None, io::Error::other(problem)));
        }
        let sandbox = self.clone();
        let frozen = tokio::task::spawn_blocking(move || sandbox.inner.shared.cgroups.freeze(sandbox.slot()));
        let frozen = frozen.await.map_err(|error| self.state("freeze the processes", None, error.into()))?;
        if frozen.is_err() {
            let _ = self.inner.shared.cgroups.thaw(self.slot());
        }
        frozen.map_err(|failure| self.state("freeze the processes", Some(failure.path), failure.source))
    }

    /// Lets everything go on.
    pub async fn thaw(&self) -> Result<(), Error> {
        let thawed = self.inner.shared.cgroups.thaw(self.slot());
        thawed.map_err(|failure| self.state("thaw the processes", Some(failure.path), failure.source))
    }

    /// Whether it is frozen.
    pub fn is_frozen(&self) -> bool {
        self.inner.shared.cgroups.is_frozen(self.slot())
    }

    /// Kills whatever runs and removes every trace: processes, mounts, cgroups, directories.
    pub async fn delete(&self) -> Result<(), Error> {
        let _one_at_a_time = self.inner.deletion.lock().await;
        let (place, shared) = (self.place(), &self.inner.shared);
        let beside = delete::kill_beside(shared, self.id()).await;
        beside.map_err(|source| self.state("end those beside it", None, source))?;
        // Those who wait are told how it ended before the record of it is gone.
        if place.exists() && delete::kill_supervisor(shared, &place, self.slot()).await.is_ok() {
            let _ = self.settle();
            self.settle_members().await;
        }
        delete::remove(shared, self.id(), self.slot()).await
    }

    async fn dial_once(&self, port: u16, address: Option<Ipv4Addr>) -> Result<tokio::net::TcpStream, Error> {
        match self.ask(&Request::Dial { port, address }).await {
            Ok((Reply::Connected, Some(fd))) => {
                let stream = std::net::TcpStream::from(fd);
                stream.set_nonblocking(true).map_err(|error| self.talk(error))?;
                // Whoever writes a head and then a body waits for neither. gVisor's are no connections of the machine's.
                let _ = stream.set_nodelay(true);
                tokio::net::TcpStream::from_std(stream).map_err(|error| self.talk(error))
            }
            Ok((other, _)) => Err(self.talk(unexpected(&other))),
            Err(Error::Supervisor { kind: FailureKind::Refused, .. }) => {
                Err(Error::Refused { sandbox: self.id().clone(), port })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns when it listens.
    async fn start_sandboxd(&self) -> Result<(), Error> {
        let problem = |problem| Error::Sandboxd { sandbox: self.id().clone(), problem };
        let port = SANDBOXD_OWN_PORT.to_string();
        let argv = |mode: &str| {
            [SANDBOXD, "--listen-host", "127.0.0.1", "--port", &port, mode].map(str::to_owned).to_vec()
        };
        let ended = if self.inner.spec.driver == driver::Name::Native {
            // As a child of the supervisor. In the background it would be a child of process 1, which is the user's
            // program and may wait for all of its children.
            session::run_until(self, argv("--announce"), "listening").await?
        } else {
            // Process 1 is ours and reaps it. In the foreground gVisor would keep a process of its own for it.
            Some(session::run(self, argv("--detach")).await?).filter(|exit| *exit != Exit::Code(0))
        };
        match ended {
            None => Ok(()),
            Some(exit) => Err(problem(format!("it ended with {exit:?} instead of listening"))),
        }
    }

    /// One request that has one answer.
    async fn ask(&self, request: &Request) -> Result<(Reply, Option<OwnedFd>), Error> {
        let connection = self.connect().await?;
        connection.send(request, &[]).await.map_err(|error| self.talk(error))?;
        match connection.reply().await.map_err(|error| self.talk(error))? {
            Some((Reply::Failed(failed), _)) => Err(self.refused(failed)),
            Some(answer) => Ok(answer),
            None => Err(Error::Ended(self.id().clone())),
        }
    }

    async fn connect(&self) -> Result<Connection, Error> {
        if self.is_frozen() {
            return Err(Error::Frozen(self.id().clone()));
        }
        let connection = Connection::open(&self.place()).await.map_err(|error| self.talk(error))?;
        connection.ok_or_else(|| Error::Ended(self.id().clone()))
    }

    fn oom_kills(&self) -> u64 {
        let kills = |slot: &SandboxId| self.inner.shared.cgroups.oom_kills(slot);
        kills(self.slot()) + self.kernel().map_or(0, |kernel| kills(kernel.slot()))
    }

    /// What a status means, given how many processes had been killed for want of memory before.
    fn judge(&self, status: Status, oom_kills_before: u64) -> Exit {
        // A shell whose command is killed exits with 128 + 9 itself.
        let killed = matches!(status, Status::Signal(libc::SIGKILL) | Status::Code(137));
        match status {
            _ if killed && self.oom_kills() > oom_kills_before => Exit::OutOfMemory,
            Status::Code(code) => Exit::Code(code),
            Status::Signal(signal) => Exit::Signal(signal),
        }
    }

    /// Reads how the main process ended; without a record it was killed together with its supervisor.
    fn settle(&self) -> Result<Ended, Error> {
        let path = self.place().join(file::RUN).join(file::EXIT);
        let failed = |step, source| self.state(step, Some(path.clone()), source);
        let record = match std::fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|error| failed("read the exit record", error.into()))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
                let record = ExitRecord { status: Status::Signal(libc::SIGKILL), at, last_words: None };
                if let Err(error) = self.keep(&path, &record) {
                    // A full disk, say. Whoever comes next finds the same.
                    tracing::warn!(sandbox = %self.id(), %error, "how the sandbox ended is not on disk");
                }
                record
            }
            Err(error) => return Err(failed("read the exit record", error)),
        };
        let ended =
            Ended { exit: self.judge(record.status, 0), at: UNIX_EPOCH + Duration::from_nanos(record.at) };
        Ok(*self.inner.ended.get_or_init(|| ended))
    }

    fn keep(&self, path: &std::path::Path, record: &ExitRecord) -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        std::fs::write(&temporary, serde_json::to_vec(record)?)?;
        std::fs::rename(temporary, path)
    }

    fn place(&self) -> PathBuf {
        self.inner.shared.place(self.id())
    }

    fn state(&self, step: &'static str, path: Option<PathBuf>, source: io::Error) -> Error {
        Error::State { sandbox: self.id().clone(), step, path, source }
    }

    fn talk(&self, source: io::Error) -> Error {
        Error::Talk { sandbox: self.id().clone(), source }
    }

    fn refused(&self, failed: Failed) -> Error {
        let sandbox = self.id().clone();
        match failed.kind {
            FailureKind::Ended => Error::Ended(sandbox),
            kind => Error::Supervisor { sandbox, kind, message: failed.message },
        }
    }
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").field("id", self.id()).finish_non_exhaustive()
    }
}
