//! The HTTPS server: `POST /convert`, and nothing else.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use asb_types::crd::WEBHOOK_PATH;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::{Tls, review};

/// A list is converted in one request, so this limits how long lists can be.
const BODY: usize = 64 << 20;
/// Bodies in flight take at most this many times [`BODY`].
const LARGE_AT_A_TIME: usize = 4;
/// Bodies up to this size do not count as large.
const SMALL: u64 = 256 << 10;
/// Bodies up to this size are converted where they are read. An API server keeps a copy of every object in every version, and
/// so asks for one object with each write: to wake a thread for it costs more than to convert it.
const AT_ONCE: usize = 32 << 10;
const CONNECTIONS: usize = 512;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// API servers give up after 30 seconds.
const REQUEST: Duration = Duration::from_secs(30);
/// Longer than API servers keep an idle connection: the side that sends must be the one that closes.
const IDLE: Duration = Duration::from_secs(150);

/// The certificate that new connections are served with; it may change at any time.
#[derive(Debug, Clone)]
pub(crate) struct Served(Arc<RwLock<Arc<CertifiedKey>>>);

impl Served {
    pub fn new(key: CertifiedKey) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(key))))
    }

    pub fn set(&self, key: CertifiedKey) {
        *self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Arc::new(key);
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone())
    }
}

pub(crate) struct Server {
    listener: TcpListener,
    tls: TlsAcceptor,
    service: Service,
}

#[derive(Clone)]
struct Service {
    extensions: bool,
    large: Arc<Semaphore>,
}

impl Server {
    pub async fn bind(
        address: SocketAddr,
        served: Served,
        extensions: bool,
        tls: Tls,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let builder = rustls::ServerConfig::builder_with_provider(tls.suites)
            .with_protocol_versions(&tls.versions)
            .map_err(std::io::Error::other)?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(served));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let service = Service { extensions, large: Arc::new(Semaphore::new(LARGE_AT_A_TIME)) };
        Ok(Self { listener, tls: TlsAcceptor::from(Arc::new(config)), service })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until dropped; connections end with it.
    pub async fn run(self) -> Infallible {
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let slot = slots.clone().acquire_owned().await;
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: give others time to close theirs.
                    tracing::warn!(error = &error as &dyn std::error::Error, "could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (tls, service) = (self.tls.clone(), self.service.clone());
            connections.spawn(async move {
                let _slot = slot;
                connection(stream, tls, service).await;
            });
        }
    }
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, service: Service) {
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await else { return };
    let serve = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.answer(request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), serve)
        .await;
    if let Err(error) = served {
        tracing::debug!(error = &error as &dyn std::error::Error, "a connection ended early");
    }
}

impl Service {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() != WEBHOOK_PATH {
            return text(StatusCode::NOT_FOUND, "only /convert is served here");
        }
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "send a ConversionReview with POST");
        }
        match tokio::time::timeout(REQUEST, self.convert(request)).await {
            Ok(response) => response,
            Err(_) => text(StatusCode::REQUEST_TIMEOUT, "the conversion took too long"),
        }
    }

    async fn convert(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        use hyper::body::Body as _;
        let too_large =
            || text(StatusCode::PAYLOAD_TOO_LARGE, "too many objects at once; list them in pages");
        let length = request.body().size_hint();
        if length.lower() > BODY as u64 {
            return too_large(); // it says so itself: nothing of it need be read
        }
        // A body of unknown length may be large.
        let large = length.upper().is_none_or(|length| length > SMALL);
        let _slot = if large { self.large.acquire().await.ok() } else { None };
        let body = match Limited::new(request.into_body(), BODY).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => return too_large(),
            Err(_) => return text(StatusCode::BAD_REQUEST, "the body could not be read"),
        };
        let extensions = self.extensions;
        if body.len() <= AT_ONCE {
            return answer(&body, extensions);
        }
        // Long lists take a while: not on a thread that others wait for.
        let answered = tokio::task::spawn_blocking(move || answer(&body, extensions));
        answered.await.unwrap_or_else(|_| text(StatusCode::INTERNAL_SERVER_ERROR, "the conversion failed"))
    }
}

/// What is said to a ConversionReview.
fn answer(body: &[u8], extensions: bool) -> Response<Full<Bytes>> {
    let Ok(review) = serde_json::from_slice(body) else {
        return text(StatusCode::BAD_REQUEST, "the body is not JSON");
    };
    match review::answer(review, extensions) {
        Ok(answer) => reply(StatusCode::OK, "application/json", answer.to_string()),
        Err(error) => text(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

fn text(code: StatusCode, message: &str) -> Response<Full<Bytes>> {
    reply(code, "text/plain; charset=utf-8", message.to_owned())
}

fn reply(code: StatusCode, media_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
    response
}
