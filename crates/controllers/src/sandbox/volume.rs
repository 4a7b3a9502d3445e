//! The PersistentVolumeClaims of a Sandbox: made once, kept through suspend and expiry.

use std::sync::Arc;

use asb_types::{Sandbox, VolumeClaimTemplate, key, name};
use serde_json::{Map, Value, json};

use super::child::{self, Adoption};
use super::plan::{Action, Plan, Problem, ProblemKind, Seen, Step};
use crate::object::VolumeClaim;

/// Adds what is missing. The first problem stops the templates after it.
///
/// A claim that is gone while the Pod runs with its volume is not made again: the new one would be empty, and not what
/// the Pod has mounted. It is made when the Pod is.
pub fn plan(sandbox: &Sandbox, seen: &Seen, plan: &mut Plan) {
    let runs = runs_with_volumes(sandbox, seen);
    for (at, template) in sandbox.spec.volume_claims().iter().enumerate() {
        let found = seen.volume_claims.get(at).and_then(Option::as_deref);
        if found.is_none() && runs {
            continue;
        }
        match step(sandbox, template, found) {
            Ok(action) => plan.actions.extend(action),
            Err(message) => {
                plan.problems.push(Problem { step: Step::VolumeClaims, kind: ProblemKind::Failed, message });
                return;
            }
        }
    }
}

/// Why a Pod that runs has lost a volume, if it has.
pub fn lost(sandbox: &Sandbox, seen: &Seen) -> Option<String> {
    if !runs_with_volumes(sandbox, seen) {
        return None;
    }
    let missing = |(name, claim): (String, &Option<Arc<VolumeClaim>>)| match claim {
        None => Some(format!(
            "PersistentVolumeClaim {name:?} is gone; suspend and resume the sandbox to give it a new, empty volume"
        )),
        Some(claim) => has_lost(&name, claim),
    };
    let mounted = |(name, claim): &(String, Option<Arc<VolumeClaim>>)| match claim {
        None => Some(format!(
            "PersistentVolumeClaim {name:?} is gone; create it again, then suspend and resume the sandbox"
        )),
        Some(claim) => has_lost(name, claim),
    };
    let own = names(sandbox).zip(&seen.volume_claims).find_map(missing);
    own.or_else(|| seen.mounted_claims.iter().find_map(mounted))
}

fn has_lost(name: &str, claim: &VolumeClaim) -> Option<String> {
    let lost = claim.status.phase == "Lost";
    lost.then(|| format!("PersistentVolumeClaim {name:?} has lost its PersistentVolume"))
}

/// The names of the claims that the Pod mounts and that the Sandbox does not make.
pub fn mounted(sandbox: &Sandbox) -> impl Iterator<Item = &str> {
    let templates = sandbox.spec.volume_claims();
    let volumes = sandbox.spec.pod_template.spec.get("volumes").and_then(Value::as_array);
    // A volume with the name of a template gives way to the claim of that template.
    let gives_way =
        |volume: &&Value| templates.iter().any(|template| volume["name"] == template.metadata.name.as_str());
    let volumes = volumes.into_iter().flatten().filter(move |volume| !gives_way(volume));
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}

/// Claims of this plan that replace one that an earlier Pod of the Sandbox had.
pub fn replaced<'a>(sandbox: &Sandbox, plan: &'a Plan) -> impl Iterator<Item = &'a str> {
    let had_pod = had_pod(sandbox);
    plan.actions.iter().filter_map(move |action| match action {
        Action::CreateVolumeClaim(claim) if had_pod => claim["metadata"]["name"].as_str(),
        _ => None,
    })
}

/// Whether the Sandbox has a Pod that runs, and whose claims were made before it. A Pod that was adopted brings no claims.
fn runs_with_volumes(sandbox: &Sandbox, seen: &Seen) -> bool {
    let running = matches!(seen.owned_pods.as_slice(), [pod] if pod.status.phase == "Running");
    running && had_pod(sandbox)
}

/// The status keeps its selector from the first Pod on.
fn had_pod(sandbox: &Sandbox) -> bool {
    sandbox.status.as_ref().is_some_and(|status| status.selector.is_some())
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
