//! From a spec to a running sandbox, or to nothing at all.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use asb_supervisor::launch::{self, Bind, ExtraIds, Failure, Launch, Main, MemoryDir, Report};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::base;
use super::beside::{self, Beside};
use super::slot::{self, Slot};
use super::{SANDBOX_FILE, Shared, delete};
use crate::driver::{self, Driver};
use crate::{Error, Kernel, Sandbox, SandboxId, Spec};

/// What a sandbox is made from: for the launcher, and for whoever adopts it.
#[derive(serde::Serialize)]
struct Stored<'a> {
    launch: Launch,
    spec: &'a Spec,
    slot: &'a SandboxId,
}

pub async fn start(shared: &Arc<Shared>, spec: &Spec, network: Option<OwnedFd>) -> Result<Sandbox, Error> {
    spec.validate()?;
    let (shared, spec) = (shared.clone(), Spec { network: network.is_some(), ..spec.clone() });
    // A task of its own: a caller that stops waiting must not leave half a sandbox behind.
    let task = tokio::spawn(async move {
        if !shared.known().starting.insert(spec.id.clone()) {
            return Err(Error::Exists(spec.id));
        }
        let started = attempt(&shared, &spec, network).await;
        shared.known().starting.remove(&spec.id);
        started
    });
    task.await.expect("starting a sandbox does not panic")
}

async fn attempt(shared: &Arc<Shared>, spec: &Spec, network: Option<OwnedFd>) -> Result<Sandbox, Error> {
    if shared.place(&spec.id).exists() {
        return Err(Error::Exists(spec.id.clone()));
    }
    let _turn = shared.turns.acquire().await;
    // Other runtimes mount the root themselves, and a root of other ids, or one that hides nothing, is made with those.
    let own = spec.driver == driver::Name::Native
        && spec.beside.is_none()
        && !spec.privileged
        && spec.extra_ids.is_empty();
    let base = own.then(|| shared.base(&spec.root)).flatten();
    let taken = match &spec.kernel {
        Kernel::Of(other) => Slot::with_ids_of(shared, slot_of(shared, other)?).await,
        Kernel::Own | Kernel::Shared => slot::take(shared, base.as_ref()).await,
    };
    let slot = taken.map_err(|failure| of_slot(spec, failure))?;
    if base.is_some() {
        *shared.expected() = base;
    }
    let name = slot.name.clone();
    let launch = {
        let (shared, spec, name) = (shared.clone(), spec.clone(), name.clone());
        let written = tokio::task::spawn_blocking(move || write(&shared, &spec, &name)).await;
        written.expect("writing a sandbox down does not panic")
    };
    let (launch, others) = match launch {
        Ok((launch, beside)) => (launch, network.into_iter().chain(beside).collect()),
        Err(error) => {
            slot::discard(shared, slot).await;
            return Err(error);
        }
    };
    let result = match slot.fill(launch, others).await {
        Ok(Report::Started(identity)) => {
            Ok(Sandbox::new(shared.clone(), spec.clone(), name.clone(), identity))
        }
        Ok(Report::Failed(failure)) => Err(of_launcher(&spec.id, failure)),
        Err(failure) => Err(of_slot(spec, failure)),
    };
    match &result {
        Ok(sandbox) => {
            let mut known = shared.known();
            known.sandboxes.insert(spec.id.clone(), sandbox.clone());
            known.slots.remove(&name);
        }
        Err(error) => {
            tracing::debug!(sandbox = %spec.id, %error, "start failed, cleaning up");
            let problems = delete::clear(shared, &shared.place(&spec.id), &name).await;
            if !problems.is_empty() {
                tracing::warn!(sandbox = %spec.id, ?problems, "clean-up after a failed start is incomplete");
            }
            shared.known().slots.remove(&name);
        }
    }
    result
}

/// The slot of a sandbox whose kernel is to be joined.
fn slot_of(shared: &Shared, sandbox: &SandboxId) -> Result<SandboxId, Error> {
    shared.sandbox(sandbox).map(|it| it.slot().clone()).ok_or_else(|| Error::Ended(sandbox.clone()))
}

/// Makes a slot the sandbox's: its limits, what it is started from, its directory. Answers with the launch file, locked, and
/// what is shared with another sandbox.
fn write(
    shared: &Arc<Shared>,
    spec: &Spec,
    slot: &SandboxId,
) -> Result<(std::fs::File, Vec<OwnedFd>), Error> {
    let driver = driver::find(spec.driver).ok_or(Error::Driver(spec.driver))?;
    let limited = shared.cgroups.limit(slot, &driver.limits(spec.limits));
    limited.map_err(|failure| failed(spec, failure.step, Some(failure.path), failure.source))?;
    let (from, to) = (shared.slot_place(slot), shared.place(&spec.id));
    let beside =
        beside::open(shared, spec).map_err(|source| failed(spec, "share with another", None, source))?;
    let (beside, others) = beside.map(|Beside { launch, fds }| (launch, fds)).unzip();
    if let Some(launch::Beside { first_id, .. }) = &beside {
        let upper = from.join("upper");
        let given = std::os::unix::fs::chown(&upper, Some(*first_id), Some(*first_id));
        given.map_err(|source| failed(spec, "own", Some(upper), source))?;
    }
    let path = from.join(SANDBOX_FILE);
    let extra = extra_ids(shared, spec, slot)?;
    let stored = Stored { launch: launch_of(shared, spec, driver.as_ref(), beside, extra), spec, slot };
    let opened = write_json(&path, &stored).and_then(|()| std::fs::File::open(&path));
    let opened = opened.and_then(|file| file.lock().map(|()| file));
    let opened = opened.map_err(|source| failed(spec, "write", Some(path), source))?;
    // From here on it is found by whoever comes next.
    match renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok((opened, others.unwrap_or_default())),
        Err(Errno::EXIST) => Err(Error::Exists(spec.id.clone())),
        Err(errno) => Err(failed(spec, "make directory", Some(to), errno.into())),
    }
}

/// The ids above 65535. A sandbox that shares the ids of another takes them from the other's slot.
fn extra_ids(shared: &Shared, spec: &Spec, slot: &SandboxId) -> Result<ExtraIds, Error> {
    if spec.extra_ids.is_empty() {
        return Ok(ExtraIds::default());
    }
    let slot = match (&spec.beside, &spec.kernel) {
        (Some(other), _) | (None, Kernel::Of(other)) => &slot_of(shared, other)?,
        (None, Kernel::Own | Kernel::Shared) => slot,
    };
    let range = shared.ids.of(slot).map_err(|source| failed(spec, "find its ids", None, source))?;
    Ok(ExtraIds { first: range.extra, inside: spec.extra_ids.clone() })
}

fn launch_of(
    shared: &Shared,
    spec: &Spec,
    driver: &dyn Driver,
    beside: Option<launch::Beside>,
    extra_ids: ExtraIds,
) -> Launch {
    let bind = |mount: &crate::Mount| Bind {
        source: mount.source.clone(),
        sub_path: mount.sub_path.clone(),
        target: mount.target.clone(),
        read_only: mount.read_only,
    };
    let memory = |memory: &crate::MemoryDir| MemoryDir {
        path: memory.path.clone(),
        bytes: memory.bytes,
        group: memory.group,
    };
    let oci = driver.launch(spec, kernel_of(shared, spec));
    let init = oci.is_some().then_some(shared.programs.init.as_path());
    let programs = [shared.programs.sandboxd.as_path()].into_iter().chain(init);
    Launch {
        hostname: spec.hostname.clone(),
        image: base::image(&spec.root, programs),
        read_only_root: spec.read_only_root,
        capabilities: spec.capabilities,
        privileged: spec.privileged,
        memory_dirs: spec.memory_dirs.iter().map(memory).collect(),
        binds: spec.mounts.iter().map(bind).collect(),
        address: spec.address,
        network: spec.network,
        resolv_conf: spec.resolv_conf.clone(),
        hosts: spec.hosts.clone(),
        last_words: spec.last_words.clone(),
        memory_bytes: spec.limits.memory_bytes,
        processors: spec.limits.cpu_millis.map(|millis| millis.div_ceil(1000)),
        log_bytes: spec.limits.log_bytes,
        extra_ids,
        user_processes: (!shared.cgroups.enforced().processes).then_some(spec.limits.pids.into()),
        main: Main {
            argv: spec.process.argv.clone(),
            env: spec.process.env.clone(),
            cwd: spec.process.cwd.to_string_lossy().into_owned(),
            uid: spec.process.uid,
            gid: spec.process.gid,
            groups: spec.process.groups.clone(),
            stdin: spec.process.stdin,
            terminal: spec.process.terminal,
        },
        oci,
        beside,
    }
}

fn kernel_of(shared: &Shared, spec: &Spec) -> launch::Kernel {
    match &spec.kernel {
        Kernel::Own => launch::Kernel::Own,
        Kernel::Shared => launch::Kernel::Shared,
        Kernel::Of(other) => launch::Kernel::Joined(shared.place(other).join(launch::file::KERNEL)),
    }
}

fn of_slot(spec: &Spec, slot::Failure { step, path, source }: slot::Failure) -> Error {
    failed(spec, &step, path, source)
}

fn of_launcher(sandbox: &SandboxId, failure: Failure) -> Error {
    let Failure { step, path, errno, program } = failure;
    match program {
        Some(kind) => Error::Program { sandbox: sandbox.clone(), kind, message: step, errno },
        None => {
            Error::Start { sandbox: sandbox.clone(), step, path, source: io::Error::from_raw_os_error(errno) }
        }
    }
}

fn failed(spec: &Spec, step: &str, path: Option<PathBuf>, source: io::Error) -> Error {
    Error::Start { sandbox: spec.id.clone(), step: step.to_owned(), path, source }
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, &serde_json::to_vec(value)?)
}
