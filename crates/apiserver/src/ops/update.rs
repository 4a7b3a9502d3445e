//! Changing an object: by replacement or by patch, its main part or its status.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    ATTEMPTS, Api, WriteOptions, Written, admit, create, key, modified, not_found, now, storage_error,
};
use crate::patch::Patch;
use crate::registry::pod::ephemeral;
use crate::registry::{PODS, Target, rules};
use crate::scheduling;
use crate::status::{ApiError, FieldError};
use crate::store::{Entry, Expect, Key, WriteError};

/// Which part of an object a request may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Main,
    Status,
    /// The containers that are added to a Pod which runs.
    EphemeralContainers,
}

/// Metadata that only the server sets.
const SERVER_SET: [&str; 6] = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "generateName",
];

enum Outcome {
    Unchanged,
    Put(Value),
    Remove(Value),
}

impl Api {
    /// PUT.
    pub fn replace(
        &self,
        target: &Target,
        namespace: &str,
        name: &str,
        mut object: Value,
        part: Part,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        create::identify(target, namespace, &mut object)?;
        match object["metadata"]["name"].as_str().unwrap_or_default() {
            "" => object["metadata"]["name"] = name.into(),
            got if got == name => {}
            got => {
                return Err(ApiError::bad_request(format!(
                    "the name of the object ({got}) does not match the name on the URL ({name})"
                )));
            }
        }
        let locked =
            object["metadata"]["resourceVersion"].as_str().filter(|v| !v.is_empty()).map(str::to_owned);
        if locked.is_none() && target.resource.custom {
            self.get(target, namespace, name)?;
            let error =
                FieldError::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
            return Err(ApiError::invalid(&target.resource.group, &target.resource.plural, name, &[error]));
        }
        self.change(target, namespace, name, part, options, locked.as_deref(), |_| Ok(object.clone()))
    }

    /// PATCH. A server-side apply creates what is not there.
    pub fn patch(
        &self,
        target: &Target,
        namespace: &str,
        name: &str,
        patch: &Patch,
        part: Part,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        if patch.is_apply() && part == Part::Main && self.store.get(&key(target, namespace, name)).is_none() {
            let blank = json!({ "metadata": { "name": name } });
            let object = patch.apply(&blank, target, &now())?;
            match self.create(target, namespace, object, options) {
                Err(error) if error.reason == "AlreadyExists" => {}
                other => return other,
            }
        }
        let locked = patch.locked_to().map(str::to_owned);
        let step = |current: &Value| patch.apply(current, target, &now());
        self.change(target, namespace, name, part, options, locked.as_deref(), step)
    }

    /// Reads, changes and writes until nobody else writes in between.
    #[allow(clippy::too_many_arguments)]
    pub fn change(
        &self,
        target: &Target,
        namespace: &str,
        name: &str,
        part: Part,
        options: &WriteOptions,
        locked: Option<&str>,
        step: impl Fn(&Value) -> Result<Value, ApiError>,
    ) -> Result<Written, ApiError> {
        let key = key(target, namespace, name);
        for _ in 0..ATTEMPTS {
            let entry = self.store.get(&key).ok_or_else(|| not_found(target, name))?;
            if locked.is_some_and(|version| version != entry.revision.to_string()) {
                return Err(modified(target, name));
            }
            let old = target.present(&entry);
            let (outcome, warnings) = decide(target, &old, step(&old)?, part, options)?;
            let written = match outcome {
                Outcome::Unchanged => Ok(entry),
                Outcome::Put(object) => {
                    let mut object = target.to_stored(object)?;
                    let _held = self.assign_address(target, namespace, &mut object)?;
                    self.put(key.clone(), Expect::Revision(entry.revision), object, options.dry_run)
                }
                Outcome::Remove(_) if options.dry_run => Ok(entry),
                Outcome::Remove(object) => {
                    let object = target.to_stored(object)?;
                    self.remove(key.clone(), entry.revision, Some(object))
                }
            };
            match written {
                Ok(entry) => return Ok(Written { entry, warnings, created: false }),
                Err(WriteError::Conflict) if locked.is_none() => continue,
                Err(WriteError::Conflict) => return Err(modified(target, name)),
                Err(error) => return Err(storage_error(error)),
            }
        }
        Err(modified(target, name))
    }

    /// Changes metadata without validation: for the server's own bookkeeping.
    pub fn amend(
        &self,
        target: &Target,
        entry: &Arc<Entry>,
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<Entry>, WriteError> {
        let mut object = entry.parse();
        change(&mut object);
        let key = key(target, &entry.meta.namespace, &entry.meta.name);
        if finished(target, &object) {
            return self.remove(key, entry.revision, Some(object));
        }
        self.put(key, Expect::Revision(entry.revision), object, false)
    }

    /// The same for the object as it is now, against other writers. `change` returns whether it has changed anything.
    pub fn amend_current(
        &self,
        target: &Target,
        key: &Key,
        change: impl Fn(&mut Value) -> bool,
    ) -> Result<(), WriteError> {
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.store.get(key) else { return Ok(()) };
            let mut object = entry.parse();
            if !change(&mut object) {
                return Ok(());
            }
            match self.amend(target, &entry, |stored| *stored = object) {
                Err(WriteError::Conflict) => {}
                written => return written.map(drop),
            }
        }
        Err(WriteError::Conflict)
    }
}

/// What a request turns `old` into.
fn decide(
    target: &Target,
    old: &Value,
    mut new: Value,
    part: Part,
    options: &WriteOptions,
) -> Result<(Outcome, Vec<String>), ApiError> {
    let resource = &target.resource;
    if !new["metadata"].is_object() {
        return Err(ApiError::bad_request("metadata must be an object"));
    }
    let name = old["metadata"]["name"].as_str().unwrap_or_default();
    let invalid = |error| Err(ApiError::invalid(&resource.group, &resource.kind, name, &[error]));
    let uid = &new["metadata"]["uid"];
    if uid.as_str().is_some_and(|uid| !uid.is_empty()) && *uid != old["metadata"]["uid"] {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            uid.as_str().unwrap_or_default(),
            old["metadata"]["uid"].as_str().unwrap_or_default()
        );
        return Err(ApiError::conflict(&resource.group, &resource.plural, name, &why));
    }
    if new["metadata"]["name"] != old["metadata"]["name"] {
        let given = new["metadata"]["name"].as_str().unwrap_or_default();
        let message = format!("the name of the object ({given}) does not match the name on the URL ({name})");
        return Err(ApiError::bad_request(message));
    }
    for field in ["apiVersion", "kind"] {
        if new[field] != old[field] {
            return invalid(FieldError::invalid(field, &new[field], "field is immutable"));
        }
    }
    if part == Part::EphemeralContainers {
        let managers = new["metadata"]["managedFields"].take();
        new = ephemeral::added(&new, old);
        set(&mut new["metadata"], "managedFields", managers);
    } else if part == Part::Status {
        let status = new["status"].take();
        let managers = new["metadata"]["managedFields"].take();
        new = old.clone();
        set(&mut new, "status", status);
        set(&mut new["metadata"], "managedFields", managers);
    } else if target.version().status {
        set(&mut new, "status", old["status"].clone());
    }
    for field in SERVER_SET.iter().chain(&["resourceVersion", "namespace"]) {
        set(&mut new["metadata"], field, old["metadata"][*field].clone());
    }
    if new["metadata"]["managedFields"].is_null() {
        set(&mut new["metadata"], "managedFields", old["metadata"]["managedFields"].clone());
    }
    rules::keep_assigned(resource, &mut new, old);
    let warnings = admit::admit(target, &mut new, Some(old), part, options)?;
    if old["metadata"]["deletionTimestamp"].is_string() {
        let list = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let before = list(old);
        if let Some(added) = list(&new).iter().find(|finalizer| !before.contains(finalizer)) {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{added}}}"
            );
            return invalid(FieldError::forbidden("metadata.finalizers", &why));
        }
    }
    if finished(target, &new) {
        return Ok((Outcome::Remove(new), warnings));
    }
    // One that was stored unreadable may stay so.
    let changes_pod = part == Part::Main && resource.is("", PODS) && new["spec"] != old["spec"];
    if changes_pod && scheduling::readable(old).is_ok() {
        scheduling::readable(&new)?;
    }
    if same_but_for_times(&new, old) {
        return Ok((Outcome::Unchanged, warnings));
    }
    if rules::has_generation(resource) && !same_spec(&new, old) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        new["metadata"]["generation"] = (generation + 1).into();
    }
    Ok((Outcome::Put(new), warnings))
}

fn set(object: &mut Value, field: &str, value: Value) {
    let Some(map) = object.as_object_mut() else { return };
    if value.is_null() {
        map.remove(field);
    } else {
        map.insert(field.to_owned(), value);
    }
}

/// Whether an object that is being deleted has nothing left to wait for.
pub(super) fn finished(target: &Target, object: &Value) -> bool {
    let meta = &object["metadata"];
    let empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    let waits_as_namespace = target.resource.is("", "namespaces") && !empty(&object["spec"]["finalizers"]);
    meta["deletionTimestamp"].is_string()
        && empty(&meta["finalizers"])
        && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && !waits_as_namespace
}

/// Equal, apart from the moment noted in `managedFields`: applying the same again changes nothing.
fn same_but_for_times(new: &Value, old: &Value) -> bool {
    if new == old {
        return true;
    }
    let timeless = |object: &Value| {
        let mut object = object.clone();
        for entry in object["metadata"]["managedFields"].as_array_mut().into_iter().flatten() {
            entry.as_object_mut().map(|entry| entry.remove("time"));
        }
        object
    };
    new["metadata"]["managedFields"].is_array() && timeless(new) == timeless(old)
}

fn same_spec(new: &Value, old: &Value) -> bool {
    let spec = |object: &Value| {
        let mut object = object.clone();
        object["metadata"].take();
        object["status"].take();
        object
    };
    spec(new) == spec(old)
}
