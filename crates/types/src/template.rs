//! SandboxTemplate: a blueprint that pools make Sandboxes from.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{PodFailurePolicy, PodTemplate, VolumeClaimTemplate};

crate::kind::kind!(
    /// A blueprint and the policies for those who use it.
    Template, "SandboxTemplate", "sandboxtemplates", crate::EXTENSIONS_GROUP, TemplateSpec
);

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateSpec {
    pub pod_template: PodTemplate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_failure_policy: Option<PodFailurePolicy>,
    /// Ingress and egress rules; absent means the secure default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<Map<String, Value>>,
    #[serde(default)]
    pub network_policy_management: NetworkPolicyManagement,
    #[serde(default)]
    pub env_vars_injection_policy: InjectionPolicy,
    #[serde(default)]
    pub volume_claim_templates_policy: InjectionPolicy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum NetworkPolicyManagement {
    #[default]
    Managed,
    Unmanaged,
}

/// What a claim may add to the blueprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum InjectionPolicy {
    /// Additions, but nothing that is already there.
    Allowed,
    /// Additions and replacements.
    Overrides,
    #[default]
    Disallowed,
}
