//! ConfigMaps and Secrets that a Pod names: fetched before it starts, and watched while one it needs is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};

use crate::failure::with_causes;
use crate::pod::named::named;
use crate::pod::spec::Refusal;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ConfigMap,
    Secret,
}

/// One object that a Pod names, in the Pod's own namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub kind: Kind,
    pub name: String,
}

/// What an object held when it was fetched.
#[derive(Clone, Default)]
pub struct Object {
    version: Option<String>,
    pub data: BTreeMap<String, Vec<u8>>,
    /// `binaryData` of a ConfigMap: for volumes, never for variables.
    pub binary: BTreeMap<String, Vec<u8>>,
}

/// Everything that a Pod names, `None` for what does not exist.
#[derive(Clone, Default)]
pub struct References {
    pub namespace: String,
    objects: BTreeMap<Reference, Option<Object>>,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        })
    }
}

impl References {
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.objects.get(&Reference { kind, name: name.to_owned() })?.as_ref()
    }

    /// Fetches what a Pod names. Costs nothing for a Pod that names nothing.
    pub async fn fetch(client: &Client, pod: &Pod) -> Result<Self, kube::Error> {
        let namespace = pod.namespace().unwrap_or_default();
        let mut objects = BTreeMap::new();
        for reference in named(pod).into_iter().collect::<BTreeSet<_>>() {
            let name = &reference.name;
            let object = match reference.kind {
                Kind::ConfigMap => {
                    api::<ConfigMap>(client, &namespace).get_opt(name).await?.map(Object::from)
                }
                Kind::Secret => api::<Secret>(client, &namespace).get_opt(name).await?.map(Object::from),
            };
            objects.insert(reference, object);
        }
        Ok(Self { namespace, objects })
    }

    /// Returns when one of the objects is not what it was; never for a Pod that names none.
    pub async fn changed(&self, client: &Client) {
        let watches: Vec<_> = self
            .objects
            .iter()
            .map(|(reference, object)| {
                let version = object.as_ref().and_then(|object| object.version.clone());
                let name = reference.name.as_str();
                match reference.kind {
                    Kind::ConfigMap => {
                        differs(api::<ConfigMap>(client, &self.namespace), name, version).boxed()
                    }
                    Kind::Secret => differs(api::<Secret>(client, &self.namespace), name, version).boxed(),
                }
            })
            .collect();
        if watches.is_empty() {
            return std::future::pending().await;
        }
        futures::future::select_all(watches).await;
    }

    #[cfg(test)]
    pub fn of(objects: &[(Kind, &str, tests::Data)]) -> Self {
        let object = |(kind, name, data): &(Kind, &str, tests::Data)| {
            let data =
                data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
            (Reference { kind: *kind, name: (*name).to_owned() }, Some(Object { data, ..Default::default() }))
        };
        Self { namespace: "ns".to_owned(), objects: objects.iter().map(object).collect() }
    }
}

/// Why the objects of a Pod could not be looked at.
pub fn refusal(error: &kube::Error) -> Refusal {
    Refusal::new("CreateContainerConfigError", with_causes(error))
}

fn api<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), namespace)
}

/// Returns once the object of this name has another version than the one given.
async fn differs<K>(api: Api<K>, name: &str, version: Option<String>)
where
    K: Resource + Clone + fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut listed = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = None,
            Ok(Event::InitApply(object)) => listed = object.resource_version(),
            Ok(Event::InitDone) if listed == version => {}
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(name, error = &error as &dyn std::error::Error, "watch interrupted");
            }
        }
    }
}

impl From<ConfigMap> for Object {
    fn from(map: ConfigMap) -> Self {
        let data = map.data.unwrap_or_default().into_iter();
        let binary = map.binary_data.unwrap_or_default().into_iter();
        Self {
            version: map.metadata.resource_version,
            data: data.map(|(key, value)| (key, value.into_bytes())).collect(),
            binary: binary.map(|(key, value)| (key, value.0)).collect(),
        }
    }
}

impl From<Secret> for Object {
    fn from(secret: Secret) -> Self {
        let data = secret.data.unwrap_or_default().into_iter();
        Self {
            version: secret.metadata.resource_version,
            data: data.map(|(key, value)| (key, value.0)).collect(),
            binary: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
pub mod tests {
    /// Keys and values of an object.
    pub type Data = &'static [(&'static str, &'static str)];
}
