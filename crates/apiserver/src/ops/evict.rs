//! Eviction: a Pod is marked with the reason (condition `DisruptionTarget`) and deleted.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ATTEMPTS, Api, DeleteOptions, modified, now, storage_error};
use crate::registry::{PODS, pod};
use crate::status::ApiError;
use crate::store::{Entry, WriteError};

const CONDITION: &str = "DisruptionTarget";

/// Why a Pod has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disruption {
    Request,
    Taint,
}

impl Api {
    /// Marks a Pod as disrupted and deletes it, unless another Pod has its name by now.
    pub fn evict(
        &self,
        mut entry: Arc<Entry>,
        why: Disruption,
        mut options: DeleteOptions,
    ) -> Result<(), ApiError> {
        let target = self.registry.stored_in(PODS).ok_or_else(ApiError::no_resource)?;
        let (namespace, name) = (entry.meta.namespace.clone(), entry.meta.name.clone());
        options.uid.get_or_insert_with(|| entry.meta.uid.to_string());
        for _ in 0..ATTEMPTS {
            if !options.dry_run && runs(&entry) && is_meant(&entry, &options) {
                match self.amend(&target, &entry, |pod| mark(pod, why)) {
                    // The mark is a write of ours.
                    Ok(_) => options.revision = None,
                    Err(WriteError::Conflict) => {
                        entry = self.get(&target, &namespace, &name)?;
                        continue;
                    }
                    Err(error) => return Err(storage_error(error)),
                }
            }
            return self.delete(&target, &namespace, &name, &options).map(drop);
        }
        Err(modified(&target, &name))
    }
}

/// What is over or on its way out is not disrupted any more.
fn runs(entry: &Entry) -> bool {
    let is_over = matches!(&*entry.meta.fields, [_, phase, ..] if pod::is_over(phase));
    !is_over && !entry.meta.deleting
}

/// Whether the Pod is the one of the preconditions; if not, deleting it says so.
fn is_meant(entry: &Entry, options: &DeleteOptions) -> bool {
    let revision = entry.revision.to_string();
    options.uid.as_deref().is_none_or(|uid| *uid == *entry.meta.uid)
        && options.revision.as_ref().is_none_or(|wanted| *wanted == revision)
}

fn mark(pod: &mut Value, why: Disruption) {
    let (reason, message) = match why {
        Disruption::Request => ("EvictionByEvictionAPI", "Eviction API: evicting"),
        Disruption::Taint => ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
    };
    let condition = json!({
        "type": CONDITION, "status": "True", "reason": reason, "message": message,
        "lastProbeTime": null, "lastTransitionTime": now(),
    });
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    if let Some(conditions) = pod["status"]["conditions"].as_array_mut() {
        conditions.retain(|known| known["type"] != CONDITION);
        conditions.push(condition);
    }
}
