//! The disk: what Pods may take of it, and what happens when it is low. As a kubelet does it: measure, and evict.
//!
//! ```text
//! Pods that run ─► measured, if they have limits, now and then ─► limits (pure) ──┐
//! the filesystem ─► asked for what is free ─► pressure (pure) ─► who has most ────┴─► its task evicts it
//! ```
//!
//! While no Pod runs, nothing is asked and nothing is measured.

mod claims;
mod limits;
mod measure;
mod pressure;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{Notify, mpsc};

use crate::node::uid;
use crate::pod::spec::Refusal;
use limits::Limits;
pub use limits::RESOURCE;
pub use pressure::{Floor, is_disruption};
use pressure::{Free, Shortage};
pub use watch::watch;

/// Why a Pod is failed that was evicted.
pub const EVICTED: &str = "Evicted";
/// Why a Pod waits that may not begin while the disk is low.
pub const PRESSURE: &str = "DiskPressure";

/// The disk of the data directory, and who is on it.
pub struct Disk {
    directory: PathBuf,
    floor: Floor,
    tenants: Mutex<BTreeMap<String, Arc<Tenant>>>,
    /// Somebody came or went.
    moved: Notify,
    /// What there is too little of.
    shortage: tokio::sync::watch::Sender<Option<Shortage>>,
}

/// A Pod that runs.
struct Tenant {
    pod: Arc<Pod>,
    limits: Limits,
    evict: mpsc::UnboundedSender<Refusal>,
}

/// That a Pod runs, or has on the disk what it wrote; until it is dropped.
pub struct Tenancy {
    disk: Arc<Disk>,
    uid: String,
}

impl Disk {
    pub fn new(directory: PathBuf, floor: Floor) -> Self {
        let (tenants, moved) = Default::default();
        Self { directory, floor, tenants, moved, shortage: tokio::sync::watch::Sender::new(None) }
    }

    /// A Pod begins to run. Should it have to go, its task is told why.
    pub fn enter(self: &Arc<Self>, pod: &Arc<Pod>, evict: mpsc::UnboundedSender<Refusal>) -> Tenancy {
        let uid = uid(pod);
        let tenant = Tenant { limits: Limits::of(pod), pod: pod.clone(), evict };
        self.tenants().insert(uid.clone(), Arc::new(tenant));
        self.moved.notify_one();
        Tenancy { disk: self.clone(), uid }
    }

    /// Why no new Pod may begin now, if so.
    pub fn refusal(&self) -> Option<Refusal> {
        let shortage = self.look().1?;
        // Somebody has to find out when it ends, even if no Pod runs.
        self.moved.notify_one();
        let message =
            format!("The node had condition: [DiskPressure]. The Pod begins when there is more {shortage}");
        Some(Refusal::new(PRESSURE, message))
    }

    /// Waits until new Pods may begin.
    pub async fn relieved(&self) {
        let _ = self.shortage.subscribe().wait_for(Option::is_none).await;
    }

    /// Bytes that the filesystem has at all.
    pub fn size(&self) -> u64 {
        self.free().of_bytes
    }

    /// Bytes that can be taken before the disk is low.
    pub fn room(&self) -> u64 {
        self.floor.room(self.free())
    }

    /// Asks the filesystem, and takes note of what it says.
    fn look(&self) -> (Free, Option<Shortage>) {
        let free = self.free();
        let mut now = None;
        self.shortage.send_if_modified(|known| {
            now = self.floor.shortage(free, known.is_some());
            let turned = known.is_some() != now.is_some();
            *known = now;
            turned
        });
        (free, now)
    }

    fn free(&self) -> Free {
        match rustix::fs::statvfs(&self.directory) {
            Ok(it) => Free {
                bytes: it.f_bavail.saturating_mul(it.f_frsize),
                of_bytes: it.f_blocks.saturating_mul(it.f_frsize),
                files: it.f_favail,
                of_files: it.f_files,
            },
            Err(error) => {
                tracing::warn!(%error, "what is free on the disk is not known");
                Free { bytes: u64::MAX, ..Free::default() }
            }
        }
    }

    fn tenants(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Tenant>>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        self.disk.tenants().remove(&self.uid);
        self.disk.moved.notify_one();
    }
}
