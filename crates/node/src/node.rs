//! The node: watches its Pods and gives each a task.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use asb_runtime::image::Registries;
use asb_runtime::{Images, Native, Sandbox};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use crate::disk::{self, Disk, Floor};
use crate::drivers::{self, Drivers};
use crate::engine_pod::EnginePod;
use crate::event::Recorder;
use crate::ground::Ground;
use crate::network::{self, Wires};
use crate::pod::adopt::{self, Left};
use crate::pod::common;
use crate::pod::container::Slot;
use crate::pod::downward::Ceiling;
use crate::pod::is_wired;
use crate::pod::worker::{self, Desired};
use crate::volume::{self, Volumes};
use crate::{heartbeat, http, machine};

/// What a node is opened with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds images, volumes and the state of every sandbox.
    pub data_dir: PathBuf,
    /// The name of the Node object: [`node_name`](crate::node_name) of the data directory.
    pub name: String,
    /// Where images are pulled from.
    pub registries: Registries,
    /// What of the disk is kept free.
    pub disk_floor: Floor,
    /// Directories of the machine that Pods may use by `hostPath`.
    pub host_paths: Vec<PathBuf>,
    /// Whether privileged containers are run.
    pub allow_privileged: bool,
}

/// Runs the Pods of this machine. Cheap to clone.
#[derive(Clone)]
pub struct Node {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    /// The name of the Node object.
    pub name: String,
    pub client: Client,
    pub events: Recorder,
    pub runtime: Native,
    pub drivers: Drivers,
    pub images: Images,
    pub volumes: Volumes,
    pub disk: Arc<Disk>,
    pub wires: Wires,
    /// What earlier engines left of Pods, by UID, until the node runs.
    adopted: Mutex<HashMap<String, Left>>,
    pub ceiling: Ceiling,
    /// Whether privileged containers are run.
    pub allow_privileged: bool,
    /// The Pod that the engine serves itself.
    pub engine_pod: OnceLock<EnginePod>,
    /// Pods that are on their way out.
    pub ending: TaskTracker,
    /// Sandboxes by Pod UID and container: where exec, log and dial find them.
    sandboxes: Mutex<HashMap<String, OfPod>>,
    /// Told whenever one more is found there.
    pub started: Notify,
}

/// The sandboxes of one Pod.
#[derive(Default)]
struct OfPod {
    containers: BTreeMap<Slot, Sandbox>,
    /// What they share.
    common: Option<Sandbox>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to open the {what} below {path}")]
    Open {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("a directory cannot be opened to Pods: {0}")]
    HostPath(String),
    #[error("privileged containers cannot be allowed: that needs an engine that root runs")]
    Privileged,
    #[error("failed to open the images")]
    Images(#[source] asb_runtime::image::Error),
    #[error("failed to open the runtime")]
    Runtime(#[source] asb_runtime::Error),
    #[error("failed to find the sandboxes that run already")]
    Adopt(#[source] asb_runtime::Error),
    #[error("failed to learn of NetworkPolicies and Namespaces")]
    Network(#[source] kube::Error),
    #[error("failed to register this machine as a node")]
    Register(#[source] kube::Error),
}

impl Node {
    /// A node on this ground. Nothing is started yet.
    pub async fn open(client: Client, ground: Ground) -> Result<Self, Error> {
        let dir = ground.config.data_dir.clone();
        let (events, writing) = Recorder::new(client.clone(), ground.config.name.clone());
        let (disk, host_paths) = (ground.disk.clone(), ground.host_paths.clone());
        let volumes = match Volumes::open(client.clone(), events.clone(), &dir, disk, host_paths) {
            Ok(volumes) => volumes,
            Err(source) => {
                ground.close().await;
                return Err(Error::Open { what: "volumes", path: dir, source });
            }
        };
        let Ground { config, disk, images, runtime, wires, adopted, .. } = ground;
        // Ends with the last recorder; what was recorded at the end of the engine is still written.
        tokio::spawn(writing);
        let shared = Shared {
            name: config.name,
            events,
            allow_privileged: config.allow_privileged,
            runtime,
            drivers: Drivers::new(&dir),
            images,
            volumes,
            wires,
            // A sandbox that names no limit may still not take the machine down.
            ceiling: Ceiling {
                memory: machine::memory_bytes() / 2,
                cpus: machine::cpus(),
                disk: disk.size(),
            },
            disk,
            engine_pod: OnceLock::new(),
            ending: TaskTracker::new(),
            sandboxes: Mutex::default(),
            started: Notify::new(),
            adopted: Mutex::default(),
            client,
        };
        // Known from now on: a sandbox needs its network, even if this engine ends before it has seen a Pod.
        for sandbox in adopted {
            let uid = adopt::pod_of(&sandbox).to_owned();
            if let Some(slot) = adopt::slot_of(&sandbox) {
                shared.remember(&uid, slot, &sandbox);
            } else if common::is(&sandbox, &uid) {
                shared.remember_common(&uid, &sandbox);
            }
            let leases = shared.volumes.hold(&sandbox);
            let mut adopted = shared.adopted();
            let left = adopted.entry(uid).or_default();
            left.leases.extend(leases);
            left.sandboxes.push(sandbox);
        }
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The name of the Node object.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// `pods/log`, `pods/exec`, `pods/attach`, `pods/portforward` and `pods/proxy`, for the API server.
    pub fn routes(&self) -> axum::Router {
        http::routes(self.clone())
    }

    /// Connects to a port inside a Pod. Its containers share their ports; the first one that runs makes the connection.
    pub async fn dial(&self, pod_uid: &str, port: u16) -> io::Result<TcpStream> {
        let all: Vec<_> = self.shared.sandboxes_of(pod_uid).into_values().collect();
        let runs = all.iter().find(|sandbox| sandbox.wait().now_or_never().is_none());
        let sandbox = runs.or(all.first()).ok_or(io::ErrorKind::NotConnected)?;
        sandbox.dial(port).await.map_err(io::Error::other)
    }

    /// Makes ahead what the next Pods will need. For when nobody waits for a Pod.
    pub(crate) async fn park(&self) {
        tokio::join!(self.shared.wires.park(), self.shared.runtime.park());
    }

    /// Waits until the Pods that are on their way out are gone.
    ///
    /// For the time after [`Node::run`] was dropped, as is [`Node::close`].
    pub async fn ended(&self) {
        self.shared.ending.close();
        self.shared.ending.wait().await;
        self.remove_unwanted().await;
    }

    /// Removes what is there for Pods to come, and the network if no sandbox is left in it.
    pub async fn close(&self) {
        self.shared.runtime.unpark().await;
        if self.shared.lock().is_empty() {
            self.shared.wires.close().await;
        }
    }

    /// Takes over what runs here already and runs Pods until the future is dropped.
    pub async fn run(self, ready: impl FnOnce()) -> Result<(), Error> {
        let mut adopted = std::mem::take(&mut *self.shared.adopted());
        self.shared.wires.load(&self.shared.client).await.map_err(Error::Network)?;
        self.register().await.map_err(Error::Register)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(volume::watch(self.clone()));
        tasks.spawn(drivers::survey(self.clone()));
        tasks.spawn(disk::watch(self.clone()));
        let mut ready = Some(ready);
        let mut pods: HashMap<String, watch::Sender<Desired>> = HashMap::new();
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.name()));
        let mut events =
            watcher(Api::<Pod>::all(self.shared.client.clone()), config).default_backoff().boxed();
        let mut listed = BTreeMap::new();
        loop {
            let event = tokio::select! {
                Some(event) = events.next() => event,
                Some(ended) = tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a task of the node failed");
                    }
                    continue;
                }
            };
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(pod)) => {
                    listed.insert(uid(&pod), pod);
                }
                Ok(Event::InitDone) => {
                    if ready.is_some() {
                        self.take_over_wires(&listed, &adopted).await;
                        let node = self.clone();
                        tasks.spawn(
                            async move { network::run(&node.shared.client, &node.shared.wires).await },
                        );
                    }
                    let gone = pods.extract_if(|uid, _| !listed.contains_key(uid));
                    gone.for_each(|(_, desired)| drop(desired.send_replace(Desired::Gone)));
                    for (_, pod) in std::mem::take(&mut listed) {
                        self.tell(&mut pods, &mut adopted, &mut tasks, pod);
                    }
                    self.remove_leftovers(&pods, &mut adopted).await;
                    if let Some(ready) = ready.take() {
                        ready();
                        self.shared.runtime.expect(&self.shared.images.host().root);
                        let node = self.clone();
                        tasks.spawn(async move { node.park().await });
                        tasks.spawn(heartbeat::run(self.shared.client.clone(), self.name().to_owned()));
                    }
                }
                Ok(Event::Apply(pod)) => self.tell(&mut pods, &mut adopted, &mut tasks, pod),
                Ok(Event::Delete(pod)) => {
                    if let Some(desired) = pods.remove(&uid(&pod)) {
                        desired.send_replace(Desired::Gone);
                    }
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "watch of Pods interrupted");
                }
            }
        }
    }

    /// Once every Pod is known: the rules of sandboxes that run already, all at once.
    async fn take_over_wires(&self, pods: &BTreeMap<String, Pod>, adopted: &HashMap<String, Left>) {
        let wires = &self.shared.wires;
        for (uid, Left { sandboxes, .. }) in adopted {
            // Those that ended may have had another address than those that run.
            let runs = |sandbox: &&Sandbox| sandbox.wait().now_or_never().is_none();
            let running = sandboxes.iter().filter(|sandbox| is_wired(sandbox)).find(runs);
            let address = running.and_then(|sandbox| sandbox.spec().address);
            if let (Some(pod), Some(address)) = (pods.get(uid), address) {
                wires.note_running(pod, address);
            }
        }
        if let Err(error) = wires.apply().await {
            tracing::error!(error, "the rules of the network are not as they should be");
        }
    }

    /// Removes the sandboxes whose Pods were deleted after the watch had ended.
    async fn remove_unwanted(&self) {
        // Without an answer they stay, and the next engine finds them.
        let Ok(wanted) = self.all_pods().await else { return };
        let Ok(sandboxes) = self.shared.runtime.list().await else { return };
        let unwanted = sandboxes.into_iter().filter(|sandbox| !wanted.contains(adopt::pod_of(sandbox)));
        let left = Left { sandboxes: unwanted.collect(), leases: Vec::new() };
        adopt::remove_orphans(self.clone(), left).await;
    }

    /// The UIDs of all Pods, whatever Node they are bound to.
    async fn all_pods(&self) -> Result<HashSet<String>, kube::Error> {
        let pods: Api<Pod> = Api::all(self.shared.client.clone());
        let listed = pods.list_metadata(&ListParams::default()).await?;
        Ok(listed.into_iter().filter_map(|pod| pod.metadata.uid).collect())
    }

    /// Removes the sandboxes and the directories of Pods that no longer exist. `pods` are those of this Node.
    ///
    /// A Pod that is not among them may still exist, bound to another Node. So nothing is removed before a list of all
    /// Pods says that the Pod is gone; without that list everything stays.
    async fn remove_leftovers(
        &self,
        pods: &HashMap<String, watch::Sender<Desired>>,
        adopted: &mut HashMap<String, Left>,
    ) {
        let mut directories = match self.shared.volumes.pods() {
            Ok(uids) => uids,
            Err(error) => {
                tracing::warn!(%error, "failed to list the directories of Pods");
                Vec::new()
            }
        };
        directories.retain(|uid| !pods.contains_key(uid));
        if directories.is_empty() && adopted.is_empty() {
            return;
        }
        let existing = match self.all_pods().await {
            Ok(uids) => uids,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "failed to list all Pods; sandboxes and volumes without a Pod are kept"
                );
                return;
            }
        };
        for uid in adopted.keys().filter(|uid| existing.contains(*uid)) {
            tracing::warn!(pod = uid, node = self.name(), "keeping the sandboxes of a Pod of another Node");
        }
        for (_, left) in adopted.extract_if(|uid, _| !existing.contains(uid)) {
            self.shared.ending.spawn(adopt::remove_orphans(self.clone(), left));
        }
        for uid in directories.iter().filter(|uid| !existing.contains(*uid)) {
            if let Err(error) = self.shared.volumes.forget_pod(uid).await {
                tracing::warn!(pod = uid, %error, "failed to remove the volumes of a Pod that no longer exists");
            }
        }
    }

    /// Hands the latest form of a Pod to its task, which is started if there is none.
    fn tell(
        &self,
        pods: &mut HashMap<String, watch::Sender<Desired>>,
        adopted: &mut HashMap<String, Left>,
        tasks: &mut JoinSet<()>,
        pod: Pod,
    ) {
        let uid = uid(&pod);
        let desired = Desired::Present(Arc::new(pod));
        if let Some(known) = pods.get(&uid) {
            if let Desired::Present(pod) = &desired {
                self.shared.wires.note_pod(pod);
            }
            known.send_replace(desired);
            return;
        }
        if let Desired::Present(pod) = &desired
            && self.engine_pod(pod).is_some()
        {
            return;
        }
        let (sender, receiver) = watch::channel(desired);
        let left = adopted.remove(&uid).unwrap_or_default();
        tasks.spawn(worker::run(self.clone(), receiver, left));
        pods.insert(uid, sender);
    }

    /// Makes the Node, the StorageClass and the first RuntimeClass of this machine.
    async fn register(&self) -> Result<(), kube::Error> {
        let wires = &self.shared.wires;
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.shared.client.clone());
        let before = nodes.get_opt(self.name()).await?;
        let (missing, closed) = (wires.missing(), wires.closed());
        let node = heartbeat::node(
            self.name(),
            missing,
            closed.as_deref(),
            self.shared.disk.size(),
            before.as_ref(),
        );
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {
                "name": crate::volume::STORAGE_CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": crate::volume::PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
        });
        self.ensure::<k8s_openapi::api::core::v1::Node>(&node).await?;
        self.ensure::<k8s_openapi::api::storage::v1::StorageClass>(&class).await?;
        self.ensure::<k8s_openapi::api::node::v1::RuntimeClass>(&drivers::class("native")).await?;
        if before.is_some() {
            let labels = json!({"metadata": {"labels": node["metadata"]["labels"]}});
            nodes.patch(self.name(), &PatchParams::default(), &Patch::Merge(labels)).await?;
        }
        let status = json!({"status": node["status"]});
        nodes.patch_status(self.name(), &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }

    /// Creates a cluster-wide object unless one of its name exists.
    pub(crate) async fn ensure<K>(&self, object: &serde_json::Value) -> Result<(), kube::Error>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>,
        K: serde::de::DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
    {
        let api: Api<K> = Api::all(self.shared.client.clone());
        let object: K = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
        match api.create(&Default::default(), &object).await {
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            other => other.map(drop),
        }
    }
}

impl Shared {
    pub fn sandbox(&self, pod_uid: &str, container: Slot) -> Option<Sandbox> {
        self.lock().get(pod_uid)?.containers.get(&container).cloned()
    }

    pub fn sandboxes_of(&self, pod_uid: &str) -> BTreeMap<Slot, Sandbox> {
        self.lock().get(pod_uid).map(|all| all.containers.clone()).unwrap_or_default()
    }

    /// Whether anything of the Pod is there.
    pub fn has_sandbox(&self, pod_uid: &str) -> bool {
        self.lock().get(pod_uid).is_some_and(|all| !all.containers.is_empty())
    }

    pub fn remember(&self, pod_uid: &str, container: Slot, sandbox: &Sandbox) {
        let mut all = self.lock();
        all.entry(pod_uid.to_owned()).or_default().containers.insert(container, sandbox.clone());
        drop(all);
        self.started.notify_waiters();
    }

    /// The same for what containers share.
    pub fn remember_common(&self, pod_uid: &str, sandbox: &Sandbox) {
        self.lock().entry(pod_uid.to_owned()).or_default().common = Some(sandbox.clone());
    }

    pub fn forget(&self, pod_uid: &str, gone: &Sandbox) {
        let mut all = self.lock();
        if let Some(sandboxes) = all.get_mut(pod_uid) {
            sandboxes.containers.retain(|_, sandbox| sandbox.id() != gone.id());
            sandboxes.common.take_if(|sandbox| sandbox.id() == gone.id());
            if sandboxes.containers.is_empty() && sandboxes.common.is_none() {
                all.remove(pod_uid);
            }
        }
    }

    fn adopted(&self) -> std::sync::MutexGuard<'_, HashMap<String, Left>> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, OfPod>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}
