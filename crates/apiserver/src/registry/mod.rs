//! Which kinds exist: the built-in ones and those of applied CustomResourceDefinitions.

pub(crate) mod absent;
pub(crate) mod builtin;
mod claim;
pub(crate) mod conform;
pub(crate) mod crd;
mod data;
mod events;
mod field;
pub(crate) mod messages;
pub(crate) mod pod;
mod policy;
mod resource;
pub(crate) mod rules;
pub(crate) mod service;
mod structural;
mod volume;

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use serde_json::Value;

use crate::status::qualified;
use crate::store::Change;
pub(crate) use resource::{Form, Resource, Target, group_version};

/// The collections that the server itself looks at.
pub(crate) const NAMESPACES: &str = "namespaces";
pub(crate) const PODS: &str = "pods";
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

pub(crate) struct Registry {
    resources: RwLock<BTreeMap<String, Arc<Resource>>>,
}

impl Registry {
    /// A registry that knows the built-in kinds.
    pub fn new() -> Self {
        let resources = builtin::resources().into_iter().map(|r| (r.qualified(), r)).collect();
        Self { resources: RwLock::new(resources) }
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Target> {
        let resource = self.lock().get(&qualified(plural, group))?.clone();
        let version = resource.versions.iter().position(|v| *v.name == *version && v.served)?;
        Some(Target { resource, version })
    }

    /// The resource kept in a collection, in its stored version.
    pub fn stored_in(&self, collection: &str) -> Option<Target> {
        let resource = self.lock().get(collection)?.clone();
        Some(Target { version: resource.storage, resource })
    }

    /// Follows the store: a definition is served, changed or dropped in the moment its write becomes visible.
    ///
    /// Doing it later would let the end of an old definition undo the start of a new one of the same name.
    pub fn follow(&self, change: &Change) {
        if *change.key.collection != *DEFINITIONS {
            return;
        }
        match change.deleted {
            true => self.remove(change.key.name()),
            false => self.install(&change.entry.parse()),
        }
    }

    /// Serves what a CRD describes, replacing what it described before.
    pub fn install(&self, crd: &Value) {
        let resource = Arc::new(crd::resource(crd));
        self.lock_mut().insert(resource.qualified(), resource);
    }

    fn remove(&self, qualified: &str) {
        let mut resources = self.lock_mut();
        if resources.get(qualified).is_some_and(|resource| resource.custom) {
            resources.remove(qualified);
        }
    }

    /// All resources, by name.
    pub fn all(&self) -> Vec<Arc<Resource>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Arc<Resource>>> {
        self.resources.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lock_mut(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, Arc<Resource>>> {
        self.resources.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
