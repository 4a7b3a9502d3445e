//! Builders that read as English.

use std::sync::Arc;

use asb_types::{Claim, Sandbox, Template, WarmPool, key};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::claim::plan::Seen;
use crate::object::owner_reference;
use crate::warm_pool::blueprint::Blueprint;

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub fn edit<T: Serialize + DeserializeOwned>(object: &T, patch: Value) -> T {
    let mut object = json!(object);
    json_patch::merge(&mut object, &patch);
    serde_json::from_value(object).unwrap()
}

/// A claim on `pool`, edited by `patch`, a merge patch of the whole object.
pub fn claim(name: &str, patch: Value) -> Claim {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-of-{name}"), "generation": 3,
            "resourceVersion": "1", "creationTimestamp": at(100).to_string()},
        "spec": {"warmPoolRef": {"name": "pool"}},
    });
    json_patch::merge(&mut object, &patch);
    serde_json::from_value(object).unwrap()
}

pub fn pool(spec: Value) -> WarmPool {
    let mut object = json!({
        "metadata": {"name": "pool", "namespace": "ns", "uid": "pool-uid"},
        "spec": {"sandboxTemplateRef": {"name": "web"}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    serde_json::from_value(object).unwrap()
}

/// The template `web`, edited by `spec`, a merge patch of its spec.
pub fn template(spec: Value) -> Template {
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "template-uid"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "v1"}]}}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    serde_json::from_value(object).unwrap()
}

/// A member of the pool, made at that second, without status.
pub fn member(name: &str, born: i64) -> Sandbox {
    member_of(&template(json!({})), name, born)
}

pub fn member_of(template: &Template, name: &str, born: i64) -> Sandbox {
    let mut object = Blueprint::of(template).sandbox(&pool(json!({})), true);
    object["metadata"]["name"] = json!(name);
    object["metadata"]["uid"] = json!(format!("uid-of-{name}"));
    object["metadata"]["resourceVersion"] = json!("1");
    object["metadata"]["creationTimestamp"] = json!(at(born).to_string());
    serde_json::from_value(object).unwrap()
}

/// A Sandbox that says this about being Ready, and has an address.
pub fn saying(sandbox: Sandbox, status: &str, reason: &str) -> Sandbox {
    let ready = json!({"type": "Ready", "status": status, "reason": reason, "message": "m",
        "lastTransitionTime": at(50).to_string()});
    edit(&sandbox, json!({"status": {"podIPs": ["10.0.0.1"], "conditions": [ready]}}))
}

pub fn ready(sandbox: Sandbox) -> Sandbox {
    saying(sandbox, "True", "DependenciesReady")
}

/// Runs, but is not Ready.
pub fn running(sandbox: Sandbox) -> Sandbox {
    saying(sandbox, "False", "DependenciesNotReady")
}

pub fn leaving(sandbox: Sandbox) -> Sandbox {
    edit(&sandbox, json!({"metadata": {"deletionTimestamp": at(1).to_string()}}))
}

/// Controlled by this claim, with the labels that a claim's Sandbox has.
pub fn taken_by(sandbox: Sandbox, claim: &Claim) -> Sandbox {
    let patch = crate::claim::transfer::transfer(claim, &sandbox, Some(&template(json!({})))).unwrap();
    edit(&sandbox, patch)
}

/// Controlled by something of that group and kind.
pub fn owned_by(sandbox: Sandbox, api_version: &str, kind: &str, name: &str) -> Sandbox {
    let owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": format!("uid-of-{name}"),
        "controller": true});
    edit(&sandbox, json!({"metadata": {"ownerReferences": [owner]}}))
}

/// A world with pool and template, in which the claim sees these Sandboxes.
pub fn seen(claim: &Claim, sandboxes: &[Sandbox]) -> Seen {
    let named = |name: Option<&str>| {
        let found =
            sandboxes.iter().find(|sandbox| name.is_some() && sandbox.metadata.name.as_deref() == name);
        found.cloned().map(Arc::new)
    };
    let uid = owner_reference(claim).uid;
    let owned =
        |sandbox: &&Sandbox| crate::object::controller_of(*sandbox).is_some_and(|owner| owner.uid == uid);
    Seen {
        owned: sandboxes.iter().filter(owned).cloned().map(Arc::new).collect(),
        recorded: named(crate::claim::plan::record(claim)),
        named: named(claim.metadata.name.as_deref()),
        pool: Some(Arc::new(pool(json!({})))),
        template: Some(Arc::new(template(json!({})))),
        refusal: None,
    }
}

/// What a claim with this in its `spec.additionalPodMetadata` looks like.
pub fn adding(labels: Value, annotations: Value) -> Claim {
    claim("c", json!({"spec": {"additionalPodMetadata": {"labels": labels, "annotations": annotations}}}))
}

pub fn recorded(name: &str) -> Value {
    json!({"metadata": {"annotations": {key::SANDBOX_NAME: name}}})
}

pub fn domains() -> Vec<String> {
    vec!["sandbox.users.io".to_owned()]
}
