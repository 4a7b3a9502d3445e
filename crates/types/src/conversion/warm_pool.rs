//! SandboxWarmPool: `spec.replicas` may be absent and `status.observedGeneration` exists at v1beta1 only.

use serde_json::{Value, json};

use super::Error;
use super::note::{self, set_field, take_field};

/// Written by other implementations, never needed.
const ALPHA: &str = "api.agents.x-k8s.io/v1alpha1-sandboxwarmpool-state";
/// On v1alpha1: `status.observedGeneration`.
const BETA: &str = "api.agents.x-k8s.io/v1beta1-sandboxwarmpool-state";

pub(super) fn to_beta(object: &mut Value) -> Result<(), Error> {
    let note = note::take_checked(object, BETA)?;
    note::take(object, ALPHA);
    let observed = &note["status"]["observedGeneration"];
    if observed.is_u64() {
        set_field(object, "status", "observedGeneration", observed.clone());
    } else if !observed.is_null() {
        return Err(note::wrong(BETA, "an object whose status.observedGeneration is a number"));
    }
    Ok(())
}

pub(super) fn to_alpha(object: &mut Value) {
    note::take(object, ALPHA);
    note::take(object, BETA);
    if let Some(observed) = take_field(object, "status", "observedGeneration") {
        note::put(object, BETA, json!({"status": {"observedGeneration": observed}}).to_string());
    }
    if object["spec"].is_object() && object["spec"]["replicas"].is_null() {
        set_field(object, "spec", "replicas", 1.into());
    }
}
