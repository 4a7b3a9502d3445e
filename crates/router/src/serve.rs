//! Listens, and stops listening.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::authorize::Token;
use crate::dial::Dial;
use crate::directory::{self, Watching};
use crate::proxy::{Caller, Proxy};
use crate::upstream::Upstream;
use crate::{Config, Limits};

/// A listening router; dropping it stops listening and ends what is in flight.
pub struct Serving {
    pub address: SocketAddr,
    /// `false` asks connections to end after their current request; closing it ends tunnels.
    running: watch::Sender<bool>,
    accepting: Option<JoinHandle<()>>,
    abort: AbortHandle,
    _watching: Watching,
}

/// Serves on `address` (port 0 = any free one). Returns when the directory of sandboxes is complete.
pub async fn serve(
    address: SocketAddr,
    client: kube::Client,
    dial: Arc<dyn Dial>,
    config: Config,
) -> io::Result<Serving> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let (directory, watching) = directory::watch(client, config.limits.sync_timeout).await?;
    let (running, receiver) = watch::channel(true);
    let proxy = Proxy {
        directory,
        upstream: Arc::new(Upstream::new(dial)),
        token: Token::new(config.token),
        limits: config.limits,
        running: receiver,
    };
    let accepting = tokio::spawn(accept(listener, Arc::new(proxy)));
    let abort = accepting.abort_handle();
    tracing::info!(%address, "router listening");
    Ok(Serving { address, running, accepting: Some(accepting), abort, _watching: watching })
}

// === impl Serving ===

impl Serving {
    /// Stops listening and returns when the requests in flight are answered. Tunnels are not waited for.
    pub async fn drain(mut self) {
        self.running.send_replace(false);
        if let Some(accepting) = self.accepting.take() {
            // An error would mean that the task was aborted, and then nothing is in flight either.
            let _ = accepting.await;
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

async fn accept(listener: TcpListener, proxy: Arc<Proxy>) {
    let slots = Arc::new(Semaphore::new(proxy.limits.connections));
    let mut running = proxy.running.clone();
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            next = next => next,
            _ = running.wait_for(|running| !running) => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                let caller = Caller { address: peer.ip(), _permit: Arc::new(permit) };
                connections.spawn(connection(stream, proxy.clone(), caller));
            }
            Err(error) => {
                // Out of descriptors, most likely: accepting again at once would only burn the CPU.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, proxy: Arc<Proxy>, caller: Caller) {
    let mut running = proxy.running.clone();
    let Limits { header_bytes, header_read_timeout, .. } = proxy.limits;
    // Small answers go out at once. Failing to ask for that costs only time.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let (proxy, caller) = (proxy.clone(), caller.clone());
        async move { Ok::<_, Infallible>(proxy.answer(request, caller).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_read_timeout)
        .max_buf_size(header_bytes)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    // An error is the caller's: it went away or did not speak HTTP.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = running.wait_for(|running| !running) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
