//! IPv4 and IPv6: what differs between them in a packet, and in names.

use crate::cidr::Cidr;

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub fn of(cidr: Cidr) -> Self {
        if cidr.is_ipv6() { Self::V6 } else { Self::V4 }
    }

    /// The name of what there is once for each family.
    pub fn name(self, base: &str) -> String {
        match self {
            Self::V4 => base.to_owned(),
            Self::V6 => format!("{base}6"),
        }
    }

    /// Its number in the packet filter.
    pub fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// Where the source stands in a header.
    pub fn source(self) -> u32 {
        match self {
            Self::V4 => 12,
            Self::V6 => 8,
        }
    }

    /// It stands behind the source.
    pub fn destination(self) -> u32 {
        self.source() + self.width()
    }

    /// How many bytes an address has.
    pub fn width(self) -> u32 {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }
}
