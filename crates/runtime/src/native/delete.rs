//! Removing every trace of a sandbox, whatever state it is in. Goes on past failures and reports all of them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use asb_supervisor::launch::{Identity, file};

use super::Shared;
use crate::process::Process;
use crate::{Error, Sandbox, SandboxId, remove as tree};

/// Killed processes are gone in milliseconds, unless the kernel itself is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// Removes a sandbox whose ids and cgroups are held under the name of `slot`.
pub async fn remove(shared: &Arc<Shared>, sandbox: &SandboxId, slot: &SandboxId) -> Result<(), Error> {
    let problems = clear(shared, &shared.place(sandbox), slot).await;
    if !problems.is_empty() {
        return Err(Error::Delete { sandbox: sandbox.clone(), problems });
    }
    shared.known().sandboxes.remove(sandbox);
    Ok(())
}

/// Removes a sandbox or slot: processes first, then what they used. Answers with what could not be removed.
pub async fn clear(shared: &Arc<Shared>, place: &Path, slot: &SandboxId) -> Vec<String> {
    let mut problems = Vec::new();
    let mut note = |what: &str, result: io::Result<()>| {
        if let Err(error) = result {
            problems.push(format!("{what}: {error}"));
        }
    };
    note("kill the supervisor", kill_supervisor(shared, place, slot).await);
    for cgroup in shared.cgroups.places(slot) {
        note(&format!("remove cgroup {}", cgroup.display()), remove_cgroup(&cgroup).await);
    }
    remove_parents(shared);
    let removed = {
        let place = place.to_owned();
        tokio::task::spawn_blocking(move || tree::directory(&place)).await.map_err(io::Error::other)
    };
    note(&format!("remove directory {}", place.display()), removed.and_then(|result| result));
    note("give back the range of ids", shared.ids.release(slot));
    problems
}

/// Ends those that have the ids of a sandbox beside which they were started: nobody may have them after it.
pub async fn kill_beside(shared: &Shared, sandbox: &SandboxId) -> io::Result<()> {
    let of = |other: &&Sandbox| other.spec().beside.as_ref() == Some(sandbox);
    let others: Vec<_> = shared.known().sandboxes.values().filter(of).cloned().collect();
    for other in others {
        kill_supervisor(shared, &shared.place(other.id()), other.slot()).await?;
    }
    Ok(())
}

/// With process 1 the kernel ends all others of its pid namespace.
pub async fn kill_supervisor(shared: &Shared, place: &Path, slot: &SandboxId) -> io::Result<()> {
    if shared.cgroups.is_frozen(slot) {
        // Frozen processes do not even die.
        shared.cgroups.thaw(slot).map_err(|failure| failure.source)?;
    }
    for name in [file::STARTED, file::STARTING] {
        // What cannot be read was never let go; should it live nevertheless, its cgroup tells.
        let text = std::fs::read(place.join(name)).unwrap_or_default();
        let Ok(identity) = serde_json::from_slice::<Identity>(&text) else { continue };
        if let Some(process) = Process::find(&identity)? {
            kill(process).await?;
        }
    }
    Ok(())
}

async fn kill(process: Process) -> io::Result<()> {
    process.kill()?;
    tokio::time::timeout(PATIENCE, process.ended())
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Kills whatever is still in a cgroup, a launcher for example, and removes it.
async fn remove_cgroup(path: &PathBuf) -> io::Result<()> {
    for _ in 0..64 {
        match std::fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            other => return other,
        }
        let inside = std::fs::read_to_string(path.join("cgroup.procs"))?;
        for pid in inside.lines().filter_map(|line| line.parse().ok()) {
            if let Some(process) = Process::open(pid)? {
                kill(process).await?;
            }
        }
        // The last one may have ended without having left yet.
        tokio::task::yield_now().await;
    }
    std::fs::remove_dir(path)
}

/// The cgroups that hold this directory's sandboxes go with the last of them.
fn remove_parents(shared: &Shared) {
    for parent in shared.cgroups.parents() {
        // Refused by the kernel while anything is inside.
        if std::fs::remove_dir(&parent).is_ok()
            && let Some(top) = parent.parent()
        {
            let _ = std::fs::remove_dir(top);
        }
    }
}
