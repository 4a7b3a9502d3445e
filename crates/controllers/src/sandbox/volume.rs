//! The PersistentVolumeClaims of a Sandbox: made once, kept through suspend and expiry.

use asb_types::{Sandbox, VolumeClaimTemplate, key, name};
use serde_json::{Map, Value, json};

use super::child::{self, Adoption};
use super::plan::{Action, Plan, Problem, ProblemKind, Step};
use crate::object::VolumeClaim;

/// Adds what is missing. The first problem stops the templates after it.
pub fn plan(sandbox: &Sandbox, seen: &[Option<std::sync::Arc<VolumeClaim>>], plan: &mut Plan) {
    for (at, template) in sandbox.spec.volume_claims().iter().enumerate() {
        let found = seen.get(at).and_then(Option::as_deref);
        match step(sandbox, template, found) {
            Ok(action) => plan.actions.extend(action),
            Err(message) => {
                plan.problems.push(Problem { step: Step::VolumeClaims, kind: ProblemKind::Failed, message });
                return;
            }
        }
    }
}

/// The names of the claims of a Sandbox, in the order of its templates.
pub fn names(sandbox: &Sandbox) -> impl Iterator<Item = String> {
    let owner = sandbox.metadata.name.as_deref().unwrap_or_default();
    sandbox
        .spec
        .volume_claims()
        .iter()
        .map(move |template| name::volume_claim(&template.metadata.name, owner))
}

/// Adds the claims as volumes of the Pod; a volume of the same name gives way.
pub fn mount(sandbox: &Sandbox, pod_spec: &mut Map<String, Value>) {
    let templates = sandbox.spec.volume_claims();
    if templates.is_empty() {
        return;
    }
    let mut volumes = match pod_spec.remove("volumes") {
        Some(Value::Array(volumes)) => volumes,
        _ => Vec::new(),
    };
    volumes
        .retain(|volume| templates.iter().all(|template| volume["name"] != template.metadata.name.as_str()));
    for (template, claim) in templates.iter().zip(names(sandbox)) {
        volumes.push(json!({"name": template.metadata.name, "persistentVolumeClaim": {"claimName": claim}}));
    }
    pod_spec.insert("volumes".to_owned(), Value::Array(volumes));
}

fn step(
    sandbox: &Sandbox,
    template: &VolumeClaimTemplate,
    found: Option<&VolumeClaim>,
) -> Result<Option<Action>, String> {
    let owner = sandbox.metadata.name.as_deref().unwrap_or_default();
    let claim = name::volume_claim(&template.metadata.name, owner);
    let Some(found) = found else {
        return Ok(Some(Action::CreateVolumeClaim(desired(sandbox, template, &claim))));
    };
    Ok(match child::adoption(sandbox, found)? {
        Adoption::Owned => None,
        Adoption::Adopt(owners) => {
            let labels = json!({key::SANDBOX_NAME_HASH: child::hash(sandbox)});
            let patch = json!({"metadata": {"ownerReferences": owners, "labels": labels}});
            Some(Action::PatchVolumeClaim { name: claim, patch })
        }
    })
}

fn desired(sandbox: &Sandbox, template: &VolumeClaimTemplate, claim: &str) -> Value {
    let mut metadata = child::metadata(sandbox, claim);
    for (label, value) in &template.metadata.labels {
        if label != key::SANDBOX_NAME_HASH {
            metadata["labels"][label] = json!(value);
        }
    }
    if !template.metadata.annotations.is_empty() {
        metadata["annotations"] = json!(template.metadata.annotations);
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template.spec})
}
