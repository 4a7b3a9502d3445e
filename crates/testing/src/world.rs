//! One namespace on some API server, with the controllers and a fake kubelet at work in it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use asb_controllers::{Caches, Scope};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};

use crate::kubelet::{self, Scheduler};
use crate::{Kubernetes, Writes, node};

/// The longest that a state may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct World {
    pub client: Client,
    /// What controllers talk through: in `asb up` it is ahead of the disk, on a cluster it has only the rights that an
    /// installed controller has.
    pub controller_client: Client,
    pub namespace: String,
    scheduler: Scheduler,
    /// Controllers and kubelet; they stop with the world.
    tasks: JoinSet<()>,
    warm_pools: Option<AbortHandle>,
    claims: Vec<AbortHandle>,
    /// What the controllers write.
    pub writes: Writes,
    /// What the claim controllers measure.
    pub claim_metrics: Arc<asb_controllers::claim::metrics::ClaimMetrics>,
    _data_dir: Option<tempfile::TempDir>,
}

/// What a test may ask of a kind.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
        + Send
        + Sync
        + 'static
{
}

impl World {
    /// On our own API server, in this process.
    pub async fn embedded() -> Self {
        let mut world = Self::idle().await;
        world.start_all().await;
        world
    }

    /// On our own API server, without any controller.
    pub async fn idle() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let crds = asb_types::crd::all();
        let config = asb_apiserver::Config {
            data_dir: dir.path().to_owned(),
            crds,
            node_name: Some(kubelet::NODE.to_owned()),
        };
        let server = asb_apiserver::ApiServer::open(config).await.expect("the embedded API server opens");
        let controller_client = server.controller_client("default");
        node::add(&server.client("default")).await;
        Self { controller_client, ..Self::new(server.client("default"), Scheduler::Nobody, Some(dir)).await }
    }

    /// On a real kube-apiserver with a scheduler, which the tests of one process share.
    pub async fn kubernetes() -> Self {
        // Starting it blocks: other tests of this process wait for it anyway.
        let kubernetes = tokio::task::spawn_blocking(Kubernetes::shared).await.expect("Kubernetes starts");
        let client = kubernetes.client().await;
        install_crds(&client).await;
        let controller_client = kubernetes.controller_client().await;
        let mut world = Self { controller_client, ..Self::new(client, Scheduler::Kubernetes, None).await };
        world.start_all().await;
        world
    }

    async fn new(client: Client, scheduler: Scheduler, data_dir: Option<tempfile::TempDir>) -> Self {
        let mut world = Self { scheduler, _data_dir: data_dir, ..Self::bare(client).await };
        world.start_node();
        world
    }

    fn start_node(&mut self) {
        let (client, namespace) = (self.client.clone(), self.namespace.clone());
        match self.scheduler {
            Scheduler::Kubernetes => self.tasks.spawn(node::run(client, namespace)),
            Scheduler::Nobody => self.tasks.spawn(kubelet::run(client, namespace, Scheduler::Nobody)),
        };
    }

    /// Where somebody else runs the controllers and a kubelet.
    pub async fn bare(client: Client) -> Self {
        let namespace = format!("test-{:08x}", rand::random::<u32>());
        let object: Namespace =
            serde_json::from_value(json!({"metadata": {"name": namespace}})).expect("a Namespace");
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &object).await.expect("a namespace of our own");
        Self {
            controller_client: client.clone(),
            client,
            namespace,
            scheduler: Scheduler::Nobody,
            tasks: JoinSet::new(),
            warm_pools: None,
            claims: Vec::new(),
            writes: Writes::default(),
            claim_metrics: Arc::default(),
            _data_dir: None,
        }
    }

    async fn start_all(&mut self) {
        let (caches, config) = (self.caches(), asb_controllers::Config::default());
        self.tasks.spawn(asb_controllers::template::run(self.controllers(), caches, config));
        self.start_controller();
        self.start_warm_pools(Default::default()).await;
        self.start_claims(Default::default());
    }

    /// Stops all controllers, for a test that brings its own; the kubelet goes on.
    pub async fn without_controllers(mut self) -> Self {
        self.warm_pools = None;
        self.claims.clear();
        self.tasks.shutdown().await;
        self.start_node();
        self
    }

    /// Starts all controllers anew, as one process with one worker each: what was asked for first is done first.
    pub async fn one_at_a_time(self) -> Self {
        let mut world = self.without_controllers().await;
        let config = asb_controllers::Config {
            sandbox_workers: 1,
            claims: asb_controllers::claim::Settings { workers: 1, ..Default::default() },
            ..Default::default()
        };
        let controllers = asb_controllers::run_all(world.controllers(), world.caches(), config);
        world.tasks.spawn(controllers);
        world
    }

    /// Starts a Sandbox controller for this namespace. A second one may run beside the first.
    pub fn start_controller(&mut self) {
        let (caches, config) = (self.caches(), asb_controllers::Config::default());
        self.tasks.spawn(asb_controllers::sandbox::run(self.controllers(), caches, config));
    }

    /// Starts the warm pool controller anew, with these settings and without any memory.
    pub async fn start_warm_pools(&mut self, settings: asb_controllers::warm_pool::Settings) {
        if let Some(running) = self.warm_pools.take() {
            stop(&running).await;
        }
        let config = asb_controllers::Config { warm_pools: settings, ..Default::default() };
        let controller = asb_controllers::warm_pool::run(self.controllers(), self.caches(), config);
        self.warm_pools = Some(self.tasks.spawn(controller));
    }

    /// Starts a claim controller. A second one may run beside the first.
    pub fn start_claims(&mut self, settings: asb_controllers::claim::Settings) {
        let claim_metrics = self.claim_metrics.clone();
        let config = asb_controllers::Config { claims: settings, claim_metrics, ..Default::default() };
        let controller = asb_controllers::claim::run(self.controllers(), self.caches(), config);
        self.claims.push(self.tasks.spawn(controller));
    }

    /// Stops all claim controllers, wherever they are in their work.
    pub async fn stop_claims(&mut self) {
        for running in self.claims.drain(..) {
            stop(&running).await;
        }
    }

    /// What controllers talk through; their writes are counted.
    fn controllers(&self) -> Client {
        self.writes.through(self.controller_client.clone())
    }

    /// A view of this namespace that no controller has yet: each stands for a process of its own.
    fn caches(&mut self) -> Arc<Caches> {
        let scope = Scope { namespaces: vec![self.namespace.clone()], extensions: true, ..Scope::default() };
        let caches = Arc::new(Caches::new(scope));
        let (client, fed) = (self.controller_client.clone(), caches.clone());
        self.tasks.spawn(async move { fed.run(&client).await });
        caches
    }

    /// Deletes the namespace with all that is in it, and waits until it is gone.
    pub async fn remove(self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = namespaces.get(&self.namespace).await.expect("the namespace is there");
        namespaces
            .delete(&self.namespace, &DeleteParams::default())
            .await
            .expect("the namespace may be deleted");
        let uid = namespace.metadata.uid.unwrap_or_default();
        let gone = await_condition(namespaces, &self.namespace, conditions::is_deleted(&uid));
        let waited = tokio::time::timeout(2 * PATIENCE, gone).await;
        waited.expect("the namespace goes soon").expect("the watch works");
    }

    pub fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn create<K: Kind>(&self, object: Value) -> K {
        let object: K = serde_json::from_value(object).expect("an object of that kind");
        self.api().create(&PostParams::default(), &object).await.expect("the object is accepted")
    }

    pub async fn get<K: Kind>(&self, name: &str) -> Option<K> {
        self.api().get_opt(name).await.expect("the API answers")
    }

    pub async fn merge<K: Kind>(&self, name: &str, patch: Value) -> K {
        let patched = self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("the patch is accepted")
    }

    /// Deletes an object and waits until it is gone.
    pub async fn delete<K: Kind>(&self, name: &str) {
        let Some(object) = self.get::<K>(name).await else { return };
        self.api::<K>().delete(name, &DeleteParams::default()).await.expect("the object may be deleted");
        self.gone(&object).await;
    }

    /// Waits until this very object (by UID) is gone.
    pub async fn gone<K: Kind>(&self, object: &K) {
        let meta = object.meta();
        let (name, uid) = (meta.name.clone().unwrap_or_default(), meta.uid.clone().unwrap_or_default());
        let gone = await_condition(self.api::<K>(), &name, conditions::is_deleted(&uid));
        let waited = tokio::time::timeout(PATIENCE, gone).await;
        waited
            .unwrap_or_else(|_| panic!("{} {name:?} is still there", K::kind(&())))
            .expect("the watch works");
    }

    /// Waits until an object is as `wanted` says, and returns it.
    pub async fn eventually<K: Kind>(&self, name: &str, wanted: impl Fn(&K) -> bool) -> K {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut seen = None;
        let mut objects = watcher(self.api::<K>(), config).default_backoff().applied_objects().boxed();
        let wait = async {
            while let Some(object) = objects.next().await {
                let Ok(object) = object else { continue };
                if wanted(&object) {
                    return Some(object);
                }
                seen = Some(object);
            }
            None
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(Some(object)) => object,
            _ => panic!("{} {name:?} did not get there; last seen: {seen:#?}", K::kind(&())),
        }
    }
}

async fn stop(task: &AbortHandle) {
    task.abort();
    while !task.is_finished() {
        tokio::task::yield_now().await;
    }
}

/// Installs our CRDs, without the version that would need a webhook, and waits until they are served.
async fn install_crds(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in asb_types::crd::v1beta1_only().into_iter().map(asb_types::crd::for_clusters) {
        let name = asb_types::crd::name(&definition).to_owned();
        let applied =
            api.patch(&name, &PatchParams::apply("asb-testing").force(), &Patch::Apply(definition)).await;
        applied.expect("our CRDs are valid");
        let served = await_condition(api.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(PATIENCE, served).await.expect("CRDs are served soon").expect("the watch works");
    }
}
