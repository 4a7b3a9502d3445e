//! The embedded Kubernetes API: an axum `Router` over a durable store.
//!
//! ```text
//! kubectl, SDKs ──TLS──┐
//!                      ├─► Router ─► registry (kinds, schemas) ─► store (redb, watch)
//! controllers ─in process┘
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;

/// What a server is opened with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds the store, the certificates and the kubeconfig.
    pub data_dir: PathBuf,
    /// CustomResourceDefinitions that exist from the start, as JSON objects.
    pub crds: Vec<serde_json::Value>,
}

/// The API server. Cheap to clone; all clones share one store.
#[derive(Clone)]
pub struct ApiServer {}

/// A listening server; dropping it stops listening.
pub struct Serving {
    pub address: SocketAddr,
    /// A 0600 kubeconfig (written as JSON, which is YAML) for this address.
    pub kubeconfig: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {}

impl ApiServer {
    /// Opens the store, and makes the namespaces `default`, `kube-system` and `agent-sandbox-system`.
    pub async fn open(_config: Config) -> Result<Self, Error> {
        Ok(Self {})
    }

    /// The whole API, without authentication: for callers in this process.
    pub fn router(&self) -> axum::Router {
        axum::Router::new()
    }

    /// A client whose transport is [`ApiServer::router`].
    pub fn client(&self, namespace: &str) -> kube::Client {
        kube::Client::new(self.router(), namespace)
    }

    /// Gives the requests for `pods/{exec,log,attach,portforward}` to `router`, which serves the same paths.
    ///
    /// Until then they are answered with 503. The server has checked by then that the Pod exists.
    pub fn set_kubelet(&self, _router: axum::Router) {}

    /// Serves TLS with bearer-token authentication on `address` (port 0 = any free one).
    pub async fn serve(&self, _address: SocketAddr) -> Result<Serving, Error> {
        unreachable!("the skeleton does not serve")
    }
}
