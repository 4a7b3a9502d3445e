//! A small HTTP server for probes and metrics, plain or over TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use crate::go::Address;

/// Connections at a time; more wait to be accepted.
const CONNECTIONS: usize = 64;
/// For the handshake, and for the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Listens; no host means every interface, of both families where there are two.
pub async fn bind(address: &Address) -> io::Result<TcpListener> {
    let Address { host, port } = address;
    if !host.is_empty() {
        return TcpListener::bind((host.as_str(), *port)).await;
    }
    match TcpListener::bind(("::", *port)).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        Err(_) => TcpListener::bind(("0.0.0.0", *port)).await, // a machine without IPv6
    }
}

/// Serves until the future is dropped.
pub async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, router: Router) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    // Dropped with this future, and with it every connection.
    let mut connections = JoinSet::new();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: give others time to close theirs.
                tracing::warn!(error = &error as &dyn std::error::Error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (tls, router) = (tls.clone(), router.clone());
        connections.spawn(async move {
            let _slot = slot;
            match tls {
                None => connection(stream, router).await,
                Some(tls) => match timeout(PATIENCE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => connection(stream, router).await,
                    Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                    Err(_) => tracing::debug!("TLS handshake took too long"),
                },
            }
        });
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let service =
        TowerToHyperService::new(router.map_request(|request: hyper::Request<_>| request.map(Body::new)));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}
