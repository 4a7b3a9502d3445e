//! Carries HTTP from one address to the sandbox that the request names.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;

/// A byte stream to a port inside a sandbox.
pub trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

/// The Pod behind a Ready sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub namespace: String,
    pub name: String,
    pub pod_uid: String,
    pub address: std::net::IpAddr,
}

/// How bytes get into a sandbox: over TCP on a cluster, through the node on one machine.
pub trait Dial: Send + Sync + 'static {
    fn dial<'a>(&'a self, target: &'a Target, port: u16) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
}

/// What a router is started with.
pub struct Config {
    /// Callers must send `Authorization: Bearer <token>`. `None` lets everybody in.
    pub token: Option<String>,
}

/// A listening router; dropping it stops listening.
pub struct Serving {
    pub address: SocketAddr,
}

/// Serves on `address` (port 0 = any free one). Returns when the directory of sandboxes is complete.
pub async fn serve(
    _address: SocketAddr,
    _client: kube::Client,
    _dial: Arc<dyn Dial>,
    _config: Config,
) -> io::Result<Serving> {
    Err(io::ErrorKind::Unsupported.into())
}
