//! The last hop: a byte stream to a port inside a sandbox.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::HeaderValue;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// As the reference does.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_LOSSES: u32 = 4;

/// A byte stream to a port inside a sandbox.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The Pod behind a Ready sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub namespace: String,
    pub name: String,
    pub pod_uid: Arc<str>,
    pub address: IpAddr,
}

impl Target {
    /// What the sandbox sees as the `Host` of a request to this port.
    pub(crate) fn host(&self, port: u16) -> HeaderValue {
        let host = SocketAddr::new(self.address, port).to_string();
        HeaderValue::try_from(host).expect("an address is plain ASCII")
    }
}

/// How bytes get into a sandbox: over TCP on a cluster, through the node on one machine.
pub trait Dial: Send + Sync + 'static {
    /// Whether the address of a Pod alone decides where a connection leads. Two Pods with one address are then never
    /// both reachable.
    fn by_address(&self) -> bool {
        false
    }

    fn dial<'a>(&'a self, target: &'a Target, port: u16) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
}

/// Lets the kernel ask now and then whether the other end is still there. A long call is silent for minutes, in which
/// firewalls and load balancers on the way forget the connection, and a machine that has gone says nothing.
pub(crate) fn keep_alive(stream: &impl AsFd) {
    // Not every socket has these options, and a connection works without them.
    let _ = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, KEEP_ALIVE))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_LOSSES));
}

/// Connects to the Pod's address, as on any cluster network.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpDial;

impl Dial for TcpDial {
    fn by_address(&self) -> bool {
        true
    }

    fn dial<'a>(&'a self, target: &'a Target, port: u16) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream =
                tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((target.address, port))).await??;
            stream.set_nodelay(true)?;
            keep_alive(&stream);
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}
