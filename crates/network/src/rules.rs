//! What may pass, as plain data: for each sandbox a list of what it may reach, who may reach it, and what of the
//! machine it may reach. Whatever no rule allows is refused.
//!
//! Chains are named after what they say and never change; sets are named after what they mean and do. So a new
//! sandbox adds members to sets, and seldom anything else.

use std::collections::{BTreeMap, BTreeSet};
#[cfg(test)]
use std::net::IpAddr;
use std::net::Ipv4Addr;

use serde::Serialize;
use sha2::{Digest, Sha256};

#[cfg(test)]
use crate::address6::Block6;
use crate::cidr::Cidr;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// As it stands in a packet.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// In lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// The other end of a connection: its destination on the way out, its source on the way in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Peer {
    Anyone,
    /// Whoever is in [`Ruleset::peers`] under this name.
    In(String),
    Block {
        cidr: Cidr,
        except: Vec<Cidr>,
    },
}

/// The port that is connected to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Port {
    Any,
    /// Every port of a protocol.
    Every(Protocol),
    Range {
        protocol: Protocol,
        first: u16,
        last: u16,
    },
    /// What the sandbox that is connected to calls so: [`Ruleset::ports`] under this name.
    Named {
        protocol: Protocol,
        set: String,
    },
}

/// What a rule allows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Rule {
    pub peer: Peer,
    pub port: Port,
}

/// The chains of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chains {
    /// What it may reach, the machine's own addresses excepted.
    pub out: String,
    /// Who may reach it.
    pub into: String,
    /// What it may reach on the machine itself.
    pub machine: String,
}

/// Where a service is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Door {
    pub address: Ipv4Addr,
    pub protocol: Protocol,
    pub port: u16,
}

/// The sandboxes behind a door, at least one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Each client is led to the same one every time, for as long as they are the same.
    pub sticky: bool,
    pub to: Vec<(Ipv4Addr, u16)>,
}

/// Everything that is allowed, and where services lead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    pub sandboxes: BTreeMap<Ipv4Addr, Chains>,
    pub chains: BTreeMap<String, (Direction, Vec<Rule>)>,
    pub peers: BTreeMap<String, BTreeSet<Ipv4Addr>>,
    pub ports: BTreeMap<String, BTreeSet<(Ipv4Addr, u16)>>,
    /// What is behind each door: [`Ruleset::spreads`] under this name.
    pub doors: BTreeMap<Door, String>,
    pub spreads: BTreeMap<String, Spread>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Direction {
    Out,
    In,
    /// To the machine itself.
    Machine,
}

impl Ruleset {
    /// Adds a chain under the name of its contents.
    pub fn chain(&mut self, direction: Direction, mut rules: Vec<Rule>) -> String {
        rules.sort();
        rules.dedup();
        let prefix = match direction {
            Direction::Out => "out",
            Direction::In => "in",
            Direction::Machine => "machine",
        };
        let name = format!("{prefix}-{}", fingerprint(&rules));
        self.chains.entry(name.clone()).or_insert((direction, rules));
        name
    }
}

/// A name for a meaning: no two meanings share one.
pub fn fingerprint(meaning: &impl Serialize) -> String {
    let text = serde_json::to_vec(meaning).expect("plain data becomes JSON");
    Sha256::digest(text)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first packet of a connection.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// `None`: of a protocol without ports.
    pub port: Option<(Protocol, u16)>,
}

/// What the kernel makes of a ruleset, for tests.
#[cfg(test)]
impl Ruleset {
    /// The addresses beside those of sandboxes.
    pub fn block6() -> Block6 {
        Block6::of_tag("0a1b2c")
    }

    /// What the one is called who has an address: its IPv4 address.
    fn owner(address: IpAddr) -> Option<Ipv4Addr> {
        match address {
            IpAddr::V4(address) => Some(address),
            six => Self::block6().owner(six),
        }
    }

    fn chains_of(&self, address: IpAddr) -> Option<&Chains> {
        self.sandboxes.get(&Self::owner(address)?)
    }

    pub fn passes(&self, packet: &Packet) -> bool {
        let (from, to) = (self.chains_of(packet.source), self.chains_of(packet.destination));
        let allows = |chain: &String, peer| self.allows(chain, peer, packet);
        from.is_none_or(|chains| allows(&chains.out, packet.destination))
            && to.is_none_or(|chains| allows(&chains.into, packet.source))
    }

    /// Whether a sandbox may send this to the machine itself.
    pub fn reaches_machine(&self, packet: &Packet) -> bool {
        self.chains_of(packet.source)
            .is_some_and(|chains| self.allows(&chains.machine, packet.destination, packet))
    }

    fn allows(&self, chain: &str, peer: IpAddr, packet: &Packet) -> bool {
        self.chains[chain].1.iter().any(|rule| {
            let peer = match &rule.peer {
                Peer::Anyone => true,
                Peer::In(set) => Self::owner(peer).is_some_and(|peer| self.peers[set].contains(&peer)),
                Peer::Block { cidr, except } => {
                    cidr.contains(peer) && !except.iter().any(|except| except.contains(peer))
                }
            };
            let port = match (&rule.port, packet.port) {
                (Port::Any, _) => true,
                (_, None) => false,
                (Port::Every(protocol), Some(used)) => *protocol == used.0,
                (Port::Range { protocol, first, last }, Some(used)) => {
                    *protocol == used.0 && (*first..=*last).contains(&used.1)
                }
                (Port::Named { protocol, set }, Some(used)) => {
                    let to = Self::owner(packet.destination);
                    *protocol == used.0 && to.is_some_and(|to| self.ports[set].contains(&(to, used.1)))
                }
            };
            peer && port
        })
    }
}
