//! Blocks of addresses, of either family.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    first: IpAddr,
    length: u8,
}

impl Cidr {
    /// All of IPv4.
    pub const EVERYTHING: Self = Self::literal([0, 0, 0, 0], 0);
    /// All of IPv6.
    pub const EVERYTHING6: Self = Self::literal6([0, 0], 0);

    /// The block of this length around an address, or `None` for a length that no such address has.
    pub fn new(address: impl Into<IpAddr>, length: u8) -> Option<Self> {
        let first = match address.into() {
            IpAddr::V4(address) if length <= 32 => (u32::from(address) & mask4(length)).to_be_bytes().into(),
            IpAddr::V6(address) if length <= 128 => {
                (u128::from(address) & mask6(length)).to_be_bytes().into()
            }
            _ => return None,
        };
        Some(Self { first, length })
    }

    /// For blocks that are written in the code.
    pub const fn literal(octets: [u8; 4], length: u8) -> Self {
        let [a, b, c, d] = octets;
        Self { first: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), length }
    }

    /// The same for IPv6, by their first two groups.
    pub const fn literal6(groups: [u16; 2], length: u8) -> Self {
        Self { first: IpAddr::V6(Ipv6Addr::new(groups[0], groups[1], 0, 0, 0, 0, 0, 0)), length }
    }

    pub fn single(address: impl Into<IpAddr>) -> Self {
        let first = address.into();
        Self { first, length: if first.is_ipv4() { 32 } else { 128 } }
    }

    pub fn first(&self) -> IpAddr {
        self.first
    }

    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether it holds one address only.
    pub fn is_single(&self) -> bool {
        *self == Self::single(self.first)
    }

    pub fn is_ipv6(&self) -> bool {
        self.first.is_ipv6()
    }

    /// The first address as it stands in a packet.
    pub fn octets(&self) -> Vec<u8> {
        octets(self.first)
    }

    /// The bits that count, as they stand in a packet.
    pub fn mask(&self) -> Vec<u8> {
        match self.first {
            IpAddr::V4(_) => mask4(self.length).to_be_bytes().to_vec(),
            IpAddr::V6(_) => mask6(self.length).to_be_bytes().to_vec(),
        }
    }

    pub fn contains(&self, address: impl Into<IpAddr>) -> bool {
        Self::new(address, self.length) == Some(*self)
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn mask4(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

fn mask6(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.length)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once('/')
            .and_then(|(address, length)| Self::new(address.parse::<IpAddr>().ok()?, length.parse().ok()?));
        parsed.ok_or_else(|| format!("{text:?} is not a block of addresses such as 10.0.0.0/8 or fd00::/8"))
    }
}

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_the_addresses_that_begin_with_their_bits() {
        let block: Cidr = "10.1.2.3/8".parse().unwrap();
        assert_eq!(block.to_string(), "10.0.0.0/8");
        assert!(block.contains(Ipv4Addr::new(10, 255, 0, 1)) && !block.contains(Ipv4Addr::new(11, 0, 0, 0)));
        assert!(Cidr::EVERYTHING.contains(Ipv4Addr::BROADCAST));
        assert!(Cidr::single(Ipv4Addr::LOCALHOST).overlaps(&"127.0.0.0/8".parse().unwrap()));
        let six: Cidr = "fd00:1:2::3/32".parse().unwrap();
        assert_eq!(six.to_string(), "fd00:1::/32");
        assert!(six.contains("fd00:1:ffff::".parse::<Ipv6Addr>().unwrap()));
        assert!(!six.contains("fd00:2::".parse::<Ipv6Addr>().unwrap()));
        assert!(
            !Cidr::EVERYTHING6.contains(Ipv4Addr::LOCALHOST)
                && !Cidr::EVERYTHING.contains(Ipv6Addr::LOCALHOST)
        );
        assert!(
            Cidr::EVERYTHING6.contains(Ipv6Addr::LOCALHOST) && Cidr::single(Ipv6Addr::LOCALHOST).is_single()
        );
        for wrong in
            ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "::/129", "::1", "", "10.0.0.0/-1", "fd00::1%eth0/64"]
        {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }
}
