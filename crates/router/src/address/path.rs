//! `<prefix>/<namespace>/<id>/<port>/<rest>`: for browsers, which cannot set headers on navigation, iframes or WebSocket
//! handshakes.

use std::str::FromStr;

use http::uri::PathAndQuery;

use super::{Address, is_label, port};
use crate::error::Error;

/// The beginning of paths that name a sandbox. Starts with `/` and does not end with one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPrefix(String);

/// Why a text cannot be a [`PathPrefix`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a path prefix starts with `/`, does not end with `/`, and has only visible ASCII other than `?`, `#` and `%`"
)]
pub struct PathPrefixInvalid;

impl FromStr for PathPrefix {
    type Err = PathPrefixInvalid;

    fn from_str(text: &str) -> Result<Self, PathPrefixInvalid> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%;\"".contains(&byte));
        (visible && text.starts_with('/') && !text.ends_with('/'))
            .then(|| Self(text.to_owned()))
            .ok_or(PathPrefixInvalid)
    }
}

impl PathPrefix {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part after the prefix, without its first `/`. Compares bytes: an encoded prefix is another path.
    pub(super) fn strip<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(&self.0)?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
    }
}

/// Reads `<namespace>/<id>/<port>/<rest>`. `<rest>` and the query are kept byte for byte.
pub fn parse(path: &str, query: Option<&str>) -> Result<(Address, PathAndQuery), Error> {
    let invalid = |part| Error::PathInvalid { part };
    let mut parts = path.splitn(4, '/');
    let mut next = |part| parts.next().filter(|text| !text.is_empty()).ok_or(invalid(part));
    let namespace = next("namespace")?;
    let name = next("sandbox ID")?;
    let port_text = next("port")?;
    if !is_label(namespace) {
        return Err(invalid("namespace"));
    }
    if !is_label(name) {
        return Err(invalid("sandbox ID"));
    }
    let port = port(port_text).ok_or(invalid("port"))?;
    let rest = parts.next().unwrap_or_default();
    let mut target = String::with_capacity(rest.len() + query.map_or(0, str::len) + 2);
    target.push('/');
    target.push_str(rest);
    if let Some(query) = query {
        target.push('?');
        target.push_str(query);
    }
    let target = PathAndQuery::try_from(target).map_err(|_| invalid("rest"))?;
    Ok((Address::new(namespace, name, port), target))
}

#[cfg(test)]
mod tests {
    use http::Uri;
    use proptest::prelude::*;

    use super::*;

    fn read(path_and_query: &str) -> Result<(Address, PathAndQuery), Error> {
        let uri: Uri = path_and_query.parse().unwrap();
        parse(PathPrefix("/s".to_owned()).strip(uri.path()).unwrap(), uri.query())
    }

    #[test]
    fn a_prefix_is_checked_when_it_is_configured() {
        for good in ["/s", "/sandboxes/v1", "/~x"] {
            assert!(good.parse::<PathPrefix>().is_ok(), "{good}");
        }
        for bad in ["", "/", "s", "/s/", "/a b", "/a\n", "/a?b", "/a#b", "/a%20", "/\u{e9}"] {
            assert_eq!(bad.parse::<PathPrefix>(), Err(PathPrefixInvalid), "{bad}");
        }
    }

    #[test]
    fn the_prefix_matches_whole_segments_and_bytes() {
        let prefix = PathPrefix("/s".to_owned());
        assert_eq!(prefix.strip("/s"), Some(""));
        assert_eq!(prefix.strip("/s/a/b"), Some("a/b"));
        for other in ["/sx/a", "/S/a", "/%73/a", "//s/a", "/x/s/a"] {
            assert_eq!(prefix.strip(other), None, "{other}");
        }
    }

    #[test]
    fn the_rest_is_forwarded_byte_for_byte() {
        for (given, wanted) in [
            ("/s/ns/web/80/a/b?c=d", "/a/b?c=d"),
            ("/s/ns/web/80/", "/"),
            ("/s/ns/web/80", "/"),
            ("/s/ns/web/80?x", "/?x"),
            ("/s/ns/web/80/?", "/?"),
            ("/s/ns/web/80//x//y", "//x//y"),
            ("/s/ns/web/80/a%2Fb/../%2e%2E/c?q=%20&/?", "/a%2Fb/../%2e%2E/c?q=%20&/?"),
        ] {
            let (address, target) = read(given).unwrap();
            assert_eq!(target.as_str(), wanted);
            assert_eq!(address, Address::new("ns", "web", 80));
        }
    }

    #[test]
    fn a_malformed_path_names_the_part() {
        for (given, part) in [
            ("/s", "namespace"),
            ("/s/", "namespace"),
            ("/s//web/80/", "namespace"),
            ("/s/ns", "sandbox ID"),
            ("/s/ns//80/", "sandbox ID"),
            ("/s/ns/web", "port"),
            ("/s/ns/web/", "port"),
            ("/s/Ns/web/80/", "namespace"),
            ("/s/../web/80/", "namespace"),
            ("/s/n%73/web/80/", "namespace"),
            ("/s/ns/we.b/80/", "sandbox ID"),
            ("/s/ns/%2e%2e/80/", "sandbox ID"),
            ("/s/ns/web/0/", "port"),
            ("/s/ns/web/65536/", "port"),
            ("/s/ns/web/http/", "port"),
            ("/s/ns/web/+80/", "port"),
        ] {
            assert_eq!(read(given).unwrap_err(), Error::PathInvalid { part }, "{given}");
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn an_address_and_its_rest_survive_the_path(
            namespace in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", port in 1..=u16::MAX,
            rest in "(/|[a-zA-Z0-9._~%:@!$&'()*+,;=-]){0,40}", query in proptest::option::of("[a-zA-Z0-9%&=/?]{0,20}"),
        ) {
            let query = query.map_or_else(String::new, |query| format!("?{query}"));
            let (address, target) = read(&format!("/s/{namespace}/{name}/{port}/{rest}{query}")).unwrap();
            prop_assert_eq!(address, Address::new(&namespace, &name, port));
            prop_assert_eq!(target.as_str(), format!("/{rest}{query}"));
        }
    }
}
