//! Requests that a web page makes, and what a page may not do.
//!
//! `kubectl proxy` adds the user's rights to every request, also to those of a page from a sandbox or of another site. Such
//! a page cannot read the answers, but a write takes effect and a WebSocket ignores CORS. Browsers say where such a request
//! comes from; programs send no `Origin`, or that of the address which they have dialled (WebSockets of Python).

use http::header::{self, HeaderMap};
use http::{Method, Request};

use crate::status::ApiError;

/// Whether a page of another origin makes the request.
pub(super) fn is_foreign<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    let own = |origin: &str| {
        let (_, from) = origin.split_once("://").unwrap_or_default();
        host.is_some_and(|host| !from.is_empty() && from.eq_ignore_ascii_case(host))
    };
    let other_origin = headers.get_all(header::ORIGIN).iter().any(|origin| !origin.to_str().is_ok_and(own));
    other_origin || is_of_another_site(headers)
}

/// What the browser says where it sends no `Origin`: with a GET that is not to be read.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.any(|site| matches!(site.as_bytes(), b"cross-site" | b"same-site"))
}

/// Whether a request does more than read: it writes, or it opens a stream.
pub(super) fn acts<B>(request: &Request<B>) -> bool {
    !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
        || request.headers().contains_key(header::UPGRADE)
        || request.headers().contains_key(header::SEC_WEBSOCKET_KEY)
}

pub(super) fn refusal() -> ApiError {
    ApiError::new(
        403,
        "Forbidden",
        "a web page of another origin may not change anything or open a stream through this API; \
         use a client that sends no Origin header, such as kubectl, or a link from `asb link`",
    )
}

pub(super) fn router_refusal() -> ApiError {
    ApiError::new(
        403,
        "Forbidden",
        "a web page of another origin may not reach the router through this API; use a link from `asb link`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let request = headers
            .iter()
            .fold(Request::get("/api/v1/pods"), |request, (name, value)| request.header(*name, *value));
        request.body(()).expect("a valid request")
    }

    #[test]
    fn only_pages_of_another_origin_are_foreign() {
        let host = ("host", "127.0.0.1:6443");
        for (headers, foreign) in [
            (&[host][..], false),
            (&[host, ("origin", "https://127.0.0.1:6443")], false),
            (&[host, ("origin", "null")], true),
            (&[host, ("origin", "")], true),
            (&[host, ("origin", "https://")], true),
            (&[("origin", "https://")], true),
            (&[host, ("origin", "https://127.0.0.1:64430")], true),
            (&[host, ("origin", "http://127.0.0.1:8001")], true),
            (&[host, ("origin", "https://127.0.0.1:6443"), ("origin", "null")], true),
            (&[host, ("sec-fetch-site", "cross-site")], true),
            (&[host, ("sec-fetch-site", "same-site")], true),
            (&[host, ("sec-fetch-site", "same-origin")], false),
            (&[host, ("sec-fetch-site", "none")], false),
        ] {
            assert_eq!(is_foreign(&request(headers)), foreign, "{headers:?}");
        }
        let second = Request::get("https://127.0.0.1:6443/api").header("origin", "https://127.0.0.1:6443");
        assert!(!is_foreign(&second.body(()).expect("a valid request")), "HTTP/2 has no Host header");
    }
}
