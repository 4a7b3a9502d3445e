//! Deleting an object: at once, after a grace period, or when its finalizers are gone.

use std::sync::Arc;

use serde_json::Value;

use super::update::finished;
use super::{ATTEMPTS, Api, key, modified, not_found, storage_error, timestamp};
use crate::registry::{Target, pod};
use crate::status::ApiError;
use crate::store::{Entry, Expect, WriteError};

pub(crate) const FOREGROUND: &str = "foregroundDeletion";
pub(crate) const ORPHAN: &str = "orphan";
/// The longest grace period in seconds, 68 years: the time at which it ends is always one that can be written.
const LONGEST_GRACE: i64 = i32::MAX as i64;
/// The namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-public", "kube-system"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub grace: Option<i64>,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub revision: Option<String>,
    pub dry_run: bool,
}

pub(crate) enum Deleted {
    Gone(Arc<Entry>),
    /// Marked: it goes when its finalizers are gone or its grace period is over.
    Marked(Arc<Entry>),
}

impl Api {
    pub fn delete(
        &self,
        target: &Target,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        let key = key(target, namespace, name);
        // Whatever the version of the request: deleting changes nothing that versions show differently.
        let target = &target.stored();
        for _ in 0..ATTEMPTS {
            let entry = self.store.get(&key).ok_or_else(|| not_found(target, name))?;
            check_preconditions(target, &entry, options)?;
            check_not_needed(target, name)?;
            let old = target.present(&entry);
            let marked = mark(target, &old, options, jiff::Timestamp::now());
            let removed = finished(target, &marked);
            let written = if options.dry_run || (!removed && marked == old) {
                Ok(entry)
            } else if removed {
                self.remove(key.clone(), entry.revision, None)
            } else {
                let marked = target.to_stored(marked)?;
                self.put(key.clone(), Expect::Revision(entry.revision), marked, false)
            };
            match written {
                Ok(entry) if removed => return Ok(Deleted::Gone(entry)),
                Ok(entry) => return Ok(Deleted::Marked(entry)),
                Err(WriteError::Conflict) => continue,
                Err(error) => return Err(storage_error(error)),
            }
        }
        Err(modified(target, name))
    }
}

fn check_preconditions(target: &Target, entry: &Entry, options: &DeleteOptions) -> Result<(), ApiError> {
    let resource = &target.resource;
    let fail = |what: &str, want: &str, have: &str, perhaps: &str| {
        let why = format!(
            "the {what} in the precondition ({want}) does not match the {what} in record ({have}). The object might have been {perhaps}"
        );
        Err(ApiError::conflict(&resource.group, &resource.kind, &entry.meta.name, &why))
    };
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != &*entry.meta.uid) {
        return fail("UID", uid, &entry.meta.uid, "deleted and then recreated");
    }
    let have = entry.revision.to_string();
    if let Some(want) = options.revision.as_deref().filter(|want| *want != have) {
        return fail("ResourceVersion", want, &have, "modified");
    }
    Ok(())
}

/// Refuses to delete a namespace that the API server itself relies on, as the admission of a cluster does.
fn check_not_needed(target: &Target, name: &str) -> Result<(), ApiError> {
    if target.resource.is("", "namespaces") && IMMORTAL.contains(&name) {
        return Err(ApiError::forbidden("", "namespaces", name, "this namespace may not be deleted"));
    }
    Ok(())
}

/// The object as it looks once its deletion was asked for.
fn mark(target: &Target, old: &Value, options: &DeleteOptions, now: jiff::Timestamp) -> Value {
    let mut object = old.clone();
    let grace = grace_period(target, old, options.grace);
    let meta = &mut object["metadata"];
    set_propagation(meta, options.propagation);
    let pending = meta["deletionGracePeriodSeconds"].as_i64();
    match old["metadata"]["deletionTimestamp"].as_str() {
        None => {
            meta["deletionTimestamp"] = timestamp(now + jiff::SignedDuration::from_secs(grace)).into();
            meta["deletionGracePeriodSeconds"] = grace.into();
            if let Some(generation) = meta["generation"].as_i64() {
                meta["generation"] = (generation + 1).into();
            }
        }
        // A second request may only shorten the wait.
        Some(due) if options.grace.is_some() && pending.is_some_and(|pending| grace < pending) => {
            let due: jiff::Timestamp = due.parse().unwrap_or(now);
            let asked = due - jiff::SignedDuration::from_secs(pending.unwrap_or(0));
            meta["deletionTimestamp"] = timestamp(asked + jiff::SignedDuration::from_secs(grace)).into();
            meta["deletionGracePeriodSeconds"] = grace.into();
        }
        Some(_) => {}
    }
    if target.resource.is("", "namespaces") {
        object["status"]["phase"] = "Terminating".into();
    }
    object
}

/// Only a Pod that a node may be running is given time.
fn grace_period(target: &Target, object: &Value, asked: Option<i64>) -> i64 {
    let bound = !object["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let ended = object["status"]["phase"].as_str().is_some_and(pod::is_over);
    if !target.resource.is("", "pods") || !bound {
        return 0;
    }
    match asked.or(object["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30) {
        _ if ended => 0,
        // As in Kubernetes, a negative period means the shortest one.
        negative if negative < 0 => 1,
        grace => grace.min(LONGEST_GRACE),
    }
}

fn set_propagation(meta: &mut Value, propagation: Option<Propagation>) {
    let wanted = match propagation {
        None => return,
        Some(Propagation::Background) => None,
        Some(Propagation::Foreground) => Some(FOREGROUND),
        Some(Propagation::Orphan) => Some(ORPHAN),
    };
    let mut finalizers = meta["finalizers"].as_array().cloned().unwrap_or_default();
    finalizers.retain(|finalizer| {
        (*finalizer != FOREGROUND && *finalizer != ORPHAN)
            || wanted.is_some_and(|wanted| *finalizer == wanted)
    });
    if let Some(wanted) = wanted.filter(|wanted| !finalizers.iter().any(|finalizer| finalizer == wanted)) {
        finalizers.push(wanted.into());
    }
    if !finalizers.is_empty() {
        meta["finalizers"] = finalizers.into();
    } else if let Some(meta) = meta.as_object_mut() {
        meta.remove("finalizers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;
    use serde_json::json;

    #[test]
    fn a_grace_period_of_any_length_ends_at_a_time_that_can_be_written() {
        let pods = Registry::new().find("", "v1", "pods").expect("a built-in kind");
        let now = jiff::Timestamp::UNIX_EPOCH;
        let options = |grace| DeleteOptions { grace, ..DeleteOptions::default() };
        let pod =
            json!({"metadata": {}, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": i64::MAX}});
        for grace in [None, Some(i64::MAX)] {
            let marked = mark(&pods, &pod, &options(grace), now);
            assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], LONGEST_GRACE);
            assert_eq!(marked["metadata"]["deletionTimestamp"], "2038-01-19T03:14:07Z");
            let again = mark(&pods, &marked, &options(Some(5)), now);
            assert_eq!(again["metadata"]["deletionTimestamp"], "1970-01-01T00:00:05Z");
        }
    }
}
