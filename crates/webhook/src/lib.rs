//! The conversion webhook: how a cluster's API server shows our kinds at `v1alpha1`.
//!
//! ```text
//! API server ──POST /convert──► server ─► review ─► asb_types::conversion
//!      ▲                          │ serves
//!      │ caBundle                 ▼
//! definitions ◄── managed ──► secret (certificates that renew themselves), or files that somebody else keeps
//! ```
//!
//! # Guarantees
//!
//! - No conversion fails because a certificate is renewed: API servers trust the next one before it is served, and the
//!   old one for as long as it lives.
//! - Any number of replicas may run; the Secret decides which certificate is the one.
//! - The webhook reads and writes one Secret and the `conversion` stanza of our CRDs, nothing else. With managed
//!   certificates it needs `get`, `create`, `update` on that Secret and `get`, `patch` on the four CRDs; with files, nothing.

pub mod certificate;
mod definitions;
mod files;
mod managed;
mod review;
mod secret;
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use rustls::crypto::CryptoProvider;

use definitions::Definitions;
use managed::Managed;
use server::{Served, Server};

pub use secret::NAME as SECRET_NAME;

/// How often files, and Secrets, are looked at again.
const CHECK_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to listen.
    pub bind: SocketAddr,
    /// Whether the kinds beside Sandbox are converted too.
    pub extensions: bool,
    pub certificates: Certificates,
    pub tls: Tls,
}

/// What is spoken; by default all that is safe.
#[derive(Debug, Clone)]
pub struct Tls {
    pub versions: Vec<&'static rustls::SupportedProtocolVersion>,
    /// The provider of cryptography, with the cipher suites that may be used.
    pub suites: Arc<CryptoProvider>,
}

impl Default for Tls {
    fn default() -> Self {
        let suites = Arc::new(rustls::crypto::ring::default_provider());
        Self { versions: rustls::DEFAULT_VERSIONS.to_vec(), suites }
    }
}

/// Where the certificate comes from.
#[derive(Debug, Clone)]
pub enum Certificates {
    Managed(Identity),
    /// From files in `dir`; `tls.crt` and `tls.key` may also be one file `cert.pem`. The CRDs are left alone.
    Files {
        dir: PathBuf,
        certificate: String,
        key: String,
    },
}

/// The Service that certificates are issued for, and how they are renewed.
#[derive(Debug, Clone)]
pub struct Identity {
    pub service: String,
    pub namespace: String,
    pub cluster_domain: String,
    /// How often the Secret is looked at.
    pub check_every: Duration,
    /// How long a new authority is trusted before it is used: API servers hear of changes by watching.
    pub overlap: Duration,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            service: asb_types::crd::WEBHOOK_SERVICE.into(),
            namespace: asb_types::crd::WEBHOOK_NAMESPACE.into(),
            cluster_domain: "cluster.local".into(),
            check_every: CHECK_EVERY,
            overlap: Duration::from_secs(30),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("the webhook's certificate cannot be used")]
    Certificate(#[from] certificate::Error),
    #[error("Secret {namespace}/{name} cannot be used; delete it to have a new certificate issued", name = secret::NAME)]
    Secret {
        namespace: String,
        #[source]
        source: certificate::Error,
    },
    #[error("the webhook's certificate files cannot be used")]
    Files(#[from] files::Error),
    #[error("failed to {what}")]
    Api {
        what: &'static str,
        #[source]
        source: kube::Error,
    },
    #[error("gave up after losing against other writers of Secret {namespace}/{name} again and again", name = secret::NAME)]
    Conflict { namespace: String },
    #[error(
        "objects of {definition} may still be stored at {versions}, which nothing converts any more; install the CRDs \
         with both versions, run `asb migrate --phase migrate`, and then remove {versions} from status.storedVersions of {definition}"
    )]
    LeftBehind { definition: String, versions: String },
}

/// Serves conversions until the future is dropped; returns only when it cannot start.
///
/// `ready` is called with the address once a certificate is served and the CRDs lead here.
pub async fn run(client: Client, settings: Settings, ready: impl FnOnce(SocketAddr)) -> Result<(), Error> {
    let Settings { bind, extensions, certificates, tls } = settings;
    let listen = |source| Error::Listen { address: bind, source };
    match certificates {
        Certificates::Managed(identity) => {
            let (managed, served) = Managed::start(client, identity).await?;
            let server = Server::bind(bind, served.clone(), extensions, tls).await.map_err(listen)?;
            ready(server.address().map_err(listen)?);
            tokio::join!(server.run(), managed.run(served));
        }
        Certificates::Files { dir, certificate, key } => {
            let mut pair = files::read(&dir, &certificate, &key)?;
            let served = Served::new(certificate::certified_key(&pair)?);
            let server = Server::bind(bind, served.clone(), extensions, tls).await.map_err(listen)?;
            ready(server.address().map_err(listen)?);
            let reload = async {
                loop {
                    tokio::time::sleep(CHECK_EVERY).await;
                    match files::read(&dir, &certificate, &key) {
                        Ok(found) if found != pair => match certificate::certified_key(&found) {
                            Ok(renewed) => {
                                served.set(renewed);
                                pair = found;
                                tracing::info!("serving a new certificate");
                            }
                            // Half-written, perhaps: the old one is better than none.
                            Err(error) => tracing::warn!(
                                error = &error as &dyn std::error::Error,
                                "a new certificate cannot be used"
                            ),
                        },
                        Ok(_) => {}
                        Err(error) => tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "the certificate files cannot be read"
                        ),
                    }
                }
            };
            tokio::join!(server.run(), reload);
        }
    }
    Ok(())
}

/// For installations without the webhook: checks that no object is stored at a version that only the webhook could read.
pub async fn check_stored_versions(client: Client) -> Result<(), Error> {
    let all = Definitions::new(client).all().await;
    for (definition, object) in all.map_err(|source| Error::Api { what: "read the CRDs", source })? {
        let versions = definitions::left_behind(&object);
        if !versions.is_empty() {
            return Err(Error::LeftBehind { definition, versions: versions.join(", ") });
        }
    }
    Ok(())
}
