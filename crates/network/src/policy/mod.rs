//! Which sandboxes may talk to whom: what is known, and what follows from it.
//!
//! ```text
//! Facts (sandboxes, namespaces, policies) ─► compile (pure) ─► Ruleset
//! ```
//!
//! The meaning is that of Kubernetes: a policy that selects a sandbox for a direction refuses all but what it allows,
//! several add up, replies always pass. It differs in one point on purpose: a sandbox that no policy selects for a
//! direction is not open but has [`PUBLIC`] addresses on the way out and nobody on the way in.

mod compile;
#[cfg(test)]
mod model;
mod selector;
mod service;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::Serialize;

pub use self::compile::compile;
pub use self::selector::{Expression, Labels, Operator, Selector};
pub(crate) use self::service::reached;
pub use self::service::{Service, ServicePort, Target};
use crate::cidr::Cidr;
use crate::rules::{Peer, Protocol};

/// What is not the public internet: private, shared and link-local networks (a cloud's metadata service is there),
/// this machine, groups of machines, and addresses of no use.
pub const NOT_PUBLIC: [Cidr; 11] = [
    Cidr::literal([0, 0, 0, 0], 8),
    Cidr::literal([10, 0, 0, 0], 8),
    Cidr::literal([100, 64, 0, 0], 10),
    Cidr::literal([127, 0, 0, 0], 8),
    Cidr::literal([169, 254, 0, 0], 16),
    Cidr::literal([172, 16, 0, 0], 12),
    Cidr::literal([192, 0, 0, 0], 24),
    Cidr::literal([192, 168, 0, 0], 16),
    Cidr::literal([198, 18, 0, 0], 15),
    Cidr::literal([224, 0, 0, 0], 4),
    Cidr::literal([240, 0, 0, 0], 4),
];

/// The public internet of IPv6, and what of it is not: addresses for other protocols, which may lead anywhere (Teredo,
/// 6to4), and those for examples.
pub const PUBLIC6: Cidr = Cidr::literal6([0x2000, 0], 3);
pub const NOT_PUBLIC6: [Cidr; 4] = [
    Cidr::literal6([0x2001, 0], 23),
    Cidr::literal6([0x2001, 0xdb8], 32),
    Cidr::literal6([0x2002, 0], 16),
    Cidr::literal6([0x3fff, 0], 20),
];

/// Where a sandbox may connect to that no policy selects for the way out.
pub fn public() -> [Peer; 2] {
    [
        Peer::Block { cidr: Cidr::EVERYTHING, except: NOT_PUBLIC.to_vec() },
        Peer::Block { cidr: PUBLIC6, except: NOT_PUBLIC6.to_vec() },
    ]
}

/// All that decides who may talk to whom.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// By an id of the caller's.
    pub sandboxes: BTreeMap<String, Sandbox>,
    /// Labels by name.
    pub namespaces: BTreeMap<String, Labels>,
    /// By an id of the caller's.
    pub policies: BTreeMap<String, Policy>,
    /// By an id of the caller's. They decide about names, and where addresses of their own lead.
    pub services: BTreeMap<String, Service>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its name in its namespace.
    pub name: String,
    pub namespace: String,
    pub labels: Labels,
    pub address: Ipv4Addr,
    /// Ports that have a name.
    pub ports: Vec<NamedPort>,
    /// Its place below the name of a service.
    pub host: Option<Host>,
    /// Services lead to it.
    pub ready: bool,
}

/// `hostname.subdomain`, where a service has the name of the subdomain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub hostname: String,
    pub subdomain: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub namespace: String,
    /// Whom it is about.
    pub selector: Selector,
    /// What it allows in; `None`: it does not speak of that direction.
    pub ingress: Option<Vec<Allowed>>,
    pub egress: Option<Vec<Allowed>>,
}

/// Connections with any of these peers on any of these ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowed {
    /// `None`: everybody.
    pub peers: Option<Vec<PolicyPeer>>,
    /// `None`: every port.
    pub ports: Option<Vec<PolicyPort>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyPeer {
    Sandboxes { namespaces: Namespaces, selector: Selector },
    Block { cidr: Cidr, except: Vec<Cidr> },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Namespaces {
    /// That of the policy.
    Own,
    Selected(Selector),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyPort {
    pub protocol: Protocol,
    /// `None`: all ports of the protocol.
    pub port: Option<PortChoice>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortChoice {
    Range(u16, u16),
    Name(String),
}
