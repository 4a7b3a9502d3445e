//! What TLS is spoken here, and for /metrics a certificate that is read again when its files change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion, version};
use tokio_rustls::TlsAcceptor;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(5);

/// What the flags say about the TLS of /metrics.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Where tls.crt and tls.key are; `None`: a certificate is made that nobody knows.
    pub certificates: Option<PathBuf>,
    /// The same as the webhook speaks.
    pub spoken: asb_webhook::Tls,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} holds no usable PEM", path.display())]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("certificate and key in {} do not fit", dir.display())]
    Pair { dir: PathBuf, source: rustls::Error },
    #[error("failed to make a certificate")]
    Make(#[source] rcgen::Error),
    #[error("failed to set up TLS")]
    Setup(#[source] rustls::Error),
}

/// The versions of TLS from `minimum` on, in the words of Kubernetes.
pub fn versions(minimum: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    match minimum {
        "" | "VersionTLS12" => Ok(vec![&version::TLS13, &version::TLS12]),
        "VersionTLS13" => Ok(vec![&version::TLS13]),
        other => Err(format!("{other:?} is not supported; use VersionTLS12 or VersionTLS13")),
    }
}

/// The provider with only these suites of TLS 1.2. Those of TLS 1.3 are all safe and stay, as in Go.
pub fn suites(names: &[String]) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = rustls::crypto::ring::default_provider();
    let known: Vec<String> = provider.cipher_suites.iter().map(name).collect();
    // Go's older names for two of them lack the hash.
    let found = |given: &String| known.iter().any(|known| is(known, given));
    if let Some(unknown) = names.iter().find(|name| !found(name)) {
        return Err(format!("{unknown:?} is not supported; there are {}", known.join(", ")));
    }
    if !names.is_empty() {
        provider
            .cipher_suites
            .retain(|suite| suite.tls13().is_some() || names.iter().any(|given| is(&name(suite), given)));
    }
    Ok(Arc::new(provider))
}

fn is(known: &str, given: &str) -> bool {
    known == given || known.strip_suffix("_SHA256").is_some_and(|short| short == given)
}

fn name(suite: &rustls::SupportedCipherSuite) -> String {
    suite.suite().as_str().unwrap_or_default().replace("TLS13_", "TLS_")
}

impl Tls {
    /// Reads or makes the certificate.
    pub fn acceptor(&self) -> Result<TlsAcceptor, Error> {
        let asb_webhook::Tls { versions, suites } = &self.spoken;
        let resolver: Arc<dyn ResolvesServerCert> = match &self.certificates {
            Some(dir) => Arc::new(Files::open(dir.clone(), suites.clone())?),
            None => Arc::new(rustls::sign::SingleCertAndKey::from(self_signed(suites)?)),
        };
        let builder = ServerConfig::builder_with_provider(suites.clone())
            .with_protocol_versions(versions)
            .map_err(Error::Setup)?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn self_signed(provider: &CryptoProvider) -> Result<CertifiedKey, Error> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).map_err(Error::Make)?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    CertifiedKey::from_der(vec![made.cert.der().clone()], key.into(), provider).map_err(Error::Setup)
}

/// tls.crt and tls.key of a directory, as they are now.
#[derive(Debug)]
struct Files {
    dir: PathBuf,
    provider: Arc<CryptoProvider>,
    state: Mutex<Read>,
}

#[derive(Debug)]
struct Read {
    at: Instant,
    bytes: (Vec<u8>, Vec<u8>),
    certificate: Arc<CertifiedKey>,
}

impl Files {
    fn open(dir: PathBuf, provider: Arc<CryptoProvider>) -> Result<Self, Error> {
        let bytes = read(&dir)?;
        let certificate = Arc::new(parse(&dir, &bytes, &provider)?);
        Ok(Self { state: Mutex::new(Read { at: Instant::now(), bytes, certificate }), dir, provider })
    }

    /// A mount of a Secret changes at once but without notice; so the files are compared from time to time.
    fn refresh(&self, state: &mut Read) -> Result<(), Error> {
        state.at = Instant::now();
        let bytes = read(&self.dir)?;
        if bytes != state.bytes {
            state.certificate = Arc::new(parse(&self.dir, &bytes, &self.provider)?);
            state.bytes = bytes;
            tracing::info!(dir = %self.dir.display(), "the certificate of /metrics was replaced");
        }
        Ok(())
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.at.elapsed() > LOOK
            && let Err(error) = self.refresh(&mut state)
        {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the certificate of /metrics stays as it is");
        }
        Some(state.certificate.clone())
    }
}

fn read(dir: &Path) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let read = |name: &str| {
        let path = dir.join(name);
        std::fs::read(&path).map_err(|source| Error::Read { path, source })
    };
    Ok((read("tls.crt")?, read("tls.key")?))
}

fn parse(dir: &Path, bytes: &(Vec<u8>, Vec<u8>), provider: &CryptoProvider) -> Result<CertifiedKey, Error> {
    let pem = |name: &str| {
        let path = dir.join(name);
        move |source| Error::Pem { path, source }
    };
    let chain =
        CertificateDer::pem_slice_iter(&bytes.0).collect::<Result<Vec<_>, _>>().map_err(pem("tls.crt"))?;
    let key = PrivateKeyDer::from_pem_slice(&bytes.1).map_err(pem("tls.key"))?;
    CertifiedKey::from_der(chain, key, provider).map_err(|source| Error::Pair { dir: dir.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_and_unknown_suites_are_refused_by_name() {
        assert_eq!(versions("VersionTLS13").unwrap().len(), 1);
        assert_eq!(versions("VersionTLS12").unwrap().len(), 2);
        assert!(versions("VersionTLS10").unwrap_err().contains("VersionTLS10"));
        let unknown = suites(&["TLS_RSA_WITH_RC4_128_SHA".to_owned()]).unwrap_err();
        assert!(unknown.contains("TLS_RSA_WITH_RC4_128_SHA") && unknown.contains("TLS_AES_128_GCM_SHA256"));
    }

    #[test]
    fn suites_of_tls_1_2_are_limited_and_those_of_1_3_stay() {
        let chosen = suites(&["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305".to_owned()]).unwrap();
        let new = chosen.cipher_suites.iter().filter(|suite| suite.tls13().is_some()).count();
        assert_eq!((new, chosen.cipher_suites.len() - new), (3, 1));
    }

    #[test]
    fn certificate_is_read_again_when_its_files_change_and_kept_when_they_break() {
        let dir = tempfile::tempdir().unwrap();
        let write = || {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            std::fs::write(dir.path().join("tls.crt"), made.cert.pem()).unwrap();
            std::fs::write(dir.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
            made.cert.der().clone()
        };
        let first = write();
        let files = Files::open(dir.path().to_owned(), suites(&[]).unwrap()).unwrap();
        let mut state = files.state.lock().unwrap();
        assert_eq!(state.certificate.cert[0], first);
        let second = write();
        files.refresh(&mut state).unwrap();
        assert_eq!(state.certificate.cert[0], second);
        std::fs::write(dir.path().join("tls.crt"), "half a file").unwrap();
        assert!(files.refresh(&mut state).is_err());
        assert_eq!(state.certificate.cert[0], second);
    }
}
