//! The few fields of Pods and Sandboxes that the router reads; the rest is never kept, nor even parsed.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde::Deserialize;

use super::Key;

#[derive(Debug, Clone, Deserialize)]
pub struct Pod {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: PodSpec,
    #[serde(default)]
    pub status: PodStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(default)]
    pub host_network: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    pub phase: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Sandbox {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: SandboxSpec,
    #[serde(default)]
    pub status: SandboxStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    pub operating_mode: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub struct SandboxStatus {
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
}

pub fn ready(conditions: &[Condition]) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.kind == "Ready")
}

pub fn key(metadata: &ObjectMeta) -> Key {
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// The reference to the controller of an object, if it is of this kind. Older objects name an older version of the group.
pub fn controller<'a>(metadata: &'a ObjectMeta, group: &str, kind: &str) -> Option<&'a OwnerReference> {
    let owner = metadata.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))?;
    let is_it = owner.kind == kind && owner.api_version.split('/').next() == Some(group);
    is_it.then_some(owner)
}

pub fn is_labelled_pool_member(metadata: &ObjectMeta) -> bool {
    metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(asb_types::key::WARM_POOL_SANDBOX))
}

impl kube::Resource for Pod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl kube::Resource for Sandbox {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Sandbox".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        asb_types::GROUP.into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1beta1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "sandboxes".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A Ready Pod of the Sandbox `name` with that UID, at 10.0.0.5; `patch` is merged into it.
#[cfg(test)]
pub fn test_pod(name: &str, sandbox_uid: &str, patch: serde_json::Value) -> Pod {
    let mut pod = serde_json::json!({
        "metadata": {
            "namespace": "ns", "name": name, "uid": format!("pod-of-{sandbox_uid}"),
            "labels": {asb_types::key::SANDBOX_NAME_HASH: "1a2b"},
            "ownerReferences": [{
                "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
                "name": name, "uid": sandbox_uid, "controller": true,
            }],
        },
        "status": {"podIP": "10.0.0.5", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    merge(&mut pod, patch);
    serde_json::from_value(pod).unwrap()
}

/// A Sandbox that should run; `patch` is merged into it.
#[cfg(test)]
pub fn test_sandbox(name: &str, uid: &str, patch: serde_json::Value) -> Sandbox {
    let mut sandbox = serde_json::json!({"metadata": {"namespace": "ns", "name": name, "uid": uid}});
    merge(&mut sandbox, patch);
    serde_json::from_value(sandbox).unwrap()
}

#[cfg(test)]
fn merge(into: &mut serde_json::Value, patch: serde_json::Value) {
    match (into, patch) {
        (serde_json::Value::Object(into), serde_json::Value::Object(patch)) => {
            for (name, value) in patch {
                merge(into.entry(name).or_insert(serde_json::Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}
