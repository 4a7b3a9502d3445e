//! SandboxWarmPool: Sandboxes kept ready before anybody asks for one.

use serde::{Deserialize, Serialize};

crate::kind::kind!(
    /// A number of Sandboxes of one template, kept ready.
    WarmPool, "SandboxWarmPool", "sandboxwarmpools", crate::EXTENSIONS_GROUP, WarmPoolSpec, status: WarmPoolStatus
);

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WarmPoolSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    pub sandbox_template_ref: NameRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
}

/// An object of the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NameRef {
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UpdateStrategy {
    #[serde(default, rename = "type")]
    pub kind: UpdateStrategyType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum UpdateStrategyType {
    /// Members of an older blueprint are replaced at once.
    Recreate,
    /// Only new members follow the template.
    #[default]
    OnReplenish,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WarmPoolStatus {
    #[serde(default)]
    pub replicas: i32,
    #[serde(default)]
    pub ready_replicas: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
