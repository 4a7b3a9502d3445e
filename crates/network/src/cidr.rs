//! Blocks of IPv4 addresses.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    first: Ipv4Addr,
    length: u8,
}

impl Cidr {
    pub const EVERYTHING: Self = Self { first: Ipv4Addr::UNSPECIFIED, length: 0 };

    /// The block of this length around an address, or `None` for a length above 32.
    pub fn new(address: Ipv4Addr, length: u8) -> Option<Self> {
        (length <= 32).then(|| Self { first: (u32::from(address) & mask(length)).into(), length })
    }

    /// For blocks that are written in the code.
    pub const fn literal(octets: [u8; 4], length: u8) -> Self {
        Self { first: Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]), length }
    }

    pub fn single(address: Ipv4Addr) -> Self {
        Self { first: address, length: 32 }
    }

    pub fn first(&self) -> Ipv4Addr {
        self.first
    }

    pub fn last(&self) -> Ipv4Addr {
        (u32::from(self.first) | !mask(self.length)).into()
    }

    pub fn length(&self) -> u8 {
        self.length
    }

    pub fn mask(&self) -> Ipv4Addr {
        mask(self.length).into()
    }

    pub fn contains(&self, address: Ipv4Addr) -> bool {
        u32::from(address) & mask(self.length) == u32::from(self.first)
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

fn mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
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
            .and_then(|(address, length)| Self::new(address.parse().ok()?, length.parse().ok()?));
        parsed.ok_or_else(|| format!("{text:?} is not an IPv4 block such as 10.0.0.0/8"))
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
        assert_eq!(block.last(), Ipv4Addr::new(10, 255, 255, 255));
        assert!(Cidr::single(Ipv4Addr::LOCALHOST).overlaps(&"127.0.0.0/8".parse().unwrap()));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "::/0", "", "10.0.0.0/-1"] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }
}
