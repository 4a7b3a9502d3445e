//! The embedded Kubernetes API: an axum `Router` over a durable store.
//!
//! ```text
//! kubectl, SDKs ──TLS──┐
//! asb ───────socket────┤
//!                      ├─► Router ─► registry (kinds, schemas) ─► store (redb, watch)
//! controllers ─in process┘
//! ```
//!
//! # Guarantees
//!
//! - Whatever an answer or a watch tells of is on disk; only [`ApiServer::controller_client`] runs ahead of that.
//! - Resource versions count up across restarts, crashes and deletions, and no two writes share one.
//! - A list and a watch from its version neither miss a change nor tell one twice. Watchers hold no queue: one that
//!   falls behind the bounded history gets `410 Expired`.
//! - Later pages of a list show the moment of its first page, or answer 410.
//!
//! # Where it differs from kube-apiserver
//!
//! - Server-side apply merges and takes back what its manager leaves out, but never reports ownership conflicts:
//!   the last writer wins. Other writes do not appear in `managedFields`.
//! - Conversion webhooks are not called. Our own kinds are converted in process; versions of another custom resource
//!   differ in `apiVersion` only.
//! - The bearer of the token may do everything; there is no RBAC and no admission webhook.
//! - Protobuf is read for the built-in kinds and never written; other kinds in protobuf are refused with 415.
//! - Wrong types in built-in kinds are answered with 400 and the field's path, in other words than a decoder of Go.
//! - A Pod gets no token of its ServiceAccount.

mod accounts;
mod background;
pub mod backup;
mod connection;
mod endpoints;
mod gc;
mod http;
mod inprocess;
mod local;
mod names;
mod ops;
mod patch;
mod path;
mod pki;
mod protection;
mod registry;
mod scheduling;
mod schema;
mod selector;
mod status;
mod storage_class;
mod store;
mod terminating;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub use local::client as local_client;
use ops::{Api, WriteOptions};
use registry::Registry;
pub use registry::service::SERVICE_RANGE;
use scheduling::Scheduling;
use store::Store;
pub use tls::Serving;

/// The namespaces that are always there.
const NAMESPACES: [&str; 3] = ["default", "kube-system", "agent-sandbox-system"];

/// What a server is opened with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds the store, the certificates and the kubeconfig.
    pub data_dir: PathBuf,
    /// CustomResourceDefinitions that exist from the start, as JSON objects.
    pub crds: Vec<Value>,
    /// The only node: a new Pod that names none and fits is bound to it at once, without a scheduler's write. One that does
    /// not fit waits until it does. The node has to register itself.
    pub node_name: Option<String>,
}

/// The API server. Cheap to clone; all clones share one store.
#[derive(Clone)]
pub struct ApiServer {
    api: Arc<Api>,
    data_dir: Arc<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to create the directory {path}")]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to open the store {path}")]
    Store {
        path: PathBuf,
        #[source]
        source: redb::Error,
    },
    #[error("the store {path} is not the one that the directory had last: {unfit}")]
    Unfit { path: PathBuf, unfit: store::Unfit },
    #[error("failed to set up {what}: {message}")]
    Setup { what: String, message: String },
    #[error("failed to read or write {path}")]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to make a certificate")]
    Certificate(#[source] rcgen::Error),
    #[error("failed to set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("failed to listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
}

impl ApiServer {
    /// Opens the store, and makes the namespaces `default`, `kube-system` and `agent-sandbox-system` with their accounts.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let Config { data_dir, crds, node_name } = config;
        pki::private_dir(&data_dir)?;
        let path = data_dir.join("store.redb");
        let (hints, received) = tokio::sync::mpsc::unbounded_channel();
        let (namespaces, changed) = tokio::sync::mpsc::unbounded_channel();
        let (behind, services) = tokio::sync::mpsc::unbounded_channel();
        let (classes, changed_classes) = tokio::sync::mpsc::unbounded_channel();
        let registry = Arc::new(Registry::new());
        let (scheduling, failures) = node_name.map(Scheduling::new).unzip();
        let open = {
            let (path, registry, collect) = (path.clone(), registry.clone(), gc::tap(hints));
            let complete = accounts::tap(namespaces);
            let serve = endpoints::tap(behind);
            let classify = storage_class::tap(classes);
            let schedule = scheduling.clone();
            let tap: store::Tap = Box::new(move |change| {
                registry.follow(change);
                collect(change);
                complete(change);
                serve(change);
                classify(change);
                if let Some(scheduling) = &schedule {
                    scheduling.follow(change);
                }
            });
            move || Store::open(&path, registry::builtin::selectable_fields, tap)
        };
        let store = tokio::task::spawn_blocking(open)
            .await
            .map_err(|error| Error::Setup { what: "the store".into(), message: error.to_string() })?
            .map_err(|source| Error::Store { path, source })?;
        let api = Arc::new(Api {
            store,
            registry,
            scheduling,
            assigning: Mutex::default(),
            kubelet: RwLock::new(None),
            stopping: CancellationToken::new(),
        });
        let server = Self { api, data_dir: Arc::new(data_dir) };
        if let Some(scheduling) = &server.api.scheduling {
            scheduling.load(&server.api.store);
        }
        server.set_up(crds)?;
        tokio::spawn(gc::run(server.api.clone(), received));
        tokio::spawn(accounts::run(server.api.clone(), changed));
        tokio::spawn(endpoints::run(server.api.clone(), services));
        tokio::spawn(storage_class::run(server.api.clone(), changed_classes));
        if let Some(failures) = failures {
            tokio::spawn(scheduling::run(server.api.clone(), failures));
        }
        Ok(server)
    }

    /// The whole API, without authentication: for callers in this process.
    pub fn router(&self) -> axum::Router {
        http::router(self.api.clone())
    }

    /// A client whose transport is [`ApiServer::router`].
    pub fn client(&self, namespace: &str) -> kube::Client {
        kube::Client::new(inprocess::InProcess::new(self.router()), namespace)
    }

    /// A client that sees writes, its own and others', before they are on disk: an answer costs no wait for it.
    ///
    /// For those who do nothing but write here. What they derive from a change is on disk after it or lost with it,
    /// so a crash leaves no trace of what never was. Who acts on the world takes [`ApiServer::client`].
    pub fn controller_client(&self, namespace: &str) -> kube::Client {
        kube::Client::new(inprocess::InProcess::new(self.router()).ahead(), namespace)
    }

    /// Gives the requests for `pods/{exec,log,attach,portforward,proxy}` and `nodes/proxy` to `router`, which serves the same
    /// paths, and asks it for the whole collections of `metrics.k8s.io`.
    ///
    /// Until then they are answered with 503. The server has checked by then that the Pod or Node exists.
    pub fn set_kubelet(&self, router: axum::Router) {
        *self.api.kubelet.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(router);
    }

    /// Serves TLS with bearer-token authentication on `address` (port 0 = any free one).
    pub async fn serve(&self, address: SocketAddr) -> Result<Serving, Error> {
        tls::serve(self.router(), &self.data_dir, address, self.api.stopping.child_token()).await
    }

    /// Serves this user on a socket in the data directory, without TLS; [`local_client`] is the other end.
    pub fn serve_locally(&self) -> Result<(), Error> {
        local::serve(self.router(), &self.data_dir, self.api.stopping.child_token())
    }

    /// Ends watches and background work, writes everything out and closes the store.
    pub async fn shutdown(&self) {
        self.api.stopping.cancel();
        self.api.store.stop().await;
    }

    fn set_up(&self, crds: Vec<Value>) -> Result<(), Error> {
        let definitions = self
            .api
            .registry
            .find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
            .expect("definitions are a built-in kind");
        for entry in self.api.store.list(&definitions.resource.collection, "").entries {
            self.api.registry.install(&entry.parse());
        }
        let namespaces =
            self.api.registry.find("", "v1", "namespaces").expect("namespaces are a built-in kind");
        for name in NAMESPACES {
            self.ensure(&namespaces, name.to_owned(), json!({ "metadata": { "name": name } }), false)?;
        }
        accounts::complete(&self.api);
        for crd in crds {
            let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            self.ensure(&definitions, name, crd, true)?;
        }
        Ok(())
    }

    /// Creates an object, or brings its spec up to date when it is there.
    fn ensure(
        &self,
        target: &registry::Target,
        name: String,
        object: Value,
        update: bool,
    ) -> Result<(), Error> {
        let options = WriteOptions::default();
        let result = match self.api.get(target, "", &name) {
            Err(_) => self.api.create(target, "", object, &options),
            Ok(_) if !update => return Ok(()),
            // Compiling schemas costs more than the rest of a start: do it only when something is new.
            Ok(entry) if !registry::crd::differs(&entry.parse(), &object) => return Ok(()),
            Ok(_) => {
                let merge = |current: &Value| {
                    let mut merged = current.clone();
                    merged["spec"] = object["spec"].clone();
                    for field in ["labels", "annotations"] {
                        if object["metadata"][field].is_object() {
                            merged["metadata"][field] = object["metadata"][field].clone();
                        }
                    }
                    Ok(merged)
                };
                self.api.change(target, "", &name, ops::Part::Main, &options, None, merge)
            }
        };
        result.map(drop).map_err(|error| Error::Setup {
            what: format!("{} {name:?}", target.resource.kind),
            message: error.message,
        })
    }
}
