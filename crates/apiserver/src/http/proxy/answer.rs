//! Changes to a Pod's answer before it reaches the client: links, and the rights of pages.

use axum::extract::Request;
use axum::response::Response;
use http::header::{self, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, LOCATION};

/// A page from a sandbox gets an origin of its own: what it sends to the API is another site's request, which it cannot read.
const OWN_ORIGIN: &str = "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads";
/// The Pod cannot open the API's origin to others.
const CORS: [HeaderName; 4] = [
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
];

/// Where the request came in.
pub struct Source {
    /// The path up to `proxy`.
    prefix: String,
    host: String,
}

impl Source {
    pub fn of(request: &Request, prefix: String) -> Self {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        Self { prefix, host: host.unwrap_or_default().to_owned() }
    }

    pub fn adapt(&self, response: &mut Response) {
        let headers = response.headers_mut();
        for name in CORS {
            headers.remove(name);
        }
        headers.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static(OWN_ORIGIN));
        let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
        let location = location.and_then(|location| HeaderValue::from_str(&self.through(location)).ok());
        if let Some(location) = location {
            headers.insert(LOCATION, location);
        }
    }

    /// A link into the Pod leads through the proxy again; others are left alone.
    fn through(&self, link: &str) -> String {
        let own = ["http://", "https://", "//"].iter().find_map(|scheme| {
            let (host, path) = link.strip_prefix(scheme)?.split_at_checked(self.host.len())?;
            (host == self.host && (path.is_empty() || path.starts_with('/'))).then_some(path)
        });
        let path = match own {
            Some("") => "/",
            Some(path) => path,
            None if link.starts_with('/') && !link.starts_with("//") => link,
            None => return link.to_owned(),
        };
        let already =
            path.strip_prefix(&self.prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if already { path.to_owned() } else { format!("{}{path}", self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_into_the_pod_lead_through_the_proxy() {
        let source = Source { prefix: "/p/proxy".into(), host: "127.0.0.1:8001".into() };
        for (link, expected) in [
            ("/login?next=/", "/p/proxy/login?next=/"),
            ("next", "next"),
            ("/p/proxy/there", "/p/proxy/there"),
            ("/p/proxyist", "/p/proxy/p/proxyist"),
            ("http://127.0.0.1:8001/login", "/p/proxy/login"),
            ("//127.0.0.1:8001", "/p/proxy/"),
            ("https://example.com/login", "https://example.com/login"),
            ("//example.com/login", "//example.com/login"),
            ("http://127.0.0.1:80011/x", "http://127.0.0.1:80011/x"),
        ] {
            assert_eq!(source.through(link), expected, "{link}");
        }
    }

    #[test]
    fn a_page_has_an_origin_of_its_own_and_opens_nobody_elses() {
        let mut response = Response::default();
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src *"));
        Source { prefix: "/p".into(), host: "h".into() }.adapt(&mut response);
        assert_eq!(response.headers().get(header::ACCESS_CONTROL_ALLOW_ORIGIN), None);
        let policies: Vec<_> = response.headers().get_all(CONTENT_SECURITY_POLICY).iter().collect();
        assert!(policies.len() == 2 && policies[1] == OWN_ORIGIN);
    }
}
