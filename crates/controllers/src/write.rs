//! Writes to the API, each of which the cache learns of at once.

use std::sync::Arc;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cache::Cache;
use crate::object::Key;

/// A kind of which a controller keeps a cache.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + std::fmt::Debug
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
{
}

/// One incarnation of an object in one state: what a delete must still find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

impl Identity {
    pub fn of(object: &impl Resource) -> Self {
        let meta = object.meta();
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// Why a write was refused, as far as it matters for what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The object is invalid. Only a change of the spec helps.
    Invalid,
    /// Somebody else was faster. Look again.
    Conflict,
    NotFound,
    /// Anything else; retried.
    Failed,
}

impl Refused {
    pub fn by(error: &kube::Error) -> Self {
        let kube::Error::Api(status) = error else { return Self::Failed };
        match status.reason.as_str() {
            "Invalid" => Self::Invalid,
            "Conflict" | "AlreadyExists" => Self::Conflict,
            "NotFound" => Self::NotFound,
            _ => Self::Failed,
        }
    }
}

/// What the API server said, without the client's words around it.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// What became of a creation.
pub enum Created<K> {
    New(K),
    /// Nothing: this object has the name.
    Met {
        found: K,
        refusal: kube::Error,
    },
}

/// Writes to one namespace, under one field manager.
pub struct Writer<'a> {
    pub client: &'a Client,
    pub namespace: &'a str,
    pub manager: &'static str,
}

impl Writer<'_> {
    /// Creates from raw JSON, because the typed objects here are only views.
    pub async fn create<K: Kind>(&self, object: &Value, cache: &Cache<K>) -> Result<(), kube::Error> {
        match self.create_or_meet(object, cache).await? {
            Created::New(_) => Ok(()),
            Created::Met { refusal, .. } => Err(refusal),
        }
    }

    /// The same, and tells what stands under the name already.
    pub async fn create_or_meet<K: Kind>(
        &self,
        object: &Value,
        cache: &Cache<K>,
    ) -> Result<Created<K>, kube::Error> {
        let request = kube::core::Request::new(K::url_path(&(), Some(self.namespace)));
        let params = PostParams { field_manager: Some(self.manager.to_owned()), ..PostParams::default() };
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let request = request.create(&params, body).map_err(kube::Error::BuildRequest)?;
        let refusal = match self.client.request::<K>(request).await {
            Ok(created) => {
                cache.wrote(created.clone());
                return Ok(Created::New(created));
            }
            Err(refusal) => refusal,
        };
        let name = object["metadata"]["name"].as_str();
        let Some(name) = name.filter(|_| Refused::by(&refusal) == Refused::Conflict) else {
            return Err(refusal);
        };
        // Our copy lags, or does not keep such objects: take in what is there.
        let found = self.api::<K>().get(name).await?;
        cache.wrote(found.clone());
        Ok(Created::Met { found, refusal })
    }

    pub async fn merge<K: Kind>(
        &self,
        name: &str,
        patch: &Value,
        cache: &Cache<K>,
    ) -> Result<(), kube::Error> {
        let params = PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() };
        cache.wrote(self.api::<K>().patch(name, &params, &Patch::Merge(patch)).await?);
        Ok(())
    }

    /// Replaces the object that was seen; a newer one is left alone and reported as a conflict.
    pub async fn replace<K: Kind + serde::Serialize>(
        &self,
        object: &K,
        cache: &Cache<K>,
    ) -> Result<(), kube::Error> {
        let params = PostParams { field_manager: Some(self.manager.to_owned()), ..PostParams::default() };
        let name = object.meta().name.clone().unwrap_or_default();
        cache.wrote(self.api::<K>().replace(&name, &params, object).await?);
        Ok(())
    }

    /// Merges into the status. An object that is gone needs none.
    pub async fn merge_status<K: Kind>(
        &self,
        name: &str,
        status: &Value,
        cache: &Cache<K>,
    ) -> Result<(), kube::Error> {
        self.patch_status(name, serde_json::json!({"status": status}), cache).await
    }

    /// The same, for the state in which the object was seen: a newer one is left alone and reported as a conflict.
    pub async fn merge_status_of<K: Kind>(
        &self,
        name: &str,
        resource_version: &str,
        status: &Value,
        cache: &Cache<K>,
    ) -> Result<(), kube::Error> {
        let patch = serde_json::json!({"metadata": {"resourceVersion": resource_version}, "status": status});
        self.patch_status(name, patch, cache).await
    }

    async fn patch_status<K: Kind>(
        &self,
        name: &str,
        patch: Value,
        cache: &Cache<K>,
    ) -> Result<(), kube::Error> {
        let params = PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() };
        match self.api::<K>().patch_status(name, &params, &Patch::Merge(patch)).await {
            Ok(written) => cache.wrote(written),
            Err(error) if Refused::by(&error) == Refused::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Asks the API server itself; what it says is known from then on. `None`: there is no such object.
    pub async fn refresh<K: Kind>(
        &self,
        name: &str,
        cache: &Cache<K>,
    ) -> Result<Option<Arc<K>>, kube::Error> {
        let key = Key::new(self.namespace, name);
        let known = cache.get(&key).and_then(|known| known.meta().uid.clone());
        let fresh = self.api::<K>().get_opt(name).await?;
        match (&fresh, known) {
            (Some(fresh), _) => cache.wrote(fresh.clone()),
            (None, Some(uid)) => cache.deleted(&key, &uid),
            (None, None) => {}
        }
        Ok(fresh.map(Arc::new))
    }

    /// Deletes exactly the object that was seen, in the state in which it was seen.
    pub async fn delete<K: Kind>(&self, identity: Identity, cache: &Cache<K>) -> Result<(), kube::Error> {
        self.delete_with(identity, None, cache).await
    }

    /// The same, saying what becomes of the object's children.
    pub async fn delete_with<K: Kind>(
        &self,
        identity: Identity,
        propagation_policy: Option<PropagationPolicy>,
        cache: &Cache<K>,
    ) -> Result<(), kube::Error> {
        let Identity { name, uid, resource_version } = identity;
        let preconditions =
            Preconditions { uid: Some(uid.clone()), resource_version: Some(resource_version) };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            propagation_policy,
            ..DeleteParams::default()
        };
        let terminating = match self.api::<K>().delete(&name, &params).await {
            Ok(answer) => answer.left(),
            Err(error) if Refused::by(&error) == Refused::NotFound => None,
            Err(error) => return Err(error),
        };
        match terminating {
            Some(object) => cache.wrote(object),
            None => cache.deleted(&Key::new(self.namespace, &name), &uid),
        }
        Ok(())
    }

    fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), self.namespace)
    }
}
