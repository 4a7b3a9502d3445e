//! What all children of a Sandbox have in common: the owner reference, the hash label, and adoption.

use asb_types::{Sandbox, key, name};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use serde_json::{Value, json};

pub use crate::object::owner_reference;
use crate::object::{Ownership, ownership};

/// The name hash of the Sandbox, which labels its children.
pub fn hash(sandbox: &Sandbox) -> String {
    name::name_hash(sandbox.metadata.name.as_deref().unwrap_or_default())
}

/// `metadata` of a child that does not exist yet.
pub fn metadata(sandbox: &Sandbox, name: &str) -> Value {
    json!({
        "name": name,
        "namespace": sandbox.metadata.namespace,
        "labels": {key::SANDBOX_NAME_HASH: hash(sandbox)},
        "ownerReferences": [owner_reference(sandbox)],
    })
}

/// How a Sandbox may take an existing object as its child.
#[derive(Debug, PartialEq)]
pub enum Adoption {
    /// It already is.
    Owned,
    /// Nobody's, and marked for adoption: these owner references make it ours.
    Adopt(Vec<OwnerReference>),
}

/// Whether the Sandbox may use `object`; the error says why not.
pub fn adoption(sandbox: &Sandbox, object: &impl Resource<DynamicType = ()>) -> Result<Adoption, String> {
    let meta = object.meta();
    let what = || {
        let kind = std::any::type_name_of_val(object).rsplit("::").next().unwrap_or("object");
        format!("{kind} {:?}", meta.name.as_deref().unwrap_or_default())
    };
    match ownership(object, sandbox.metadata.uid.as_deref().unwrap_or_default()) {
        Ownership::Owned => Ok(Adoption::Owned),
        Ownership::Foreign(owner) => Err(format!("{} is owned by {} {:?}", what(), owner.kind, owner.name)),
        Ownership::Unowned => {
            let label =
                |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
            if label(key::ADOPTABLE) != Some("true") && label(key::SANDBOX_NAME_HASH) != Some(&hash(sandbox))
            {
                return Err(format!(
                    "{} exists and belongs to nobody; delete it, or label it {}=true to have it adopted",
                    what(),
                    key::ADOPTABLE
                ));
            }
            let mut owners = meta.owner_references.clone().unwrap_or_default();
            owners.push(owner_reference(sandbox));
            Ok(Adoption::Adopt(owners))
        }
    }
}
