//! Finding sandboxes again on disk, and cleaning up what was cut short.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use asb_supervisor::launch::{Identity, file};

use super::{Error, SANDBOX_FILE, Sandbox, Shared, delete};
use crate::{SandboxId, Spec};

pub async fn list(shared: &Arc<Shared>) -> Result<Vec<Sandbox>, Error> {
    let mut sandboxes = Vec::new();
    for id in stored(shared)? {
        {
            let known = shared.known();
            if let Some(sandbox) = known.sandboxes.get(&id) {
                sandboxes.push(sandbox.clone());
                continue;
            }
            if known.starting.contains(&id) {
                continue;
            }
        }
        if let Some(sandbox) = adopt(shared, &id).await? {
            sandboxes.push(sandbox);
        }
    }
    sweep(shared).await;
    Ok(sandboxes)
}

/// Takes over a sandbox of an earlier program, or clears away what is not one.
async fn adopt(shared: &Arc<Shared>, id: &SandboxId) -> Result<Option<Sandbox>, Error> {
    wait_for_launcher(shared, id).await;
    match read(shared, id) {
        Ok(sandbox) => {
            let mut known = shared.known();
            Ok(Some(known.sandboxes.entry(id.clone()).or_insert(sandbox).clone()))
        }
        Err(reason) => {
            tracing::info!(sandbox = %id, %reason, "clearing away an unfinished sandbox");
            delete::remove(shared, id).await.map(|()| None)
        }
    }
}

/// A launcher may have outlived the program that ran it; it holds the lock for as long as it works.
async fn wait_for_launcher(shared: &Shared, id: &SandboxId) {
    let path = shared.place(id).join(SANDBOX_FILE);
    let wait = tokio::task::spawn_blocking(move || std::fs::File::open(path).and_then(|file| file.lock()));
    // No file, no launcher: then there is nothing to wait for.
    let _ = wait.await;
}

/// Reads a sandbox that was started, from its directory.
pub fn read(shared: &Arc<Shared>, id: &SandboxId) -> Result<Sandbox, Error> {
    let place = shared.place(id);
    let Stored { spec } = read_json(&place, id, SANDBOX_FILE)?;
    let identity: Identity = read_json(&place, id, file::STARTED)?;
    let started_at = UNIX_EPOCH + Duration::from_nanos(identity.at);
    Ok(Sandbox::new(shared.clone(), spec, identity, started_at))
}

/// Our part of the sandbox's file.
#[derive(serde::Deserialize)]
struct Stored {
    spec: Spec,
}

fn read_json<T: serde::de::DeserializeOwned>(place: &Path, id: &SandboxId, name: &str) -> Result<T, Error> {
    let path = place.join(name);
    std::fs::read(&path).and_then(|text| serde_json::from_slice(&text).map_err(io::Error::from)).map_err(
        |source| Error::State { sandbox: id.clone(), step: "read the state", path: Some(path), source },
    )
}

/// The ids of all directories there are.
fn stored(shared: &Shared) -> Result<Vec<SandboxId>, Error> {
    let path = shared.directory.join("sandbox");
    let entries = std::fs::read_dir(&path).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let entries = entries.map_err(|source| Error::Open { step: "read", path, source })?;
    // Nothing else is ever put there.
    Ok(entries
        .iter()
        .filter_map(|entry| SandboxId::new(entry.file_name().into_string().ok()?).ok())
        .collect())
}

/// Ranges of ids and cgroups whose sandbox has no directory (any more).
async fn sweep(shared: &Arc<Shared>) {
    let exists = |name: &Path| shared.directory.join("sandbox").join(name).exists();
    if let Err(error) = shared.ids.sweep(exists) {
        tracing::warn!(%error, "failed to sweep the table of ids");
    }
    for parent in shared.cgroups.parents() {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| SandboxId::new(name).ok()) else {
                continue;
            };
            let is_cgroup = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if !is_cgroup || exists(Path::new(id.as_str())) || shared.known().starting.contains(&id) {
                continue;
            }
            if let Err(error) = delete::remove(shared, &id).await {
                tracing::warn!(sandbox = %id, %error, "failed to sweep a cgroup");
            }
        }
    }
}
