//! Probes and metrics: two small listeners beside the router.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connections at a time; more wait to be accepted.
const CONNECTIONS: usize = 64;
/// For the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether callers should be sent here. Starts as no.
#[derive(Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    fn is(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

pub type Answer = Response<Full<Bytes>>;

/// `/healthz` and `/readyz`.
pub fn probe(ready: &Readiness, path: &str) -> Answer {
    match path {
        "/healthz" => answer(StatusCode::OK, "application/json", r#"{"status":"ok"}"#),
        "/readyz" if ready.is() => answer(StatusCode::OK, "text/plain", "ok"),
        "/readyz" => answer(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "draining"),
        _ => not_found(),
    }
}

pub fn not_found() -> Answer {
    answer(StatusCode::NOT_FOUND, "text/plain", "not found")
}

pub fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Answers by path until the future is dropped.
pub async fn serve(listener: TcpListener, answer: impl Fn(&str) -> Answer + Clone + Send + Sync + 'static) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    // Dropped with this future, and with it every connection.
    let mut connections = JoinSet::new();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let answer = answer.clone();
        connections.spawn(async move {
            let _slot = slot;
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer(request.uri().path());
                async move { Ok::<_, Infallible>(answer) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "connection ended early");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_starts_as_no_and_follows_what_it_is_set_to() {
        let ready = Readiness::default();
        let status = |path| probe(&ready, path).status().as_u16();
        assert_eq!((status("/healthz"), status("/readyz"), status("/metrics")), (200, 503, 404));
        ready.set(true);
        assert_eq!(status("/readyz"), 200);
        ready.set(false);
        assert_eq!(status("/readyz"), 503);
    }
}
