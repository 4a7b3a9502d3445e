//! Deletes Pods that do not tolerate a `NoExecute` taint of the node, as the taint eviction controller of a cluster does.

use std::sync::Arc;

use asb_scheduler::{Due, Evictions, Pod};
use jiff::Timestamp;

use super::queue::AGAIN;
use super::report::Failure;
use super::{PODS, Scheduling, read};
use crate::background;
use crate::ops::{Api, DeleteOptions, Disruption};
use crate::registry::pod;
use crate::store::Entry;

#[derive(Default)]
pub(super) struct Taints {
    evictions: Evictions,
    /// There was a taint when it was looked last.
    tainted: bool,
}

impl Taints {
    pub fn are_there(&self) -> bool {
        self.tainted
    }

    /// Deletes the Pods whose time is over. When to look again.
    pub async fn evict(&mut self, api: &Api, scheduling: &Scheduling) -> Option<Timestamp> {
        let node = scheduling.ledger().node().cloned().unwrap_or_default();
        if !(self.tainted || node.evicts()) {
            return None;
        }
        self.tainted = node.evicts();
        let (pods, now) = (running(api, scheduling), Timestamp::now());
        let found = self.evictions.look(pods.iter().map(|(pod, _)| pod), node.taints(), now);
        let Due { evicted, spared, mut next } = found;
        for (pod, entry) in &pods {
            let meta = &entry.meta;
            let listed = |list: &[Box<str>]| list.iter().any(|uid| **uid == *pod.uid());
            let tell = |what: &str| {
                let message = format!("{what} {}/{}", meta.namespace, meta.name);
                scheduling.report(Failure::taint(&meta.namespace, &meta.name, &meta.uid, message));
            };
            if listed(&spared) {
                tell("Cancelling deletion of Pod");
            } else if listed(&evicted) {
                tell("Marking for deletion Pod");
                let evict = async { api.evict(entry.clone(), Disruption::Taint, DeleteOptions::default()) };
                let evicted = background::step("eviction for a taint", evict).await;
                if let Some(Err(error)) = &evicted {
                    tracing::warn!(pod = &*meta.name, error = error.message, "Pod not evicted for a taint");
                }
                if !matches!(evicted, Some(Ok(()))) {
                    next = Some(now + AGAIN);
                }
                tokio::task::yield_now().await;
            }
        }
        next
    }
}

/// Pods of the node that are neither over nor on their way out.
fn running(api: &Api, scheduling: &Scheduling) -> Vec<(Pod, Arc<Entry>)> {
    let here = |entry: &Arc<Entry>| {
        let bound = matches!(&*entry.meta.fields, [node, phase, ..] if **node == *scheduling.node && !pod::is_over(phase));
        bound && !entry.meta.deleting
    };
    let entries = api.store.list(PODS, "").entries.into_iter().filter(here);
    entries.filter_map(|entry| Some((read(&entry)?, entry))).collect()
}
