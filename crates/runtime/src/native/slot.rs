//! Slots: places for sandboxes, made before it is known what will run in them.
//!
//! A slot has a range of ids, cgroups, namespaces and process 1, which waits. Every sandbox begins as one; those that are
//! parked ahead save most of a start, and all of it that makes files on a disk where the image was expected. A slot lives as
//! long as its socket is open here: when this program ends, so do its processes, and the next program clears away the rest.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use asb_supervisor::launch::{self, Report, file};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::base::{Base, Choice, choose, next};
use super::{SANDBOX_FILE, Shared, delete};
use crate::SandboxId;
use crate::ids::Range;

/// A launcher needs milliseconds. One that needs this long hangs, most likely on a volume.
const PATIENCE: Duration = Duration::from_secs(30);

/// A millisecond each.
const BUSY_TRIES: u32 = 1000;

pub struct Slot {
    /// Ids and cgroups are held under this name, also when it has become a sandbox's.
    pub name: SandboxId,
    /// What its root was made from.
    base: Option<Base>,
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
    /// Makes one, with ids of its own. Nothing is left behind when it fails.
    async fn make(shared: &Arc<Shared>, base: Option<Base>) -> Result<Self, Failure> {
        Self::make_with(shared, base, None).await
    }

    /// Makes one with the ids of another.
    pub async fn with_ids_of(shared: &Arc<Shared>, other: SandboxId) -> Result<Self, Failure> {
        Self::make_with(shared, None, Some(other)).await
    }

    async fn make_with(
        shared: &Arc<Shared>,
        base: Option<Base>,
        ids_of: Option<SandboxId>,
    ) -> Result<Self, Failure> {
        let name = new_name();
        shared.known().slots.insert(name.clone());
        let made = make(shared, &name, base, ids_of).await;
        if made.is_err() {
            clear(shared, &name).await;
        }
        made
    }

    /// Starts what the launch file says, with the descriptors that it speaks of, and waits for the report.
    pub async fn fill(mut self, launch: std::fs::File, others: Vec<OwnedFd>) -> Result<Report, Failure> {
        let fds: Vec<_> = std::iter::once(launch.as_fd()).chain(others.iter().map(AsFd::as_fd)).collect();
        match send(&self.control, &[0], &fds) {
            // It has failed already, and says why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(|source| failure("reach the launcher", None, source))?,
        }
        drop((launch, others));
        let stdout = self.launcher.stdout.take();
        let report = async {
            let mut line = String::new();
            if let Some(stdout) = stdout {
                BufReader::new(stdout).read_line(&mut line).await?;
            }
            Ok::<_, io::Error>(line)
        };
        let text = match tokio::time::timeout(PATIENCE, report).await {
            Ok(text) => text.map_err(|source| failure("wait for the launcher", None, source))?,
            Err(_) => return Err(failure("wait for the launcher", None, io::ErrorKind::TimedOut.into())),
        };
        // It has said all it has to say, and tokio reaps it.
        drop(self.launcher);
        serde_json::from_str(&text)
            .map_err(|_| failure("read the launcher's report", None, io::ErrorKind::InvalidData.into()))
    }
}

async fn make(
    shared: &Arc<Shared>,
    name: &SandboxId,
    base: Option<Base>,
    ids_of: Option<SandboxId>,
) -> Result<Slot, Failure> {
    let (mut described, directory) = {
        let (shared, name) = (shared.clone(), name.clone());
        let made = tokio::task::spawn_blocking(move || prepare(&shared, &name, ids_of.as_ref())).await;
        made.expect("making a slot does not panic")?
    };
    described.image = base.as_ref().map(|base| base.image.clone());
    let program = &shared.programs.supervisor;
    let spawn = || -> io::Result<_> {
        let flags = SocketFlags::CLOEXEC;
        let (control, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        send(&control, &serde_json::to_vec(&described)?, &[directory.as_fd()])?;
        let launcher = tokio::process::Command::new(program)
            // Not its path, which programs inside would be shown.
            .arg0("asb-supervisor")
            .env_clear()
            .current_dir("/")
            .stdin(theirs)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok((launcher, control))
    };
    let mut tries = 0;
    let (launcher, control) = loop {
        match spawn() {
            // It was written a moment ago, and a process that this program forked meanwhile has not got around to closing it.
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            spawned => {
                break spawned.map_err(|source| failure("run", Some(program.clone()), source))?;
            }
        }
    };
    Ok(Slot { name: name.clone(), base, launcher, control })
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
        cgroup_views: shared.cgroups.shown(name),
        image: None,
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
    make(place.join(file::RUN), 0o700, range.supervisor)?;
    // Written when it is known what will run; a disk takes its time to make a file, not to fill it.
    let path = place.join(SANDBOX_FILE);
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    made.map(drop).map_err(|source| (path, source))
}

/// Takes a slot that is parked, unless something has ended it, or makes one: for this image, or for any.
pub async fn take(shared: &Arc<Shared>, wanted: Option<&Base>) -> Result<Slot, Failure> {
    loop {
        let (found, unwanted) = {
            let mut parked = shared.parked();
            let bases: Vec<_> = parked.iter().map(|slot| slot.base.as_ref()).collect();
            let Choice { take, discard } = choose(&bases, wanted);
            let unwanted = discard.map(|at| parked.remove(at));
            (take.map(|at| parked.remove(at)), unwanted)
        };
        if let Some(slot) = unwanted {
            let shared = shared.clone();
            tokio::spawn(async move { discard(&shared, slot).await });
        }
        let Some(mut slot) = found else { return Slot::make(shared, wanted.cloned()).await };
        match slot.launcher.try_wait() {
            Ok(None) => return Ok(slot),
            _ => discard(shared, slot).await,
        }
    }
}

/// Parks slots ahead, until there are enough.
pub async fn park(shared: &Arc<Shared>) {
    let _one_at_a_time = shared.parking.lock().await;
    loop {
        let next = {
            let expected = shared.expected();
            let parked = shared.parked();
            let bases: Vec<_> = parked.iter().map(|slot| slot.base.as_ref()).collect();
            next(&bases, expected.as_ref()).map(Option::<&Base>::cloned)
        };
        let Some(base) = next else { return };
        match Slot::make(shared, base).await {
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
    let Slot { name, launcher, control, .. } = slot;
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
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(launch::ORDER_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(control, &[io::IoSlice::new(packet)], &mut ancillary, flags)?;
    Ok(())
}

fn failure(step: &str, path: Option<PathBuf>, source: io::Error) -> Failure {
    Failure { step: step.to_owned(), path, source }
}
