//! What a member of a pool is made from: its hash, the Sandbox made from it, and when a member is stale.

use asb_types::{Sandbox, Template, VolumeClaimTemplate, WarmPool, key, name};
use serde_json::{Map, Value, json};

use crate::object::{controller_of, owner_reference};
use crate::template::plan::ref_hash;
use crate::template::pod_defaults::secured;

/// A template as pools see it, with everything computed that members are compared with.
#[derive(Debug, Clone)]
pub struct Blueprint<'a> {
    template: &'a Template,
    pod_spec: Map<String, Value>,
    ref_hash: String,
    hash: String,
}

impl<'a> Blueprint<'a> {
    pub fn of(template: &'a Template) -> Self {
        let pod_spec = secured(&template.spec);
        Self { template, ref_hash: ref_hash(template), hash: hash(template, &pod_spec), pod_spec }
    }

    /// The value of the label that tells members of this blueprint from older ones.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The Sandbox that a pool creates; the API server completes its name.
    pub fn sandbox(&self, pool: &WarmPool, safe_to_evict: bool) -> Value {
        let spec = &self.template.spec;
        let pool_name = pool.metadata.name.as_deref().unwrap_or_default();
        let origin = json!({
            key::WARM_POOL_SANDBOX: name::name_hash(pool_name),
            key::TEMPLATE_REF_HASH: self.ref_hash,
            key::TEMPLATE_HASH: self.hash,
            key::POD_TEMPLATE_HASH: name::name_hash(&json!(spec.pod_template).to_string()),
        });
        let mut labels = json!({key::LAUNCH_TYPE: "warm", key::CREATED_BY: "controller"});
        extend(&mut labels, &origin);

        let mut pod_template = json!(spec.pod_template);
        pod_template["spec"] = json!(self.pod_spec);
        extend(&mut pod_template["metadata"]["labels"], &origin);
        if safe_to_evict {
            let notes = &mut pod_template["metadata"]["annotations"];
            if notes.get(key::SAFE_TO_EVICT).is_none() {
                notes[key::SAFE_TO_EVICT] = json!("true");
            }
        }
        let mut wanted = json!({"podTemplate": pod_template});
        if let Some(claims) = &spec.volume_claim_templates {
            wanted["volumeClaimTemplates"] = json!(claims);
        }
        if let Some(service) = spec.service {
            wanted["service"] = json!(service);
        }
        if let Some(policy) = spec.pod_failure_policy {
            wanted["podFailurePolicy"] = json!(policy);
        }
        json!({
            "apiVersion": format!("{}/{}", asb_types::GROUP, asb_types::VERSION),
            "kind": "Sandbox",
            "metadata": {
                "generateName": format!("{pool_name}-"),
                "namespace": pool.metadata.namespace,
                "labels": labels,
                "annotations": {key::TEMPLATE_REF: self.template.metadata.name},
                "ownerReferences": [owner_reference(pool)],
            },
            "spec": wanted,
        })
    }

    /// Whether a member was made from something else.
    ///
    /// A hash label proves only what our own creations say: anybody can write one on a Sandbox that nobody owns.
    pub fn is_stale(&self, member: &Sandbox) -> bool {
        let label = |key: &str| member.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        if label(key::TEMPLATE_REF_HASH) != Some(&self.ref_hash) {
            return true;
        }
        let proven = controller_of(member).is_some() && label(key::TEMPLATE_HASH) == Some(&self.hash);
        !proven && !self.matches(member)
    }

    /// Whether a member is what the template would make today. Pod and claim metadata do not count.
    pub fn matches(&self, member: &Sandbox) -> bool {
        // Every field is named, so that a new one cannot be forgotten here.
        let asb_types::TemplateSpec {
            pod_template: _, // as `pod_spec`
            volume_claim_templates,
            service,
            pod_failure_policy,
            network_policy: _,
            network_policy_management: _,
            env_vars_injection_policy: _,
            volume_claim_templates_policy: _,
        } = &self.template.spec;
        let claims = volume_claim_templates.as_deref().unwrap_or_default();
        canonical(&json!(*member.spec.pod_template.spec)) == canonical(&json!(self.pod_spec))
            && same_claims(member.spec.volume_claims(), claims)
            && member.spec.service == *service
            && member.spec.pod_failure_policy.unwrap_or_default() == pod_failure_policy.unwrap_or_default()
    }
}

/// A hash of everything that members are made from.
fn hash(template: &Template, pod_spec: &Map<String, Value>) -> String {
    let spec = &template.spec;
    let blueprint = json!({
        "podTemplate": {"metadata": spec.pod_template.metadata, "spec": pod_spec},
        "volumeClaimTemplates": spec.volume_claim_templates,
        "service": spec.service,
        "podFailurePolicy": spec.pod_failure_policy,
    });
    name::name_hash(&blueprint.to_string())
}

fn same_claims(found: &[VolumeClaimTemplate], wanted: &[VolumeClaimTemplate]) -> bool {
    let spec = |claim: &VolumeClaimTemplate| canonical(&json!(claim.spec));
    found.len() == wanted.len()
        && found.iter().zip(wanted).all(|(a, b)| a.metadata.name == b.metadata.name && spec(a) == spec(b))
}

/// Fields of a PodSpec in which an empty object says the same as none.
const EMPTY_IS_ABSENT: [&str; 6] =
    ["limits", "matchLabels", "nodeSelector", "overhead", "requests", "resources"];

/// One spelling for each meaning: no nulls, no empty lists, no empty maps where they say nothing.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(canonical).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(field, value)| (field, canonical(value)))
            .filter(|(field, value)| {
                let empty = value.as_object().is_some_and(Map::is_empty);
                !value.is_null()
                    && value.as_array().is_none_or(|items| !items.is_empty())
                    && !(empty && EMPTY_IS_ABSENT.contains(&field.as_str()))
            })
            .map(|(field, value)| (field.clone(), value))
            .collect(),
        plain => plain.clone(),
    }
}

fn extend(object: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
}
