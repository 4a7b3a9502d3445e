//! A registry on loopback, as good or as bad as a test wants it.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio_rustls::TlsAcceptor;

use crate::image::{Built, digest};

/// Who may pull.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Everybody,
    /// `user:password` with every request.
    Basic(String),
    /// A token, for everybody or for `user:password`.
    Token(Option<String>),
}

/// What goes wrong.
#[derive(Debug, Default)]
pub struct Faulty {
    /// Connections that end after so many bytes of a blob: bytes, how many times.
    pub cut: Option<(usize, u32)>,
    /// Blobs are always sent from the beginning.
    pub no_ranges: bool,
    /// Blobs have other bytes than they should have.
    pub wrong_blobs: bool,
    /// Blobs go on after their end.
    pub long_blobs: bool,
    pub wrong_manifests: bool,
    /// Manifests that never end.
    pub endless_manifests: bool,
    /// Answers with this status, so many times.
    pub failing: Option<(u16, u32)>,
    /// Where blobs are said to be instead.
    pub redirect: Option<String>,
}

/// A running registry; stops when dropped.
pub struct Registry {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

#[derive(Default)]
struct Shared {
    access: Access,
    /// Manifests by `REPOSITORY:TAG` and `REPOSITORY@DIGEST`.
    manifests: Mutex<HashMap<String, Vec<u8>>>,
    blobs: Mutex<BTreeMap<String, Vec<u8>>>,
    faults: Mutex<Faulty>,
    requests: Mutex<Vec<String>>,
}

impl Registry {
    pub fn start(access: Access) -> Self {
        Self::serve(access, None)
    }

    /// With TLS, and the certificate to trust for it (PEM).
    pub fn start_tls(access: Access) -> (Self, String) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| {
                config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key)
            })
            .expect("a configuration");
        (Self::serve(access, Some(TlsAcceptor::from(Arc::new(config)))), made.cert.pem())
    }

    /// On a thread of its own, so that tests need no async runtime.
    fn serve(access: Access, tls: Option<TlsAcceptor>) -> Self {
        let shared = Arc::new(Shared { access, ..Shared::default() });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.set_nonblocking(true).expect("can be asynchronous");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let router = Router::new()
            .route("/token", get(token))
            .route("/v2/{*path}", get(pull))
            .with_state((shared.clone(), address));
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = accept(listener, router, tls) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, shared, stop: Some(stop) }
    }

    /// `NAME` as clients know it: with the address of this registry.
    pub fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// Stores an image under `REPOSITORY:TAG`.
    pub fn push(&self, name: &str, image: &Built) {
        self.push_manifest(name, &image.manifest);
        lock(&self.shared.blobs).extend(image.blobs());
    }

    /// Stores an image for this machine, beside one for another that is not there.
    pub fn push_index(&self, name: &str, image: &Built) {
        let repository = name.split(':').next().unwrap_or_default();
        self.push(&format!("{repository}:unnamed"), image);
        self.push_manifest(name, &image.index());
    }

    pub fn push_manifest(&self, name: &str, manifest: &[u8]) {
        let repository = name.split(':').next().unwrap_or_default();
        let mut manifests = lock(&self.shared.manifests);
        manifests.insert(name.to_owned(), manifest.to_owned());
        manifests.insert(format!("{repository}@{}", digest(manifest)), manifest.to_owned());
    }

    /// What goes wrong from now on.
    pub fn faults(&self) -> MutexGuard<'_, Faulty> {
        lock(&self.shared.faults)
    }

    /// Every request since the last call: path, and range if there was one.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.shared.requests))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Gone already if its thread has failed.
        let _ = self.stop.take().map(|stop| stop.send(()));
    }
}

/// Serves every connection; one that fails is nobody else's business.
async fn accept(listener: tokio::net::TcpListener, router: Router, tls: Option<TlsAcceptor>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (service, tls) = (TowerToHyperService::new(router.clone()), tls.clone());
        tokio::spawn(async move {
            let server = hyper::server::conn::http1::Builder::new();
            let _ = match tls {
                None => server.serve_connection(TokioIo::new(stream), service).await.is_ok(),
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => server.serve_connection(TokioIo::new(stream), service).await.is_ok(),
                    Err(_) => false,
                },
            };
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Shown = State<(Arc<Shared>, SocketAddr)>;

const TOKEN: &str = "a-token";

async fn token(State((shared, _)): Shown, headers: HeaderMap) -> Response {
    lock(&shared.requests).push("/token".to_owned());
    match &shared.access {
        Access::Token(Some(login)) if !has_login(&headers, login) => StatusCode::UNAUTHORIZED.into_response(),
        _ => axum::Json(serde_json::json!({"token": TOKEN, "expires_in": 60})).into_response(),
    }
}

async fn pull(State((shared, address)): Shown, Path(path): Path<String>, request: Request) -> Response {
    let headers = request.headers();
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let noted = range.map_or_else(|| path.clone(), |range| format!("{path} {range}"));
    lock(&shared.requests).push(noted);
    if let Some(refused) = refused(&shared, address, headers) {
        return refused;
    }
    if let Some((status, times)) = &mut lock(&shared.faults).failing
        && *times > 0
    {
        *times -= 1;
        return StatusCode::from_u16(*status).expect("a status").into_response();
    }
    let parts: Vec<_> = path.rsplitn(3, '/').collect();
    match parts.as_slice() {
        [version, "manifests", repository] => manifest(&shared, repository, version),
        [digest, "blobs", _] => {
            let offset =
                range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
            blob(&shared, digest, offset)
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn refused(shared: &Shared, address: SocketAddr, headers: &HeaderMap) -> Option<Response> {
    let bearer = headers.get(header::AUTHORIZATION).is_some_and(|it| it == &format!("Bearer {TOKEN}"));
    let challenge = match &shared.access {
        Access::Everybody => return None,
        Access::Basic(login) if has_login(headers, login) => return None,
        Access::Basic(_) => "Basic realm=\"test\"".to_owned(),
        Access::Token(_) if bearer => return None,
        Access::Token(_) => format!("Bearer realm=\"http://{address}/token\",service=\"test\""),
    };
    Some((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response())
}

fn has_login(headers: &HeaderMap, login: &str) -> bool {
    let expected = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(login));
    headers.get(header::AUTHORIZATION).is_some_and(|it| it == &expected)
}

fn manifest(shared: &Shared, repository: &str, version: &str) -> Response {
    let separator = if version.starts_with("sha256:") { '@' } else { ':' };
    let found = lock(&shared.manifests).get(&format!("{repository}{separator}{version}")).cloned();
    let Some(mut text) = found else {
        let errors =
            serde_json::json!({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]});
        return (StatusCode::NOT_FOUND, axum::Json(errors)).into_response();
    };
    let faults = lock(&shared.faults);
    if faults.endless_manifests {
        let endless =
            futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 64 << 10])));
        return Body::from_stream(endless).into_response();
    }
    let said = digest(&text);
    if faults.wrong_manifests {
        text.push(b' ');
    }
    ([("docker-content-digest", said)], text).into_response()
}

fn blob(shared: &Shared, digest: &str, offset: Option<usize>) -> Response {
    let Some(mut bytes) = lock(&shared.blobs).get(digest).cloned() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let mut faults = lock(&shared.faults);
    if let Some(target) = &faults.redirect {
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, target.clone())]).into_response();
    }
    if faults.wrong_blobs {
        bytes.iter_mut().for_each(|byte| *byte ^= 1);
    }
    if faults.long_blobs {
        bytes.extend([0; 1000]);
    }
    let whole = bytes.len();
    let offset = offset.filter(|offset| !faults.no_ranges && *offset < whole);
    let rest = bytes.split_off(offset.unwrap_or(0));
    let mut response = Response::builder().header(header::CONTENT_LENGTH, rest.len());
    if let Some(offset) = offset {
        let range = format!("bytes {offset}-{}/{whole}", whole - 1);
        response = response.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, range);
    }
    let body = match &mut faults.cut {
        Some((bytes, times)) if *times > 0 && rest.len() > *bytes => {
            *times -= 1;
            let start = Ok(Bytes::copy_from_slice(&rest[..*bytes]));
            let cut = async {
                // What was sent before must be on its way.
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))
            };
            let pieces = futures::stream::once(std::future::ready(start));
            Body::from_stream(futures::StreamExt::chain(pieces, futures::stream::once(cut)))
        }
        _ => Body::from(rest),
    };
    response.body(body).expect("a response")
}
