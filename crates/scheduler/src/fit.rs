//! All rules for a Pod that is to be bound, in the order of kube-scheduler's plugins and in its words.
//!
//! The scheduler stops at the first plugin that refuses a node; a plugin may have several reasons.

use std::fmt;

use crate::affinity;
use crate::neighbours::{self, Conflict, Surroundings};
use crate::node::Node;
use crate::pod::Pod;
use crate::resources::Resources;
use crate::taint::{Taint, tolerates};

/// The reason of the condition `PodScheduled` while a Pod waits.
pub const UNSCHEDULABLE: &str = "Unschedulable";
/// The reason of the same condition while a Pod has scheduling gates.
pub const GATED: &str = "SchedulingGated";
pub const GATED_MESSAGE: &str = "Scheduling is blocked due to non-empty scheduling gates";
/// What a Pod is told before the node has registered itself.
pub const NO_NODES: &str = "no nodes available to schedule pods";

/// Why a Pod does not fit: what `Display` says is kube-scheduler's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    reasons: Vec<String>,
    preemption: Preemption,
}

/// Whether taking a place from others could help. It is never done here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preemption {
    Useless,
    NoVictims,
    Forbidden,
}

/// What is on the node already.
pub(crate) struct Load<'a> {
    pub used: &'a Resources,
    pub pods: i64,
}

/// Whether the node takes the Pod.
pub(crate) fn check(
    pod: &Pod,
    node: &Node,
    load: &Load<'_>,
    around: &impl Surroundings,
) -> Result<(), Unfit> {
    let spec = &pod.spec;
    let unfit = |reasons: Vec<String>, resolvable: bool| {
        let preemption = match resolvable {
            _ if spec.preemption_policy == "Never" => Preemption::Forbidden,
            true => Preemption::NoVictims,
            false => Preemption::Useless,
        };
        Err(Unfit { reasons, preemption })
    };
    let useless = |reason: &str| unfit(vec![reason.to_owned()], false);
    let crowded = |reason: &str| unfit(vec![reason.to_owned()], true);
    if affinity::names_others(spec, node) {
        return useless("node(s) didn't satisfy plugin(s) [NodeAffinity]");
    }
    if node.unschedulable && !tolerates(&spec.tolerations, &Taint::cordon()) {
        return useless("node(s) were unschedulable");
    }
    let mut repelling = node.taints.iter().filter(|taint| taint.repels());
    if repelling.any(|taint| !tolerates(&spec.tolerations, taint)) {
        return useless("node(s) had untolerated taint(s)");
    }
    if !affinity::selects(spec, node) {
        return useless("node(s) didn't match Pod's node affinity/selector");
    }
    let (insufficient, resolvable) = insufficient(pod, node, load);
    if !insufficient.is_empty() {
        return unfit(insufficient, resolvable);
    }
    let conflict =
        neighbours::spread(pod, node, around).and_then(|()| neighbours::company(pod, node, around));
    match conflict {
        Ok(()) => Ok(()),
        Err(Conflict::SpreadWithoutLabel) => {
            useless("node(s) didn't match pod topology spread constraints (missing required label)")
        }
        Err(Conflict::AffinityUnmet) => useless("node(s) didn't match pod affinity rules"),
        Err(Conflict::Spread) => crowded("node(s) didn't match pod topology spread constraints"),
        Err(Conflict::AntiAffinity) => crowded("node(s) didn't match pod anti-affinity rules"),
        Err(Conflict::ExistingAntiAffinity) => {
            crowded("node(s) didn't satisfy existing pods anti-affinity rules")
        }
    }
}

/// The resources that there is not enough of, and whether there would be if the Pod was alone.
fn insufficient(pod: &Pod, node: &Node, load: &Load<'_>) -> (Vec<String>, bool) {
    let mut reasons = Vec::new();
    if load.pods >= node.pods {
        reasons.push("Too many pods".to_owned());
    }
    let requested = pod.requests();
    let mut resolvable = true;
    for demand in requested.against(&node.allocatable, load.used).filter(|demand| !demand.is_met()) {
        reasons.push(format!("Insufficient {}", demand.resource));
        resolvable &= demand.requested <= demand.capacity;
    }
    (reasons, resolvable)
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons: Vec<_> = self.reasons.iter().map(|reason| format!("1 {reason}")).collect();
        reasons.sort();
        // The middle is what the plugin for device claims says of a Pod that has none.
        write!(f, "0/1 nodes are available: {}. no new claims to deallocate, ", reasons.join(", "))?;
        let preempted = "preemption: 0/1 nodes are available: 1";
        match self.preemption {
            Preemption::Useless => write!(f, "{preempted} Preemption is not helpful for scheduling."),
            Preemption::NoVictims => write!(f, "{preempted} No preemption victims found for incoming pod."),
            Preemption::Forbidden => f.write_str("preemption: not eligible due to preemptionPolicy=Never."),
        }
    }
}
