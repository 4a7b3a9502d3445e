//! The loopback listener: TLS, a bearer token, and the kubeconfig that tells clients about both.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::response::IntoResponse as _;
use base64::Engine as _;
use http::{Request, header};
use serde_json::json;
use subtle::ConstantTimeEq as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Error;
use crate::connection::{self, PATIENCE};
use crate::pki::{self, Authority};
use crate::status::ApiError;

/// A listening server; dropping it stops listening.
pub struct Serving {
    pub address: SocketAddr,
    /// A 0600 kubeconfig (written as JSON, which is YAML) for this address.
    pub kubeconfig: PathBuf,
    _stop: DropGuard,
}

pub(crate) async fn serve(
    router: axum::Router,
    data_dir: &Path,
    address: SocketAddr,
    stop: CancellationToken,
) -> Result<Serving, Error> {
    let pki_dir = data_dir.join("pki");
    let authority = Authority::open(&pki_dir)?;
    let token: Arc<str> = pki::token(&data_dir.join("token"))?.into();
    let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    let address = listener.local_addr().map_err(|source| Error::Listen { address, source })?;
    let kubeconfig = data_dir.join("kubeconfig");
    pki::write_private(&kubeconfig, kubeconfig_for(address, &authority, &token).as_bytes())?;
    let front = Front { router, token, authority, pki_dir, address: address.ip(), stop: stop.clone() };
    let acceptor = front.acceptor()?;
    tokio::spawn(front.run(listener, acceptor));
    Ok(Serving { address, kubeconfig, _stop: stop.drop_guard() })
}

struct Front {
    router: axum::Router,
    token: Arc<str>,
    authority: Authority,
    pki_dir: PathBuf,
    address: IpAddr,
    stop: CancellationToken,
}

/// An acceptor and when its certificate should be replaced.
type Acceptor = (TlsAcceptor, jiff::Timestamp);

impl Front {
    fn acceptor(&self) -> Result<Acceptor, Error> {
        let identity = self.authority.server_identity(&self.pki_dir, self.address)?;
        // Named, never the process default: another part of the program may have none or a different one.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(identity.chain, identity.key))
            .map_err(Error::Tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok((TlsAcceptor::from(Arc::new(config)), identity.renew_at))
    }

    async fn run(self, listener: TcpListener, mut acceptor: Acceptor) {
        let slots = Arc::new(Semaphore::new(connection::MOST));
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Some((stream, _)) = connection::accepted(accepted).await else { continue };
            if jiff::Timestamp::now() > acceptor.1 {
                match self.acceptor() {
                    Ok(renewed) => acceptor = renewed,
                    Err(error) => tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "could not renew the certificate"
                    ),
                }
            }
            let (router, token, tls, stop) =
                (self.router.clone(), self.token.clone(), acceptor.0.clone(), self.stop.clone());
            tokio::spawn(async move {
                let _slot = slot;
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = secured(stream, tls, router, token) => {}
                }
            });
        }
    }
}

async fn secured(stream: TcpStream, tls: TlsAcceptor, router: axum::Router, token: Arc<str>) {
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, tls.accept(stream)).await else { return };
    let refuse = |request: &Request<_>| {
        (!authenticated(request, &token)).then(|| ApiError::unauthorized().into_response())
    };
    connection::serve(stream, router, refuse).await;
}

/// Health can be asked by anyone; everything else takes the token.
fn authenticated<B>(request: &Request<B>, token: &str) -> bool {
    if matches!(request.uri().path(), "/healthz" | "/livez" | "/readyz") {
        return true;
    }
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    given.is_some_and(|given| given.ct_eq(token.as_bytes()).into())
}

fn kubeconfig_for(address: SocketAddr, authority: &Authority, token: &str) -> String {
    let ca = base64::engine::general_purpose::STANDARD.encode(&authority.certificate_pem);
    let host = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => "127.0.0.1".to_owned(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => "[::1]".to_owned(),
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    let server = format!("https://{host}:{}", address.port());
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "agent-sandbox",
        "clusters": [{ "name": "agent-sandbox", "cluster": { "server": server, "certificate-authority-data": ca } }],
        "users": [{ "name": "agent-sandbox", "user": { "token": token } }],
        "contexts": [{ "name": "agent-sandbox", "context": { "cluster": "agent-sandbox", "user": "agent-sandbox", "namespace": "default" } }],
    });
    serde_json::to_string_pretty(&config).expect("a literal serialises")
}
