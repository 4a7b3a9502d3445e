//! From a spec to a running sandbox, or to nothing at all.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use asb_supervisor::launch::{Bind, Failure, Launch, Main, MemoryDir, Report, file};

use super::{Error, SANDBOX_FILE, Sandbox, Shared, adopt, delete};
use crate::ids::Range;
use crate::{SandboxId, Spec};

/// A launcher needs milliseconds. One that needs this long hangs, most likely on a volume.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a sandbox is made from: for the launcher, and for whoever adopts it.
#[derive(serde::Serialize)]
struct Stored {
    launch: Launch,
    spec: Spec,
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
    let place = shared.place(&spec.id);
    match std::fs::DirBuilder::new().mode(0o700).create(&place) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(Error::Exists(spec.id.clone()));
        }
        made => made.map_err(|source| failed(spec, "make directory", Some(place), source))?,
    }
    let result = launch(shared, spec, network).await;
    if let Err(error) = &result {
        tracing::debug!(sandbox = %spec.id, %error, "start failed, cleaning up");
        if let Err(leftover) = delete::remove(shared, &spec.id).await {
            tracing::warn!(sandbox = %spec.id, error = %leftover, "clean-up after a failed start is incomplete");
        }
    }
    result
}

async fn launch(shared: &Arc<Shared>, spec: &Spec, network: Option<OwnedFd>) -> Result<Sandbox, Error> {
    let prepared = {
        let (shared, spec) = (shared.clone(), spec.clone());
        tokio::task::spawn_blocking(move || prepare(&shared, &spec))
            .await
            .expect("preparing does not panic")?
    };
    match run(shared, spec, prepared, network).await? {
        Report::Started => {}
        Report::Failed(failure) => return Err(of_launcher(&spec.id, failure)),
    }
    let sandbox = adopt::read(shared, &spec.id)?;
    shared.known().sandboxes.insert(spec.id.clone(), sandbox.clone());
    Ok(sandbox)
}

/// Makes everything that exists before the supervisor; answers with the launch file, locked.
fn prepare(shared: &Shared, spec: &Spec) -> Result<std::fs::File, Error> {
    let place = shared.place(&spec.id);
    let range =
        shared.ids.take(&spec.id).map_err(|source| failed(spec, "take a range of ids", None, source))?;
    directories(&place, range)
        .map_err(|(path, source)| failed(spec, "make directory", Some(path), source))?;
    let cgroups = shared
        .cgroups
        .create(&spec.id, &spec.limits)
        .map_err(|failure| failed(spec, failure.step, Some(failure.path), failure.source))?;
    let path = place.join(SANDBOX_FILE);
    let stored = Stored { launch: launch_of(shared, spec, range, cgroups), spec: spec.clone() };
    write_json(&path, &stored).map_err(|source| failed(spec, "write", Some(path.clone()), source))?;
    let opened = std::fs::File::open(&path).and_then(|file| file.lock().map(|()| file));
    opened.map_err(|source| failed(spec, "lock", Some(path), source))
}

fn launch_of(shared: &Shared, spec: &Spec, range: Range, cgroups: Vec<PathBuf>) -> Launch {
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
    Launch {
        state: shared.place(&spec.id),
        hostname: spec.hostname.clone(),
        first_id: range.first(),
        supervisor_id: range.supervisor(),
        cgroups,
        layers: spec.root.layers.clone(),
        host_dirs: spec.root.host_dirs.clone(),
        read_only_root: spec.read_only_root,
        memory_dirs: spec.memory_dirs.iter().map(memory).collect(),
        binds: spec.mounts.iter().map(bind).collect(),
        sandboxd: shared.programs.sandboxd.clone(),
        address: spec.address,
        network: spec.network,
        resolv_conf: spec.resolv_conf.clone(),
        log_bytes: spec.limits.log_bytes,
        main: Main {
            argv: spec.process.argv.clone(),
            env: spec.process.env.clone(),
            cwd: spec.process.cwd.to_string_lossy().into_owned(),
            uid: spec.process.uid,
            gid: spec.process.gid,
            groups: spec.process.groups.clone(),
        },
    }
}

fn directories(place: &Path, range: Range) -> Result<(), (PathBuf, io::Error)> {
    let make = |name: &str, mode, owner| {
        let path = place.join(name);
        let made = std::fs::DirBuilder::new().mode(mode).create(&path);
        made.and_then(|()| std::os::unix::fs::chown(&path, Some(owner), Some(owner)))
            .map_err(|source| (path, source))
    };
    make("upper", 0o755, range.first())?;
    make("work", 0o700, 0)?;
    make(file::RUN, 0o700, range.supervisor())
}

/// Runs the launcher with the locked launch file as its standard input and the network namespace as standard error.
async fn run(
    shared: &Shared,
    spec: &Spec,
    launch: std::fs::File,
    network: Option<OwnedFd>,
) -> Result<Report, Error> {
    let program = &shared.programs.supervisor;
    let launcher = tokio::process::Command::new(program)
        .env_clear()
        .current_dir("/")
        .stdin(launch)
        .stdout(Stdio::piped())
        .stderr(network.map_or_else(Stdio::null, Stdio::from))
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| failed(spec, "run", Some(program.clone()), source))?;
    let output = tokio::time::timeout(PATIENCE, launcher.wait_with_output()).await;
    let output = output
        .map_err(|_| failed(spec, "wait for the launcher", None, io::ErrorKind::TimedOut.into()))?
        .map_err(|source| failed(spec, "wait for the launcher", None, source))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        failed(
            spec,
            &format!("read the launcher's report ({})", output.status),
            None,
            io::ErrorKind::InvalidData.into(),
        )
    })
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
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    io::Write::write_all(&mut file, &serde_json::to_vec(value)?)
}
