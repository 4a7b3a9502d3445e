//! The checks of a kubelet on a Pod that a client has bound to its node, and the message when it rejects the Pod.

use crate::affinity;
use crate::fit::Load;
use crate::node::Node;
use crate::pod::Pod;
use crate::resources::Demand;
use crate::taint::tolerates;

/// Why a Pod fails at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

impl Rejection {
    fn insufficient(demand: Demand<'_>) -> Self {
        let Demand { resource, requested, used, capacity } = demand;
        let message = format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        Self { reason: format!("OutOf{resource}"), message }
    }

    fn predicate(name: &str, description: &str) -> Self {
        Self { reason: name.to_owned(), message: format!("Predicate {name} failed: {description}") }
    }
}

/// Whether the node takes a Pod that is bound to it: only the first reason is told.
pub(crate) fn check(pod: &Pod, node: &Node, load: &Load<'_>) -> Result<(), Rejection> {
    if load.pods >= node.pods {
        let pods = Demand { resource: "pods", requested: 1, used: load.pods, capacity: node.pods };
        return Err(Rejection::insufficient(pods));
    }
    // As in a kubelet: an extended resource that the node does not list is not checked.
    let known = |demand: &Demand<'_>| {
        !demand.resource.contains('/') || node.allocatable.others.contains_key(demand.resource)
    };
    let requested = pod.requests();
    let mut unmet =
        requested.against(&node.allocatable, load.used).filter(|demand| known(demand) && !demand.is_met());
    if let Some(demand) = unmet.next() {
        return Err(Rejection::insufficient(demand));
    }
    if !affinity::selects(&pod.spec, node) {
        return Err(Rejection::predicate(
            "NodeAffinity",
            "node(s) didn't match Pod's node affinity/selector",
        ));
    }
    let mut evicting = node.taints.iter().filter(|taint| taint.evicts());
    if evicting.any(|taint| !tolerates(&pod.spec.tolerations, taint)) {
        return Err(Rejection::predicate(
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ));
    }
    Ok(())
}
