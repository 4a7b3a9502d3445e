//! Finding sandboxes again on disk, and cleaning up what was cut short.

use std::io;
use std::path::Path;
use std::sync::Arc;

use asb_supervisor::launch::{Identity, file};

use super::{SANDBOX_FILE, Shared, delete, slot};
use crate::{Error, Sandbox, SandboxId, Spec};

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
            let slot = read_json::<Stored>(&shared.place(id), id, SANDBOX_FILE).map(|stored| stored.slot(id));
            delete::remove(shared, id, &slot.unwrap_or_else(|_| id.clone())).await.map(|()| None)
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
    let stored: Stored = read_json(&place, id, SANDBOX_FILE)?;
    let identity: Identity = read_json(&place, id, file::STARTED)?;
    let slot = stored.slot(id);
    Ok(Sandbox::new(shared.clone(), stored.spec, slot, identity))
}

/// Our part of the sandbox's file.
#[derive(serde::Deserialize)]
struct Stored {
    spec: Spec,
    /// Missing in what was written before there were slots.
    slot: Option<SandboxId>,
}

impl Stored {
    /// The name under which the sandbox's ids and cgroups are held.
    fn slot(&self, id: &SandboxId) -> SandboxId {
        self.slot.clone().unwrap_or_else(|| id.clone())
    }
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

/// Slots of earlier programs, then ranges of ids and cgroups that no slot and no sandbox holds.
async fn sweep(shared: &Arc<Shared>) {
    slot::sweep(shared).await;
    let holds = |name: &Path| {
        let known = shared.known();
        let named = |slot: &SandboxId| Path::new(slot.as_str()) == name;
        known.slots.iter().any(named) || known.sandboxes.values().any(|sandbox| named(sandbox.slot()))
    };
    if let Err(error) = shared.ids.sweep(holds) {
        tracing::warn!(%error, "failed to sweep the table of ids");
    }
    for parent in shared.cgroups.parents() {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().ok().and_then(|name| SandboxId::new(name).ok());
            let is_cgroup = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let Some(name) = name.filter(|name| is_cgroup && !holds(Path::new(name.as_str()))) else {
                continue;
            };
            let problems = delete::clear(shared, &shared.slot_place(&name), &name).await;
            if !problems.is_empty() {
                tracing::warn!(cgroup = %name, ?problems, "failed to sweep a cgroup");
            }
        }
    }
}
