//! GET over HTTP and HTTPS, with bounds on everything the other side decides.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, LOCATION, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use url::Url;

const CONNECT: Duration = Duration::from_secs(10);
/// From the request to the head of the answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Between two pieces of a body.
const SILENCE: Duration = Duration::from_secs(30);
const REDIRECTS: usize = 5;

/// Connections to registries. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Http {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

/// An answer whose body was not read yet.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
}

/// Certificates of a PEM file.
pub fn authorities(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err("it holds no certificate".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Http {
    /// Trusts the authorities of the machine and those given.
    pub fn new(authorities: &[CertificateDer<'static>]) -> io::Result<Self> {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let tls = match authorities {
            [] => builder.with_native_roots().map_err(io::Error::other)?.with_no_client_auth(),
            more => builder.with_root_certificates(roots(more)?).with_no_client_auth(),
        };
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(connector) })
    }

    /// Follows redirects, but never from HTTPS to HTTP, and shows credentials only to whom they are for.
    pub async fn get(&self, url: &Url, mut headers: HeaderMap) -> Result<Answer, String> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS {
            let answer = self.once(&url, &headers).await?;
            if !answer.status.is_redirection() {
                return Ok(answer);
            }
            let target = answer.headers.get(LOCATION).and_then(|target| target.to_str().ok());
            let target = target.ok_or("it redirects to nowhere")?;
            let next = url.join(target).map_err(|error| format!("it redirects to {target:?}: {error}"))?;
            if next.scheme() != "https" && (next.scheme() != "http" || url.scheme() == "https") {
                return Err(format!("it redirects from {} to {}", url.scheme(), next.scheme()));
            }
            if next.origin() != url.origin() {
                headers.remove(AUTHORIZATION);
            }
            url = next;
        }
        Err(format!("it redirects more than {REDIRECTS} times"))
    }

    async fn once(&self, url: &Url, headers: &HeaderMap) -> Result<Answer, String> {
        let mut request =
            Request::get(url.as_str()).header(USER_AGENT, concat!("asb/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().into_iter().for_each(|all| all.extend(headers.clone()));
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let answer = tokio::time::timeout(ANSWER, self.client.request(request)).await;
        let answer =
            answer.map_err(|_| format!("no answer within {ANSWER:?}"))?.map_err(|error| causes(&error))?;
        let (head, body) = answer.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, body })
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The next piece of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            match frame.map_err(|_| format!("nothing came for {SILENCE:?}"))? {
                None => return Ok(None),
                Some(Err(error)) => return Err(causes(&error)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    _ => {}
                },
            }
        }
    }

    /// The whole body, which may have `most` bytes.
    pub async fn bytes(mut self, most: u64) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if (bytes.len() + chunk.len()) as u64 > most {
                return Err(format!("it sends more than {most} bytes"));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

fn roots(more: &[CertificateDer<'static>]) -> io::Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for authority in more {
        roots.add(authority.clone()).map_err(io::Error::other)?;
    }
    Ok(roots)
}

/// The client says little itself; what happened is in the causes.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
