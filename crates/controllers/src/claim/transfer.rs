//! What changes on a Sandbox when a claim takes it, and what follows the claim and the template afterwards.
//!
//! The transfer is one patch, bound to the state in which the Sandbox was seen. It is the only record of who
//! has which Sandbox: either all of it happened, or nothing.

use std::collections::BTreeMap;

use asb_types::{Claim, Sandbox, Template, TemplateMetadata, key};
use serde_json::{Map, Value, json};

use super::metadata;
use super::problem::Problem;
use crate::object::owner_reference;
use crate::sandbox::pod;
use crate::template::plan::ref_hash;
use crate::write::Identity;

type Strings = BTreeMap<String, String>;

/// The patch that makes a member of a pool the Sandbox of a claim.
pub fn transfer(claim: &Claim, sandbox: &Sandbox, template: Option<&Template>) -> Result<Value, Problem> {
    let Identity { uid, resource_version, .. } = Identity::of(sandbox);
    let mut labels = sandbox.metadata.labels.clone().unwrap_or_default();
    for pools in [key::WARM_POOL_SANDBOX, key::TEMPLATE_HASH, key::POD_TEMPLATE_HASH] {
        labels.remove(pools);
    }
    labels.insert(key::LAUNCH_TYPE.to_owned(), "warm".to_owned());
    let mut patch = following(claim, sandbox, labels, template)?;
    let metadata = &mut patch["metadata"];
    metadata["uid"] = json!(uid);
    metadata["resourceVersion"] = json!(resource_version);
    metadata["ownerReferences"] = json!([owner_reference(claim)]);
    if let Some(trace) = claim.metadata.annotations.as_ref().and_then(|notes| notes.get(key::TRACE_CONTEXT)) {
        metadata["annotations"] = json!({key::TRACE_CONTEXT: trace});
    }
    Ok(patch)
}

/// The patch that brings the metadata of a claim's Sandbox in line, if anything differs.
pub fn follow(
    claim: &Claim,
    sandbox: &Sandbox,
    template: Option<&Template>,
) -> Result<Option<Value>, Problem> {
    let mut labels = sandbox.metadata.labels.clone().unwrap_or_default();
    if sandbox.label(key::LAUNCH_TYPE).is_none() {
        let warm = sandbox.metadata.name != claim.metadata.name;
        labels.insert(key::LAUNCH_TYPE.to_owned(), if warm { "warm" } else { "cold" }.to_owned());
    }
    let mut patch = following(claim, sandbox, labels, template)?;
    if patch == json!({}) {
        return Ok(None);
    }
    patch["metadata"]["uid"] = json!(sandbox.metadata.uid);
    Ok(Some(patch))
}

/// What both patches have in common. `labels` are those of the Sandbox so far.
fn following(
    claim: &Claim,
    sandbox: &Sandbox,
    mut labels: Strings,
    template: Option<&Template>,
) -> Result<Value, Problem> {
    let uid = claim.metadata.uid.clone().unwrap_or_default();
    labels.insert(key::CLAIM_UID.to_owned(), uid);
    set_or_remove(&mut labels, key::CREATED_BY, creator(claim));
    let found = sandbox.spec.pod_template.metadata.clone().unwrap_or_default();
    // A Sandbox follows the template that it was made from, not one that its pool has turned to since.
    let hash = template.map(ref_hash);
    let origin = template
        .filter(|_| sandbox.label(key::TEMPLATE_REF_HASH).is_none_or(|of| Some(of) == hash.as_deref()));
    let wanted = match origin {
        Some(template) => {
            labels.insert(key::TEMPLATE_REF_HASH.to_owned(), ref_hash(template));
            pod_metadata(claim, template)?
        }
        None => kept_metadata(claim, sandbox, &labels, &found)?,
    };
    let mut patch = json!({});
    let empty = Strings::new();
    if let Some(changes) = difference(sandbox.metadata.labels.as_ref().unwrap_or(&empty), &labels) {
        patch["metadata"]["labels"] = changes;
    }
    // A spec that is not touched needs no new status, and nobody has to wait for one.
    if pod::reaching(found.clone(), false) != pod::reaching(wanted.clone(), false) {
        let metadata = &mut patch["spec"]["podTemplate"]["metadata"];
        let changes = [
            ("labels", difference(&found.labels, &wanted.labels)),
            ("annotations", difference(&found.annotations, &wanted.annotations)),
        ];
        for (field, changes) in changes {
            changes.into_iter().for_each(|changes| metadata[field] = changes);
        }
    }
    Ok(patch)
}

/// Labels and annotations of the Pod template of a claim's Sandbox.
pub fn pod_metadata(claim: &Claim, template: &Template) -> Result<TemplateMetadata, Problem> {
    let mut metadata = template.spec.pod_template.metadata.clone().unwrap_or_default();
    metadata::add(claim, &mut metadata)?;
    metadata.labels.insert(key::TEMPLATE_REF_HASH.to_owned(), ref_hash(template));
    own_labels(claim, &mut metadata.labels);
    Ok(metadata)
}

/// The same when the template cannot be seen: what is there, without what only the pool wanted.
fn kept_metadata(
    claim: &Claim,
    sandbox: &Sandbox,
    labels: &Strings,
    found: &TemplateMetadata,
) -> Result<TemplateMetadata, Problem> {
    let mut metadata = found.clone();
    let from_pool = sandbox.label(key::WARM_POOL_SANDBOX).is_some();
    if from_pool {
        for pools in [key::WARM_POOL_SANDBOX, key::TEMPLATE_HASH, key::POD_TEMPLATE_HASH] {
            metadata.labels.remove(pools);
        }
        if metadata.annotations.get(key::SAFE_TO_EVICT).is_some_and(|value| value == "true") {
            metadata.annotations.remove(key::SAFE_TO_EVICT);
        }
        metadata::add(claim, &mut metadata)?;
    }
    set_or_remove(
        &mut metadata.labels,
        key::TEMPLATE_REF_HASH,
        labels.get(key::TEMPLATE_REF_HASH).map(String::as_str),
    );
    own_labels(claim, &mut metadata.labels);
    Ok(metadata)
}

fn own_labels(claim: &Claim, labels: &mut Strings) {
    labels.insert(key::CLAIM_UID.to_owned(), claim.metadata.uid.clone().unwrap_or_default());
    set_or_remove(labels, key::CREATED_BY, creator(claim));
}

/// Which client made the claim.
pub fn creator(claim: &Claim) -> Option<&str> {
    let creator = claim.metadata.labels.as_ref()?.get(key::CREATED_BY)?;
    Some(creator.as_str()).filter(|creator| !creator.is_empty())
}

fn set_or_remove(labels: &mut Strings, key: &str, value: Option<&str>) {
    match value {
        Some(value) => labels.insert(key.to_owned(), value.to_owned()),
        None => labels.remove(key),
    };
}

/// The merge patch that makes `found` what is `wanted`.
fn difference(found: &Strings, wanted: &Strings) -> Option<Value> {
    let set = wanted.iter().filter(|(key, value)| found.get(*key) != Some(value));
    let set = set.map(|(key, value)| (key.clone(), json!(value)));
    let unset = found.keys().filter(|key| !wanted.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changes: Map<_, _> = set.chain(unset).collect();
    (!changes.is_empty()).then_some(Value::Object(changes))
}
