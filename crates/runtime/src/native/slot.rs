//! Slots: places for sandboxes, made before it is known what will run in them.
//!
//! A slot has a range of ids, cgroups, namespaces and process 1, which waits. Every sandbox begins as one; those that are
//! parked ahead save most of a start. A slot lives as long as its socket is open here: when this program ends, so do its
//! processes, and the next program clears away the rest.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use asb_supervisor::launch::{self, Report, file};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::{Shared, delete};
use crate::SandboxId;
use crate::ids::Range;

/// As many starts in a row find a slot before there is time to make more.
const PARKED: usize = 4;

/// A launcher needs milliseconds. One that needs this long hangs, most likely on a volume.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Slot {
    /// Ids and cgroups are held under this name, also when it has become a sandbox's.
    pub name: SandboxId,
    launcher: tokio::process::Child,
    control: OwnedFd,
}

/// A step of the making that failed.
pub struct Failure {
    pub step: String,
    pub path: Option<PathBuf>,
    pub source: io::Error,
}

impl Slot {
    /// Makes one, with ids of its own or those of another. Nothing is left behind when it fails.
    pub async fn make(shared: &Arc<Shared>, ids_of: Option<SandboxId>) -> Result<Self, Failure> {
        let name = new_name();
        shared.known().slots.insert(name.clone());
        let made = make(shared, &name, ids_of).await;
        if made.is_err() {
            clear(shared, &name).await;
        }
        made
    }

    /// Starts what the launch file says, and waits for the report.
    pub async fn fill(mut self, launch: std::fs::File, network: Option<OwnedFd>) -> Result<Report, Failure> {
        let fds: Vec<_> = std::iter::once(launch.as_fd()).chain(network.as_ref().map(AsFd::as_fd)).collect();
        match send(&self.control, &[0], &fds) {
            // It has failed already, and says why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(|source| failure("reach the launcher", None, source))?,
        }
        drop((launch, network));
        let stdout = self.launcher.stdout.take();
        let report = async {
            let mut text = Vec::new();
            if let Some(mut stdout) = stdout {
                tokio::io::AsyncReadExt::read_to_end(&mut stdout, &mut text).await?;
            }
            Ok::<_, io::Error>(text)
        };
        let text = match tokio::time::timeout(PATIENCE, report).await {
            Ok(text) => text.map_err(|source| failure("wait for the launcher", None, source))?,
            Err(_) => return Err(failure("wait for the launcher", None, io::ErrorKind::TimedOut.into())),
        };
        // It has said all it has to say, and tokio reaps it.
        drop(self.launcher);
        serde_json::from_slice(&text)
            .map_err(|_| failure("read the launcher's report", None, io::ErrorKind::InvalidData.into()))
    }
}

async fn make(shared: &Arc<Shared>, name: &SandboxId, ids_of: Option<SandboxId>) -> Result<Slot, Failure> {
    let (described, directory) = {
        let (shared, name) = (shared.clone(), name.clone());
        let made = tokio::task::spawn_blocking(move || prepare(&shared, &name, ids_of.as_ref())).await;
        made.expect("making a slot does not panic")?
    };
    let program = &shared.programs.supervisor;
    let spawn = || -> io::Result<Slot> {
        let flags = SocketFlags::CLOEXEC;
        let (control, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        send(&control, &serde_json::to_vec(&described)?, &[directory.as_fd()])?;
        let launcher = tokio::process::Command::new(program)
            .env_clear()
            .current_dir("/")
            .stdin(theirs)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Slot { name: name.clone(), launcher, control })
    };
    spawn().map_err(|source| failure("run", Some(program.clone()), source))
}

/// Makes everything that exists before the launcher: answers with what that is told, and the directory.
fn prepare(
    shared: &Shared,
    name: &SandboxId,
    ids_of: Option<&SandboxId>,
) -> Result<(launch::Slot, OwnedFd), Failure> {
    let place = shared.slot_place(name);
    let ids = |range: io::Result<Range>| range.map_err(|source| failure("take a range of ids", None, source));
    let mut range = ids(shared.ids.take(name))?;
    if let Some(other) = ids_of {
        // The supervisor's own stays: each has one.
        range.first = ids(shared.ids.of(other))?.first;
    }
    directories(&place, range).map_err(|(path, source)| failure("make directory", Some(path), source))?;
    let cgroups = shared
        .cgroups
        .create(name)
        .map_err(|failed| failure(failed.step, Some(failed.path), failed.source))?;
    let directory =
        std::fs::File::open(&place).map_err(|source| failure("open directory", Some(place), source))?;
    let slot = launch::Slot {
        powers: shared.powers,
        first_id: range.first,
        supervisor_id: range.supervisor,
        cgroups,
    };
    Ok((slot, directory.into()))
}

fn directories(place: &Path, range: Range) -> Result<(), (PathBuf, io::Error)> {
    let make = |path: PathBuf, mode, owner| {
        let made = std::fs::DirBuilder::new().mode(mode).create(&path);
        made.and_then(|()| std::os::unix::fs::chown(&path, Some(owner), Some(owner)))
            .map_err(|source| (path, source))
    };
    make(place.to_owned(), 0o700, 0)?;
    make(place.join("upper"), 0o755, range.first)?;
    make(place.join("work"), 0o700, 0)?;
    make(place.join(file::RUN), 0o700, range.supervisor)
}

/// Takes a slot that is parked, unless something has ended it, or makes one.
pub async fn take(shared: &Arc<Shared>) -> Result<Slot, Failure> {
    loop {
        let parked = shared.parked().pop();
        let Some(mut slot) = parked else { return Slot::make(shared, None).await };
        match slot.launcher.try_wait() {
            Ok(None) => return Ok(slot),
            _ => discard(shared, slot).await,
        }
    }
}

/// Parks slots ahead, until there are enough.
pub async fn park(shared: &Arc<Shared>) {
    let _one_at_a_time = shared.parking.lock().await;
    while shared.parked().len() < PARKED {
        match Slot::make(shared, None).await {
            Ok(slot) => shared.parked().push(slot),
            Err(Failure { step, path, source }) => {
                tracing::warn!(step, ?path, error = %source, "no slot for a sandbox could be made ahead");
                return;
            }
        }
    }
}

/// Removes the slots that are parked.
pub async fn unpark(shared: &Arc<Shared>) {
    let _one_at_a_time = shared.parking.lock().await;
    let parked = std::mem::take(&mut *shared.parked());
    futures::future::join_all(parked.into_iter().map(|slot| discard(shared, slot))).await;
}

/// Ends a slot that has not become a sandbox.
pub async fn discard(shared: &Arc<Shared>, slot: Slot) {
    let Slot { name, launcher, control } = slot;
    drop((control, launcher));
    clear(shared, &name).await;
}

/// Removes what slots of an earlier program have left.
pub async fn sweep(shared: &Arc<Shared>) {
    for entry in std::fs::read_dir(shared.directory.join("slot")).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().ok().and_then(|name| SandboxId::new(name).ok());
        let Some(name) = name.filter(|name| !shared.known().slots.contains(name)) else { continue };
        clear(shared, &name).await;
    }
}

async fn clear(shared: &Arc<Shared>, name: &SandboxId) {
    let problems = delete::clear(shared, &shared.slot_place(name), name).await;
    if !problems.is_empty() {
        tracing::warn!(slot = %name, ?problems, "a slot was not removed");
    }
    shared.known().slots.remove(name);
}

/// Nobody else has it: the directory it names is made by one program at a time, in which the number is unique.
fn new_name() -> SandboxId {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    SandboxId::new(format!("slot-{now:x}-{number:x}")).expect("made of allowed characters")
}

fn send(control: &OwnedFd, packet: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(control, &[io::IoSlice::new(packet)], &mut ancillary, flags)?;
    Ok(())
}

fn failure(step: &str, path: Option<PathBuf>, source: io::Error) -> Failure {
    Failure { step: step.to_owned(), path, source }
}
