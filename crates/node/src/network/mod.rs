//! Joins the network to the API: Pods, Namespaces, Services and NetworkPolicies become facts, and every Pod gets its wire.
//!
//! ```text
//! Pod starts ─► take a namespace ─┬─► runtime starts in it
//!                                 └─► admit: policies of its namespace, rules in force     both before it is Running
//! NetworkPolicy, Namespace, Service, labels change ─► facts ─► a moment later: rules and names
//! ```
//!
//! Without root the network is in a namespace beside the machine's (`hosted`).
//!
//! Where the machine cannot have such a network, sandboxes have loopback only, and the Node says so.

mod facts;
mod hosted;
mod policy;
mod watch;

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use asb_network::dns::Resolver;
use asb_network::policy::Sandbox;
use asb_network::{Addresses, Network};
use asb_runtime::Native;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Notify;

use self::hosted::Hosted;
pub use self::watch::run;
use crate::failure::with_causes;
use crate::node::uid;
use crate::pod::links;

/// Addresses of sandboxes that have loopback only: each is alone with its own.
const ALONE: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 88, 0, 2), Ipv4Addr::new(10, 88, 255, 254));

/// The network of this node's Pods.
pub struct Wires {
    network: Result<Hosted, NoNetwork>,
    alone: Addresses,
    /// The resourceVersion of each policy as it was last seen, also of those that are gone.
    versions: Mutex<HashMap<String, u64>>,
    /// Facts have changed without rules.
    changed: Notify,
    /// Answers questions for names while it is polled; `None`: nobody does.
    resolver: Option<tokio::sync::Mutex<BoxFuture<'static, ()>>>,
}

/// Why sandboxes have loopback only.
#[derive(Debug, Clone)]
pub struct NoNetwork(pub String);

/// Where a Pod starts.
pub struct Wire {
    pub address: Ipv4Addr,
    /// `None`: a namespace with loopback only, made at its start.
    pub namespace: Option<OwnedFd>,
}

impl Wires {
    /// Opens the network; `used` are the addresses of sandboxes that have an interface already.
    pub async fn open(runtime: &Native, data_dir: &Path, used: Vec<Ipv4Addr>, alone: &[Ipv4Addr]) -> Self {
        let network = Hosted::open(runtime, data_dir, used).await.map_err(|why| {
            tracing::warn!(why, "sandboxes have no network but their own loopback interface");
            NoNetwork(why)
        });
        let resolver = match &network {
            Ok(network) => resolver(network).await,
            Err(_) => None,
        };
        let wires = Self {
            network,
            resolver: resolver.map(tokio::sync::Mutex::new),
            alone: Addresses::new(ALONE.0, ALONE.1),
            versions: Mutex::default(),
            changed: Notify::new(),
        };
        for address in alone {
            wires.alone.keep(*address);
            // No two Pods have the same one, even where it leads nowhere.
            wires.network.iter().for_each(|network| network.keep(*address));
        }
        wires
    }

    /// What the Node says about it.
    pub fn missing(&self) -> Option<&NoNetwork> {
        self.network.as_ref().err()
    }

    /// The IPv6 address of the Pod that has this address, unless it has loopback only.
    pub fn beside(&self, address: Ipv4Addr, alone: bool) -> Option<Ipv6Addr> {
        self.network.as_ref().ok().filter(|_| !alone)?.beside(address)
    }

    /// Why Pods reach nothing outside, though they have a network.
    pub fn closed(&self) -> Option<String> {
        self.network.as_ref().ok()?.closed()
    }

    /// Where Pods ask for names.
    pub fn resolver(&self) -> Option<Ipv4Addr> {
        let network = self.network.as_ref().ok()?;
        self.resolver.is_some().then(|| network.gateway())
    }

    /// Learns of all policies, namespaces and services, as they are when it begins.
    pub async fn load(&self, client: &Client) -> kube::Result<()> {
        for policy in Api::<NetworkPolicy>::all(client.clone()).list(&ListParams::default()).await? {
            self.note_policy(&policy, true);
        }
        for namespace in Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await? {
            self.note_namespace(&namespace, true);
        }
        for service in Api::<Service>::all(client.clone()).list(&ListParams::default()).await? {
            self.note_service(&service, true);
        }
        Ok(())
    }

    /// The variables that tell a Pod of Services.
    pub fn links(&self, pod: &Pod) -> Vec<(String, String)> {
        let mut told = Vec::new();
        self.note(|facts| told = links::variables(pod, facts.services.values()));
        told
    }

    /// A place for a Pod to start. Nothing passes there until [`Wires::admit`].
    pub async fn take(&self) -> Result<Wire, String> {
        let Ok(network) = &self.network else {
            let address = self.alone.take().ok_or("all Pod addresses of this machine are taken")?;
            return Ok(Wire { address, namespace: None });
        };
        let namespace = match network.take_parked() {
            Some(namespace) => namespace,
            None => network.blocking(Network::make).await?,
        };
        Ok(Wire { address: namespace.address, namespace: Some(namespace.fd) })
    }

    /// Makes a namespace that a kernel with a network stack of its own has left ready for the next.
    pub async fn restore(&self, namespace: &OwnedFd, address: Ipv4Addr) -> Result<(), String> {
        let Ok(network) = &self.network else { return Ok(()) };
        let namespace = namespace.try_clone().map_err(|error| error.to_string())?;
        network.blocking(move |network| network.restore(&namespace, address)).await
    }

    /// Puts the rules of a Pod in force: with every policy that was there when the Pod was made.
    pub async fn admit(&self, client: &Client, pod: &Pod, address: Ipv4Addr) -> Result<(), String> {
        let Ok(network) = &self.network else { return Ok(()) };
        // Asked and not taken from the watch, which may lag: a policy must never come after the Pod it was made for.
        let api: Api<NetworkPolicy> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        let policies = api.list(&ListParams::default()).await.map_err(|error| with_causes(&error))?;
        policies.iter().for_each(|policy| self.note_policy(policy, true));
        let (id, sandbox) = (uid(pod), facts::sandbox(pod, address));
        network
            .blocking(move |network| network.update(|facts| drop(facts.sandboxes.insert(id, sandbox))))
            .await
    }

    /// Takes the rules and the name of a Pod back whose sandbox has ended. Its address stays its own.
    pub async fn mute(&self, pod_uid: &str, address: Ipv4Addr) {
        let Ok(network) = &self.network else { return };
        let id = pod_uid.to_owned();
        let muted = network.blocking(move |network| {
            network.update(|facts| {
                // By now the Pod may have another sandbox, and that another address.
                if facts.sandboxes.get(&id).is_some_and(|sandbox| sandbox.address == address) {
                    facts.sandboxes.remove(&id);
                }
            })
        });
        if let Err(error) = muted.await {
            tracing::warn!(pod = pod_uid, error, "the rules of a Pod that has ended are still there");
        }
    }

    /// Takes a Pod's rules back, after its sandbox is gone, and its address.
    pub async fn leave(&self, pod_uid: &str, address: Ipv4Addr, wired: bool) {
        match &self.network {
            Ok(network) if wired => {
                self.mute(pod_uid, address).await;
                network.give_back(address);
            }
            // Of a network that an earlier engine had.
            Err(_) if wired => {}
            _ => self.alone.give_back(address),
        }
    }

    /// Makes new places for those that were taken. For when there is time.
    pub async fn park(&self) {
        let Ok(network) = &self.network else { return };
        if let Err(error) = network.blocking(Network::park).await {
            tracing::warn!(error, "no network namespaces could be made ahead");
        }
    }

    /// Learns of a Pod whose sandbox runs already. Has no effect before [`Wires::apply`].
    pub fn note_running(&self, pod: &Pod, address: Ipv4Addr) {
        let sandbox = facts::sandbox(pod, address);
        self.note(|facts| drop(facts.sandboxes.insert(uid(pod), sandbox)));
    }

    /// Learns the latest form of a Pod; one that has no rules yet is none of ours.
    pub fn note_pod(&self, pod: &Pod) {
        self.note(|facts| {
            let Some(known) = facts.sandboxes.get(&uid(pod)) else { return };
            let latest = facts::sandbox(pod, known.address);
            // That a Pod is ready is of interest only to Services: without one, a start costs nothing more.
            let was = Sandbox { ready: latest.ready, ..known.clone() };
            if was != latest || (known.ready != latest.ready && facts.awaits(&latest)) {
                self.changed.notify_one();
            }
            facts.sandboxes.insert(uid(pod), latest);
        });
    }

    /// Learns of a policy, unless something later is known of it.
    fn note_policy(&self, object: &NetworkPolicy, exists: bool) {
        let key = key(object);
        let version = object.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0);
        // Held to the end: of two who learn of the same policy, the one who knows less comes first or not at all.
        let mut versions = self.versions();
        // An object that is gone has the version of its end or, with some servers, that of its last change.
        let stale = |known: &u64| if exists { *known >= version } else { *known > version };
        if versions.get(&key).is_some_and(stale) {
            return;
        }
        versions.insert(key.clone(), version);
        let policy = exists.then(|| {
            policy::policy(object).unwrap_or_else(|problem| {
                tracing::warn!(
                    policy = key,
                    problem,
                    "a NetworkPolicy cannot be understood; nothing passes in its namespace"
                );
                policy::refuse_all(object)
            })
        });
        self.note(|facts| {
            match policy {
                Some(policy) => facts.policies.insert(key, policy),
                None => facts.policies.remove(&key),
            };
        });
        self.changed.notify_one();
    }

    /// Policies that are not among these are gone.
    fn keep_policies(&self, keys: &HashSet<String>) {
        // Forgotten altogether: one that came after the list is told of again.
        let mut versions = self.versions();
        versions.retain(|key, _| keys.contains(key));
        self.note(|facts| facts.policies.retain(|key, _| keys.contains(key)));
        self.changed.notify_one();
    }

    fn note_service(&self, object: &Service, exists: bool) {
        let key = key(object);
        let service = exists.then(|| facts::service(object));
        self.note(|facts| {
            match service {
                Some(service) => facts.services.insert(key, service),
                None => facts.services.remove(&key),
            };
        });
        self.changed.notify_one();
    }

    /// Services that are not among these are gone.
    fn keep_services(&self, keys: &HashSet<String>) {
        self.note(|facts| facts.services.retain(|key, _| keys.contains(key)));
        self.changed.notify_one();
    }

    fn note_namespace(&self, object: &Namespace, exists: bool) {
        self.note(|facts| {
            match exists {
                true => facts.namespaces.insert(object.name_any(), object.labels().clone()),
                false => facts.namespaces.remove(&object.name_any()),
            };
        });
        self.changed.notify_one();
    }

    /// Puts the rules in force that follow from what is known.
    pub async fn apply(&self) -> Result<(), String> {
        let Ok(network) = &self.network else { return Ok(()) };
        network.blocking(Network::apply).await
    }

    /// Removes every trace. For when no sandbox is left.
    pub async fn close(&self) {
        let Ok(network) = &self.network else { return };
        if let Err(error) = network.close().await {
            tracing::warn!(error, "the network of sandboxes was not removed");
        }
    }

    fn versions(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, change: impl FnOnce(&mut asb_network::policy::Facts)) {
        if let Ok(network) = &self.network {
            network.note(change);
        }
    }
}

/// A namespaced object among its kind.
fn key(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// Listens for questions, if the port is free.
async fn resolver(network: &Hosted) -> Option<BoxFuture<'static, ()>> {
    let (address, names) = (network.gateway(), Network::clone(network));
    let resolver = Resolver::at(address, "/etc/resolv.conf".into(), Arc::new(move || names.zone()));
    match network.resolve(resolver).await {
        Ok(serving) => Some(serving),
        Err(error) => {
            tracing::warn!(%address, %error, "Pods cannot resolve names: port 53 cannot be listened on");
            None
        }
    }
}
