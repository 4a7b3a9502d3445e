//! What sandboxes of one group share: an idle sandbox has it, and the others are started beside that one.
//!
//! ```text
//! Native::common ─► idle: ids, IPC namespace, /dev/shm, volumes in memory at /memory/N ◄─ Spec::beside ─ others
//! ```
//!
//! It is a sandbox like any other, so it outlives the engine and is found, deleted and swept like any other. Its ids must be
//! nobody else's while others have them: they end before it does.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use asb_supervisor::launch;
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::Shared;
use crate::{Limits, MemoryDir, Mount, Process, RootFs, Sandbox, SandboxId, Spec};

/// Where the idle one has its volumes in memory, by number.
const MEMORY: &str = "/memory";

/// A supervisor and nothing else.
const LIMITS: Limits = Limits {
    memory_bytes: Some(32 << 20),
    cpu_millis: None,
    cpu_share_millis: None,
    pids: 4,
    log_bytes: 64 << 10,
};

/// What the launcher of a sandbox beside another is given.
pub struct Beside {
    pub launch: launch::Beside,
    /// The IPC namespace, `/dev/shm` and, if the sandbox has any of them, the volumes in memory.
    pub fds: Vec<OwnedFd>,
}

impl Spec {
    /// A sandbox that idles and has what others share: these volumes, in memory.
    pub(super) fn common(id: SandboxId, hostname: String, empty: PathBuf, memory: Vec<MemoryDir>) -> Self {
        let mount = |(at, memory): (usize, &MemoryDir)| Mount {
            source: memory.path.clone(),
            sub_path: PathBuf::new(),
            target: PathBuf::from(MEMORY).join(at.to_string()),
            read_only: false,
        };
        let (driver, kernel, beside, resolv_conf, hosts, last_words, labels) = Default::default();
        Self {
            id,
            driver,
            kernel,
            hostname,
            root: RootFs { layers: vec![empty], host_dirs: Vec::new() },
            read_only_root: true,
            capabilities: Default::default(),
            privileged: false,
            mounts: memory.iter().enumerate().map(mount).collect(),
            memory_dirs: memory,
            extra_ids: Vec::new(),
            beside,
            process: Process::idle(),
            limits: LIMITS,
            address: None,
            network: false,
            resolv_conf,
            hosts,
            last_words,
            labels,
        }
    }
}

/// Opens what a spec shares with another sandbox.
pub fn open(shared: &Arc<Shared>, spec: &Spec) -> io::Result<Option<Beside>> {
    let Some(id) = &spec.beside else { return Ok(None) };
    let other = shared.known().sandboxes.get(id).cloned();
    let other = other.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no sandbox {id}")))?;
    let name = |memory: &MemoryDir| {
        let at = other.spec().memory_dirs.iter().position(|it| it.path == memory.path);
        at.map(|at| at.to_string()).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} is not in memory there", memory.path.display()),
            )
        })
    };
    let names = spec.memory_dirs.iter().map(name).collect::<io::Result<Vec<_>>>()?;
    let first_id = shared.ids.of(other.slot())?.first;
    let fds = descriptors(&other, !names.is_empty())?;
    Ok(Some(Beside { launch: launch::Beside { first_id, names }, fds }))
}

fn descriptors(other: &Sandbox, memory: bool) -> io::Result<Vec<OwnedFd>> {
    let ended = || io::Error::new(io::ErrorKind::NotConnected, format!("sandbox {} has ended", other.id()));
    let ipc = other.namespace("ipc")?.ok_or_else(ended)?;
    let mounts = other.namespace("mnt")?.ok_or_else(ended)?;
    let view = |path: &str| {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        open_tree(CWD, path, flags)
    };
    let look = || -> io::Result<Vec<OwnedFd>> {
        enter(&mounts)?;
        let mut views = vec![view("/dev/shm")?];
        if memory {
            views.push(view(MEMORY)?);
        }
        Ok(views)
    };
    // On a thread of its own: whoever enters cannot leave.
    let views = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("asb-beside".to_owned()).spawn_scoped(scope, look)?;
        thread.join().map_err(|_| io::Error::other("a thread in another sandbox failed"))?
    })?;
    Ok(std::iter::once(ipc).chain(views).collect())
}

/// Enters a mount namespace, whose root becomes this thread's.
#[allow(unsafe_code)]
fn enter(mounts: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor table is not among what is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
    Ok(move_into_link_name_space(std::os::fd::AsFd::as_fd(mounts), Some(LinkNameSpaceType::Mount))?)
}
