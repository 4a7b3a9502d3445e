//! Which Pods the only node takes: at their creation in the same write, and later those that had to wait.
//!
//! ```text
//! create ─► ledger ─┬─ a place ─► one write, bound
//!                   └─ none ────► one write, Pending, with the scheduler's words ─┐
//! store change ─► ledger: a place is free, the node or the Pod is another ─► queue ┴─► bound, or told why not
//! ```
//!
//! The ledger (`asb-scheduler`, pure) is kept by the store's tap, so it knows every change at the moment when it is made. A
//! place is taken in it before the write that tells of it, and given back if that fails: no place is given twice.

mod place;
mod queue;
mod report;
mod taints;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use asb_scheduler::{Ledger, Node, Pod};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc};

pub(crate) use place::{Reservation, bind, readable};
pub(crate) use queue::run;
use report::Failure;

use crate::registry::{NAMESPACES, PODS, pod};
use crate::store::{Change, Entry, Store};

const NODES: &str = "nodes";
/// Events that wait to be written. More are dropped: nothing depends on them.
const BACKLOG: usize = 4096;

/// What is known of the node and its Pods. The store's tap writes it.
pub(crate) struct Scheduling {
    node: String,
    ledger: Mutex<Ledger>,
    /// Pods that wait have to be looked at, or Pods that run because of a taint.
    wake: Notify,
    failures: mpsc::Sender<Failure>,
}

impl Scheduling {
    /// Schedules Pods to the node of this name; what is received has to be reported.
    pub fn new(node: String) -> (Arc<Self>, mpsc::Receiver<Failure>) {
        let (failures, received) = mpsc::channel(BACKLOG);
        let scheduling = Self { node, ledger: Mutex::default(), wake: Notify::new(), failures };
        (Arc::new(scheduling), received)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what the store held at the start.
    pub fn load(&self, store: &Store) {
        for collection in [NAMESPACES, NODES, PODS] {
            let mut entries = store.list(collection, "").entries;
            // Of Pods that were created in the same second, the one that was written first comes first.
            entries.sort_by_key(|entry| entry.revision);
            entries.iter().for_each(|entry| self.take_in(collection, entry));
        }
        self.wake.notify_one();
    }

    /// Takes in a change. Called under the store's lock.
    pub fn follow(&self, change: &Change) {
        match (&*change.key.collection, change.deleted) {
            (PODS, true) => self.ledger().remove(&change.entry.meta.uid),
            (NODES, true) if self.is_node(&change.entry) => _ = self.ledger().set_node(None),
            (NAMESPACES, true) => self.ledger().set_namespace(&change.entry.meta.name, None),
            (collection @ (PODS | NODES | NAMESPACES), false) => self.take_in(collection, &change.entry),
            _ => return,
        }
        let ledger = self.ledger();
        if ledger.has_work() || ledger.node().is_some_and(Node::evicts) {
            self.wake.notify_one();
        }
    }

    fn is_node(&self, entry: &Entry) -> bool {
        *entry.meta.name == *self.node
    }

    fn take_in(&self, collection: &str, entry: &Entry) {
        let meta = &entry.meta;
        match collection {
            PODS => self.take_in_pod(entry),
            NAMESPACES => {
                let labels = meta.labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
                self.ledger().set_namespace(&meta.name, Some(labels.collect()));
            }
            NODES if self.is_node(entry) => {
                // A Node that cannot be read says nothing: what was known of it holds.
                let Some(node) = read(entry) else { return };
                let is_new = self.ledger().set_node(Some(node));
                // Also when the last taint goes: Pods were to leave because of it.
                if is_new {
                    self.wake.notify_one();
                }
            }
            _ => {}
        }
    }

    /// A Pod that runs is read once, when it gets its place: what it reports of itself says nothing new.
    fn take_in_pod(&self, entry: &Entry) {
        let meta = &entry.meta;
        let [node, phase, ..] = &*meta.fields else { return };
        let labels = meta.labels.iter().map(|(key, value)| (&**key, &**value));
        let mut ledger = self.ledger();
        if pod::is_over(phase) || !(node.is_empty() || **node == *self.node) {
            ledger.remove(&meta.uid);
        } else if node.is_empty() {
            match read::<Pod>(entry).filter(waits) {
                Some(pod) => ledger.wait(pod),
                None => ledger.remove(&meta.uid),
            }
        } else if !ledger.update(&meta.uid, meta.deleting, labels)
            && let Some(pod) = read(entry)
        {
            ledger.place(&pod);
        }
    }
}

/// Whether it is for us to find a place for a Pod without a node.
fn waits(pod: &Pod) -> bool {
    pod.is_ours() && !pod.is_gated() && !pod.is_leaving()
}

/// What scheduling reads of an object. One that cannot be read was stored by an engine that checked less.
fn read<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    let read = serde_json::from_slice(&entry.bytes);
    read.inspect_err(
        |error| tracing::warn!(object = &*entry.meta.name, %error, "object not read for scheduling"),
    )
    .ok()
}
