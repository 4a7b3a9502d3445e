//! SandboxTemplate: `volumeClaimTemplatesPolicy` exists at v1beta1 only.

use serde_json::Value;

use super::Error;
use super::note::{self, set_field, take_field};

/// Written by other implementations, never needed.
const ALPHA: &str = "api.agents.x-k8s.io/v1alpha1-sandboxtemplate-state";
const POLICY: &str = "api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy";
const FIELD: &str = "volumeClaimTemplatesPolicy";

pub(super) fn to_beta(object: &mut Value) -> Result<(), Error> {
    note::take(object, ALPHA);
    let Some(policy) = note::take(object, POLICY) else { return Ok(()) };
    if !matches!(&*policy, "Disallowed" | "Allowed" | "Overrides") {
        return Err(note::wrong(POLICY, "Disallowed, Allowed or Overrides"));
    }
    set_field(object, "spec", FIELD, policy.into());
    Ok(())
}

pub(super) fn to_alpha(object: &mut Value) {
    note::take(object, ALPHA);
    note::take(object, POLICY);
    if let Some(Value::String(policy)) = take_field(object, "spec", FIELD)
        && !policy.is_empty()
    {
        note::put(object, POLICY, policy);
    }
}
