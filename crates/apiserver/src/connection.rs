//! What every listener does with a connection once it knows whose it is: HTTP/1.1, with upgrades.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt as _;

/// Connections at a time; more wait to be accepted.
pub const MOST: usize = 4096;
/// For a handshake, and for the head of a request.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// After a connection could not be accepted: out of descriptors, most likely, so others get time to close theirs.
const RECOVERY: Duration = Duration::from_millis(100);

/// Serves requests until the other side leaves. `refuse` answers those that are not let through.
pub async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: axum::Router,
    refuse: impl Fn(&Request<hyper::body::Incoming>) -> Option<Response>,
) {
    let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| {
        let (router, refused) = (router.clone(), refuse(&request));
        async move {
            match refused {
                Some(refusal) => Ok::<_, Infallible>(refusal),
                None => router.oneshot(request.map(Body::new)).await,
            }
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(error = &error as &dyn std::error::Error, "a connection ended early");
    }
}

/// The connection, unless it could not be accepted.
pub async fn accepted<S>(result: std::io::Result<S>) -> Option<S> {
    match result {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "could not accept a connection");
            tokio::time::sleep(RECOVERY).await;
            None
        }
    }
}
