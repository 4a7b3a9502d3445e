//! Finding sandboxes again on disk, and cleaning up what was cut short.

use std::io;
use std::path::Path;
use std::sync::Arc;

use asb_supervisor::launch::{Identity, file};

use super::{SANDBOX_FILE, Shared, delete, slot};
use crate::{Error, Sandbox, SandboxId, Spec};

pub async fn list(shared: &Arc<Shared>) -> Result<Vec<Sandbox>, Error> {
    let (mut sandboxes, mut unreadable) = (Vec::new(), false);
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
        match adopt(shared, &id).await? {
            Adopted::Sandbox(sandbox) => sandboxes.push(sandbox),
            Adopted::Unreadable => unreadable = true,
            Adopted::Cleared => {}
        }
    }
    slot::sweep(shared).await;
    match unreadable {
        // It holds ids and cgroups under a name that is not known.
        true => tracing::warn!("unused ids and cgroups are kept while a sandbox cannot be read"),
        false => sweep(shared).await,
    }
    Ok(sandboxes)
}

enum Adopted {
    Sandbox(Sandbox),
    /// It may run, and is left as it is.
    Unreadable,
    Cleared,
}

/// Takes over a sandbox of an earlier program, or removes one whose start never succeeded.
///
/// Only a missing record proves that. A record that cannot be read, or that this version cannot parse, can be that of a
/// sandbox that runs: nothing of it is touched.
async fn adopt(shared: &Arc<Shared>, id: &SandboxId) -> Result<Adopted, Error> {
    wait_for_launcher(shared, id).await;
    let place = shared.place(id);
    let read = || -> io::Result<Option<(Stored, Identity)>> {
        let Some(stored) = record(&place.join(SANDBOX_FILE))? else { return Ok(None) };
        Ok(record(&place.join(file::STARTED))?.map(|identity| (stored, identity)))
    };
    match read() {
        Ok(Some((stored, identity))) => {
            let slot = stored.slot(id);
            let sandbox = Sandbox::new(shared.clone(), stored.spec, slot, identity);
            let mut known = shared.known();
            Ok(Adopted::Sandbox(known.sandboxes.entry(id.clone()).or_insert(sandbox).clone()))
        }
        Ok(None) => {
            tracing::info!(sandbox = %id, "removing a sandbox whose start never succeeded");
            let stored = record::<Stored>(&place.join(SANDBOX_FILE)).ok().flatten();
            let slot = stored.map_or_else(|| id.clone(), |stored| stored.slot(id));
            delete::remove(shared, id, &slot).await.map(|()| Adopted::Cleared)
        }
        Err(error) => {
            tracing::error!(sandbox = %id, %error, "failed to read the record of a sandbox; the sandbox is kept");
            Ok(Adopted::Unreadable)
        }
    }
}

/// Reads a record; `None` if it was never written. A reset of the machine leaves records empty that were not on disk yet.
pub fn record<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    if text.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let fail = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
    serde_json::from_slice(&text).map(Some).map_err(fail)
}

/// A launcher may have outlived the program that ran it; it holds the lock for as long as it works.
async fn wait_for_launcher(shared: &Shared, id: &SandboxId) {
    let path = shared.place(id).join(SANDBOX_FILE);
    let wait = tokio::task::spawn_blocking(move || std::fs::File::open(path).and_then(|file| file.lock()));
    // No file, no launcher: then there is nothing to wait for.
    let _ = wait.await;
}

/// Our part of the sandbox's file.
#[derive(serde::Deserialize)]
pub struct Stored {
    pub spec: Spec,
    /// Missing in what was written before there were slots.
    slot: Option<SandboxId>,
}

impl Stored {
    /// The name under which the sandbox's ids and cgroups are held.
    fn slot(&self, id: &SandboxId) -> SandboxId {
        self.slot.clone().unwrap_or_else(|| id.clone())
    }
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

/// Removes ranges of ids and cgroups that no slot and no sandbox holds.
async fn sweep(shared: &Arc<Shared>) {
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
