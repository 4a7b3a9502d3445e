//! What a rule looks at and what becomes of a packet, in the kernel's words: loads into registers and comparisons.

use std::net::Ipv4Addr;

use super::ITEM;
use super::family::Family;
use crate::cidr::Cidr;
use crate::netlink::Buffer;

/// What becomes of a packet.
#[derive(Debug, Clone)]
pub enum Verdict {
    Accept,
    Drop,
    Goto(String),
    /// As its entry in a map says, for its source or its destination; if it has none, the next rule is asked.
    BySource(Family, String),
    ByDestination(Family, String),
    /// The same for its destination, protocol and port.
    ByDoor(&'static str),
    /// Goes there instead.
    LeadTo(Ipv4Addr, u16),
    /// Goes on with this source.
    SendAs(Ipv4Addr),
    /// Refused, and the sender is told so.
    Reset,
    Unreachable,
    /// Leaves with the machine's own address as its source.
    Masquerade,
}

/// What a rule looks at; all of a rule's matches must hold.
#[derive(Debug, Clone)]
pub enum Match {
    /// Interfaces whose names begin so.
    InterfaceIn(String),
    InterfaceOut(String),
    NotInterfaceIn(String),
    NotInterfaceOut(String),
    Family(Family),
    Protocol(u8),
    /// After its family was looked at, as everything about addresses.
    Source(Cidr),
    Destination(Cidr),
    NotSource(Cidr),
    NotDestination(Cidr),
    SourceIn(Family, String),
    DestinationIn(Family, String),
    DestinationAndPortIn(Family, String),
    InterfaceAndSourceIn(Family, String),
    SourceAndDestinationIn(String),
    /// By chance, of so many.
    OneIn(u32),
    /// Those sources that are this part of all, of so many parts.
    SourceShare {
        number: u32,
        of: u32,
    },
    Ports(u16, u16),
    /// Belongs to a connection that was allowed when it began.
    Established,
    Invalid,
}

const ACCEPT: i32 = 1;
const DROP: i32 = 0;
pub const GOTO: i32 = -4;

/// The register that a verdict goes to.
const VERDICT: u32 = 0;
/// The first register for everything else.
const R0: u32 = 8;

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;

/// The protocol above IP, wherever its number stands.
const L4: u32 = 16;

const SOURCE_NAT: u32 = 0;
const DESTINATION_NAT: u32 = 1;

fn expression(list: &mut Buffer, name: &str, fill: impl FnOnce(&mut Buffer)) {
    list.nested(ITEM, |item| {
        item.text(1, name);
        item.nested(2, fill);
    });
}

pub fn value(buffer: &mut Buffer, kind: u16, bytes: &[u8]) {
    buffer.nested(kind, |data| data.attribute(1, bytes));
}

fn meta(list: &mut Buffer, key: u32, register: u32) {
    expression(list, "meta", |it| {
        it.number(1, register);
        it.number(2, key);
    });
}

fn payload(list: &mut Buffer, base: u32, offset: u32, length: u32, register: u32) {
    expression(list, "payload", |it| {
        it.number(1, register);
        it.number(2, base);
        it.number(3, offset);
        it.number(4, length);
    });
}

fn compare(list: &mut Buffer, operator: u32, bytes: &[u8]) {
    expression(list, "cmp", |it| {
        it.number(1, R0);
        it.number(2, operator);
        value(it, 3, bytes);
    });
}

fn interface(list: &mut Buffer, key: u32, operator: u32, prefix: &str) {
    meta(list, key, R0);
    // Compared to the length of the prefix: what follows does not matter.
    compare(list, operator, prefix.as_bytes());
}

fn block(list: &mut Buffer, offset: fn(Family) -> u32, operator: u32, cidr: Cidr) {
    let family = Family::of(cidr);
    address(list, family, offset, R0);
    if !cidr.is_single() {
        expression(list, "bitwise", |it| {
            it.number(1, R0);
            it.number(2, R0);
            it.number(3, family.width());
            value(it, 4, &cidr.mask());
            value(it, 5, &vec![0; cidr.mask().len()]);
        });
    }
    compare(list, operator, &cidr.octets());
}

fn address(list: &mut Buffer, family: Family, offset: fn(Family) -> u32, register: u32) {
    payload(list, 1, offset(family), family.width(), register);
}

/// A value that is the same for every packet.
fn load(list: &mut Buffer, register: u32, bytes: &[u8]) {
    expression(list, "immediate", |it| {
        it.number(1, register);
        value(it, 2, bytes);
    });
}

/// Changes an address to the one in the first register, and perhaps the port.
fn translate(list: &mut Buffer, kind: u32, port: Option<u32>) {
    expression(list, "nat", |it| {
        it.number(1, kind);
        it.number(2, Family::V4.number().into());
        it.number(3, R0);
        it.number(4, R0);
        if let Some(port) = port {
            it.number(5, port);
            it.number(6, port);
        }
    });
}

fn lookup(list: &mut Buffer, set: &str, into_verdict: bool) {
    expression(list, "lookup", |it| {
        it.text(1, set);
        it.number(2, R0);
        if into_verdict {
            it.number(3, VERDICT);
        }
    });
}

/// The bits of a connection's state, of which at least one must be set.
fn state(list: &mut Buffer, bits: u32) {
    expression(list, "ct", |it| {
        it.number(1, R0);
        it.number(2, 0);
    });
    expression(list, "bitwise", |it| {
        it.number(1, R0);
        it.number(2, R0);
        it.number(3, 4);
        value(it, 4, &bits.to_ne_bytes());
        value(it, 5, &[0; 4]);
    });
    compare(list, NOT_EQUAL, &[0; 4]);
}

pub fn write_match(list: &mut Buffer, one: &Match) {
    const IN: u32 = 6;
    const OUT: u32 = 7;
    const FAMILY: u32 = 15;
    match one {
        Match::InterfaceIn(prefix) => interface(list, IN, EQUAL, prefix),
        Match::InterfaceOut(prefix) => interface(list, OUT, EQUAL, prefix),
        Match::NotInterfaceIn(prefix) => interface(list, IN, NOT_EQUAL, prefix),
        Match::NotInterfaceOut(prefix) => interface(list, OUT, NOT_EQUAL, prefix),
        Match::Family(family) => {
            meta(list, FAMILY, R0);
            compare(list, EQUAL, &[family.number()]);
        }
        Match::Protocol(protocol) => {
            meta(list, L4, R0);
            compare(list, EQUAL, &[*protocol]);
        }
        Match::Source(cidr) => block(list, Family::source, EQUAL, *cidr),
        Match::Destination(cidr) => block(list, Family::destination, EQUAL, *cidr),
        Match::NotSource(cidr) => block(list, Family::source, NOT_EQUAL, *cidr),
        Match::NotDestination(cidr) => block(list, Family::destination, NOT_EQUAL, *cidr),
        Match::SourceIn(family, set) => {
            address(list, *family, Family::source, R0);
            lookup(list, set, false);
        }
        Match::DestinationIn(family, set) => {
            address(list, *family, Family::destination, R0);
            lookup(list, set, false);
        }
        Match::DestinationAndPortIn(family, set) => {
            address(list, *family, Family::destination, R0);
            payload(list, 2, 2, 2, R0 + family.width() / 4);
            lookup(list, set, false);
        }
        Match::InterfaceAndSourceIn(family, set) => {
            meta(list, IN, R0);
            address(list, *family, Family::source, R0 + 4);
            lookup(list, set, false);
        }
        Match::SourceAndDestinationIn(set) => {
            // They stand side by side.
            payload(list, 1, Family::V4.source(), 8, R0);
            lookup(list, set, false);
        }
        Match::OneIn(count) => {
            const RANDOM: u32 = 1;
            expression(list, "numgen", |it| {
                it.number(1, R0);
                it.number(2, *count);
                it.number(3, RANDOM);
            });
            compare(list, EQUAL, &0u32.to_ne_bytes());
        }
        Match::SourceShare { number, of } => {
            // Always the same, so that the next engine leads nobody elsewhere.
            const SEED: u32 = 1;
            address(list, Family::V4, Family::source, R0);
            expression(list, "hash", |it| {
                it.number(1, R0);
                it.number(2, R0);
                it.number(3, 4);
                it.number(4, *of);
                it.number(5, SEED);
            });
            compare(list, EQUAL, &number.to_ne_bytes());
        }
        Match::Ports(first, last) => {
            payload(list, 2, 2, 2, R0);
            if first == last {
                compare(list, EQUAL, &first.to_be_bytes());
            } else {
                compare(list, AT_LEAST, &first.to_be_bytes());
                compare(list, AT_MOST, &last.to_be_bytes());
            }
        }
        Match::Established => state(list, 2 | 4),
        Match::Invalid => state(list, 1),
    }
}

pub fn write_verdict(list: &mut Buffer, what: &Verdict) {
    let immediate = |list: &mut Buffer, code, chain: Option<&str>| {
        expression(list, "immediate", |it| {
            it.number(1, VERDICT);
            it.nested(2, |data| verdict(data, code, chain));
        });
    };
    let reject = |list: &mut Buffer, kind, code: Option<u8>| {
        expression(list, "reject", |it| {
            it.number(1, kind);
            if let Some(code) = code {
                it.attribute(2, &[code]);
            }
        });
    };
    match what {
        Verdict::Accept => immediate(list, ACCEPT, None),
        Verdict::Drop => immediate(list, DROP, None),
        Verdict::Goto(chain) => immediate(list, GOTO, Some(chain)),
        Verdict::BySource(family, map) => {
            address(list, *family, Family::source, R0);
            lookup(list, map, true);
        }
        Verdict::ByDestination(family, map) => {
            address(list, *family, Family::destination, R0);
            lookup(list, map, true);
        }
        Verdict::ByDoor(map) => {
            address(list, Family::V4, Family::destination, R0);
            meta(list, L4, R0 + 1);
            payload(list, 2, 2, 2, R0 + 2);
            lookup(list, map, true);
        }
        Verdict::LeadTo(address, port) => {
            load(list, R0, &address.octets());
            load(list, R0 + 1, &port.to_be_bytes());
            translate(list, DESTINATION_NAT, Some(R0 + 1));
        }
        Verdict::SendAs(address) => {
            load(list, R0, &address.octets());
            translate(list, SOURCE_NAT, None);
        }
        Verdict::Reset => reject(list, 1, None),
        // "Administratively prohibited", in the words of either family.
        Verdict::Unreachable => reject(list, 2, Some(3)),
        Verdict::Masquerade => expression(list, "masq", |_| {}),
    }
}

pub fn verdict(data: &mut Buffer, code: i32, chain: Option<&str>) {
    data.nested(2, |verdict| {
        verdict.attribute(1, &code.to_be_bytes());
        if let Some(chain) = chain {
            verdict.text(2, chain);
        }
    });
}
