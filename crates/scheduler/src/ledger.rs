//! Which Pods the node has, what they take together, and which Pods wait for a place.
//!
//! A place is taken here before the binding is written, so that two Pods that are created at the same moment never share the
//! last one; if the write fails, the place is given back. Other Pods are looked at only for affinity, anti-affinity and
//! spread constraints.

use std::cmp::Reverse;
use std::collections::HashMap;

use jiff::Timestamp;

use crate::admission::{self, Rejection};
use crate::fit::{self, Load, NO_NODES};
use crate::neighbours::{Neighbour, Rule, Surroundings};
use crate::node::Node;
use crate::pod::Pod;
use crate::resources::Resources;
use crate::selector::Labels;

#[derive(Debug, Default)]
pub struct Ledger {
    node: Option<Node>,
    placed: HashMap<Box<str>, Placed>,
    used: Resources,
    /// How many of these have a required anti-affinity.
    with_anti_affinity: usize,
    waiting: HashMap<Box<str>, Waiting>,
    /// How many of these have a required affinity.
    waiting_with_affinity: usize,
    namespaces: HashMap<Box<str>, Labels>,
    /// How many Pods have ever waited.
    arrivals: u64,
    /// Something has changed since the waiting Pods were looked at.
    stale: bool,
}

/// A Pod that has a place.
#[derive(Debug)]
struct Placed {
    namespace: Box<str>,
    labels: Labels,
    deleting: bool,
    requests: Resources,
    avoids: Vec<Rule>,
}

#[derive(Debug)]
struct Waiting {
    pod: Pod,
    arrival: u64,
}

/// What becomes of a new Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offer {
    /// It has a place, which is taken.
    Place,
    /// It waits, for this reason.
    Unfit(String),
    /// Pods that waited longer are looked at first.
    Queue,
}

/// What became of a Pod that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub uid: Box<str>,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A place is taken for it.
    Place,
    Unfit(String),
}

impl Ledger {
    /// Replaces what is known of the node. Returns whether it differs from what was known.
    pub fn set_node(&mut self, node: Option<Node>) -> bool {
        let is_new = self.node != node;
        self.node = node;
        self.touch(is_new)
    }

    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        let before = match &labels {
            Some(labels) => self.namespaces.insert(name.into(), labels.clone()),
            None => self.namespaces.remove(name),
        };
        self.touch(before != labels);
    }

    /// Takes a place for a new Pod, if the Pod fits and no Pod that waited before has yet to be looked at.
    pub fn offer(&mut self, pod: &Pod) -> Offer {
        if self.stale && !self.waiting.is_empty() {
            return Offer::Queue;
        }
        match self.check(pod) {
            Ok(()) => {
                self.place(pod);
                Offer::Place
            }
            Err(message) => Offer::Unfit(message),
        }
    }

    /// Takes a place for a Pod that a client binds to the node, or returns why the node rejects it.
    pub fn admit(&mut self, pod: &Pod) -> Result<(), Rejection> {
        // The Pod may have a place already: it may wait here as well, and the queue may have found one for it.
        let had_place = self.remove_place(pod.uid());
        let admitted = match &self.node {
            Some(node) if !pod.is_mirror() => admission::check(pod, node, &self.load()),
            _ => Ok(()),
        };
        if admitted.is_ok() {
            self.place(pod);
        }
        self.touch(had_place);
        admitted
    }

    /// A Pod has a place, whether it fits or not.
    pub fn place(&mut self, pod: &Pod) {
        let uid: Box<str> = pod.uid().into();
        self.stop_waiting(&uid);
        let had_place = self.remove_place(&uid);
        let avoids = Rule::all(&pod.spec.affinity.pod_anti_affinity.required, pod);
        let requests = pod.requests();
        self.used.add(&requests);
        self.with_anti_affinity += usize::from(!avoids.is_empty());
        let placed = Placed {
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            requests,
            avoids,
        };
        self.placed.insert(uid, placed);
        // A Pod that takes a place helps only Pods with an affinity to it. One that had a place may have had a larger one.
        self.touch(had_place || self.waiting_with_affinity > 0);
    }

    /// Updates the labels and the deletion of a Pod that has a place. Returns `false` if it has none.
    pub fn update<'a>(
        &mut self,
        uid: &str,
        deleting: bool,
        labels: impl ExactSizeIterator<Item = (&'a str, &'a str)> + Clone,
    ) -> bool {
        let Some(placed) = self.placed.get_mut(uid) else { return false };
        let same = placed.deleting == deleting
            && placed.labels.len() == labels.len()
            && labels.clone().all(|(key, value)| placed.labels.get(key).is_some_and(|it| it == value));
        if !same {
            placed.deleting = deleting;
            placed.labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            self.touch(true);
        }
        true
    }

    /// Removes a Pod that has ended or is gone.
    pub fn remove(&mut self, uid: &str) {
        self.stop_waiting(uid);
        let had_place = self.remove_place(uid);
        self.touch(had_place);
    }

    fn remove_place(&mut self, uid: &str) -> bool {
        let Some(placed) = self.placed.remove(uid) else { return false };
        self.used.subtract(&placed.requests);
        self.with_anti_affinity -= usize::from(!placed.avoids.is_empty());
        true
    }

    /// Puts a new or changed Pod into the queue. A Pod that has the condition with the reason why it waits is looked at when
    /// something changes, and any other at once.
    pub fn wait(&mut self, pod: Pod) {
        let had_place = self.remove_place(pod.uid());
        let known = self.stop_waiting(pod.uid());
        let changed = known.as_ref().is_some_and(|known| !known.pod.is_same(&pod));
        // The reason in its condition may be out of date: its room may have become free, and the other Pods may have been looked
        // at, after the Pod was offered and before it was written.
        let fits = known.is_none() && !self.stale && self.check(&pod).is_ok();
        self.touch(fits || had_place || changed || pod.unschedulable_message().is_none());
        let arrival = known.map_or(self.arrivals, |known| known.arrival);
        self.arrivals = self.arrivals.max(arrival + 1);
        self.go_on_waiting(Waiting { pod, arrival });
    }

    fn go_on_waiting(&mut self, waiting: Waiting) {
        self.waiting_with_affinity += usize::from(waiting.has_affinity());
        self.waiting.insert(waiting.pod.uid().into(), waiting);
    }

    fn stop_waiting(&mut self, uid: &str) -> Option<Waiting> {
        let known = self.waiting.remove(uid)?;
        self.waiting_with_affinity -= usize::from(known.has_affinity());
        Some(known)
    }

    /// Whether the Pods that wait have to be looked at.
    pub fn has_work(&self) -> bool {
        self.stale && !self.waiting.is_empty()
    }

    /// Whether a decision still holds: the Pod may have changed since.
    pub fn stands(&self, decision: &Decision) -> bool {
        match decision.verdict {
            Verdict::Place => self.placed.contains_key(&decision.uid),
            Verdict::Unfit(_) => self.waiting.contains_key(&decision.uid),
        }
    }

    /// Has the Pods that wait looked at again, after a write that failed.
    pub fn look_again(&mut self) {
        self.stale = true;
    }

    fn touch(&mut self, changed: bool) -> bool {
        self.stale |= changed;
        changed
    }

    /// Looks at every Pod that waits, those of the highest priority first and of these the oldest, and says what is new.
    pub fn decide(&mut self) -> Vec<Decision> {
        let mut order: Vec<_> = self.waiting.iter().map(|(uid, it)| (it.rank(), uid.clone())).collect();
        order.sort();
        // A Pod that gets a place may be what one before it waits for, which makes it stale again.
        self.stale = false;
        let mut decisions = Vec::with_capacity(order.len());
        for (_, uid) in order {
            let Some(waiting) = self.stop_waiting(&uid) else { continue };
            match self.check(&waiting.pod) {
                Ok(()) => {
                    self.place(&waiting.pod);
                    decisions.push(Decision { uid, verdict: Verdict::Place });
                }
                Err(message) => {
                    if waiting.pod.unschedulable_message() != Some(&message) {
                        decisions.push(Decision { uid, verdict: Verdict::Unfit(message) });
                    }
                    self.go_on_waiting(waiting);
                }
            }
        }
        decisions
    }

    fn check(&self, pod: &Pod) -> Result<(), String> {
        let node = self.node.as_ref().ok_or_else(|| NO_NODES.to_owned())?;
        fit::check(pod, node, &self.load(), self).map_err(|unfit| unfit.to_string())
    }

    fn load(&self) -> Load<'_> {
        Load { used: &self.used, pods: i64::try_from(self.placed.len()).unwrap_or(i64::MAX) }
    }
}

impl Waiting {
    /// The order in which Pods are looked at.
    fn rank(&self) -> (Reverse<i64>, Option<Timestamp>, u64) {
        (Reverse(self.pod.spec.priority), self.pod.metadata.creation_timestamp, self.arrival)
    }

    fn has_affinity(&self) -> bool {
        !self.pod.spec.affinity.pod_affinity.required.is_empty()
    }
}

impl Surroundings for Ledger {
    fn neighbours(&self) -> impl Iterator<Item = Neighbour<'_>> {
        self.placed.values().map(|placed| Neighbour {
            namespace: &placed.namespace,
            labels: &placed.labels,
            deleting: placed.deleting,
            avoids: &placed.avoids,
        })
    }

    fn any_avoids(&self) -> bool {
        self.with_anti_affinity > 0
    }

    fn labels_of_namespace(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(namespace)
    }
}

#[cfg(test)]
mod tests;
