//! SandboxClaim: a template and perhaps a pool at v1alpha1, always a pool at v1beta1.
//!
//! A v1alpha1 claim without a pool of its own belongs to the shadow pool of its template, `shadow-pool-<template>`.

use serde_json::{Value, json};

use super::Error;
use super::note::{self, set_field, take_field};
use crate::VolumeClaimTemplate;

/// Before the name of the template whose claims name no pool.
pub const SHADOW_POOL_PREFIX: &str = "shadow-pool-";

/// On v1beta1: `spec.sandboxTemplateRef` and `spec.warmpool`.
const ALPHA: &str = "api.agents.x-k8s.io/v1alpha1-sandboxclaim-state";
/// On v1alpha1: `spec.volumeClaimTemplates`; and `spec.warmPoolRef` when the fields of v1alpha1 would not lead back to it.
const BETA: &str = "api.agents.x-k8s.io/v1beta1-sandboxclaim-state";
/// Stands for volume claim templates that do not fit into an annotation: readable, but not writable at v1alpha1.
const TOO_LARGE: &str = "too large";

/// The template of a claim that was made at v1alpha1 and named no pool, if `claim` at v1beta1 still names the shadow pool.
pub fn template_of_shadow_claim(claim: &crate::Claim) -> Option<String> {
    let template = claim.spec.warm_pool_ref.name.strip_prefix(SHADOW_POOL_PREFIX)?;
    let note: Value = serde_json::from_str(claim.metadata.annotations.as_ref()?.get(ALPHA)?).ok()?;
    (note["spec"]["sandboxTemplateRef"]["name"] == template).then(|| template.to_owned())
}

pub(super) fn to_beta(object: &mut Value) -> Result<(), Error> {
    let note = note::take_checked(object, BETA)?;
    note::take(object, ALPHA);
    let template = take_field(object, "spec", "sandboxTemplateRef").unwrap_or(Value::Null);
    let policy = take_field(object, "spec", "warmpool").unwrap_or(Value::Null);
    let shown = shown(&template, &policy);
    let pool = match note["spec"]["warmPoolRef"]["name"].as_str() {
        Some(pool) if note["shown"] == shown => pool.to_owned(),
        _ => pool(&template, &policy, object),
    };
    set_field(object, "spec", "warmPoolRef", json!({"name": pool}));
    let volumes = &note["spec"]["volumeClaimTemplates"];
    if !volumes.is_null() {
        // Nobody validates v1beta1 after a conversion: what controllers cannot read must not get in here.
        if serde_json::from_value::<Vec<VolumeClaimTemplate>>(volumes.clone()).is_err() {
            return Err(note::wrong(
                BETA,
                "an object whose spec.volumeClaimTemplates is a list of templates",
            ));
        }
        set_field(object, "spec", "volumeClaimTemplates", volumes.clone());
    }
    note::put(object, ALPHA, json!({"spec": shown}).to_string());
    Ok(())
}

pub(super) fn to_alpha(object: &mut Value) {
    let state = note::take_any(object, ALPHA).unwrap_or(Value::Null);
    note::take(object, BETA);
    let reference = take_field(object, "spec", "warmPoolRef").unwrap_or(Value::Null);
    let name = reference["name"].as_str().unwrap_or_default();
    let (template, policy) = template_and_policy(name, &state["spec"], object);
    let mut kept = serde_json::Map::new();
    if let Some(volumes) = take_field(object, "spec", "volumeClaimTemplates") {
        let fits = volumes.to_string().len() <= note::LIMIT;
        kept.insert("volumeClaimTemplates".into(), if fits { volumes } else { TOO_LARGE.into() });
    }
    let mut note = json!({});
    if pool(&template, &policy, object) != name {
        kept.insert("warmPoolRef".into(), json!({"name": name}));
        note["shown"] = shown(&template, &policy);
    }
    if !kept.is_empty() {
        note["spec"] = kept.into();
        note::put(object, BETA, note.to_string());
    }
    set_field(object, "spec", "sandboxTemplateRef", template);
    if !policy.is_null() {
        set_field(object, "spec", "warmpool", policy);
    }
}

/// The pool that a v1alpha1 claim belongs to.
fn pool(template: &Value, policy: &Value, claim: &Value) -> String {
    if let Some(pool) = specific(policy) {
        return pool.to_owned();
    }
    match bound(claim).filter(|sandbox| claim["metadata"]["name"] != *sandbox) {
        Some(sandbox) => generated_from(sandbox).to_owned(),
        None => format!("{SHADOW_POOL_PREFIX}{}", template["name"].as_str().unwrap_or_default()),
    }
}

/// `sandboxTemplateRef` and `warmpool` for the pool `name`, as they were if the pool is still the one they led to.
fn template_and_policy(name: &str, original: &Value, claim: &Value) -> (Value, Value) {
    if let Some(template) = original["sandboxTemplateRef"]["name"].as_str() {
        let reference = original["sandboxTemplateRef"].clone();
        let policy = original["warmpool"].as_str().map_or(Value::Null, Value::from);
        let expected = specific(&policy).unwrap_or(template);
        let led_here = name == expected
            || name.strip_prefix(SHADOW_POOL_PREFIX) == Some(expected)
            || bound(claim).is_some_and(|sandbox| name == sandbox || name == generated_from(sandbox));
        return (reference, if led_here { policy } else { name.into() });
    }
    match name.strip_prefix(SHADOW_POOL_PREFIX) {
        Some(template) => (json!({"name": template}), "default".into()),
        None => (json!({"name": name}), name.into()),
    }
}

/// The pool that `warmpool` names; `none` and `default` are policies instead.
fn specific(policy: &Value) -> Option<&str> {
    policy.as_str().filter(|policy| !matches!(*policy, "" | "none" | "default"))
}

fn bound(claim: &Value) -> Option<&str> {
    claim["status"]["sandbox"]["name"].as_str().filter(|name| !name.is_empty())
}

/// The prefix that a pool's Sandbox got its name from.
fn generated_from(sandbox: &str) -> &str {
    sandbox.rsplit_once('-').map_or(sandbox, |(prefix, _)| prefix)
}

fn shown(template: &Value, policy: &Value) -> Value {
    let mut shown = json!({"sandboxTemplateRef": template});
    if !policy.is_null() {
        shown["warmpool"] = policy.clone();
    }
    shown
}
