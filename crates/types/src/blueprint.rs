//! What a Sandbox and a SandboxTemplate share: the Pod template and the volume claim templates.
//!
//! Pod and PVC specs pass through as they came: a field that a newer Kubernetes knows and we do not
//! must still reach the Pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// The Pod that a Sandbox runs as.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PodTemplate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// A core/v1 PodSpec. Whoever keeps many Sandboxes of one origin keeps it once.
    #[serde(serialize_with = "whole", deserialize_with = "owned")]
    pub spec: Arc<Map<String, Value>>,
}

fn whole<S: Serializer>(spec: &Map<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
    spec.serialize(serializer)
}

fn owned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Map<String, Value>>, D::Error> {
    Map::deserialize(deserializer).map(Arc::new)
}

/// The part of `metadata` that templates may set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TemplateMetadata {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A PVC that every Sandbox of this blueprint gets as its own.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VolumeClaimTemplate {
    #[serde(default)]
    pub metadata: TemplateMetadata,
    /// A core/v1 PersistentVolumeClaimSpec.
    pub spec: Map<String, Value>,
}

/// What becomes of a Pod that failed. Volumes are kept either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PodFailurePolicy {
    /// It stays, and the Sandbox has finished.
    #[default]
    Keep,
    /// It is replaced, after a pause that grows with every failure.
    Recreate,
}
