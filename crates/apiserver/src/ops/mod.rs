//! The operations on objects, shared by the HTTP handlers and the garbage collector.

mod admit;
mod assign;
mod bind;
mod create;
mod delete;
mod evict;
mod update;

use std::sync::{Arc, Mutex, RwLock};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::registry::builtin::selectable_fields;
use crate::registry::{DEFINITIONS, NAMESPACES, Registry, Target};
use crate::scheduling::Scheduling;
use crate::status::ApiError;
use crate::store::{Draft, Entry, Expect, Key, Op, Store, Write, WriteError};

pub(crate) use admit::FieldValidation;
pub(crate) use delete::{DeleteOptions, Deleted, FOREGROUND, ORPHAN, Propagation};
pub(crate) use evict::Disruption;
pub(crate) use update::Part;

/// Attempts at a write that loses against others before it is given up as a conflict.
pub(crate) const ATTEMPTS: usize = 64;

/// Everything a request needs.
pub(crate) struct Api {
    pub store: Store,
    pub registry: Arc<Registry>,
    /// Finds places for Pods.
    pub scheduling: Option<Arc<Scheduling>>,
    /// Held while an address for a Service is chosen and written.
    pub assigning: Mutex<()>,
    pub kubelet: RwLock<Option<axum::Router>>,
    /// Ends watches and background work.
    pub stopping: CancellationToken,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct WriteOptions {
    pub dry_run: bool,
    pub validation: FieldValidation,
    /// Fields that stood twice in the body.
    pub duplicates: Vec<String>,
}

/// A write that went through.
pub(crate) struct Written {
    pub entry: Arc<Entry>,
    pub warnings: Vec<String>,
    pub created: bool,
}

pub(crate) fn now() -> String {
    timestamp(jiff::Timestamp::now())
}

pub(crate) fn timestamp(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(crate) fn key(target: &Target, namespace: &str, name: &str) -> Key {
    Key::new(&target.resource.collection, namespace, name)
}

pub(crate) fn not_found(target: &Target, name: &str) -> ApiError {
    ApiError::not_found(&target.resource.group, &target.resource.plural, name)
}

pub(crate) fn modified(target: &Target, name: &str) -> ApiError {
    ApiError::modified(&target.resource.group, &target.resource.plural, name)
}

pub(crate) fn storage_error(error: WriteError) -> ApiError {
    match error {
        WriteError::Conflict => ApiError::internal("a write conflict was not handled"),
        WriteError::NoNamespace => ApiError::internal("a write without its namespace was not handled"),
        WriteError::Storage(error) if is_full(&error) => full(),
        WriteError::Storage(error) => ApiError::internal(format!("the store cannot write: {error}")),
        WriteError::Stopped => ApiError::unavailable("the server is shutting down"),
    }
}

/// The disk is.
fn full() -> ApiError {
    let message = "the disk of the API server has no space left; free some and try again";
    ApiError::new(507, "InsufficientStorage", message)
}

fn is_full(error: &redb::Error) -> bool {
    let full = [std::io::ErrorKind::StorageFull, std::io::ErrorKind::QuotaExceeded];
    matches!(error, redb::Error::Io(error) if full.contains(&error.kind()))
}

impl Api {
    pub fn get(&self, target: &Target, namespace: &str, name: &str) -> Result<Arc<Entry>, ApiError> {
        self.store.get(&key(target, namespace, name)).ok_or_else(|| not_found(target, name))
    }

    /// The object as it was, if that is still known.
    pub fn get_at(
        &self,
        target: &Target,
        namespace: &str,
        name: &str,
        revision: u64,
    ) -> Result<Arc<Entry>, ApiError> {
        let found = self.store.get_at(&key(target, namespace, name), revision);
        found.map_err(|_| full())?.ok_or_else(|| not_found(target, name))
    }

    /// Writes an object that is in its stored form.
    fn put(&self, key: Key, expect: Expect, object: Value, dry_run: bool) -> Result<Arc<Entry>, WriteError> {
        let draft = Draft::of(&object, selectable_fields(&key.collection));
        if dry_run {
            let revision = if let Expect::Revision(revision) = expect { revision } else { 0 };
            return Ok(Arc::new(draft.preview(revision)));
        }
        self.store.write(Write { key, expect, op: Op::Put(draft) })
    }

    /// Removes an object; `last` is its final state, in its stored form, if that differs from what is stored.
    fn remove(&self, key: Key, revision: u64, last: Option<Value>) -> Result<Arc<Entry>, WriteError> {
        let last = last.map(|object| Draft::of(&object, selectable_fields(&key.collection)));
        self.store.write(Write { key, expect: Expect::Revision(revision), op: Op::Delete(last) })
    }

    /// A namespace must exist and not be going away before something can be put into it; the same for a definition.
    fn check_home(&self, target: &Target, namespace: &str, name: &str) -> Result<(), ApiError> {
        let definition = Key::new(&DEFINITIONS.into(), "", &target.resource.collection);
        if target.resource.custom && self.store.get(&definition).is_some_and(|entry| entry.meta.deleting) {
            let message = "create not allowed while custom resource definition is terminating";
            return Err(ApiError::new(405, "MethodNotAllowed", message));
        }
        if !target.resource.namespaced {
            return Ok(());
        }
        let key = Key::new(&NAMESPACES.into(), "", namespace);
        let found = self.store.get(&key).ok_or_else(|| ApiError::not_found("", "namespaces", namespace))?;
        if found.meta.deleting {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut error = ApiError::forbidden(&target.resource.group, &target.resource.plural, name, &why);
            if let Some(details) = &mut error.details {
                details["causes"] = serde_json::json!([{
                    "reason": "NamespaceTerminating", "field": "metadata.namespace",
                    "message": format!("namespace {namespace} is being terminated"),
                }]);
            }
            return Err(error);
        }
        Ok(())
    }
}

fn is_crd(target: &Target) -> bool {
    target.resource.is("apiextensions.k8s.io", "customresourcedefinitions")
}
