//! Decides what to do about one SandboxTemplate. Pure and total.
//!
//! ```text
//!            found │ nothing   ours, as wanted   ours, different   somebody else's
//! Managed          │ create    –                 replace           problem
//! Unmanaged        │ –         delete            delete            –
//! has a twin       │ problem   problem           problem           problem
//! ```

use asb_types::template::NetworkPolicyManagement;
use asb_types::{Template, key, name};
use serde_json::{Value, json};

use super::policy;
use crate::object::{NetworkPolicy, Ownership, owner_reference, ownership};
use crate::write::Identity;

/// One effect on the API.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A merge patch of the template itself.
    PatchTemplate(Value),
    CreatePolicy(Value),
    /// The policy that was seen, with another spec.
    ReplacePolicy(Box<NetworkPolicy>),
    DeletePolicy(Identity),
}

/// What to do, and what stands in the way of the rest.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub problem: Option<String>,
}

/// `found` is whatever stands under the name that the template reserves for its policy; `refusal` is why nothing may be
/// made from it.
pub fn plan(
    template: &Template,
    found: Option<&NetworkPolicy>,
    refusal: Option<String>,
    router_namespace: &str,
) -> Plan {
    if template.metadata.deletion_timestamp.is_some() {
        return Plan::default(); // garbage collection removes the policy
    }
    let mut plan = Plan { actions: label(template).into_iter().collect(), problem: None };
    let step = match refusal {
        Some(refusal) => Err(refusal),
        None => policy_step(template, found, router_namespace),
    };
    match step {
        Ok(action) => plan.actions.extend(action),
        Err(problem) => plan.problem = Some(problem),
    }
    plan
}

/// The label by which everything made from this template is found.
pub fn ref_hash(template: &Template) -> String {
    name::name_hash(template.metadata.name.as_deref().unwrap_or_default())
}

fn label(template: &Template) -> Option<Action> {
    let hash = ref_hash(template);
    let found = template.metadata.labels.as_ref().and_then(|labels| labels.get(key::TEMPLATE_REF_HASH));
    (found != Some(&hash))
        .then(|| Action::PatchTemplate(json!({"metadata": {"labels": {key::TEMPLATE_REF_HASH: hash}}})))
}

fn policy_step(
    template: &Template,
    found: Option<&NetworkPolicy>,
    router_namespace: &str,
) -> Result<Option<Action>, String> {
    let uid = template.metadata.uid.as_deref().unwrap_or_default();
    let managed = template.spec.network_policy_management == NetworkPolicyManagement::Managed;
    let wanted = || policy::spec(template, router_namespace);
    let Some(policy) = found else {
        return Ok(managed.then(|| Action::CreatePolicy(desired(template, wanted()))));
    };
    match (ownership(policy, uid), managed) {
        // On its way out: what should stand here instead can come when it is gone.
        (Ownership::Owned, _) if policy.metadata.deletion_timestamp.is_some() => Ok(None),
        (Ownership::Owned, false) => Ok(Some(Action::DeletePolicy(Identity::of(policy)))),
        (Ownership::Owned, true) => {
            let wanted = wanted();
            let same = policy::same(&policy.spec, &wanted);
            Ok((!same)
                .then(|| Action::ReplacePolicy(Box::new(NetworkPolicy { spec: wanted, ..policy.clone() }))))
        }
        (Ownership::Unowned | Ownership::Foreign(_), false) => Ok(None),
        (other, true) => {
            let name = policy.metadata.name.as_deref().unwrap_or_default();
            let whose = match other {
                Ownership::Foreign(owner) => format!("is owned by {} {:?}", owner.kind, owner.name),
                _ => "belongs to nobody".to_owned(),
            };
            Err(format!(
                "NetworkPolicy {name:?} {whose}; delete it, or set spec.networkPolicyManagement to Unmanaged"
            ))
        }
    }
}

fn desired(template: &Template, spec: serde_json::Map<String, Value>) -> Value {
    let name = name::network_policy(template.metadata.name.as_deref().unwrap_or_default());
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": name,
            "namespace": template.metadata.namespace,
            "ownerReferences": [owner_reference(template)],
        },
        "spec": spec,
    })
}
