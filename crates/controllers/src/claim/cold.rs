//! The Sandbox that is made for a claim which no pool can serve.

use asb_types::{Claim, Template, key};
use serde_json::{Value, json};

use super::problem::Problem;
use super::transfer::{creator, pod_metadata};
use super::{env, volumes};
use crate::object::owner_reference;
use crate::template::plan::ref_hash;
use crate::template::pod_defaults::secured;

/// The Sandbox, named like its claim.
pub fn sandbox(claim: &Claim, template: &Template) -> Result<Value, Problem> {
    let spec = &template.spec;
    let mut pod = secured(spec);
    env::inject(&mut pod, &claim.spec.env, spec.env_vars_injection_policy)?;
    let volumes = volumes::combined(
        spec.volume_claim_templates.as_deref().unwrap_or_default(),
        claim.spec.volume_claim_templates.as_deref().unwrap_or_default(),
        spec.volume_claim_templates_policy,
    )?;
    let metadata = pod_metadata(claim, template)?;
    let mut wanted = json!({"podTemplate": {"metadata": metadata, "spec": pod}});
    if !volumes.is_empty() {
        wanted["volumeClaimTemplates"] = json!(volumes);
    }
    if let Some(service) = spec.service {
        wanted["service"] = json!(service);
    }
    if let Some(policy) = spec.pod_failure_policy {
        wanted["podFailurePolicy"] = json!(policy);
    }
    let mut labels = json!({
        key::CLAIM_UID: claim.metadata.uid,
        key::LAUNCH_TYPE: "cold",
        key::TEMPLATE_REF_HASH: ref_hash(template),
    });
    if let Some(creator) = creator(claim) {
        labels[key::CREATED_BY] = json!(creator);
    }
    let mut annotations = json!({key::TEMPLATE_REF: template.metadata.name});
    if let Some(trace) = claim.metadata.annotations.as_ref().and_then(|notes| notes.get(key::TRACE_CONTEXT)) {
        annotations[key::TRACE_CONTEXT] = json!(trace);
    }
    Ok(json!({
        "apiVersion": format!("{}/{}", asb_types::GROUP, asb_types::VERSION),
        "kind": "Sandbox",
        "metadata": {
            "name": claim.metadata.name,
            "namespace": claim.metadata.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(claim)],
        },
        "spec": wanted,
    }))
}
