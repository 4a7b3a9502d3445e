//! The copies of the API that all controllers share.
//!
//! One watch per kind (and namespace) feeds everybody, and what one controller wrote the others know at
//! once: a pool never mistakes a member that a claim has just taken for its own. They are kept on standby
//! replicas too, so that a new leader begins with a complete view.

use asb_types::{Claim, EXTENSIONS_GROUP, Sandbox, Template, WarmPool, key, name};
use futures::future::join_all;
use kube::{Api, Client, Resource};

use crate::cache::Cache;
use crate::claim;
use crate::object::{Key, NetworkPolicy, Pod, Service, VolumeClaim, controller_of, is_kind};
use crate::run;
use crate::sandbox;
use crate::write::Kind;

/// Objects by the UID of their controller.
pub const BY_OWNER: &str = "owner";
/// Sandboxes by the pool whose label they carry: namespace and hash of the pool's name.
pub const BY_POOL_LABEL: &str = "pool label";
/// Pools by the template that they name: namespace and name.
pub const BY_TEMPLATE: &str = "template";
/// Templates by the hash of their own names, which their Pods carry: namespace and hash.
pub const BY_TEMPLATE_HASH: &str = "template hash";
/// Claims by the pool that they name: namespace and name.
pub const BY_POOL: &str = "pool";
/// Sandboxes whose Pods mount volume claims that they do not make, by namespace.
pub const MOUNTS_CLAIMS: &str = "mounts claims";
/// Claims that wait for a member of a pool, by that pool: namespace and name.
pub const UNSERVED_BY_POOL: &str = "unserved by pool";

/// Pods and Services by the Sandbox whose label they carry: namespace and hash of the Sandbox's name.
pub const BY_NAME_HASH: &str = "name hash";

/// What is watched.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// Only these namespaces; none means all.
    pub namespaces: Vec<String>,
    /// Also templates, pools and claims, and what belongs to them.
    pub extensions: bool,
    /// Of Pods, Services and volume claims only those with our label. A stranger under the name of a
    /// Sandbox is then noticed only when it stands in the way.
    pub labelled_only: bool,
}

pub struct Caches {
    scope: Scope,
    pub sandboxes: Cache<Sandbox>,
    pub pods: Cache<Pod>,
    pub services: Cache<Service>,
    pub volume_claims: Cache<VolumeClaim>,
    pub templates: Cache<Template>,
    pub pools: Cache<WarmPool>,
    pub claims: Cache<Claim>,
    pub network_policies: Cache<NetworkPolicy>,
}

impl Caches {
    pub fn new(scope: Scope) -> Self {
        let namespaces = &scope.namespaces;
        let labelled = scope.labelled_only.then_some(key::SANDBOX_NAME_HASH);
        Self {
            sandboxes: Cache::new(
                namespaces,
                &[(BY_OWNER, owner), (BY_POOL_LABEL, pool_label), (MOUNTS_CLAIMS, mounts_claims)],
            )
            .sharing(share_pod_spec),
            pods: Cache::new(namespaces, &[(BY_OWNER, owner), (BY_NAME_HASH, name_hash)]).labelled(labelled),
            services: Cache::new(namespaces, &[(BY_NAME_HASH, name_hash)]).labelled(labelled),
            volume_claims: Cache::new(namespaces, &[]).labelled(labelled),
            templates: Cache::new(namespaces, &[(BY_TEMPLATE_HASH, template_hash)]),
            pools: Cache::new(namespaces, &[(BY_TEMPLATE, |pool| Some(template_of(pool).to_string()))]),
            claims: Cache::new(
                namespaces,
                &[
                    (BY_POOL, |claim| Some(pool_named_by(claim).to_string())),
                    (UNSERVED_BY_POOL, |claim| {
                        claim::waits_for_a_member(claim).then(|| pool_named_by(claim).to_string())
                    }),
                ],
            ),
            network_policies: Cache::new(namespaces, &[]),
            scope,
        }
    }

    /// Whether `volume_claims` has all there are, not only those of Sandboxes.
    pub fn has_all_volume_claims(&self) -> bool {
        !self.scope.labelled_only
    }

    /// Feeds all copies until the future is dropped.
    pub async fn run(&self, client: &Client) {
        let core = async {
            tokio::join!(
                feed(client, &self.sandboxes),
                feed(client, &self.pods),
                feed(client, &self.services),
                feed(client, &self.volume_claims),
            )
        };
        let extensions = async {
            if self.scope.extensions {
                tokio::join!(
                    feed(client, &self.templates),
                    feed(client, &self.pools),
                    feed(client, &self.claims),
                    feed(client, &self.network_policies),
                );
            }
        };
        tokio::join!(core, extensions);
    }

    /// Waits until the first lists of everything that is watched are complete.
    pub async fn synced(&self) {
        tokio::join!(
            self.sandboxes.synced(),
            self.pods.synced(),
            self.services.synced(),
            self.volume_claims.synced(),
        );
        if self.scope.extensions {
            tokio::join!(
                self.templates.synced(),
                self.pools.synced(),
                self.claims.synced(),
                self.network_policies.synced(),
            );
        }
    }
}

/// Keeps one copy current, for ever.
async fn feed<K: Kind + Send + 'static>(client: &Client, cache: &Cache<K>) {
    let namespaces = cache.namespaces();
    let watches = namespaces.iter().map(|namespace| {
        let api = match namespace.as_str() {
            "" => Api::all(client.clone()),
            namespace => Api::namespaced(client.clone(), namespace),
        };
        run::watch(api, cache, namespace)
    });
    join_all(watches).await;
}

fn owner(object: &impl Resource) -> Option<String> {
    controller_of(object).map(|owner| owner.uid.clone())
}

/// Namespace and name hash of a child of a Sandbox.
fn name_hash(object: &impl Resource) -> Option<String> {
    let hash = object.meta().labels.as_ref()?.get(key::SANDBOX_NAME_HASH)?;
    Some(Key::new(namespace(object), hash).to_string())
}

/// The members of a pool are alike, and a Pod spec is most of what a Sandbox weighs.
fn share_pod_spec(sandbox: &mut Sandbox, known: &Sandbox) {
    if sandbox.spec.pod_template.spec == known.spec.pod_template.spec {
        sandbox.spec.pod_template.spec = known.spec.pod_template.spec.clone();
    }
}

/// Namespace and pool hash of a Sandbox that carries the label of a pool.
fn pool_label(sandbox: &Sandbox) -> Option<String> {
    let hash = sandbox.metadata.labels.as_ref()?.get(key::WARM_POOL_SANDBOX)?;
    Some(Key::new(namespace(sandbox), hash).to_string())
}

fn mounts_claims(sandbox: &Sandbox) -> Option<String> {
    sandbox::mounted_claims(sandbox).next().map(|_| namespace(sandbox).to_owned())
}

/// Namespace and hash of a template's name.
fn template_hash(template: &Template) -> Option<String> {
    let hash = name::name_hash(template.metadata.name.as_deref()?);
    Some(Key::new(namespace(template), &hash).to_string())
}

/// The template that a pool names.
pub fn template_of(pool: &WarmPool) -> Key {
    Key::new(namespace(pool), &pool.spec.sandbox_template_ref.name)
}

/// The pool that a claim names.
pub fn pool_named_by(claim: &Claim) -> Key {
    Key::new(namespace(claim), &claim.spec.warm_pool_ref.name)
}

/// The pool that controls a Sandbox.
pub fn pool_of(sandbox: &Sandbox) -> Option<Key> {
    let owner = controller_of(sandbox).filter(|owner| is_kind(owner, EXTENSIONS_GROUP, "SandboxWarmPool"))?;
    Some(Key::new(namespace(sandbox), &owner.name))
}

fn namespace(object: &impl Resource) -> &str {
    object.meta().namespace.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    #[test]
    fn members_of_a_pool_share_one_pod_spec_and_keep_sharing_it() {
        let sandbox = |name: &str, image: &str, version: u64, labels: serde_json::Value| -> Sandbox {
            serde_json::from_value(json!({
                "metadata": {
                    "namespace": "ns", "name": name, "uid": name, "resourceVersion": version.to_string(),
                    "labels": labels,
                },
                "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}},
            }))
            .unwrap()
        };
        let member = || json!({key::WARM_POOL_SANDBOX: "pool"});
        let caches = Caches::new(Scope::default());
        let spec = |name| caches.sandboxes.get(&Key::new("ns", name)).unwrap().spec.pod_template.spec.clone();
        caches.sandboxes.observe("", Event::Apply(sandbox("a", "one", 1, member())));
        caches.sandboxes.observe("", Event::Apply(sandbox("b", "one", 2, member())));
        caches.sandboxes.observe("", Event::Apply(sandbox("c", "other", 3, member())));
        assert!(Arc::ptr_eq(&spec("a"), &spec("b")));
        assert_ne!(spec("a"), spec("c"));
        caches.sandboxes.wrote(sandbox("b", "one", 4, json!({"claimed": "yes"})));
        assert!(Arc::ptr_eq(&spec("a"), &spec("b")), "also after it was taken out of the pool");
        caches.sandboxes.wrote(sandbox("b", "two", 5, json!({})));
        assert_ne!(spec("a"), spec("b"));
    }
}
