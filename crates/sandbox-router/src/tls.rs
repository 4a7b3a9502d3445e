//! The certificate of the HTTPS listener, which is read again when its files change, and the check of clients.
//!
//! What cannot be used is reported, and the certificate before stays.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, version};
use tokio_rustls::TlsAcceptor;

use crate::changes::Changes;
use crate::settings::{Clients, Https};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--{flag}: failed to read {}", path.display())]
    Read { flag: &'static str, path: PathBuf, source: io::Error },
    #[error("--{flag}: {} holds no usable PEM", path.display())]
    Pem { flag: &'static str, path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("--{flag}: {} holds no certificate", path.display())]
    Empty { flag: &'static str, path: PathBuf },
    #[error("--tls-cert-file {} and --tls-key-file {} do not belong together", certificate.display(), key.display())]
    Pair { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("--tls-client-ca-file: {} cannot be used", path.display())]
    Authorities { path: PathBuf, source: rustls::Error },
    #[error("--tls-client-ca-file: {} cannot be used", path.display())]
    Verifier { path: PathBuf, source: rustls::server::VerifierBuilderError },
    #[error("failed to set up TLS")]
    Setup(#[source] rustls::Error),
}

/// The pair of files, as it was when it was last read and usable.
#[derive(Debug)]
pub struct Certificate {
    files: Files,
    provider: Arc<CryptoProvider>,
    current: RwLock<(Bytes, Arc<CertifiedKey>)>,
}

#[derive(Debug, Clone)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

/// The contents of both files.
type Bytes = (Vec<u8>, Vec<u8>);

/// Reads the files, and makes what answers handshakes.
pub fn open(https: &Https) -> Result<(TlsAcceptor, Arc<Certificate>), Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let files = Files { certificate: https.certificate.clone(), key: https.key.clone() };
    let bytes = files.read()?;
    let key = Arc::new(files.parse(&bytes, &provider)?);
    let certificate =
        Arc::new(Certificate { files, provider: provider.clone(), current: RwLock::new((bytes, key)) });
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(Error::Setup)?;
    let builder = match &https.clients {
        Clients::Unasked => builder.with_no_client_auth(),
        Clients::Optional(path) | Clients::Required(path) => {
            let roots = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            let verifier = match https.clients {
                Clients::Optional(_) => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let wrong = |source| Error::Verifier { path: path.clone(), source };
            builder.with_client_cert_verifier(verifier.build().map_err(wrong)?)
        }
    };
    let mut config = builder.with_cert_resolver(certificate.clone());
    // What the router speaks on a connection.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), certificate))
}

fn authorities(path: &Path) -> Result<RootCertStore, Error> {
    let flag = "tls-client-ca-file";
    let read = |source| Error::Read { flag, path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(read)?;
    let mut roots = RootCertStore::empty();
    for certificate in chain(flag, path, &bytes)? {
        roots.add(certificate).map_err(|source| Error::Authorities { path: path.to_owned(), source })?;
    }
    Ok(roots)
}

fn chain(flag: &'static str, path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain = CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|source| Error::Pem { flag, path: path.to_owned(), source })?;
    match chain.is_empty() {
        true => Err(Error::Empty { flag, path: path.to_owned() }),
        false => Ok(chain),
    }
}

// === impl Files ===

impl Files {
    fn read(&self) -> Result<Bytes, Error> {
        let read = |flag, path: &PathBuf| {
            std::fs::read(path).map_err(|source| Error::Read { flag, path: path.clone(), source })
        };
        Ok((read("tls-cert-file", &self.certificate)?, read("tls-key-file", &self.key)?))
    }

    fn parse(&self, bytes: &Bytes, provider: &CryptoProvider) -> Result<CertifiedKey, Error> {
        let chain = chain("tls-cert-file", &self.certificate, &bytes.0)?;
        let key = PrivateKeyDer::from_pem_slice(&bytes.1);
        let key =
            key.map_err(|source| Error::Pem { flag: "tls-key-file", path: self.key.clone(), source })?;
        let wrong =
            |source| Error::Pair { certificate: self.certificate.clone(), key: self.key.clone(), source };
        CertifiedKey::from_der(chain, key, provider).map_err(wrong)
    }
}

// === impl Certificate ===

impl Certificate {
    /// Reads the files again whenever they may have changed, until it is dropped. `count` gets whether a new pair was
    /// usable.
    pub async fn follow(&self, count: impl Fn(bool)) {
        let mut changes = Changes::of([self.files.certificate.as_path(), self.files.key.as_path()]);
        loop {
            // Before the first change too: the files may have changed after they were read and before they were watched.
            match self.refresh() {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!(certificate = %self.files.certificate.display(), "TLS certificate replaced");
                    count(true);
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "TLS certificate not usable; the one before stays");
                    count(false);
                }
            }
            changes.next().await;
        }
    }

    /// Whether there was something new.
    fn refresh(&self) -> Result<bool, Error> {
        let bytes = self.files.read()?;
        if self.current.read().unwrap_or_else(PoisonError::into_inner).0 == bytes {
            return Ok(false);
        }
        let key = Arc::new(self.files.parse(&bytes, &self.provider)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (bytes, key);
        Ok(true)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone())
    }
}
