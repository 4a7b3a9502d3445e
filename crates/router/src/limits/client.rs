//! The address of a caller behind proxies.

use std::net::{IpAddr, Ipv6Addr};

use http::HeaderMap;
use ipnet::IpNet;

/// Hops that are looked at.
const MAX_HOPS: usize = 32;

pub fn is_trusted(address: IpAddr, trusted: &[IpNet]) -> bool {
    let address = address.to_canonical();
    trusted.iter().any(|net| net.contains(&address))
}

/// The right-most hop that is not a trusted proxy. Everything left of it was written by the caller and proves nothing.
pub fn address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let mut client = peer.to_canonical();
    if trusted.is_empty() || !is_trusted(client, trusted) {
        return client;
    }
    let values = headers.get_all("x-forwarded-for").iter().rev();
    let hops = values.flat_map(|value| value.to_str().unwrap_or_default().rsplit(','));
    for hop in hops.take(MAX_HOPS) {
        // A hop that cannot be read was not written by a trusted proxy.
        let Some(hop) = parse(hop.trim()) else { break };
        client = hop;
        if !is_trusted(hop, trusted) {
            break;
        }
    }
    client
}

/// An address, perhaps with a port as some proxies add it.
fn parse(hop: &str) -> Option<IpAddr> {
    let address = hop.parse().or_else(|_| hop.parse().map(|socket: std::net::SocketAddr| socket.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

/// Addresses that one caller can choose from freely count as one: a /64 of IPv6.
pub fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client(peer: &str, forwarded: &[&str]) -> String {
        let trusted = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append("x-forwarded-for", value.parse().unwrap());
        }
        address(peer.parse().unwrap(), &headers, &trusted).to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        for (peer, forwarded, wanted) in [
            ("192.0.2.1", &["203.0.113.9"][..], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("::ffff:10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["1.1.1.1, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            ("10.0.0.1", &["1.1.1.1", "203.0.113.9", "10.0.0.2"], "203.0.113.9"),
            ("10.0.0.1", &["10.0.0.3,10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &["203.0.113.9:4711"], "203.0.113.9"),
            ("fd00::1", &["[2001:db8::1]:4711"], "2001:db8::1"),
            ("10.0.0.1", &["1.1.1.1, evil, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["203.0.113.9,"], "10.0.0.1"),
        ] {
            assert_eq!(client(peer, forwarded), wanted, "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn a_64_counts_as_one_caller() {
        let group = |text: &str| group(text.parse().unwrap()).to_string();
        assert_eq!(group("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(group("2001:db8:1:2:ffff::"), "2001:db8:1:2::");
        assert_eq!(group("192.0.2.1"), "192.0.2.1");
        assert_eq!(group("::ffff:192.0.2.1"), "192.0.2.1");
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn any_header_gets_an_answer(value in "[ -~]{0,80}") {
            client("10.0.0.1", &[&value]);
            prop_assert_eq!(client("192.0.2.1", &[&value]), "192.0.2.1");
        }
    }
}
