//! Takes connections, and stops taking them.
//!
//! ```text
//! listener ─► Slot ─┐
//! listener ─► Slot ─┼─► Router ─► a worker ─► Proxy
//! this process ─────┘
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

use crate::Config;
use crate::authorize::Authorizer;
use crate::dial::{Dial, Stream, keep_alive};
use crate::directory::{self, Watching};
use crate::limits::{Connected, Limiter};
use crate::worker::{Arrival, Shared, Socket, Workers};

/// Bytes that an in-process connection buffers in each direction.
const IN_PROCESS_BUFFER: usize = 64 * 1024;

/// What the workers are asked to do. Closing the channel ends everything at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// Connections end after their current request.
    Draining,
}

/// A listening router; dropping it stops listening and ends what is in flight.
#[must_use]
pub struct Serving {
    pub address: SocketAddr,
    router: Router,
    listening: Listening,
}

/// A router that serves the connections it is given; dropping it ends what is in flight.
#[must_use]
pub struct Router {
    connections: Connections,
    phase: watch::Sender<Phase>,
    _watching: Watching,
}

/// Where connections for a router go. Cheap to clone.
#[derive(Clone)]
pub struct Connections {
    slots: Arc<Semaphore>,
    workers: Arc<Workers>,
    limiter: Arc<Limiter>,
}

/// The right to one more connection. A listener takes it first, so that what is too much waits in the kernel's queue.
#[must_use]
pub struct Slot {
    permit: OwnedSemaphorePermit,
    connections: Connections,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub address: IpAddr,
    /// The API server has authorised the connection before it was made (`pods/portforward`), so its requests need no
    /// credentials.
    pub trusted: bool,
    /// The connection came by TLS.
    pub tls: bool,
}

/// What is to be done before HTTP is spoken on a connection, e.g. a TLS handshake. The worker does it.
pub type Handshake = Box<dyn FnOnce(TcpStream) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> + Send>;

struct Listening(JoinHandle<()>);

/// Serves on `address` (port 0 = any free one). Returns when the directory of sandboxes is complete.
pub async fn serve(
    address: SocketAddr,
    client: kube::Client,
    dial: Arc<dyn Dial>,
    config: Config,
) -> io::Result<Serving> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let router = start(client, dial, config).await?;
    let listening = Listening(tokio::spawn(listen(listener, router.connections())));
    tracing::info!(%address, "router listening");
    Ok(Serving { address, router, listening })
}

/// A router without a listener of its own. Returns when the directory of sandboxes is complete.
pub async fn start(client: kube::Client, dial: Arc<dyn Dial>, config: Config) -> io::Result<Router> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let authorizer = Authorizer::new(config.authorization, config.addressing.clone(), client.clone());
    let authorizer = Arc::new(authorizer.map_err(invalid)?);
    let (directory, watching) = directory::watch(
        client,
        config.namespace.as_deref(),
        config.limits.hold.clone(),
        dial.by_address(),
        config.limits.sync_timeout,
        config.observe.clone(),
    )
    .await?;
    let (phase, phases) = watch::channel(Phase::Serving);
    let slots = Arc::new(Semaphore::new(config.limits.connections));
    let limiter = Arc::new(Limiter::new(config.quotas));
    let shared = Shared {
        directory,
        dial,
        addressing: config.addressing,
        authorizer,
        limiter: limiter.clone(),
        limits: config.limits,
        phase: phases,
        observe: config.observe,
    };
    let workers = Arc::new(Workers::start(&shared, config.workers)?);
    let connections = Connections { slots, workers, limiter };
    Ok(Router { connections, phase, _watching: watching })
}

// === impl Serving ===

impl Serving {
    /// Where other connections than those of the listener go.
    pub fn connections(&self) -> Connections {
        self.router.connections()
    }

    /// Stops listening, then drains as [`Router::drain`].
    pub async fn drain(self, limit: Duration) {
        let Self { router, mut listening, .. } = self;
        listening.0.abort();
        // The listener is closed when the task is gone.
        let _ = (&mut listening.0).await;
        router.drain(limit).await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

// === impl Router ===

impl Router {
    pub fn connections(&self) -> Connections {
        self.connections.clone()
    }

    /// Takes no more connections and returns when the requests in flight are answered and tunnels have ended, or after
    /// `limit`. Then everything that is left ends.
    pub async fn drain(self, limit: Duration) {
        self.phase.send_replace(Phase::Draining);
        if tokio::time::timeout(limit, self.connections.workers.drained()).await.is_err() {
            tracing::warn!(
                limit_seconds = limit.as_secs_f64(),
                "connections still open at the end of the drain"
            );
        }
    }
}

// === impl Connections ===

impl Connections {
    /// Waits until one more connection may be served.
    pub async fn slot(&self) -> Slot {
        let permit = self.slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        Slot { permit, connections: self.clone() }
    }

    /// A connection from inside this process, for a caller that the API server has authorised.
    pub async fn connect_trusted(&self) -> io::Result<DuplexStream> {
        let (ours, routers) = tokio::io::duplex(IN_PROCESS_BUFFER);
        let peer = Peer { address: Ipv4Addr::LOCALHOST.into(), trusted: true, tls: false };
        self.slot().await.give(Socket::InProcess(routers), peer, Connected::default())?;
        Ok(ours)
    }
}

// === impl Slot ===

impl Slot {
    /// Serves a connection, after its handshake. An error means that the router has stopped.
    pub fn serve(self, stream: TcpStream, peer: Peer, handshake: Option<Handshake>) -> io::Result<()> {
        // Small answers go out at once. Failing to ask for that costs only time.
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        let Ok(connected) = self.connections.limiter.connect(peer.address) else {
            tracing::debug!(peer = %peer.address, "connection limit of this address reached");
            return Ok(());
        };
        // The worker's event loop takes it over from this one.
        let stream = stream.into_std()?;
        self.give(Socket::Tcp(stream, handshake), peer, connected)
    }

    fn give(self, socket: Socket, peer: Peer, connected: Connected) -> io::Result<()> {
        let arrival = Arrival { socket, peer, permit: (self.permit, connected), load: None };
        let stopped = || io::Error::new(io::ErrorKind::ConnectionRefused, "the router has stopped");
        self.connections.workers.give(arrival).then_some(()).ok_or_else(stopped)
    }
}

async fn listen(listener: TcpListener, connections: Connections) {
    loop {
        let slot = connections.slot().await;
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: accepting again at once would only burn the CPU.
                tracing::warn!(error = &error as &dyn std::error::Error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let peer = Peer { address: peer.ip(), trusted: false, tls: false };
        if let Err(error) = slot.serve(stream, peer, None)
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            return;
        }
    }
}
