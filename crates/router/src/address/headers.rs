//! The `X-Sandbox-*` headers that every SDK sends.

use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::{Address, DEFAULT_NAMESPACE, DEFAULT_PORT, is_label, port};
use crate::error::Error;

const ID: HeaderName = HeaderName::from_static("x-sandbox-id");
const NAMESPACE: HeaderName = HeaderName::from_static("x-sandbox-namespace");
const PORT: HeaderName = HeaderName::from_static("x-sandbox-port");
const POD_IP: HeaderName = HeaderName::from_static("x-sandbox-pod-ip");
const UID: HeaderName = HeaderName::from_static("x-sandbox-uid");
const TIMEOUT: HeaderName = HeaderName::from_static("x-sandbox-timeout");

/// Reads the routing headers. The first problem wins, in the order name, namespace, port, Pod address, UID.
///
/// The Pod address is validated as callers expect and otherwise ignored: a caller that could choose it would reach
/// everything that the router's network reaches.
pub fn parse(headers: &HeaderMap, allow_loopback: bool) -> Result<Address, Error> {
    let name = text(headers, &ID, Error::NameInvalid)?.ok_or(Error::NameMissing)?;
    if !is_label(name) {
        return Err(Error::NameInvalid);
    }
    let namespace = text(headers, &NAMESPACE, Error::NamespaceInvalid)?.unwrap_or(DEFAULT_NAMESPACE);
    if !is_label(namespace) {
        return Err(Error::NamespaceInvalid);
    }
    let port = match text(headers, &PORT, Error::PortInvalid)? {
        Some(text) => port(text).ok_or(Error::PortInvalid)?,
        None => DEFAULT_PORT,
    };
    let pod_address = text(headers, &POD_IP, Error::PodAddressInvalid)?
        .map(|text| pod_address(text, allow_loopback).ok_or(Error::PodAddressInvalid))
        .transpose()?;
    let uid = text(headers, &UID, Error::UidInvalid)?;
    Ok(Address {
        uid: uid.map(str::to_owned),
        pod_address,
        timeout: headers.get(&TIMEOUT).and_then(|value| timeout(value.to_str().ok()?)),
        ..Address::new(namespace, name, port)
    })
}

/// The value; an empty one counts as absent. Two that differ are an error, because a proxy in front may have read the
/// other one.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName, invalid: Error) -> Result<Option<&'a str>, Error> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.any(|other| other != value) {
        return Err(invalid);
    }
    let value = value.to_str().map_err(|_| invalid)?;
    Ok(Some(value).filter(|value| !value.is_empty()))
}

/// A bare IP literal that a Pod can have.
fn pod_address(text: &str, allow_loopback: bool) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    let canonical = address.to_canonical();
    let allowed = !is_special(canonical) || (allow_loopback && canonical.is_loopback());
    allowed.then_some(address)
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

/// Values other than a positive number of seconds are ignored, as in the reference router.
fn timeout(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn read_with(pairs: &[(&str, &str)], allow_loopback: bool) -> Result<Address, Error> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        parse(&headers, allow_loopback)
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Address, Error> {
        read_with(pairs, false)
    }

    #[test]
    fn the_name_alone_is_enough() {
        assert_eq!(read(&[("X-Sandbox-ID", "my-box")]), Ok(Address::new("default", "my-box", 8888)));
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
            uid: Some("u-1".to_owned()),
            pod_address: Some("2001:db8::1".parse().unwrap()),
            timeout: Some(Duration::from_millis(1500)),
            ..Address::new("prod", "my-box", 9000)
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
            assert!(read(&[("x-sandbox-id", good), ("x-sandbox-namespace", good)]).is_ok(), "{good}");
        }
        let too_long = "a".repeat(64);
        for bad in [
            "foo.evil.com",
            "foo/bar",
            "foo_bar",
            "FooBar",
            "-foo",
            "foo-",
            "---",
            "bad namespace",
            "bad!",
            " ns",
            "ns ",
            too_long.as_str(),
            "\u{1f600}",
        ] {
            assert_eq!(read(&[("x-sandbox-id", bad)]), Err(Error::NameInvalid), "{bad}");
            let namespace = [("x-sandbox-id", "box"), ("x-sandbox-namespace", bad)];
            assert_eq!(read(&namespace), Err(Error::NamespaceInvalid), "{bad}");
        }
    }

    #[test]
    fn ports_are_between_1_and_65535() {
        let read = |port| read(&[("x-sandbox-id", "box"), ("x-sandbox-port", port)]).map(|read| read.port);
        for (given, wanted) in [("1", 1), ("65535", 65535), ("", 8888)] {
            assert_eq!(read(given), Ok(wanted));
        }
        for bad in ["abc", "0", "-1", "65536", "+80", "8 0"] {
            assert_eq!(read(bad), Err(Error::PortInvalid), "{bad}");
        }
    }

    #[test]
    fn a_pod_address_is_a_bare_literal_that_a_pod_can_have() {
        let read = |text, loopback| {
            read_with(&[("x-sandbox-id", "box"), ("x-sandbox-pod-ip", text)], loopback).is_ok()
        };
        for bad in ["not-an-ip", "10.0.0.256", "10.0.0.1:80", "[::1]", "fe80::1%eth0"] {
            assert!(!read(bad, false) && !read(bad, true), "{bad}");
        }
        for special in [
            "169.254.169.254",
            "169.254.1.1",
            "::ffff:169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "239.255.255.250",
            "ff02::1",
            "0.0.0.0",
            "::",
        ] {
            assert!(!read(special, false) && !read(special, true), "{special}");
        }
        for loopback in ["127.0.0.1", "127.10.20.30", "::1", "::ffff:127.0.0.1"] {
            assert!(!read(loopback, false) && read(loopback, true), "{loopback}");
        }
        for good in ["10.0.0.5", "192.168.1.1", "8.8.8.8", "2001:db8::1"] {
            assert!(read(good, false), "{good}");
        }
    }

    #[test]
    fn two_values_that_differ_are_refused() {
        for (name, error) in [
            ("x-sandbox-id", Error::NameInvalid),
            ("x-sandbox-namespace", Error::NamespaceInvalid),
            ("x-sandbox-port", Error::PortInvalid),
            ("x-sandbox-pod-ip", Error::PodAddressInvalid),
            ("x-sandbox-uid", Error::UidInvalid),
        ] {
            let value =
                |digit: &str| if name.ends_with("ip") { format!("10.0.0.{digit}") } else { digit.to_owned() };
            let (one, two) = (value("1"), value("2"));
            let with = |second: &str| {
                let mut pairs = vec![(name, &*one), (name, second)];
                if name != "x-sandbox-id" {
                    pairs.push(("x-sandbox-id", "box"));
                }
                read(&pairs)
            };
            assert_eq!(with(&two), Err(error), "{name}");
            assert_eq!(with(""), with(&two), "{name}: an empty second value is another one");
            assert!(with(&one).is_ok(), "{name}: a proxy may repeat it");
        }
        assert_eq!(read(&[("x-sandbox-id", "box"), ("x-sandbox-uid", "\u{e9}")]), Err(Error::UidInvalid));
    }

    #[test]
    fn a_timeout_that_makes_no_sense_is_ignored() {
        for bad in ["0", "-1", "nan", "inf", "soon", ""] {
            assert_eq!(timeout(bad), None, "{bad}");
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn an_address_survives_its_headers(
            name in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", port in 1..=u16::MAX,
        ) {
            let pairs = [("x-sandbox-id", &*name), ("x-sandbox-namespace", &namespace), ("x-sandbox-port", &port.to_string())];
            prop_assert_eq!(read(&pairs), Ok(Address::new(&namespace, &name, port)));
        }
    }
}
