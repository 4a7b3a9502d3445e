//! What an API server knows about Pods: defaults, checks beyond the schema, and which fields may change.

mod container;
mod defaults;
mod env;
pub(crate) mod ephemeral;
mod placement;
mod probe;
mod resources;
mod security;
#[cfg(test)]
mod tests;
mod volume;

use asb_types::Quantity;
pub(crate) use asb_types::key::MIRROR;
use serde_json::{Value, json};

use super::field::{Errors, Field};
use crate::status::FieldError;
pub(super) use defaults::set_defaults;
pub(super) use resources::check_quantity;

const CONTAINER_LISTS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Whether the containers of a Pod in this phase have ended for good.
pub(crate) fn is_over(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// A new Pod is Pending, whatever its maker says.
pub(super) fn reset_status(pod: &mut Value) {
    pod["status"] = json!({ "phase": "Pending", "qosClass": qos_class(&pod["spec"]) });
}

fn qos_class(spec: &Value) -> &'static str {
    let containers: Vec<&Value> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| spec[*list].as_array().into_iter().flatten())
        .collect();
    let has = |kind: &str, resource: &str, c: &Value| !c["resources"][kind][resource].is_null();
    let any = |c: &&Value| {
        ["limits", "requests"]
            .iter()
            .any(|kind| ["cpu", "memory"].iter().any(|resource| has(kind, resource, c)))
    };
    let amount = |kind: &str, resource: &str, c: &Value| Quantity::of(&c["resources"][kind][resource]);
    let guaranteed = |c: &&Value| {
        ["cpu", "memory"].iter().all(|resource| {
            has("limits", resource, c) && amount("limits", resource, c) == amount("requests", resource, c)
        })
    };
    if !containers.iter().any(any) {
        "BestEffort"
    } else if containers.iter().all(guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

pub(super) fn validate(pod: &Value, errors: &mut Errors) {
    let root = Field::root(pod);
    let spec = root.get("spec");
    volume::check(&spec, errors);
    container::check(&spec, errors);
    placement::check(&spec, errors);
    security::pod(&spec, errors);
    let overhead = json!({ "limits": pod["spec"]["overhead"] });
    resources::check(&spec.get("overhead").with(&overhead), errors);
}

/// What only a new Pod may not have.
pub(super) fn validate_create(pod: &Value, errors: &mut Errors) {
    let root = Field::root(pod);
    let spec = root.get("spec");
    let ephemeral = spec.get("ephemeralContainers");
    if ephemeral.items().next().is_some() {
        ephemeral.forbidden("cannot be set on create", errors);
    }
    let node = spec.get("nodeName");
    if !node.text().is_empty() && spec.get("schedulingGates").items().next().is_some() {
        node.forbidden("cannot be set until all schedulingGates have been cleared", errors);
    }
}

/// The spec of a Pod is fixed, except for images, a shorter deadline, more tolerations and fewer scheduling gates. A Pod gets its
/// node by `pods/binding`, never by an update. Whether it is a mirror is fixed as well: its node must know from the start whether
/// there is anything to run.
pub(super) fn validate_update(pod: &Value, old: &Value, errors: &mut Errors) {
    if pod["metadata"]["annotations"][MIRROR] != old["metadata"]["annotations"][MIRROR] {
        let field = format!("metadata.annotations[{MIRROR}]");
        errors.push(FieldError::forbidden(field, "may not add, remove or update mirror pod annotation"));
    }
    if pod["spec"] == old["spec"] {
        return;
    }
    // The object may have been stored by a version that knew fewer defaults.
    let mut old = old.clone();
    set_defaults(&mut old);
    let mut munged = pod["spec"].clone();
    for list in ["containers", "initContainers"] {
        let olds = old["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(news) = munged.get_mut(list).and_then(Value::as_array_mut) else { continue };
        for (new, old) in news.iter_mut().zip(olds) {
            restore(new, old, "image");
        }
    }
    if keeps_tolerations(&munged, &old["spec"]) {
        restore(&mut munged, &old["spec"], "tolerations");
    }
    check_deadline(&Field::root(pod).get("spec").get("activeDeadlineSeconds"), &old["spec"], errors);
    restore(&mut munged, &old["spec"], "activeDeadlineSeconds");
    let gates = |spec: &Value| spec["schedulingGates"].as_array().cloned().unwrap_or_default();
    let olds = gates(&old["spec"]);
    if let Some(new) = gates(&munged).iter().find(|gate| !olds.contains(gate)) {
        let name = new["name"].as_str().unwrap_or_default();
        let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
        Field::root(pod).get("spec").get("schedulingGates").forbidden(&why, errors);
    }
    restore(&mut munged, &old["spec"], "schedulingGates");
    if !olds.is_empty() {
        narrow(&mut munged, &old["spec"]);
    }
    if munged != old["spec"] {
        errors.push(FieldError::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ));
    }
}

/// Whether every toleration is still there; how long it holds may change.
fn keeps_tolerations(spec: &Value, old: &Value) -> bool {
    let all = |spec: &Value| {
        let mut list = spec["tolerations"].as_array().cloned().unwrap_or_default();
        list.iter_mut().filter_map(Value::as_object_mut).for_each(|it| drop(it.remove("tolerationSeconds")));
        list
    };
    let new = all(spec);
    all(old).iter().all(|toleration| new.contains(toleration))
}

/// A deadline may be set and come nearer, but neither move away nor go.
fn check_deadline(deadline: &Field<'_, '_>, old: &Value, errors: &mut Errors) {
    let Some(before) = old["activeDeadlineSeconds"].as_i64() else { return };
    match deadline.value.as_i64() {
        None => deadline.invalid("must not update from a positive integer to nil value", errors),
        Some(now) if now > before => deadline.invalid("must be less than or equal to previous value", errors),
        Some(_) => {}
    }
}

/// The node of a Pod that waits at a gate may still be narrowed down.
fn narrow(spec: &mut Value, old: &Value) {
    let labels = |spec: &Value| spec["nodeSelector"].as_object().cloned().unwrap_or_default();
    let new = labels(spec);
    if labels(old).iter().all(|(key, value)| new.get(key) == Some(value)) {
        restore(spec, old, "nodeSelector");
    }
    if old["affinity"]["nodeAffinity"].is_null()
        && let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut)
    {
        affinity.remove("nodeAffinity");
        if affinity.is_empty() && old["affinity"].is_null() {
            restore(spec, old, "affinity");
        }
    }
}

fn restore(spec: &mut Value, old: &Value, field: &str) {
    let Some(map) = spec.as_object_mut() else { return };
    match old.get(field) {
        Some(value) => map.insert(field.to_owned(), value.clone()),
        None => map.remove(field),
    };
}
