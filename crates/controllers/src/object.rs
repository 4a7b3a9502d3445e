//! Lean views of the built-in kinds: only what controllers read.
//!
//! A typed Pod costs ten times the memory of this one, and a fleet has many.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde::{Deserialize, Serialize};

/// Names a namespaced object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub fn of(object: &impl Resource) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Pod {
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "or_default")]
    pub spec: PodSpec,
    #[serde(default, deserialize_with = "or_default")]
    pub status: PodStatus,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(default, deserialize_with = "or_default")]
    pub node_name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    #[serde(default, deserialize_with = "or_default")]
    pub phase: String,
    #[serde(default, deserialize_with = "or_default")]
    pub conditions: Vec<PodCondition>,
    #[serde(default, deserialize_with = "or_default", rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, deserialize_with = "unwell", skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<ContainerStatus>,
    #[serde(default, deserialize_with = "unwell", skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// A container that failed, or that waits for something unusual; no other is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    pub name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub state: ContainerState,
    #[serde(default, deserialize_with = "or_default")]
    pub last_state: ContainerState,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ContainerState {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<Terminated>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Waiting {
    #[serde(default, deserialize_with = "or_default")]
    pub reason: String,
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terminated {
    pub exit_code: i32,
    #[serde(default, deserialize_with = "or_default")]
    pub reason: String,
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
}

impl ContainerState {
    /// Whether this is what every container goes through that starts or ends well.
    fn is_usual(&self) -> bool {
        let waits = self.waiting.as_ref();
        waits.is_none_or(|it| matches!(&*it.reason, "" | "ContainerCreating" | "PodInitializing"))
            && self.terminated.as_ref().is_none_or(|end| end.exit_code == 0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(default, deserialize_with = "or_default")]
    pub reason: String,
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PodIp {
    #[serde(default, deserialize_with = "or_default")]
    pub ip: String,
}

impl Pod {
    pub fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    pub fn ips(&self) -> Vec<String> {
        self.status.pod_ips.iter().map(|ip| ip.ip.clone()).filter(|ip| !ip.is_empty()).collect()
    }

    pub fn terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Service {
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "or_default")]
    pub spec: ServiceSpec,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(default, deserialize_with = "or_default", rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(default, deserialize_with = "or_default")]
    pub selector: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default")]
    pub ports: Vec<ServicePort>,
}

/// The four fields of a Service port that a Sandbox decides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub protocol: String,
    pub port: u16,
    #[serde(default, deserialize_with = "or_default")]
    pub target_port: serde_json::Value,
}

/// A PersistentVolumeClaim: whose it is, and whether its volume is there.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VolumeClaim {
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "or_default")]
    pub status: VolumeClaimStatus,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VolumeClaimStatus {
    /// `Pending`, `Bound`, or `Lost`: the PersistentVolume is gone.
    #[serde(default, deserialize_with = "or_default")]
    pub phase: String,
}

/// Which traffic Pods may have. Its spec is compared as a whole, so it is kept as it came.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NetworkPolicy {
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "or_default")]
    pub spec: serde_json::Map<String, serde_json::Value>,
}

macro_rules! kind {
    ($object:ident, $group:literal, $kind:literal, $plural:literal) => {
        impl Resource for $object {
            type DynamicType = ();
            type Scope = kube::core::NamespaceResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }
            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> std::borrow::Cow<'_, str> {
                "v1".into()
            }
            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

kind!(Pod, "", "Pod", "pods");
kind!(Service, "", "Service", "services");
kind!(VolumeClaim, "", "PersistentVolumeClaim", "persistentvolumeclaims");
kind!(NetworkPolicy, "networking.k8s.io", "NetworkPolicy", "networkpolicies");

/// Reads `null` as absent: some writers say one, some the other.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Keeps the containers that are not well: a fleet has many Pods, and most of them are.
fn unwell<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<ContainerStatus>, D::Error> {
    let mut all: Vec<ContainerStatus> = or_default(deserializer)?;
    all.retain(|container| !container.state.is_usual());
    all.shrink_to_fit();
    Ok(all)
}

/// Whose an object is, as seen by one possible owner.
#[derive(Debug, Clone, PartialEq)]
pub enum Ownership {
    /// Controlled by that owner.
    Owned,
    /// Controlled by nobody.
    Unowned,
    /// Controlled by somebody else.
    Foreign(OwnerReference),
}

/// Only the UID decides: names come back, and stored references may name an older API version.
pub fn ownership(object: &impl Resource, owner_uid: &str) -> Ownership {
    match controller_of(object) {
        None => Ownership::Unowned,
        Some(owner) if owner.uid == owner_uid => Ownership::Owned,
        Some(owner) => Ownership::Foreign(owner.clone()),
    }
}

/// The reference that makes `owner` the controller of an object.
pub fn owner_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The owner reference that has `controller: true`.
pub fn controller_of(object: &impl Resource) -> Option<&OwnerReference> {
    object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether an owner reference names a kind, in any version of its group.
pub fn is_kind(owner: &OwnerReference, group: &str, kind: &str) -> bool {
    owner.kind == kind && owner.api_version.split_once('/').is_some_and(|(found, _)| found == group)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MG-05
    #[test]
    fn pod_is_kept_without_what_nobody_here_reads() {
        let full = serde_json::json!({
            "metadata": {"name": "p", "labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {"nodeName": "n", "containers": [{"name": "main"}], "initContainers": [], "volumes": [], "tolerations": []},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "hostIP": "10.9.9.9"},
        });
        let kept = serde_json::json!(serde_json::from_value::<Pod>(full.clone()).unwrap());
        assert_eq!(kept["metadata"], full["metadata"]);
        assert_eq!(kept["spec"], serde_json::json!({"nodeName": "n"}));
        assert_eq!(
            (&kept["status"]["phase"], &kept["status"]["podIPs"]),
            (&full["status"]["phase"], &full["status"]["podIPs"])
        );
    }

    /// SB-060, SB-064
    #[test]
    fn only_the_uid_makes_an_owner() {
        let owner = |uid: &str, controller| OwnerReference {
            uid: uid.to_owned(),
            controller: Some(controller),
            ..Default::default()
        };
        let pod = |owners: Vec<OwnerReference>| Pod {
            metadata: ObjectMeta { owner_references: Some(owners), ..Default::default() },
            ..Default::default()
        };
        assert_eq!(ownership(&pod(vec![]), "u"), Ownership::Unowned);
        assert_eq!(ownership(&pod(vec![owner("u", false)]), "u"), Ownership::Unowned);
        assert_eq!(ownership(&pod(vec![owner("x", false), owner("u", true)]), "u"), Ownership::Owned);
        assert_eq!(ownership(&pod(vec![owner("old", true)]), "u"), Ownership::Foreign(owner("old", true)));
    }
}
