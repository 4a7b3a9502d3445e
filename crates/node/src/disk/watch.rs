//! The task that looks at the disk while Pods run. It decides nothing: `limits` and `pressure` do.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use asb_runtime::tree::{Enough, Size};
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::claims::{self, Look, Seen};
use super::limits::{Limits, Usage, requests};
use super::measure::{Places, apart};
use super::pressure::{Candidate, Shortage, culprit, message};
use super::{EVICTED, Tenant};
use crate::machine;
use crate::node::Node;
use crate::pod::container::Slot;
use crate::pod::spec::Refusal;

/// Between the end of one measurement of a Pod and the next.
const AGAIN: Duration = Duration::from_secs(10);
/// However long that takes, it takes no more than this part of the time.
const SHARE: u32 = 5;
/// Pods that are measured at the same time: one that is slow to measure does not hide the others.
const AT_ONCE: usize = 4;
/// A Pod that takes longer to measure has much by what was counted until then.
const SOON: Duration = Duration::from_secs(5);

/// Looks after the disk until it is dropped.
pub async fn watch(node: Node) {
    let mut watch = Watch {
        node,
        due: HashMap::new(),
        busy: JoinSet::new(),
        told: false,
        leaving: None,
        claims: None,
        excess: Look::new(),
        looking: JoinSet::new(),
    };
    loop {
        let pause = watch.look().await;
        watch.wait(pause).await;
    }
}

struct Watch {
    node: Node,
    /// When Pods with limits are measured next; `None` while they are.
    due: HashMap<String, Option<Instant>>,
    busy: JoinSet<(String, Option<String>, Duration)>,
    /// Whether the Node says that its disk is low.
    told: bool,
    /// The Pod that was evicted last for want of space, by UID.
    leaving: Option<String>,
    /// What claims held when they were looked at for want of space, by volume.
    claims: Option<BTreeMap<String, Size>>,
    /// Claims that hold more than they asked for.
    excess: Look,
    looking: JoinSet<Seen>,
}

impl Watch {
    /// Does what is due. When to look again; `None` when nobody runs and all is well.
    async fn look(&mut self) -> Option<Duration> {
        let disk = self.node.shared.disk.clone();
        let tenants = disk.tenants().clone();
        if tenants.is_empty() && disk.shortage.borrow().is_none() && !self.told {
            self.due.clear();
            return None;
        }
        let (free, shortage) = disk.look();
        self.tell(shortage.as_ref()).await;
        match shortage {
            Some(shortage) => self.relieve(&shortage, &tenants).await,
            None => self.claims = None,
        }
        self.measure(&tenants);
        let excess = self.look_at_claims(&tenants);
        let pause = disk.floor.pause(free);
        let next = self.due.values().flatten().min().map(|due| due.saturating_duration_since(Instant::now()));
        let next = next.filter(|_| self.busy.len() < AT_ONCE);
        Some([Some(pause), next, excess].into_iter().flatten().min().unwrap_or(pause))
    }

    /// Waits until there is something to do.
    async fn wait(&mut self, pause: Option<Duration>) {
        let disk = self.node.shared.disk.clone();
        tokio::select! {
            () = disk.moved.notified() => {}
            Some(done) = self.busy.join_next() => {
                let Ok((uid, exceeded, took)) = done else { return };
                if let Some(message) = exceeded {
                    self.evict(&uid, message);
                }
                self.due.insert(uid, Some(Instant::now() + AGAIN.max(took * SHARE)));
            }
            Some(Ok(seen)) = self.looking.join_next() => {
                self.excess.tell(&self.node.shared.events, seen);
            }
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
    }

    /// Begins to measure Pods with limits whose time has come.
    fn measure(&mut self, tenants: &BTreeMap<String, Arc<Tenant>>) {
        let now = Instant::now();
        self.due.retain(|uid, _| tenants.contains_key(uid));
        let limited = tenants.iter().filter(|(_, tenant)| !tenant.limits.is_empty());
        let mut waiting: Vec<_> = limited
            .filter_map(|(uid, tenant)| {
                let due = self.due.entry(uid.clone()).or_insert(Some(now + AGAIN));
                due.filter(|due| *due <= now).map(|due| (due, uid, tenant))
            })
            .collect();
        waiting.sort_by_key(|(due, ..)| *due);
        for (_, uid, tenant) in waiting {
            if self.busy.len() >= AT_ONCE {
                return;
            }
            self.due.insert(uid.clone(), None);
            let (uid, limits, places) = (uid.clone(), tenant.limits.clone(), self.places(uid, &tenant.pod));
            self.busy.spawn(async move {
                let exceeded = apart(move || limits.exceeded(&places.measure(&limits, None))).await;
                (uid, exceeded.flatten(), now.elapsed())
            });
        }
    }

    /// Begins to look at what claims hold when it is time; else, when that is.
    fn look_at_claims(&mut self, tenants: &BTreeMap<String, Arc<Tenant>>) -> Option<Duration> {
        let due = self.excess.due(tenants, !self.looking.is_empty())?;
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let shared = &self.node.shared;
            let look = claims::look(shared.client.clone(), tenants.clone(), shared.volumes.claimed_below());
            self.looking.spawn(look);
            return None;
        }
        Some(left)
    }

    fn places(&self, uid: &str, pod: &Pod) -> Places {
        let shared = &self.node.shared;
        let name = |slot: Slot| slot.name(pod).to_owned();
        let all = shared.sandboxes_of(uid).into_iter();
        Places {
            containers: all.map(|(slot, sandbox)| (name(slot), sandbox)).collect(),
            of_pod: shared.volumes.of_pod(uid),
        }
    }

    /// Evicts one Pod for want of space, unless the one before has not left yet.
    async fn relieve(&mut self, shortage: &Shortage, tenants: &BTreeMap<String, Arc<Tenant>>) {
        if self.leaving.as_ref().is_some_and(|uid| tenants.contains_key(uid)) {
            return;
        }
        let claimed = claims::of(&self.node.shared.client, tenants).await;
        let names: Vec<_> = claimed.iter().map(|it| it.volume.clone()).collect();
        let until = std::time::Instant::now() + SOON;
        let places: Vec<_> = tenants.iter().map(|(uid, tenant)| self.places(uid, &tenant.pod)).collect();
        let volumes = self.node.shared.volumes.claimed_below();
        let measured = apart(move || {
            let usages = places.iter().map(|it| it.measure(&Limits::default(), Some(until)));
            let usages: Vec<Usage> = usages.collect();
            (usages, claims::sizes(&volumes, &names, Enough { bytes: None, until: Some(until) }))
        });
        let Some((usages, sizes)) = measured.await else { return };
        let before = self.claims.replace(sizes.clone());
        if before.is_none() && !sizes.is_empty() {
            return; // who fills a claim is known by the next look
        }
        let before = before.unwrap_or_default();
        let candidate = |((uid, tenant), usage): ((&String, &Arc<Tenant>), Usage)| {
            let mut claims_grew = Size::default();
            for volume in claimed.iter().filter(|it| it.users.contains(uid)).map(|it| &it.volume) {
                let now = sizes.get(volume).copied().unwrap_or_default();
                let then = before.get(volume).copied().unwrap_or(now);
                claims_grew.bytes += now.bytes.saturating_sub(then.bytes);
                claims_grew.files += now.files.saturating_sub(then.files);
            }
            Candidate { usage, requests: requests(&tenant.pod), claims_grew }
        };
        let candidates: Vec<_> = tenants.iter().zip(usages).map(candidate).collect();
        if let Some(index) = culprit(shortage, &candidates)
            && let Some(uid) = tenants.keys().nth(index)
        {
            self.evict(uid, message(shortage, &candidates[index]));
            self.leaving = Some(uid.clone());
        }
    }

    fn evict(&self, uid: &str, message: String) {
        if let Some(tenant) = self.node.shared.disk.tenants().get(uid) {
            tracing::warn!(pod = %tenant.pod.name_any(), namespace = tenant.pod.namespace(), message, "evicting a Pod");
            let _ = tenant.evict.send(Refusal::new(EVICTED, message));
        }
    }

    /// Writes the Node's condition when it has changed, until it is written.
    async fn tell(&mut self, shortage: Option<&Shortage>) {
        if self.told == shortage.is_some() {
            return;
        }
        let nodes: Api<NodeObject> = Api::all(self.node.shared.client.clone());
        let patch =
            json!({"status": {"conditions": [machine::disk_pressure(shortage.map(ToString::to_string))]}});
        let told =
            nodes.patch_status(self.node.name(), &PatchParams::default(), &Patch::Strategic(patch)).await;
        match told {
            Ok(_) => {
                self.told = shortage.is_some();
                let low = shortage.map(ToString::to_string);
                tracing::warn!(low, "the Node's condition DiskPressure changed");
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the Node's condition was not written"
                );
            }
        }
    }
}
