//! Which sandbox a request is for.
//!
//! ```text
//! /<prefix>/<namespace>/<id>/<port>/<rest>        ─► path     ┐
//! <port>-<id>.<namespace>.<domain>                ─► host     ├─► Route { address, via, target }
//! X-Sandbox-ID, -Namespace, -Port, -Pod-IP, -UID  ─► headers  ┘
//! ```
//!
//! The first form that is configured and matches decides alone: a page inside a sandbox can add headers to its requests,
//! so headers must not override the path or host that the browser and the cookie rules see. Nothing here looks at the
//! directory, so a caller without rights learns nothing.

mod headers;
mod host;
mod path;

use std::net::IpAddr;
use std::time::Duration;

use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, HeaderName};

pub use host::Domain;
pub(crate) use host::{requested as requested_host, without_port};
pub use path::PathPrefix;

use crate::error::Error;

const DEFAULT_NAMESPACE: &str = "default";
const DEFAULT_PORT: u16 = 8888;
/// Response headers that count for a whole origin: the scope of service workers, what a browser has stored, how it
/// connects.
const OF_THE_ORIGIN: [&str; 4] =
    ["service-worker-allowed", "clear-site-data", "strict-transport-security", "alt-svc"];

/// How requests may name their sandbox. The headers always work; path and host are opt-in.
#[derive(Debug, Clone, Default)]
pub struct Addressing {
    /// Route `<prefix>/<namespace>/<id>/<port>/<rest>` by path.
    pub path_prefix: Option<PathPrefix>,
    /// Route `<port>-<id>.<namespace>.<domain>` by host.
    pub domain: Option<Domain>,
    /// Accept a loopback address in `X-Sandbox-Pod-IP`. It is not dialled either way.
    pub allow_loopback_pod_ip: bool,
}

/// The sandbox and port a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub namespace: String,
    pub name: String,
    pub port: u16,
    /// UID of the Sandbox object, when the caller or its token names one: a Sandbox of the same name with another UID is
    /// not found.
    pub uid: Option<String>,
    /// Where the caller believes the Pod is. Validated, never dialled.
    pub pod_address: Option<IpAddr>,
    /// How long the caller wants to wait for the response headers.
    pub timeout: Option<Duration>,
}

/// The part of a request that named the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    Headers,
    Path,
    Host,
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub address: Address,
    pub via: Via,
    /// Path and query for the sandbox when they differ from the request's, i.e. for [`Via::Path`].
    pub target: Option<PathAndQuery>,
}

// === impl Addressing ===

impl Addressing {
    /// Finds the sandbox that a request names. Path before host before headers.
    pub fn route(&self, uri: &Uri, headers: &HeaderMap) -> Result<Route, Error> {
        if let Some(prefix) = &self.path_prefix
            && let Some(rest) = prefix.strip(uri.path())
        {
            let (address, target) = path::parse(rest, uri.query())?;
            return Ok(Route { address, via: Via::Path, target: Some(target) });
        }
        if let Some(domain) = &self.domain
            && let Some(labels) = domain.labels(host::requested(uri, headers)?)
        {
            return Ok(Route { address: host::parse(&labels)?, via: Via::Host, target: None });
        }
        let address = headers::parse(headers, self.allow_loopback_pod_ip)?;
        Ok(Route { address, via: Via::Headers, target: None })
    }

    /// The path under which a path-routed sandbox is reached, e.g. `/s/team/web`; with `port` only that port of it.
    pub fn path_of(&self, address: &Address, with_port: bool) -> Option<String> {
        let prefix = self.path_prefix.as_ref()?.as_str();
        let Address { namespace, name, port, .. } = address;
        Some(if with_port {
            format!("{prefix}/{namespace}/{name}/{port}")
        } else {
            format!("{prefix}/{namespace}/{name}")
        })
    }
}

// === impl Route ===

impl Route {
    /// The path that the sandbox sees, without the query.
    pub fn path<'a>(&'a self, uri: &'a Uri) -> &'a str {
        self.target.as_ref().map_or_else(|| uri.path(), PathAndQuery::path)
    }

    /// Removes response headers that would let one sandbox act on its neighbours' pages: path-routed sandboxes share an
    /// origin, and these headers are about all of it.
    pub fn protect_origin(&self, response: &mut HeaderMap) {
        if self.via == Via::Path {
            for name in OF_THE_ORIGIN {
                response.remove(HeaderName::from_static(name));
            }
        }
    }
}

// === impl Address ===

impl Address {
    pub(crate) fn new(namespace: &str, name: &str, port: u16) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port,
            uid: None,
            pod_address: None,
            timeout: None,
        }
    }
}

/// A DNS-1123 label: lower-case letters, digits and inner dashes, at most 63.
pub(crate) fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A port between 1 and 65535, digits only.
fn port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&port| digits && port > 0)
}

#[cfg(test)]
mod tests {
    use http::header::HOST;
    use proptest::prelude::*;

    use super::*;

    fn addressing() -> Addressing {
        Addressing {
            path_prefix: Some("/s".parse().unwrap()),
            domain: Some("box.example".parse().unwrap()),
            allow_loopback_pod_ip: false,
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn path_beats_host_beats_headers() {
        let headers = headers(&[("host", "9000-h.team.box.example"), ("x-sandbox-id", "by-header")]);
        let route = |uri: &'static str| addressing().route(&Uri::from_static(uri), &headers).unwrap();
        let by_path = route("/s/ns/p/80/x");
        assert_eq!((by_path.via, by_path.address.name.as_str(), by_path.address.port), (Via::Path, "p", 80));
        let by_host = route("/x");
        assert_eq!(
            (by_host.via, by_host.address.name.as_str(), by_host.address.port),
            (Via::Host, "h", 9000)
        );
        let plain = Addressing::default().route(&Uri::from_static("/s/ns/p/80/x"), &headers).unwrap();
        assert_eq!((plain.via, plain.address.name.as_str(), plain.target), (Via::Headers, "by-header", None));
    }

    #[test]
    fn headers_are_not_consulted_once_path_or_host_match() {
        let headers = headers(&[
            ("host", "a.b.c.box.example"),
            ("x-sandbox-id", "good"),
            ("x-sandbox-uid", "u"),
            ("x-sandbox-port", "22"),
        ]);
        assert!(addressing().route(&Uri::from_static("/x"), &headers).is_err(), "a bad host is an error");
        assert!(addressing().route(&Uri::from_static("/s/bad"), &headers).is_err(), "so is a bad path");
        let route = addressing().route(&Uri::from_static("/s/ns/p/80/"), &headers).unwrap();
        assert_eq!((route.address.uid, route.address.port), (None, 80));
    }

    #[test]
    fn the_bare_domain_and_other_hosts_use_headers() {
        for host in ["box.example", "evilbox.example", "10.0.0.1:8080", "[::1]:8080", "box.example.evil"] {
            let headers = headers(&[("host", host), ("x-sandbox-id", "web")]);
            let route = addressing().route(&Uri::from_static("/x"), &headers).unwrap();
            assert_eq!(route.via, Via::Headers, "{host}");
        }
    }

    #[test]
    fn only_path_routed_responses_lose_a_wider_service_worker_scope() {
        let route = |via| Route { address: Address::new("ns", "web", 80), via, target: None };
        for (via, kept) in [(Via::Path, false), (Via::Host, true), (Via::Headers, true)] {
            let mut response = headers(&[("service-worker-allowed", "/")]);
            route(via).protect_origin(&mut response);
            assert_eq!(response.contains_key("service-worker-allowed"), kept);
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn any_request_gets_an_answer(
            path in "[!-~]{0,40}", prefix in "(/s|/s/ns|/s/ns/web/80)?", host in "[ -~]{0,60}", value in "[ -~]{0,70}",
        ) {
            let mut headers = HeaderMap::new();
            let names = ["x-sandbox-id", "x-sandbox-namespace", "x-sandbox-port", "x-sandbox-pod-ip", "x-sandbox-timeout"];
            for name in names {
                headers.insert(name, value.parse().unwrap());
            }
            headers.insert(HOST, format!("{host}.box.example").parse().unwrap());
            if let Ok(uri) = format!("{prefix}/{path}").parse::<Uri>()
                && let Ok(route) = addressing().route(&uri, &headers)
            {
                prop_assert!(is_label(&route.address.name) && is_label(&route.address.namespace));
                prop_assert!(route.address.port > 0);
            }
        }
    }
}
