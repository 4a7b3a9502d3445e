//! Whether a request on a connection without credentials comes from the program at its other end.
//!
//! `kubectl port-forward` listens on a developer's loopback, where every web page in the developer's browser can send
//! requests: to `localhost` by a form or an image, and under a name of its own that it lets resolve to 127.0.0.1 (DNS
//! rebinding). Such requests need credentials.

use std::net::IpAddr;

use http::header::ORIGIN;

use super::Asking;
use crate::address::{Domain, requested_host, without_port};

/// Ends of host names that are not part of the public DNS.
const PRIVATE: [&str; 4] = [".localhost", ".internal", ".svc", ".svc.cluster.local"];

pub fn is_local(asking: Asking<'_>, domain: Option<&Domain>) -> bool {
    let Ok(host) = requested_host(asking.uri, asking.headers) else { return false };
    is_private(host, domain) && !is_of_another_page(asking, host)
}

/// Whether the host name cannot belong to a page of the internet. A request of HTTP/1.0 may have none.
fn is_private(host: &str, domain: Option<&Domain>) -> bool {
    let name = without_port(host);
    let name = name.strip_suffix('.').unwrap_or(name);
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let ends = |end: &str| {
        let at = name.len().checked_sub(end.len()).and_then(|at| name.split_at_checked(at));
        at.is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(end))
    };
    bare.parse::<IpAddr>().is_ok()
        || !name.contains('.')
        || PRIVATE.iter().any(|end| ends(end))
        || domain.is_some_and(|domain| domain.holds(host))
}

/// Whether a browser says that another page sends this. A click on a link elsewhere may open a page.
fn is_of_another_page(asking: Asking<'_>, host: &str) -> bool {
    let text = |name: &str| asking.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(origin) = text(ORIGIN.as_str()) {
        let own = origin.split_once("://").map(|(_, own)| own);
        return !own.is_some_and(|own| own.eq_ignore_ascii_case(host));
    }
    let opens_a_page =
        || text("sec-fetch-mode") == Some("navigate") && text("sec-fetch-dest") == Some("document");
    match text("sec-fetch-site") {
        None | Some("same-origin" | "none") => false,
        Some(_) => !(asking.method.is_safe() && opens_a_page()),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, Method, Uri};

    use super::*;
    use crate::address::{Address, Route, Via};
    use crate::authorize::Connection;

    fn may(method: Method, pairs: &[(&'static str, &str)]) -> bool {
        let headers: HeaderMap = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        let route = Route { address: Address::new("team", "web", 80), via: Via::Host, target: None };
        let (uri, connection) = (Uri::from_static("/"), Connection::default());
        let asking = Asking {
            method: &method,
            uri: &uri,
            headers: &headers,
            route: &route,
            connection,
            limited: None,
        };
        is_local(asking, "box.example".parse().ok().as_ref())
    }

    #[test]
    fn a_host_that_a_stranger_could_own_is_not_local() {
        for host in [
            "",
            "localhost",
            "localhost:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "[::1]",
            "10.1.2.3",
            "sandbox-router-svc",
            "sandbox-router-svc.agent-sandbox-system.svc:8080",
            "sandbox-router-svc.agent-sandbox-system.svc.cluster.local",
            "8000-web.team.LOCALHOST:8080",
            "host.docker.internal:8080",
            "8000-web.team.box.example:8080",
            "box.example",
        ] {
            assert!(may(Method::GET, &[("host", host)]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "xbox.example",
            "evilsvc.example",
            "notlocalhost.com.",
            "[::1].evil.example",
        ] {
            assert!(!may(Method::GET, &[("host", host)]), "{host}");
        }
    }

    #[test]
    fn what_another_page_sends_is_not_local() {
        let host = ("host", "8000-web.team.localhost:8080");
        for (origin, local) in [
            ("http://8000-web.team.localhost:8080", true),
            ("https://8000-WEB.team.localhost:8080", true),
            ("http://9000-web.team.localhost:8080", false),
            ("http://8000-web.team.localhost", false),
            ("https://evil.example", false),
            ("null", false),
            ("", false),
        ] {
            for method in [Method::GET, Method::POST] {
                assert_eq!(may(method, &[host, ("origin", origin)]), local, "{origin}");
            }
        }
        for (site, mode, dest, local) in [
            ("same-origin", "cors", "empty", true),
            ("none", "navigate", "document", true),
            ("cross-site", "navigate", "document", true),
            ("cross-site", "navigate", "iframe", false),
            ("cross-site", "no-cors", "image", false),
            ("same-site", "no-cors", "script", false),
        ] {
            let fetch = [host, ("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
            assert_eq!(may(Method::GET, &fetch), local, "{site} {mode} {dest}");
        }
        let form = [
            host,
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert!(!may(Method::POST, &form), "a form of another page");
    }
}
