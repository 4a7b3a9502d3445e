//! Conversion between the served versions, `v1alpha1` ⇄ `v1beta1`, without losing anything.
//!
//! It works on JSON values: a field that both versions know, or that neither knows, passes untouched. What only one
//! version has a field for travels in an annotation of the other one (see [`note`]).
//!
//! | kind | v1alpha1 | v1beta1 |
//! |---|---|---|
//! | Sandbox | `spec.replicas`, `status.replicas` | `spec.operatingMode`, `status.nodeName` |
//! | SandboxClaim | `spec.sandboxTemplateRef`, `spec.warmpool` | `spec.warmPoolRef`, `spec.volumeClaimTemplates` |
//! | SandboxTemplate | – | `spec.volumeClaimTemplatesPolicy` |
//! | SandboxWarmPool | – | `status.observedGeneration` |
//!
//! Towards v1alpha1 conversion never fails, whatever somebody wrote into an annotation: one bad object must not break
//! a list. Towards v1beta1 it refuses annotations that do not hold what they are for, since nothing else would check
//! them before they become fields.

mod claim;
mod note;
#[cfg(test)]
mod round_trips;
mod sandbox;
mod template;
#[cfg(test)]
mod tests;
mod warm_pool;

use serde_json::Value;

use crate::{EXTENSIONS_GROUP, GROUP, VERSION};

pub use claim::{SHADOW_POOL_PREFIX, template_of_shadow_claim};

/// The older version, which is served but not stored.
pub const V1ALPHA1: &str = "v1alpha1";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{api_version} {kind} is not a kind that can be converted to {to}")]
    Unknown { api_version: String, kind: String, to: String },
    #[error(
        "annotation {annotation} must be {expected}; correct or remove it, or write the object at v1beta1"
    )]
    Annotation { annotation: String, expected: &'static str },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sandbox,
    Claim,
    Template,
    WarmPool,
}

impl Kind {
    /// The kind that an object says it is, if it is one of ours.
    pub fn of(group: &str, kind: &str) -> Option<Self> {
        match (group, kind) {
            (GROUP, "Sandbox") => Some(Kind::Sandbox),
            (EXTENSIONS_GROUP, "SandboxClaim") => Some(Kind::Claim),
            (EXTENSIONS_GROUP, "SandboxTemplate") => Some(Kind::Template),
            (EXTENSIONS_GROUP, "SandboxWarmPool") => Some(Kind::WarmPool),
            _ => None,
        }
    }

    fn to_alpha(self, object: &mut Value) {
        match self {
            Kind::Sandbox => sandbox::to_alpha(object),
            Kind::Claim => claim::to_alpha(object),
            Kind::Template => template::to_alpha(object),
            Kind::WarmPool => warm_pool::to_alpha(object),
        }
    }

    fn to_beta(self, object: &mut Value) -> Result<(), Error> {
        match self {
            Kind::Sandbox => sandbox::to_beta(object),
            Kind::Claim => claim::to_beta(object),
            Kind::Template => template::to_beta(object),
            Kind::WarmPool => warm_pool::to_beta(object),
        }
    }
}

/// Brings an object to the version `to`, for example `agents.x-k8s.io/v1alpha1`.
///
/// An object of an unknown kind or version is left as it is; one with a wrong annotation is of no use afterwards.
pub fn convert(object: &mut Value, to: &str) -> Result<(), Error> {
    let from = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let unknown = || Error::Unknown { api_version: from.clone(), kind: kind.clone(), to: to.to_owned() };
    let (group, have) = from.split_once('/').ok_or_else(unknown)?;
    let want = to.strip_prefix(group).and_then(|rest| rest.strip_prefix('/')).ok_or_else(unknown)?;
    let known = Kind::of(group, &kind).ok_or_else(unknown)?;
    match (have, want) {
        (VERSION, V1ALPHA1) => known.to_alpha(object),
        (V1ALPHA1, VERSION) => known.to_beta(object)?,
        (VERSION, VERSION) | (V1ALPHA1, V1ALPHA1) => {}
        _ => return Err(unknown()),
    }
    object["apiVersion"] = to.into();
    Ok(())
}
