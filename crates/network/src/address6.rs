//! IPv6 addresses of sandboxes: each has one beside its IPv4 address and made from it, so that there is nothing to hand
//! out, to remember or to give back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cidr::Cidr;

/// A block of local addresses (RFC 4193), of which only this engine uses any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block6(Ipv6Addr);

impl Block6 {
    const LENGTH: u8 = 64;

    /// That of an engine with this tag, which no other on the machine has.
    pub fn of_tag(tag: &str) -> Self {
        let tag = u32::from_str_radix(tag, 16).unwrap_or_default();
        // "as", as part of the random number that a site is to choose.
        Self(Ipv6Addr::new(0xfd61, 0x7300 | (tag >> 16) as u16, tag as u16, 0, 0, 0, 0, 0))
    }

    pub fn range(self) -> Cidr {
        Cidr::new(self.0, Self::LENGTH).unwrap_or(Cidr::EVERYTHING6)
    }

    /// The address beside this one.
    pub fn beside(self, address: Ipv4Addr) -> Ipv6Addr {
        (u128::from(self.0) | u128::from(u32::from(address))).into()
    }

    /// Beside which address this one is, if it is one of these.
    pub fn owner(self, address: IpAddr) -> Option<Ipv4Addr> {
        match address {
            IpAddr::V6(six) => {
                let owner = Ipv4Addr::from(u128::from(six) as u32);
                (self.beside(owner) == six).then_some(owner)
            }
            IpAddr::V4(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_local_and_tell_which_one_they_are_beside() {
        let block = Block6::of_tag("0a1b2c");
        assert_eq!(block.range().to_string(), "fd61:730a:1b2c::/64");
        let address = Ipv4Addr::new(10, 88, 0, 2);
        let six = block.beside(address);
        assert_eq!(six.to_string(), "fd61:730a:1b2c::a58:2");
        assert!(block.range().contains(six) && Cidr::literal6([0xfc00, 0], 7).contains(six));
        assert_eq!(block.owner(six.into()), Some(address));
        assert_eq!(Block6::of_tag("0a1b2d").owner(six.into()), None);
        assert_eq!(block.owner(address.into()), None);
    }
}
