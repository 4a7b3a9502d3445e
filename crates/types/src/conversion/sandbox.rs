//! Sandbox: `replicas` 0 or 1 at v1alpha1, `operatingMode` at v1beta1.

use serde_json::{Value, json};

use super::Error;
use super::note::{self, set_field, take_field};

/// On v1beta1: `spec.replicas`, and `status` when its `replicas` is not what the mode implies.
const ALPHA: &str = "api.agents.x-k8s.io/v1alpha1-sandbox-state";
/// On v1alpha1: `status.nodeName`.
const BETA: &str = "api.agents.x-k8s.io/v1beta1-sandbox-state";

pub(super) fn to_beta(object: &mut Value) -> Result<(), Error> {
    let note = note::take_checked(object, BETA)?;
    note::take(object, ALPHA);
    let replicas = take_field(object, "spec", "replicas");
    let shown = take_field(object, "status", "replicas");
    let suspended = replicas == Some(json!(0));
    let mut state = json!({"spec": {}});
    if let Some(replicas) = replicas {
        state["spec"]["replicas"] = replicas;
    }
    if let Some(shown) = shown.filter(|shown| *shown != implied(suspended)) {
        // The rest of the status is the witness that nobody has looked at the Sandbox since.
        let mut status = object.get("status").cloned().unwrap_or_else(|| json!({}));
        if status.is_object() && status.to_string().len() <= note::LIMIT {
            status["replicas"] = shown;
            state["status"] = status;
        }
    }
    set_field(object, "spec", "operatingMode", if suspended { "Suspended" } else { "Running" }.into());
    match &note["status"]["nodeName"] {
        Value::Null => {}
        Value::String(node) => set_field(object, "status", "nodeName", node.as_str().into()),
        _ => return Err(note::wrong(BETA, "an object whose status.nodeName is a string")),
    }
    note::put(object, ALPHA, state.to_string());
    Ok(())
}

pub(super) fn to_alpha(object: &mut Value) {
    let state = note::take_any(object, ALPHA).unwrap_or(Value::Null);
    note::take(object, BETA);
    let suspended = take_field(object, "spec", "operatingMode") == Some("Suspended".into());
    if let Some(node) = take_field(object, "status", "nodeName") {
        note::put(object, BETA, json!({"status": {"nodeName": node}}).to_string());
    }
    let shown = remembered(&state["status"], object.get("status")).unwrap_or_else(|| implied(suspended));
    set_field(object, "status", "replicas", shown);
    if let Some(replicas) = replicas(&state["spec"], suspended) {
        set_field(object, "spec", "replicas", replicas);
    }
}

/// `spec.replicas` for a mode: what it was, as far as that fits the mode, also when it was not there.
fn replicas(original: &Value, suspended: bool) -> Option<Value> {
    let was = original.get("replicas").unwrap_or(&Value::Null);
    match was.as_i64() {
        _ if suspended => Some(0.into()),
        Some(count) if count > 0 => Some(count.into()),
        None if original.is_object() && was.is_null() => None,
        _ => Some(1.into()),
    }
}

/// `status.replicas` as it was, if the rest of the status is still what it was then.
fn remembered(original: &Value, now: Option<&Value>) -> Option<Value> {
    let mut original = original.as_object()?.clone();
    let replicas = original.remove("replicas").filter(Value::is_u64)?;
    let same = match now.and_then(Value::as_object) {
        Some(now) => *now == original,
        None => original.is_empty(),
    };
    same.then_some(replicas)
}

/// `status.replicas` as far as the mode tells.
fn implied(suspended: bool) -> Value {
    if suspended { 0.into() } else { 1.into() }
}
