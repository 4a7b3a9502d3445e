//! Packet filter rules as the kernel takes them: all of a batch or nothing.

use std::io;
use std::net::Ipv4Addr;

use crate::cidr::Cidr;
use crate::netlink::{Buffer, Open, Socket, flag, kinds, netfilter_news};

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
    pub const INPUT: Self = Self { kind: "filter", number: 1, priority: 0 };
    pub const FORWARD: Self = Self { kind: "filter", number: 2, priority: 0 };
    pub const OUTPUT: Self = Self { kind: "filter", number: 3, priority: 0 };
    /// Where the source address is changed.
    pub const DEPARTURE: Self = Self { kind: "nat", number: 4, priority: 100 };
}

/// What the members of a set are.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Address,
    AddressAndPort,
    InterfaceAndAddress,
    /// From an address to a chain.
    AddressToChain,
}

impl Kind {
    /// The type as the `nft` program prints it, and the length of a key.
    fn key(self) -> (u32, u32) {
        const ADDRESS: u32 = 7;
        const SERVICE: u32 = 13;
        const INTERFACE: u32 = 41;
        match self {
            Self::Address | Self::AddressToChain => (ADDRESS, 4),
            Self::AddressAndPort => (ADDRESS << 6 | SERVICE, 8),
            Self::InterfaceAndAddress => (INTERFACE << 6 | ADDRESS, 20),
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
    pub fn address(address: Ipv4Addr) -> Self {
        Self { key: address.octets().to_vec(), chain: None }
    }

    pub fn address_and_port(address: Ipv4Addr, port: u16) -> Self {
        // Each part takes a whole register of four bytes.
        let key = [&address.octets()[..], &port.to_be_bytes(), &[0, 0]].concat();
        Self { key, chain: None }
    }

    pub fn interface_and_address(interface: &str, address: Ipv4Addr) -> Self {
        let mut key = interface.as_bytes().to_vec();
        key.resize(16, 0);
        key.extend(address.octets());
        Self { key, chain: None }
    }

    pub fn to_chain(address: Ipv4Addr, chain: &str) -> Self {
        Self { chain: Some(chain.to_owned()), ..Self::address(address) }
    }
}

/// What becomes of a packet.
#[derive(Debug, Clone)]
pub enum Verdict {
    Accept,
    Drop,
    Goto(String),
    /// As its entry in a map says, for its source or its destination; if it has none, the next rule is asked.
    BySource(&'static str),
    ByDestination(&'static str),
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
    Ipv4,
    Protocol(u8),
    Source(Cidr),
    Destination(Cidr),
    NotSource(Cidr),
    NotDestination(Cidr),
    SourceIn(String),
    DestinationIn(String),
    DestinationAndPortIn(String),
    InterfaceAndSourceIn(String),
    Ports(u16, u16),
    /// Belongs to a connection that was allowed when it began.
    Established,
    Invalid,
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
            if matches!(kind, Kind::AddressToChain) {
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

const ACCEPT: i32 = 1;
const DROP: i32 = 0;
const GOTO: i32 = -4;

/// The register that a verdict goes to.
const VERDICT: u32 = 0;
/// The first register for everything else.
const R0: u32 = 8;

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;

/// Offsets in an IPv4 header.
const SOURCE: u32 = 12;
const DESTINATION: u32 = 16;

fn expression(list: &mut Buffer, name: &str, fill: impl FnOnce(&mut Buffer)) {
    list.nested(ITEM, |item| {
        item.text(1, name);
        item.nested(2, fill);
    });
}

fn value(buffer: &mut Buffer, kind: u16, bytes: &[u8]) {
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

fn block(list: &mut Buffer, offset: u32, operator: u32, cidr: Cidr) {
    payload(list, 1, offset, 4, R0);
    if cidr.length() < 32 {
        expression(list, "bitwise", |it| {
            it.number(1, R0);
            it.number(2, R0);
            it.number(3, 4);
            value(it, 4, &cidr.mask().octets());
            value(it, 5, &[0; 4]);
        });
    }
    compare(list, operator, &cidr.first().octets());
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

fn write_match(list: &mut Buffer, one: &Match) {
    const IN: u32 = 6;
    const OUT: u32 = 7;
    const FAMILY: u32 = 15;
    const L4: u32 = 16;
    match one {
        Match::InterfaceIn(prefix) => interface(list, IN, EQUAL, prefix),
        Match::InterfaceOut(prefix) => interface(list, OUT, EQUAL, prefix),
        Match::NotInterfaceIn(prefix) => interface(list, IN, NOT_EQUAL, prefix),
        Match::NotInterfaceOut(prefix) => interface(list, OUT, NOT_EQUAL, prefix),
        Match::Ipv4 => {
            meta(list, FAMILY, R0);
            compare(list, EQUAL, &[2]);
        }
        Match::Protocol(protocol) => {
            meta(list, L4, R0);
            compare(list, EQUAL, &[*protocol]);
        }
        Match::Source(cidr) => block(list, SOURCE, EQUAL, *cidr),
        Match::Destination(cidr) => block(list, DESTINATION, EQUAL, *cidr),
        Match::NotSource(cidr) => block(list, SOURCE, NOT_EQUAL, *cidr),
        Match::NotDestination(cidr) => block(list, DESTINATION, NOT_EQUAL, *cidr),
        Match::SourceIn(set) => {
            payload(list, 1, SOURCE, 4, R0);
            lookup(list, set, false);
        }
        Match::DestinationIn(set) => {
            payload(list, 1, DESTINATION, 4, R0);
            lookup(list, set, false);
        }
        Match::DestinationAndPortIn(set) => {
            payload(list, 1, DESTINATION, 4, R0);
            payload(list, 2, 2, 2, R0 + 1);
            lookup(list, set, false);
        }
        Match::InterfaceAndSourceIn(set) => {
            meta(list, IN, R0);
            payload(list, 1, SOURCE, 4, R0 + 4);
            lookup(list, set, false);
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

fn write_verdict(list: &mut Buffer, what: &Verdict) {
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
        Verdict::BySource(map) => {
            payload(list, 1, SOURCE, 4, R0);
            lookup(list, map, true);
        }
        Verdict::ByDestination(map) => {
            payload(list, 1, DESTINATION, 4, R0);
            lookup(list, map, true);
        }
        Verdict::Reset => reject(list, 1, None),
        // "Administratively prohibited", in the words of either family.
        Verdict::Unreachable => reject(list, 2, Some(3)),
        Verdict::Masquerade => expression(list, "masq", |_| {}),
    }
}

fn verdict(data: &mut Buffer, code: i32, chain: Option<&str>) {
    data.nested(2, |verdict| {
        verdict.attribute(1, &code.to_be_bytes());
        if let Some(chain) = chain {
            verdict.text(2, chain);
        }
    });
}
