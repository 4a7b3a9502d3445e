//! `<port>-<id>.<namespace>.<domain>`: every sandbox port is an origin of its own, so a browser keeps sandboxes apart.

use std::str::FromStr;

use http::header::HOST;
use http::{HeaderMap, Uri};

use super::{Address, DEFAULT_PORT, is_label, port};
use crate::error::Error;

/// The domain below which hosts name sandboxes, e.g. `sandboxes.example.com`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain(String);

/// Why a text cannot be a [`Domain`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a domain is one or more DNS labels joined by dots, without a port or a leading dot")]
pub struct DomainInvalid;

impl FromStr for Domain {
    type Err = DomainInvalid;

    fn from_str(text: &str) -> Result<Self, DomainInvalid> {
        let text = text.to_ascii_lowercase();
        let valid = text.len() <= 253 && text.split('.').all(is_label);
        valid.then_some(Self(text)).ok_or(DomainInvalid)
    }
}

impl Domain {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host of a sandbox port; `None` when its first label would exceed DNS's 63 characters.
    pub fn host_of(&self, namespace: &str, name: &str, port: u16) -> Option<String> {
        let first = format!("{port}-{name}");
        (first.len() <= 63).then(|| format!("{first}.{namespace}.{}", self.0))
    }

    /// Whether a host, perhaps with a port, is the domain or below it.
    pub(crate) fn holds(&self, host: &str) -> bool {
        without_port(host).eq_ignore_ascii_case(&self.0) || self.labels(host).is_some()
    }

    /// The lower-case labels below the domain; `None` for the domain itself and for other hosts.
    pub(super) fn labels(&self, host: &str) -> Option<String> {
        let host = without_port(host);
        let host = host.strip_suffix('.').unwrap_or(host);
        let (labels, domain) = host.split_at_checked(host.len().checked_sub(self.0.len())?)?;
        let labels = labels.strip_suffix('.')?;
        domain.eq_ignore_ascii_case(&self.0).then(|| labels.to_ascii_lowercase())
    }
}

/// The host that a request is for, perhaps with a port: HTTP/2's authority or an absolute target wins over `Host`.
/// Two `Host` headers are an error, because a proxy in front might have read the other one.
pub fn requested<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<&'a str, Error> {
    if let Some(authority) = uri.authority() {
        let text = authority.as_str();
        return Ok(text.rsplit_once('@').map_or(text, |(_, host)| host));
    }
    let mut hosts = headers.get_all(HOST).iter();
    let first = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
    if hosts.next().is_some() {
        return Err(Error::HostRepeated);
    }
    Ok(first)
}

pub fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Reads `<port>-<id>.<namespace>` or `<id>.<namespace>`. Leading digits before a dash are always a port.
pub fn parse(labels: &str) -> Result<Address, Error> {
    let (first, namespace) = labels.split_once('.').ok_or(Error::HostInvalid { part: "namespace" })?;
    if first.len() > 63 {
        return Err(Error::HostLabelTooLong);
    }
    if !is_label(namespace) {
        return Err(Error::HostInvalid { part: "namespace" });
    }
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (port, name) = match first.split_once('-') {
        Some((text, name)) if is_port(text) => (port(text).ok_or(Error::HostInvalid { part: "port" })?, name),
        _ => (DEFAULT_PORT, first),
    };
    if !is_label(name) {
        return Err(Error::HostInvalid { part: "sandbox ID" });
    }
    Ok(Address::new(namespace, name, port))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(host: &str) -> Option<Result<Address, Error>> {
        let domain: Domain = "box.example".parse().unwrap();
        domain.labels(host).map(|labels| parse(&labels))
    }

    #[test]
    fn a_domain_is_checked_when_it_is_configured() {
        for good in ["example.com", "Box.Example", "localhost"] {
            assert!(good.parse::<Domain>().is_ok(), "{good}");
        }
        for bad in ["", ".example.com", "example.com.", "a..b", "a:80", "a/b", "*.example.com"] {
            assert_eq!(bad.parse::<Domain>(), Err(DomainInvalid), "{bad}");
        }
    }

    #[test]
    fn hosts_are_read_in_any_case_and_with_any_port() {
        let wanted = Address::new("team", "web", 9000);
        for host in [
            "9000-web.team.box.example",
            "9000-WEB.Team.Box.EXAMPLE",
            "9000-web.team.box.example:8443",
            "9000-web.team.box.example.",
            "9000-web.team.box.example.:80",
        ] {
            assert_eq!(read(host), Some(Ok(wanted.clone())), "{host}");
        }
        assert_eq!(read("web.team.box.example"), Some(Ok(Address::new("team", "web", 8888))));
        assert_eq!(read("123.team.box.example"), Some(Ok(Address::new("team", "123", 8888))));
        assert_eq!(read("80-9-web.team.box.example"), Some(Ok(Address::new("team", "9-web", 80))));
    }

    #[test]
    fn other_hosts_are_not_ours() {
        for host in
            ["", "box.example", "xbox.example", "box.example.evil", "a.b.evil", "[::1]:80", "\u{e9}x.example"]
        {
            assert_eq!(read(host), None, "{host}");
        }
    }

    #[test]
    fn a_malformed_host_names_the_part() {
        for (labels, part) in [
            ("web", "namespace"),
            ("web.", "namespace"),
            ("a.b.c", "namespace"),
            ("web.te_am", "namespace"),
            (".team", "sandbox ID"),
            ("-web.team", "sandbox ID"),
            ("80-.team", "sandbox ID"),
            ("80--web.team", "sandbox ID"),
            ("user@web.team", "sandbox ID"),
            ("0-web.team", "port"),
            ("65536-web.team", "port"),
        ] {
            let host = format!("{labels}.box.example");
            assert_eq!(read(&host), Some(Err(Error::HostInvalid { part })), "{host}");
        }
        let long = format!("8080-{}.team.box.example", "a".repeat(60));
        assert_eq!(read(&long), Some(Err(Error::HostLabelTooLong)));
    }

    #[test]
    fn the_authority_wins_over_host_and_two_hosts_are_refused() {
        let mut headers = HeaderMap::new();
        headers.append(HOST, "one".parse().unwrap());
        let plain = Uri::from_static("/x");
        let absolute = Uri::from_static("http://user:secret@two:80/x");
        assert_eq!(requested(&plain, &headers), Ok("one"));
        assert_eq!(requested(&absolute, &headers), Ok("two:80"));
        headers.append(HOST, "three".parse().unwrap());
        assert!(requested(&plain, &headers).is_err());
        assert_eq!(requested(&plain, &HeaderMap::new()), Ok(""));
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn an_address_survives_its_host(
            namespace in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", port in 1..=u16::MAX,
        ) {
            let domain: Domain = "box.example".parse().unwrap();
            match domain.host_of(&namespace, &name, port) {
                Some(host) => prop_assert_eq!(read(&host), Some(Ok(Address::new(&namespace, &name, port)))),
                None => prop_assert!(name.len() > 57),
            }
        }

        #[test]
        fn any_host_gets_an_answer(host in "\\PC{0,80}") {
            let _ = read(&host);
            let _ = read(&format!("{host}.box.example"));
        }
    }
}
