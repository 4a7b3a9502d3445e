//! What scheduling reads of a Node.

use serde::Deserialize;

use asb_types::Quantity;

use crate::resources::{Amounts, Resources};
use crate::selector::Labels;
use crate::taint::Taint;

/// A Node, as far as it matters which Pods it takes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Object")]
pub struct Node {
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) unschedulable: bool,
    pub(crate) taints: Vec<Taint>,
    pub(crate) allocatable: Resources,
    /// Pods that it takes.
    pub(crate) pods: i64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    labels: Labels,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: Option<bool>,
    taints: Option<Vec<Taint>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    allocatable: Amounts,
}

impl From<Object> for Node {
    fn from(object: Object) -> Self {
        let Object { metadata, spec, mut status } = object;
        let pods = status.allocatable.remove("pods").and_then(|pods| Quantity::of(&pods));
        Self {
            name: metadata.name,
            labels: metadata.labels,
            unschedulable: spec.unschedulable.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            allocatable: Resources::of(&status.allocatable),
            pods: pods.unwrap_or_default().whole(),
        }
    }
}

impl Node {
    /// Whether Pods that do not tolerate a taint have to leave it.
    pub fn evicts(&self) -> bool {
        self.taints.iter().any(Taint::evicts)
    }

    pub fn taints(&self) -> &[Taint] {
        &self.taints
    }
}
