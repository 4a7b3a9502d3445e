//! Claimed volumes of Pods that run: who uses them, and which hold more than was asked for.
//!
//! Where the filesystem does not limit what a claim holds, that is told and nothing more.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use asb_runtime::tree::{self, Enough, Size, quota};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::time::Instant;

use super::Tenant;
use super::measure::{apart, found};
use crate::event::Recorder;
use crate::pod::quantity::bytes;
use crate::volume::below;

const FIRST: Duration = Duration::from_secs(10);
/// Between two looks at what claims hold.
const AGAIN: Duration = Duration::from_secs(60);
/// However long a look takes, it takes no more than this part of the time.
const SHARE: u32 = 50;

/// A claim that has a volume, and the Pods that use it, by UID.
pub struct Claimed {
    pub claim: PersistentVolumeClaim,
    pub volume: String,
    pub users: Vec<String>,
}

/// The claims of these Pods.
pub async fn of(client: &Client, tenants: &BTreeMap<String, Arc<Tenant>>) -> Vec<Claimed> {
    if tenants.values().all(|tenant| names(&tenant.pod).next().is_none()) {
        return Vec::new();
    }
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let listed = claims.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    let claimed = |claim: PersistentVolumeClaim| {
        let uses = |pod: &Pod| {
            pod.metadata.namespace == claim.metadata.namespace
                && names(pod).any(|name| *name == claim.name_any())
        };
        let users: Vec<_> =
            tenants.iter().filter(|(_, tenant)| uses(&tenant.pod)).map(|(uid, _)| uid.clone()).collect();
        let volume = claim.spec.as_ref()?.volume_name.clone()?;
        (!users.is_empty()).then_some(Claimed { claim, volume, users })
    };
    listed.into_iter().filter_map(claimed).collect()
}

/// What claims hold, by volume.
pub fn sizes(volumes: &Path, claimed: &[String], enough: Enough) -> BTreeMap<String, Size> {
    let size = |name: &String| {
        let path = below(volumes, name).ok()?;
        Some((name.clone(), found(tree::measure(&path, enough))))
    };
    claimed.iter().filter_map(size).collect()
}

/// Looks at claims every now and then.
pub struct Look {
    due: Option<Instant>,
    /// Claims whose excess was told, by UID.
    told: HashSet<String>,
}

/// What came of a look.
pub struct Seen {
    over: Vec<PersistentVolumeClaim>,
    took: Duration,
}

impl Look {
    pub fn new() -> Self {
        Self { due: None, told: HashSet::new() }
    }

    /// When the next one is, if any Pod has a claim. `None` also while one is under way.
    pub fn due(&mut self, tenants: &BTreeMap<String, Arc<Tenant>>, busy: bool) -> Option<Instant> {
        let any = tenants.values().any(|tenant| names(&tenant.pod).next().is_some());
        if !any || busy {
            self.due = None;
            return None;
        }
        Some(*self.due.get_or_insert_with(|| Instant::now() + FIRST))
    }

    /// Tells of claims that hold too much, once until they do not.
    pub fn tell(&mut self, events: &Recorder, seen: Seen) {
        let uid = |claim: &PersistentVolumeClaim| claim.metadata.uid.clone().unwrap_or_default();
        let over: HashSet<_> = seen.over.iter().map(uid).collect();
        for claim in seen.over.iter().filter(|claim| !self.told.contains(&uid(claim))) {
            let asked = requested(claim).map(|(_, text)| text).unwrap_or_default();
            let message = format!(
                "The volume holds more than the {asked} of spec.resources.requests.storage, which is no hard limit here; \
                 remove files, or make a larger claim"
            );
            events.warn_of_claim(claim, "VolumeOverRequest", message);
        }
        self.told = over;
        self.due = Some(Instant::now() + AGAIN.max(seen.took * SHARE));
    }
}

/// Which of these claims hold more than they ask for.
pub async fn look(
    client: Client,
    tenants: BTreeMap<String, Arc<Tenant>>,
    volumes: std::path::PathBuf,
) -> Seen {
    let begin = Instant::now();
    let claimed = of(&client, &tenants).await;
    let over = apart(move || {
        let over = |it: &Claimed| {
            let Some((most, _)) = requested(&it.claim) else { return false };
            let Ok(path) = below(&volumes, &it.volume) else { return false };
            let enough = Enough { bytes: Some(most), until: None };
            quota::limit_of(&path).is_none() && found(tree::measure(&path, enough)).bytes > most
        };
        claimed.into_iter().filter(over).map(|it| it.claim).collect()
    });
    Seen { over: over.await.unwrap_or_default(), took: begin.elapsed() }
}

fn requested(claim: &PersistentVolumeClaim) -> Option<(u64, &str)> {
    let asked = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    Some((bytes(asked)?, &asked.0))
}

fn names(pod: &Pod) -> impl Iterator<Item = &String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|it| Some(&it.persistent_volume_claim.as_ref()?.claim_name))
}
