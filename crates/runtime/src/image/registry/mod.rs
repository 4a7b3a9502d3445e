//! Images from registries that speak the OCI distribution protocol.
//!
//! ```text
//! name ─► endpoints (mirrors, then the registry) ─► manifest ─► config ─► layers, some at once ─► store
//! ```
//!
//! Written on hyper, not with a client library: those we know read manifests, tokens and error pages of any size into
//! memory and follow a redirect from HTTPS to HTTP, and a registry is not somebody to trust.

mod auth;
mod credentials;
mod download;
mod http;
mod pull;
mod session;

use std::collections::BTreeSet;
use std::time::Duration;

pub use credentials::{Keyring, Login};
pub use http::{Http, authorities};
pub use pull::{Progress, Pull};
pub use rustls::pki_types::CertificateDer;
use url::Url;

use super::Error;
use super::reference::Reference;

/// Where images come from.
#[derive(Debug, Clone)]
pub struct Registries {
    /// Where names without a registry are looked for: `HOST[:PORT][/PATH]`.
    pub default_registry: Option<String>,
    /// What is asked before a registry, in this order.
    pub mirrors: Vec<Mirror>,
    /// Registries that are talked to without TLS. Those on this machine always are.
    pub insecure: BTreeSet<String>,
    /// Authorities to trust besides those of the machine.
    pub authorities: Vec<CertificateDer<'static>>,
    /// The pause before the first further try; it doubles from there.
    pub first_pause: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    pub registry: String,
    pub url: Url,
}

/// Where to ask for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Ends in a slash.
    pub url: Url,
    /// Host and port: what messages and credentials know it by.
    pub host: String,
}

impl Default for Registries {
    fn default() -> Self {
        Self {
            default_registry: None,
            mirrors: Vec::new(),
            insecure: BTreeSet::new(),
            authorities: Vec::new(),
            first_pause: Duration::from_millis(250),
        }
    }
}

impl Mirror {
    /// Reads `HOST=URL`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (registry, url) = text.split_once('=').ok_or_else(|| format!("`{text}` is not HOST=URL"))?;
        let mut url = Url::parse(url).map_err(|error| format!("`{url}` is not a URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(format!("`{url}` is not an http or https URL"));
        }
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        Ok(Self { registry: registry.to_owned(), url })
    }
}

impl Registries {
    /// The name with its registry, if there is one for it.
    pub fn complete(&self, reference: &Reference) -> Reference {
        match (&reference.registry, &self.default_registry) {
            (None, Some(default)) => reference.at(default),
            _ => reference.clone(),
        }
    }

    /// Where to ask for images of a registry: mirrors first.
    pub fn endpoints(&self, registry: &str) -> Result<Vec<Endpoint>, Error> {
        let mirrors = self.mirrors.iter().filter(|mirror| mirror.registry == registry);
        let mut endpoints: Vec<_> =
            mirrors.map(|mirror| Endpoint { host: host(&mirror.url), url: mirror.url.clone() }).collect();
        let scheme = if self.insecure.contains(registry) || is_loopback(registry) { "http" } else { "https" };
        let url = Url::parse(&format!("{scheme}://{registry}/"))
            .map_err(|error| Error::Name { name: registry.to_owned(), problem: error.to_string() })?;
        endpoints.push(Endpoint { host: registry.to_owned(), url });
        Ok(endpoints)
    }
}

fn host(url: &Url) -> String {
    let name = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"))
}

/// Nothing on the way could listen.
fn is_loopback(registry: &str) -> bool {
    let Ok(url) = Url::parse(&format!("http://{registry}/")) else { return false };
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(registries: &Registries, registry: &str) -> Vec<String> {
        let endpoints = registries.endpoints(registry).expect("valid");
        endpoints.into_iter().map(|endpoint| endpoint.url.to_string()).collect()
    }

    #[test]
    fn plain_http_is_only_for_this_machine_or_when_said() {
        let registries =
            Registries { insecure: ["old.test:5000".to_owned()].into(), ..Registries::default() };
        for (registry, url) in [
            ("registry.test", "https://registry.test/"),
            ("old.test:5000", "http://old.test:5000/"),
            ("old.test:5001", "https://old.test:5001/"),
            ("localhost:5000", "http://localhost:5000/"),
            ("127.0.0.9", "http://127.0.0.9/"),
            ("[::1]:5000", "http://[::1]:5000/"),
            ("127.0.0.1.evil.test", "https://127.0.0.1.evil.test/"),
            ("192.168.0.1:80", "https://192.168.0.1:80/"),
        ] {
            assert_eq!(urls(&registries, registry), [url]);
        }
    }

    #[test]
    fn mirrors_are_asked_first_and_only_for_their_registry() {
        let mirror = |text| Mirror::parse(text).expect("valid");
        let mirrors =
            vec![mirror("registry.test=http://near.test:5000/cache"), mirror("other.test=https://far.test")];
        let registries = Registries { mirrors, ..Registries::default() };
        assert_eq!(
            urls(&registries, "registry.test"),
            ["http://near.test:5000/cache/", "https://registry.test/"]
        );
        assert_eq!(registries.endpoints("registry.test").expect("valid")[0].host, "near.test:5000");
        for wrong in ["registry.test", "registry.test=near", "registry.test=ftp://near.test"] {
            assert!(Mirror::parse(wrong).is_err(), "{wrong}");
        }
    }
}
