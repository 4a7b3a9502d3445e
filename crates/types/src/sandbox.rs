//! Sandbox: one isolated, stateful environment with a stable identity.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};

use crate::{PodFailurePolicy, PodTemplate, VolumeClaimTemplate, condition};

crate::kind::kind!(
    /// A sandbox: its Pod, its storage, and whether it should run.
    Sandbox, "Sandbox", "sandboxes", crate::GROUP, SandboxSpec, status: SandboxStatus
);

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    pub pod_template: PodTemplate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    /// `true`: a headless Service is made; `false`: it is removed; absent: one that exists is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_failure_policy: Option<PodFailurePolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    #[serde(default)]
    pub shutdown_policy: ShutdownPolicy,
    #[serde(default)]
    pub operating_mode: OperatingMode,
}

/// What happens to the Sandbox object when its time is up. Its Pod is deleted either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ShutdownPolicy {
    Delete,
    #[default]
    Retain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum OperatingMode {
    #[default]
    Running,
    /// No Pod; identity and storage are kept.
    Suspended,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "serviceFQDN")]
    pub service_fqdn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "podIPs")]
    pub pod_ips: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl Sandbox {
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        condition::get(&self.status.as_ref()?.conditions, kind)
    }

    pub fn is_ready(&self) -> bool {
        self.condition(condition::READY).is_some_and(|ready| ready.status == "True")
    }

    /// The value of a label that says something.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl SandboxSpec {
    /// Whether the shutdown time has been reached.
    pub fn expired(&self, now: Timestamp) -> bool {
        self.shutdown_time.as_ref().is_some_and(|at| at.0 <= now)
    }

    pub fn volume_claims(&self) -> &[VolumeClaimTemplate] {
        self.volume_claim_templates.as_deref().unwrap_or_default()
    }
}
