//! Which sandbox a request means, from its headers alone.

use std::net::IpAddr;
use std::time::Duration;

use http::HeaderMap;

use crate::error::Error;

const DEFAULT_NAMESPACE: &str = "default";
const DEFAULT_PORT: u16 = 8888;

/// The sandbox and port a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub namespace: String,
    pub name: String,
    pub port: u16,
    /// UID of the Sandbox object, when the caller knows it.
    pub uid: Option<String>,
    /// Where the caller believes the Pod is. Checked for sense, never dialled.
    pub pod_address: Option<IpAddr>,
    /// How long the caller wants to wait for the response headers.
    pub timeout: Option<Duration>,
}

/// Reads the routing headers. The first problem wins, in the order name, namespace, port, Pod address.
pub fn parse(headers: &HeaderMap) -> Result<Address, Error> {
    let name = text(headers, "x-sandbox-id", Error::NameInvalid)?.ok_or(Error::NameMissing)?;
    if !is_label(name) {
        return Err(Error::NameInvalid);
    }
    let namespace =
        text(headers, "x-sandbox-namespace", Error::NamespaceInvalid)?.unwrap_or(DEFAULT_NAMESPACE);
    if !is_label(namespace) {
        return Err(Error::NamespaceInvalid);
    }
    let port = text(headers, "x-sandbox-port", Error::PortInvalid)?.map_or(Ok(DEFAULT_PORT), port)?;
    let pod_address = text(headers, "x-sandbox-pod-ip", Error::PodAddressInvalid)?;
    let pod_address = pod_address.map(str::parse).transpose().map_err(|_| Error::PodAddressInvalid)?;
    let uid =
        headers.get("x-sandbox-uid").and_then(|value| value.to_str().ok()).filter(|uid| !uid.is_empty());
    Ok(Address {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        port,
        uid: uid.map(str::to_owned),
        pod_address,
        timeout: headers.get("x-sandbox-timeout").and_then(|value| timeout(value.to_str().ok()?)),
    })
}

/// Refuses Pod addresses that no Pod of a cluster has. `known` is where the named sandbox really is: on one machine that
/// may well be a loopback address, and then it is as good as any.
pub fn check_pod_address(given: Option<IpAddr>, known: Option<IpAddr>) -> Result<(), Error> {
    match given {
        Some(given) if Some(given) != known && is_special(given.to_canonical()) => {
            Err(Error::PodAddressInvalid)
        }
        _ => Ok(()),
    }
}

/// The first value; an empty one counts as absent.
fn text<'a>(headers: &'a HeaderMap, name: &str, invalid: Error) -> Result<Option<&'a str>, Error> {
    let value = headers.get(name).map(|value| value.to_str()).transpose().map_err(|_| invalid)?;
    Ok(value.filter(|value| !value.is_empty()))
}

/// A DNS-1123 label: lower-case letters, digits and inner dashes, at most 63.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn port(text: &str) -> Result<u16, Error> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&port| digits && port > 0).ok_or(Error::PortInvalid)
}

/// Anything that is not a positive number of seconds is ignored, as callers are used to.
fn timeout(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero())
}

fn is_special(address: IpAddr) -> bool {
    address.is_loopback()
        || address.is_multicast()
        || address.is_unspecified()
        || match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Address, Error> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        parse(&headers)
    }

    #[test]
    fn the_name_alone_is_enough() {
        let address = read(&[("X-Sandbox-ID", "my-box")]).unwrap();
        assert_eq!(
            (address.namespace.as_str(), address.name.as_str(), address.port),
            ("default", "my-box", 8888)
        );
        assert_eq!((address.uid, address.pod_address, address.timeout), (None, None, None));
    }

    #[test]
    fn every_header_is_read() {
        let address = read(&[
            ("x-sandbox-id", "my-box"),
            ("X-SANDBOX-NAMESPACE", "prod"),
            ("x-sandbox-port", "9000"),
            ("x-sandbox-pod-ip", "2001:db8::1"),
            ("x-sandbox-uid", "u-1"),
            ("x-sandbox-timeout", "1.5"),
        ]);
        let wanted = Address {
            namespace: "prod".to_owned(),
            name: "my-box".to_owned(),
            port: 9000,
            uid: Some("u-1".to_owned()),
            pod_address: Some("2001:db8::1".parse().unwrap()),
            timeout: Some(Duration::from_millis(1500)),
        };
        assert_eq!(address, Ok(wanted));
    }

    #[test]
    fn the_first_problem_wins() {
        let mut pairs = vec![
            ("x-sandbox-pod-ip", "nonsense"),
            ("x-sandbox-port", "abc"),
            ("x-sandbox-namespace", "bad!"),
        ];
        assert_eq!(read(&pairs), Err(Error::NameMissing));
        pairs.push(("x-sandbox-id", "Bad"));
        assert_eq!(read(&pairs), Err(Error::NameInvalid));
        pairs[3].1 = "good";
        assert_eq!(read(&pairs), Err(Error::NamespaceInvalid));
        pairs[2].1 = "good";
        assert_eq!(read(&pairs), Err(Error::PortInvalid));
        pairs[1].1 = "80";
        assert_eq!(read(&pairs), Err(Error::PodAddressInvalid));
        pairs[0].1 = "10.0.0.5";
        assert!(read(&pairs).is_ok());
    }

    #[test]
    fn names_are_dns_labels() {
        let longest = "a".repeat(63);
        for good in ["1abc", "a", "my-box", longest.as_str()] {
            assert!(is_label(good), "{good}");
        }
        let too_long = "a".repeat(64);
        for bad in [
            "",
            &too_long,
            "MY-NS",
            "my.ns",
            " ns",
            "ns ",
            "foo/bar",
            "foo_bar",
            "-foo",
            "foo-",
            "---",
            "\u{1f600}",
        ] {
            assert!(!is_label(bad), "{bad}");
        }
        assert_eq!(read(&[("x-sandbox-id", "\u{1f600}")]), Err(Error::NameInvalid));
    }

    #[test]
    fn ports_are_between_1_and_65535() {
        for (given, wanted) in [("1", Ok(1)), ("65535", Ok(65535))] {
            assert_eq!(port(given), wanted);
        }
        for bad in ["abc", "0", "-1", "65536", "+80", "8 0"] {
            assert_eq!(port(bad), Err(Error::PortInvalid), "{bad}");
        }
    }

    #[test]
    fn a_pod_address_is_a_bare_literal() {
        for bad in ["not-an-ip", "10.0.0.256", "10.0.0.1:80", "[::1]", "fe80::1%eth0"] {
            let result = read(&[("x-sandbox-id", "box"), ("x-sandbox-pod-ip", bad)]);
            assert_eq!(result, Err(Error::PodAddressInvalid), "{bad}");
        }
    }

    #[test]
    fn special_pod_addresses_are_refused_unless_the_sandbox_really_has_them() {
        let check = |given: &str, known: Option<&str>| {
            check_pod_address(Some(given.parse().unwrap()), known.map(|known| known.parse().unwrap()))
        };
        for bad in [
            "127.0.0.1",
            "127.10.20.30",
            "::1",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "169.254.1.1",
            "fe80::1",
            "224.0.0.1",
            "239.255.255.250",
            "ff02::1",
            "0.0.0.0",
            "::",
        ] {
            assert_eq!(check(bad, None), Err(Error::PodAddressInvalid), "{bad}");
            assert_eq!(check(bad, Some("10.0.0.5")), Err(Error::PodAddressInvalid), "{bad}");
        }
        for good in ["10.0.0.5", "192.168.1.1", "8.8.8.8", "2001:db8::1"] {
            assert_eq!(check(good, None), Ok(()), "{good}");
        }
        assert_eq!(check("127.0.0.2", Some("127.0.0.2")), Ok(()));
    }

    #[test]
    fn a_timeout_that_makes_no_sense_is_ignored() {
        for bad in ["0", "-1", "nan", "inf", "soon", ""] {
            assert_eq!(timeout(bad), None, "{bad}");
        }
    }
}
