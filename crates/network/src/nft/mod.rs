//! Packet filter rules as the kernel takes them: all of a batch or nothing.

mod expression;
mod family;

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use self::expression::{GOTO, value, verdict, write_match, write_verdict};
pub use self::expression::{Match, Verdict};
pub use self::family::Family;
use crate::cidr::octets;
use crate::netlink::{Buffer, Open, Socket, flag, kinds, netfilter_news};
use crate::rules::Door;

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// Rules for IPv4 and IPv6 in one table.
const INET: u8 = 1;

const NEWTABLE: u16 = 0;
const GETTABLE: u16 = 1;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const DELCHAIN: u16 = 5;
const NEWRULE: u16 = 6;
const NEWSET: u16 = 9;
const DELSET: u16 = 11;
const NEWSETELEM: u16 = 12;
const DELSETELEM: u16 = 14;

/// An element of a list.
const ITEM: u16 = 1;
/// Elements are told in messages of about this size: an attribute cannot hold more than 64 KiB.
const ELEMENTS: usize = 32 << 10;

/// Where in a packet's life a chain is asked.
#[derive(Debug, Clone, Copy)]
pub struct Hook {
    pub kind: &'static str,
    pub number: u32,
    pub priority: i32,
}

impl Hook {
    /// Before connections are tracked.
    pub const ARRIVAL: Self = Self { kind: "filter", number: 0, priority: -300 };
    /// Where the destination address is changed.
    pub const TRANSLATION: Self = Self { kind: "nat", number: 0, priority: -100 };
    pub const INPUT: Self = Self { kind: "filter", number: 1, priority: 0 };
    pub const FORWARD: Self = Self { kind: "filter", number: 2, priority: 0 };
    pub const OUTPUT: Self = Self { kind: "filter", number: 3, priority: 0 };
    /// Where the source address is changed.
    pub const DEPARTURE: Self = Self { kind: "nat", number: 4, priority: 100 };
}

/// What the members of a set are.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Address(Family),
    AddressAndPort(Family),
    InterfaceAndAddress(Family),
    /// Of IPv4, as everything about services.
    TwoAddresses,
    /// From an address to a chain.
    AddressToChain(Family),
    /// From an address, a protocol and a port to a chain.
    DoorToChain,
}

impl Kind {
    /// The type as the `nft` program prints it, and the length of a key.
    fn key(self) -> (u32, u32) {
        const ADDRESS: u32 = 7;
        const ADDRESS6: u32 = 8;
        const PROTOCOL: u32 = 12;
        const SERVICE: u32 = 13;
        const INTERFACE: u32 = 41;
        let address = |family| if family == Family::V4 { (ADDRESS, 4) } else { (ADDRESS6, 16) };
        match self {
            Self::Address(family) | Self::AddressToChain(family) => address(family),
            Self::AddressAndPort(family) => {
                let (kind, length) = address(family);
                (kind << 6 | SERVICE, length + 4)
            }
            Self::InterfaceAndAddress(family) => {
                let (kind, length) = address(family);
                (INTERFACE << 6 | kind, 16 + length)
            }
            Self::TwoAddresses => (ADDRESS << 6 | ADDRESS, 8),
            Self::DoorToChain => (ADDRESS << 12 | PROTOCOL << 6 | SERVICE, 12),
        }
    }
}

/// A member of a set.
#[derive(Debug, Clone)]
pub struct Element {
    pub key: Vec<u8>,
    /// Where a map leads.
    pub chain: Option<String>,
}

impl Element {
    pub fn address(address: IpAddr) -> Self {
        Self { key: octets(address), chain: None }
    }

    pub fn address_and_port(address: IpAddr, port: u16) -> Self {
        // Each part takes whole registers of four bytes.
        let key = [&octets(address)[..], &port.to_be_bytes(), &[0, 0]].concat();
        Self { key, chain: None }
    }

    pub fn interface_and_address(interface: &str, address: IpAddr) -> Self {
        let mut key = interface.as_bytes().to_vec();
        key.resize(16, 0);
        key.extend(octets(address));
        Self { key, chain: None }
    }

    pub fn twice(address: Ipv4Addr) -> Self {
        Self { key: [address.octets(), address.octets()].concat(), chain: None }
    }

    pub fn door(door: &Door, chain: &str) -> Self {
        let protocol = [door.protocol.number(), 0, 0, 0];
        let key = [&door.address.octets()[..], &protocol, &door.port.to_be_bytes(), &[0, 0]].concat();
        Self { key, chain: Some(chain.to_owned()) }
    }

    pub fn to_chain(address: IpAddr, chain: &str) -> Self {
        Self { chain: Some(chain.to_owned()), ..Self::address(address) }
    }
}

/// Changes of one table that happen together.
pub struct Batch {
    table: String,
    buffer: Buffer,
    sets: u32,
}

impl Batch {
    pub fn new(table: &str) -> Self {
        let mut batch = Self { table: table.to_owned(), buffer: Buffer::default(), sets: 0 };
        let open = batch.begin(BATCH_BEGIN, 0, 0, SUBSYSTEM);
        batch.buffer.end_message(open);
        batch
    }

    /// An empty table, whatever was there before.
    pub fn replace_table(&mut self) {
        // Made first, so that there is one to remove.
        for (kind, flags) in [(NEWTABLE, flag::CREATE), (DELTABLE, 0), (NEWTABLE, flag::CREATE)] {
            self.message(kind, flags, |_| {});
        }
    }

    /// Removes the table, if there is one.
    pub fn remove_table(&mut self) {
        for (kind, flags) in [(NEWTABLE, flag::CREATE), (DELTABLE, 0)] {
            self.message(kind, flags, |_| {});
        }
    }

    pub fn add_chain(&mut self, name: &str, hook: Option<Hook>) {
        self.message(NEWCHAIN, flag::CREATE, |message| {
            message.text(3, name);
            if let Some(hook) = hook {
                message.nested(4, |nested| {
                    nested.number(1, hook.number);
                    nested.attribute(2, &hook.priority.to_be_bytes());
                });
                message.text(7, hook.kind);
            }
        });
    }

    pub fn remove_chain(&mut self, name: &str) {
        self.message(DELCHAIN, 0, |message| {
            message.text(3, name);
        });
    }

    /// A rule at the end of a chain.
    pub fn add_rule(&mut self, chain: &str, matches: &[Match], verdict: &Verdict) {
        self.message(NEWRULE, flag::CREATE | flag::APPEND, |message| {
            message.text(2, chain);
            message.nested(4, |list| {
                matches.iter().for_each(|one| write_match(list, one));
                write_verdict(list, verdict);
            });
        });
    }

    pub fn add_set(&mut self, name: &str, kind: Kind) {
        const MAP: u32 = 8;
        const TO_VERDICT: u32 = 0xffff_ff00;
        self.sets += 1;
        let (id, (key_type, key_length)) = (self.sets, kind.key());
        self.message(NEWSET, flag::CREATE, |message| {
            message.text(2, name);
            if matches!(kind, Kind::AddressToChain(_) | Kind::DoorToChain) {
                message.number(3, MAP);
                message.number(6, TO_VERDICT);
                message.number(7, 0);
            }
            message.number(4, key_type);
            message.number(5, key_length);
            message.number(10, id);
        });
    }

    pub fn remove_set(&mut self, name: &str) {
        self.message(DELSET, 0, |message| {
            message.text(2, name);
        });
    }

    pub fn add_elements(&mut self, set: &str, elements: impl IntoIterator<Item = Element>) {
        self.elements(NEWSETELEM, flag::CREATE, set, elements);
    }

    pub fn remove_elements(&mut self, set: &str, elements: impl IntoIterator<Item = Element>) {
        self.elements(DELSETELEM, 0, set, elements);
    }

    /// Makes all of it true, or none.
    pub fn commit(mut self) -> io::Result<()> {
        let Some(last) = self.buffer.acknowledge_last() else { return Ok(()) };
        let open = self.begin(BATCH_END, 0, 0, SUBSYSTEM);
        self.buffer.end_message(open);
        Socket::netfilter()?.execute_until(&self.buffer, last)
    }

    fn elements(&mut self, kind: u16, flags: u16, set: &str, elements: impl IntoIterator<Item = Element>) {
        let mut elements = elements.into_iter().peekable();
        while elements.peek().is_some() {
            let open = self.begin((SUBSYSTEM << 8) | kind, flags, INET, 0);
            self.buffer.text(1, &self.table);
            self.buffer.text(2, set);
            self.buffer.nested(3, |list| {
                while list.length_since(&open) < ELEMENTS
                    && let Some(element) = elements.next()
                {
                    list.nested(ITEM, |item| {
                        value(item, 1, &element.key);
                        if let Some(chain) = &element.chain {
                            item.nested(2, |data| verdict(data, GOTO, Some(chain)));
                        }
                    });
                }
            });
            self.buffer.end_message(open);
        }
    }

    /// Every message names the table first.
    fn message(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Buffer)) {
        let open = self.begin((SUBSYSTEM << 8) | kind, flags, INET, 0);
        self.buffer.text(1, &self.table);
        fill(&mut self.buffer);
        self.buffer.end_message(open);
    }

    fn begin(&mut self, kind: u16, flags: u16, family: u8, resource: u16) -> Open {
        let open = self.buffer.message(kind, flags);
        let [high, low] = resource.to_be_bytes();
        self.buffer.put(&[family, 0, high, low]);
        open
    }
}

/// Whether there is a table of this name.
pub fn table_exists(name: &str) -> io::Result<bool> {
    let mut question = Buffer::default();
    let open = question.message((SUBSYSTEM << 8) | GETTABLE, flag::ACK);
    question.put(&[INET, 0, 0, 0]);
    question.text(1, name);
    question.end_message(open);
    match Socket::netfilter()?.execute(&question) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other.map(|()| true),
    }
}

/// Tells when a table was removed, by anybody: a firewall that is reloaded removes all of them.
pub struct Removals(tokio::net::UnixDatagram);

impl Removals {
    pub fn watch() -> io::Result<Self> {
        // Of another family in truth; but what is done with it here is the same for all sockets with messages.
        tokio::net::UnixDatagram::from_std(netfilter_news()?.into()).map(Self)
    }

    /// Waits for the next one.
    pub async fn next(&self) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.0.recv(&mut buffer).await {
                Ok(length) if !kinds(&buffer[..length]).any(|kind| kind == (SUBSYSTEM << 8) | DELTABLE) => {}
                // With an error, news were lost: it may have been this.
                _ => return,
            }
        }
    }
}
