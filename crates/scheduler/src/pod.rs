//! What scheduling reads of a Pod.

use std::collections::BTreeMap;

use asb_types::key::MIRROR;
use jiff::Timestamp;
use serde::Deserialize;

use crate::affinity::NodeSelector;
use crate::fit::UNSCHEDULABLE;
use crate::neighbours::{Spread, Term};
use crate::resources::{Amounts, Requirements, Resources};
use crate::selector::Labels;
use crate::taint::Toleration;

/// Who binds a Pod that names no other scheduler.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// A Pod, as far as it matters where it can run.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub(crate) metadata: Metadata,
    pub(crate) spec: Spec,
    status: Status,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    reason: String,
    message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub uid: Box<str>,
    pub namespace: Box<str>,
    pub labels: Labels,
    pub annotations: BTreeMap<String, String>,
    pub creation_timestamp: Option<Timestamp>,
    pub deletion_timestamp: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Spec {
    pub node_name: String,
    pub scheduler_name: String,
    pub scheduling_gates: Vec<Gate>,
    pub priority: i64,
    pub preemption_policy: String,
    pub node_selector: Labels,
    pub tolerations: Vec<Toleration>,
    pub affinity: Affinity,
    pub topology_spread_constraints: Vec<Spread>,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
    pub resources: Requirements,
    pub overhead: Amounts,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(crate) struct Gate {}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Container {
    pub restart_policy: Option<String>,
    pub resources: Requirements,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Affinity {
    pub node_affinity: NodeAffinity,
    pub pod_affinity: PodAffinity,
    pub pod_anti_affinity: PodAffinity,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct PodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Vec<Term>,
}

impl Pod {
    /// The node it names.
    pub fn node_name(&self) -> &str {
        &self.spec.node_name
    }

    pub fn uid(&self) -> &str {
        &self.metadata.uid
    }

    /// Whether the Pod has scheduling gates, which have to be removed before it is scheduled.
    pub fn is_gated(&self) -> bool {
        !self.spec.scheduling_gates.is_empty()
    }

    /// Whether the default scheduler is to bind the Pod.
    pub fn is_ours(&self) -> bool {
        matches!(&*self.spec.scheduler_name, "" | DEFAULT_SCHEDULER)
    }

    pub fn is_mirror(&self) -> bool {
        self.metadata.annotations.contains_key(MIRROR)
    }

    /// The message of its condition `PodScheduled`, if the reason is `Unschedulable`.
    pub fn unschedulable_message(&self) -> Option<&str> {
        let mut conditions = self.status.conditions.iter();
        let found = conditions.find(|it| it.kind == "PodScheduled" && it.reason == UNSCHEDULABLE)?;
        Some(&found.message)
    }

    /// Whether nothing differs by which its place is found.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.spec == other.spec && self.metadata == other.metadata
    }

    pub fn tolerations(&self) -> &[Toleration] {
        &self.spec.tolerations
    }

    pub fn is_leaving(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    pub fn requests(&self) -> Resources {
        Resources::requested(&self.spec)
    }
}

#[cfg(test)]
impl Pod {
    pub(crate) fn tell(&mut self, message: &str) {
        let kind = "PodScheduled".to_owned();
        self.status.conditions =
            vec![Condition { kind, reason: UNSCHEDULABLE.to_owned(), message: message.to_owned() }];
    }
}
