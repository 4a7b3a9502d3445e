//! `pods/binding`: a client, such as another scheduler, binds a Pod to a node.

use asb_scheduler::Pod;
use serde::Deserialize as _;
use serde_json::Value;

use super::{ATTEMPTS, Api, modified, storage_error};
use crate::registry::Target;
use crate::scheduling;
use crate::status::{ApiError, FieldError};
use crate::store::WriteError;

impl Api {
    /// Binds a Pod that has no node yet.
    pub fn bind(
        &self,
        target: &Target,
        namespace: &str,
        name: &str,
        binding: &Value,
        dry_run: bool,
    ) -> Result<(), ApiError> {
        let node = node(name, binding)?;
        let precondition = |field: &str| binding["metadata"][field].as_str().filter(|it| !it.is_empty());
        let refuse = |why: String| Err(ApiError::conflict("", "pods/binding", name, &why));
        for _ in 0..ATTEMPTS {
            let entry = self.get(target, namespace, name)?;
            let revision = entry.revision.to_string();
            if precondition("uid").is_some_and(|uid| *uid != *entry.meta.uid) {
                return refuse(format!(
                    "the UID in the precondition does not match the UID in record ({})",
                    entry.meta.uid
                ));
            }
            if precondition("resourceVersion").is_some_and(|wanted| wanted != revision) {
                return Err(modified(target, name));
            }
            let mut pod = entry.parse();
            if entry.meta.deleting {
                return refuse(format!("pod {name} is being deleted, cannot be assigned to a host"));
            }
            if let Some(node) = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
                return refuse(format!("pod {name} is already assigned to node {node:?}"));
            }
            if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
                return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
            }
            if dry_run {
                return Ok(());
            }
            scheduling::bind(&mut pod, node);
            let read = Pod::deserialize(&pod).map_err(|error| ApiError::internal(error.to_string()))?;
            if let Some(scheduling) = &self.scheduling {
                scheduling.admit(&read, &mut pod);
            }
            let written = self.amend(target, &entry, |stored| *stored = pod);
            if let (Err(_), Some(scheduling)) = (&written, &self.scheduling) {
                // The place may be the queue's, or the Pod may still wait for one: the store decides.
                scheduling.synchronise(self, &entry.meta.uid);
            }
            match written {
                Ok(_) => return Ok(()),
                Err(WriteError::Conflict) => {}
                Err(error) => return Err(storage_error(error)),
            }
        }
        Err(modified(target, name))
    }
}

/// The node that a binding names.
fn node<'a>(name: &str, binding: &'a Value) -> Result<&'a str, ApiError> {
    let named = binding["metadata"]["name"].as_str().unwrap_or_default();
    if !named.is_empty() && named != name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let (kind, node) = (&binding["target"]["kind"], &binding["target"]["name"]);
    let invalid = |error| Err(ApiError::invalid("", "Binding", name, &[error]));
    if !matches!(kind.as_str().unwrap_or_default(), "" | "Node") {
        let known = ["Node", "<empty>"].map(Value::from);
        return invalid(FieldError::unsupported("target.kind", kind, &known));
    }
    match node.as_str().unwrap_or_default() {
        "" => invalid(FieldError::required("target.name", "")),
        node => Ok(node),
    }
}
