//! Which headers travel on, in both directions.

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use crate::serve::Peer;

const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// The protocols a request wants to switch to.
///
/// Never HTTP itself, nor what carries it: requests inside such a tunnel would pass without a look at their paths and
/// methods. A server may ignore an upgrade (RFC 9110, 7.8), so the request goes on without it.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    if !headers.contains_key(UPGRADE) {
        return None;
    }
    let asks = headers
        .get_all(CONNECTION)
        .iter()
        .any(|value| tokens(value).any(|token| token.eq_ignore_ascii_case("upgrade")));
    let protocols: Vec<_> =
        headers.get_all(UPGRADE).iter().flat_map(tokens).filter(|protocol| !carries_http(protocol)).collect();
    let protocols = HeaderValue::try_from(protocols.join(", ")).ok()?;
    Some(protocols).filter(|protocols| asks && !protocols.is_empty())
}

fn carries_http(protocol: &str) -> bool {
    let name = protocol.split('/').next().unwrap_or_default().trim();
    ["h2", "h2c", "h3", "http", "tls"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Whether only we may say it, in any spelling: servers that make variables of headers read `_` as `-`.
fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str();
    let begins = |wanted: &str| {
        let mut pairs = name.bytes().zip(wanted.bytes());
        name.len() >= wanted.len() && pairs.all(|(is, wanted)| is == wanted || (is == b'_' && wanted == b'-'))
    };
    let same = |wanted: &str| name.len() == wanted.len() && begins(wanted);
    same("forwarded") || same("x-real-ip") || begins("x-forwarded-")
}

/// Makes a caller's headers fit for the sandbox at `host`.
///
/// Sandboxes run code that nobody vouches for: the caller's credentials end here, and what it says about where it comes
/// from is replaced by what we see.
pub fn prepare_request(
    headers: &mut HeaderMap,
    peer: Peer,
    host: &HeaderValue,
    upgrade: Option<&HeaderValue>,
) {
    let trailers = headers
        .get_all(TE)
        .iter()
        .any(|value| tokens(value).any(|token| token.eq_ignore_ascii_case("trailers")));
    remove_hop_by_hop(headers);
    // `Expect` is answered by our own server when the sandbox takes the body.
    remove_all(headers, |name| [AUTHORIZATION, EXPECT, HTTP2_SETTINGS].contains(name) || is_ours(name));
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade {
        headers.remove(ORIGIN);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
    if let Some(asked) = headers.insert(HOST, host.clone()) {
        headers.insert(FORWARDED_HOST, asked);
    }
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(if peer.tls { "https" } else { "http" }));
    if let Ok(peer) = peer.address.to_canonical().to_string().parse() {
        headers.insert(FORWARDED_FOR, peer);
    }
}

/// Makes a sandbox's headers fit for the caller.
pub fn prepare_response(headers: &mut HeaderMap, upgrade: bool) {
    let protocol = headers.get(UPGRADE).cloned();
    // Without it the trailers themselves would be dropped.
    let trailers = headers.get(TRAILER).cloned();
    // Beside a coding a length means nothing (RFC 9112, 6.3), and it need not be true. The HTTP
    // library does not check the length of an answer without a body, as to HEAD.
    if headers.contains_key(TRANSFER_ENCODING) || !has_one_length(headers) {
        headers.remove(CONTENT_LENGTH);
    }
    remove_hop_by_hop(headers);
    if let Some(trailers) = trailers.filter(|_| !upgrade) {
        headers.insert(TRAILER, trailers);
    }
    if let Some(protocol) = protocol.filter(|_| upgrade) {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

fn has_one_length(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_number =
        |length: &HeaderValue| !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit);
    lengths.next().is_some_and(is_number) && lengths.next().is_none()
}

/// Headers that are about one connection, and those that `Connection` names.
///
/// Most messages have none of them, so the fields that are there are looked at once and nothing is searched for.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named = headers.get_all(CONNECTION).iter().flat_map(tokens).filter_map(|token| token.parse().ok());
    let named: Vec<HeaderName> = named.collect();
    remove_all(headers, |name| is_hop_by_hop(name) || named.contains(name));
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    let standard =
        [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
    standard.contains(name) || *name == "keep-alive" || *name == "proxy-connection"
}

fn remove_all(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    // Allocates only when there is something to remove.
    let removed: Vec<HeaderName> = headers.keys().filter(|name| is_removed(name)).cloned().collect();
    for name in removed {
        headers.remove(name);
    }
}

fn tokens(value: &HeaderValue) -> impl Iterator<Item = &str> {
    value.to_str().unwrap_or_default().split(',').map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn prepared(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = headers(pairs);
        let upgrade = upgrade(&headers);
        let host = HeaderValue::from_static("10.0.0.5:8888");
        let peer = Peer { address: "192.0.2.7".parse().unwrap(), trusted: false, tls: false };
        prepare_request(&mut headers, peer, &host, upgrade.as_ref());
        headers
    }

    #[test]
    fn credentials_and_connection_headers_stay_behind() {
        let seen = prepared(&[
            ("authorization", "Bearer secret"),
            ("connection", "keep-alive, X-Private"),
            ("keep-alive", "5"),
            ("x-private", "1"),
            ("proxy-authorization", "x"),
            ("proxy-connection", "x"),
            ("te", "gzip, trailers"),
            ("trailer", "x"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("cookie", "a=b"),
            ("origin", "http://page"),
            ("x-request-id", "7"),
            ("x-sandbox-id", "box"),
        ]);
        let wanted = headers(&[
            ("te", "trailers"),
            ("cookie", "a=b"),
            ("origin", "http://page"),
            ("x-request-id", "7"),
            ("x-sandbox-id", "box"),
            ("host", "10.0.0.5:8888"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-for", "192.0.2.7"),
        ]);
        assert_eq!(seen, wanted);
    }

    #[test]
    fn where_a_request_comes_from_is_what_we_see_not_what_it_says() {
        let seen = prepared(&[
            ("host", "router:8080"),
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-host", "evil"),
            ("x-forwarded-proto", "https"),
        ]);
        assert!(!seen.contains_key("forwarded"));
        assert_eq!(seen[&FORWARDED_FOR], "192.0.2.7");
        assert_eq!(seen[&FORWARDED_HOST], "router:8080");
        assert_eq!(seen[&FORWARDED_PROTO], "http");
    }

    #[test]
    fn an_upgrade_keeps_its_protocol_and_loses_its_origin() {
        let seen = prepared(&[
            ("connection", "keep-alive, upgrade"),
            ("upgrade", "websocket"),
            ("origin", "http://page"),
        ]);
        assert_eq!(
            (&seen[CONNECTION], &seen[UPGRADE]),
            (&"Upgrade".parse().unwrap(), &"websocket".parse().unwrap())
        );
        assert!(!seen.contains_key(ORIGIN));
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        assert_eq!(upgrade(&headers(&[("upgrade", "websocket")])), None);
        assert_eq!(upgrade(&headers(&[("connection", "upgrade")])), None);
    }

    #[test]
    fn a_response_keeps_everything_that_is_not_about_the_connection() {
        let mut response = headers(&[
            ("connection", "close"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("upgrade", "x"),
        ]);
        prepare_response(&mut response, false);
        assert_eq!(response, headers(&[("set-cookie", "a=1"), ("set-cookie", "b=2")]));
    }
}
