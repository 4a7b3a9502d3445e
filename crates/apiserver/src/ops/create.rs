//! Creating an object.

use rand::Rng as _;
use serde_json::{Value, json};

use super::{ATTEMPTS, Api, Part, WriteOptions, Written, admit, is_crd, key, now, storage_error};
use crate::accounts;
use crate::protection;
use crate::registry::crd::CLEANUP_FINALIZER;
use crate::registry::{Target, rules};
use crate::scheduling::Reservation;
use crate::status::ApiError;
use crate::storage_class;
use crate::store::{Expect, WriteError};

/// Vowels and lookalikes left out, so that no word and no misreading comes up.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
/// Longest prefix of a generated name that is kept.
const PREFIX_LENGTH: usize = 58;

impl Api {
    pub fn create(
        &self,
        target: &Target,
        namespace: &str,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let resource = &target.resource;
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        identify(target, namespace, &mut object)?;
        storage_class::fill(self, target, &mut object);
        accounts::fill(self, target, namespace, &mut object)?;
        let generated = object["metadata"]["name"].as_str().unwrap_or_default().is_empty();
        let prefix = object["metadata"]["generateName"].as_str().unwrap_or_default().to_owned();
        if object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
            return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
        }
        let given = object["metadata"]["name"].as_str().unwrap_or(&prefix).to_owned();
        self.check_home(target, namespace, &given)?;
        let meta = &mut object["metadata"];
        meta["uid"] = uuid::Uuid::new_v4().to_string().into();
        meta["creationTimestamp"] = now().into();
        if let Some(meta) = meta.as_object_mut() {
            for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion"]
            {
                meta.remove(field);
            }
        }
        if rules::has_generation(resource) {
            meta["generation"] = 1.into();
        }
        if let Some(finalizer) = own_finalizer(target) {
            protection::add_finalizer(meta, finalizer);
        }
        // The namespace may be deleted after the check above, and emptied before this object is written.
        let expect = if resource.namespaced { Expect::AbsentInNamespace } else { Expect::Absent };
        for _ in 0..ATTEMPTS {
            if generated && !prefix.is_empty() {
                object["metadata"]["name"] = generate_name(&prefix).into();
            }
            // Only a generated name may need another attempt.
            let mut complete = if generated { object.clone() } else { object.take() };
            if resource.custom && target.version().status {
                // Before it is checked: nobody's word about a new object counts but the controllers'.
                complete.as_object_mut().map(|object| object.remove("status"));
            }
            let warnings = admit::admit(target, &mut complete, None, Part::Main, options)?;
            rules::initial_status(resource, &mut complete);
            let scheduling = self.scheduling.as_ref().filter(|_| resource.is("", "pods"));
            let place = scheduling.map(|it| it.place(&mut complete)).transpose()?;
            let place = place.unwrap_or(Reservation::Nothing);
            let mut complete = target.to_stored(complete)?;
            let _held = self.assign_address(target, namespace, &mut complete)?;
            let name = complete["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let key = key(target, namespace, &name);
            let exists = self.store.get(&key);
            let written = match &exists {
                Some(_) => Err(WriteError::Conflict),
                None => self.put(key, expect, complete, options.dry_run),
            };
            match written {
                Ok(entry) => {
                    if !options.dry_run {
                        place.keep(namespace, &name, &entry.meta.uid);
                        storage_class::fill_created(self, target, &entry);
                    }
                    return Ok(Written { entry, warnings, created: true });
                }
                Err(WriteError::NoNamespace) => {
                    self.check_home(target, namespace, &name)?;
                    return Err(ApiError::not_found("", "namespaces", namespace));
                }
                Err(WriteError::Conflict) if generated => continue,
                Err(WriteError::Conflict) => {
                    let mut error = ApiError::already_exists(&resource.group, &resource.plural, &name);
                    if exists.is_some_and(|entry| entry.meta.deleting) {
                        error.message = format!("object is being deleted: {}", error.message);
                    }
                    return Err(error);
                }
                Err(error) => return Err(storage_error(error)),
            }
        }
        Err(ApiError::already_exists(&resource.group, &resource.plural, &prefix))
    }
}

/// What this server has to do before an object can go.
fn own_finalizer(target: &Target) -> Option<&'static str> {
    is_crd(target).then_some(CLEANUP_FINALIZER).or_else(|| protection::finalizer(&target.resource))
}

/// Checks that a body is of the kind and in the namespace that the path says, and fills in what it leaves out.
pub(super) fn identify(target: &Target, namespace: &str, object: &mut Value) -> Result<(), ApiError> {
    let kind = &*target.resource.kind;
    let api_version = target.api_version();
    for (field, want) in [("kind", kind), ("apiVersion", &api_version)] {
        match object[field].as_str().unwrap_or_default() {
            "" => object[field] = want.into(),
            got if got == want => {}
            got => {
                return Err(ApiError::bad_request(format!(
                    "{field} {got:?} in the body does not match the path, which wants {want:?}"
                )));
            }
        }
    }
    let meta = &mut object["metadata"];
    if !target.resource.namespaced {
        if let Some(meta) = meta.as_object_mut() {
            meta.remove("namespace");
        }
        return Ok(());
    }
    match meta["namespace"].as_str().unwrap_or_default() {
        "" => meta["namespace"] = namespace.into(),
        got if got == namespace => {}
        got => {
            return Err(ApiError::bad_request(format!(
                "the namespace of the provided object does not match the namespace sent on the request: {got:?} is not {namespace:?}"
            )));
        }
    }
    Ok(())
}

fn generate_name(prefix: &str) -> String {
    let mut rng = rand::rng();
    let suffix: String = (0..SUFFIX_LENGTH)
        .map(|_| SUFFIX_ALPHABET[rng.random_range(0..SUFFIX_ALPHABET.len())] as char)
        .collect();
    let kept: String = prefix.chars().take(PREFIX_LENGTH).collect();
    format!("{kept}{suffix}")
}
