//! Looks at what Pods have on the disk: on threads of their own, after everybody else.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use asb_runtime::Sandbox;
use asb_runtime::tree::{self, Enough, Size};
use tokio::sync::oneshot;

use super::limits::{Limits, Usage};

/// Nicer than everything else.
const LAST: i32 = 19;

/// Where a Pod has what goes with it.
pub struct Places {
    pub containers: Vec<(String, Sandbox)>,
    /// Its volumes and records, a directory each.
    pub of_pod: PathBuf,
}

/// Works where nobody waits for it but who asked. `None` when it did not come to an end.
pub async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("disk".to_owned()).spawn(move || {
        let _ = rustix::process::setpriority_process(None, LAST); // of this thread only
        let _ = sender.send(work());
    });
    match thread {
        Ok(_) => receiver.await.ok(),
        Err(error) => {
            tracing::warn!(%error, "the disk is not measured");
            None
        }
    }
}

impl Places {
    /// What is there; no more than is needed to know that a limit is exceeded.
    pub fn measure(&self, limits: &Limits, until: Option<Instant>) -> Usage {
        let mut left = limits.pod.as_ref().map(|limit| limit.bytes);
        let mut enough = |limit: Option<u64>, measure: &dyn Fn(Enough) -> io::Result<Size>| {
            let size = found(measure(Enough { bytes: limit.into_iter().chain(left).min(), until }));
            left = left.map(|left| left.saturating_sub(size.bytes));
            size
        };
        let mut containers = BTreeMap::new();
        for (name, sandbox) in &self.containers {
            let limit = limits.containers.get(name).map(|limit| limit.bytes);
            containers.insert(name.clone(), enough(limit, &|enough| sandbox.disk(enough)));
        }
        let mut volumes = BTreeMap::new();
        for name in names(&self.of_pod) {
            let limit = limits.volumes.get(&name).map(|limit| limit.bytes);
            let path = self.of_pod.join(&name);
            volumes.insert(name, enough(limit, &|enough| tree::measure(&path, enough)));
        }
        Usage { containers, volumes }
    }
}

/// What is gone by now takes nothing.
pub fn found(size: io::Result<Size>) -> Size {
    size.unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(%error, "a directory was not measured");
        }
        Size { complete: false, ..Size::default() }
    })
}

/// The volumes of a Pod. We made them, so their names are text.
fn names(of_pod: &PathBuf) -> Vec<String> {
    let entries = std::fs::read_dir(of_pod).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
