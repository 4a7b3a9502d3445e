//! What policies mean, said as plainly as possible, to compare the compiled rules with. For tests.

use std::net::IpAddr;

use super::{
    Allowed, Facts, NOT_PUBLIC, NOT_PUBLIC6, Namespaces, PUBLIC6, Policy, PolicyPeer, PolicyPort, PortChoice,
    Sandbox,
};
use crate::cidr::Cidr;
use crate::rules::{Packet, Ruleset};

/// Whether a first packet between sandboxes, or between one and the world outside, may pass.
pub fn passes(facts: &Facts, packet: &Packet) -> bool {
    let find = |address: IpAddr| {
        let has = |sandbox: &&Sandbox| {
            address == IpAddr::from(sandbox.address)
                || address == IpAddr::from(Ruleset::block6().beside(sandbox.address))
        };
        facts.sandboxes.values().find(has)
    };
    let (from, to) = (find(packet.source), find(packet.destination));
    let out = from.is_none_or(|sandbox| {
        let policies = selecting(facts, sandbox, |policy| policy.egress.is_some());
        match policies.is_empty() {
            true => {
                let within = |blocks: &[Cidr]| blocks.iter().any(|block| block.contains(packet.destination));
                match packet.destination {
                    IpAddr::V4(_) => !within(&NOT_PUBLIC),
                    IpAddr::V6(_) => within(&[PUBLIC6]) && !within(&NOT_PUBLIC6),
                }
            }
            false => policies.iter().any(|policy| {
                let rules = policy.egress.as_ref().unwrap();
                rules.iter().any(|rule| allows(facts, policy, rule, packet.destination, to, packet, to))
            }),
        }
    });
    let into = to.is_none_or(|sandbox| {
        let policies = selecting(facts, sandbox, |policy| policy.ingress.is_some());
        policies.iter().any(|policy| {
            let rules = policy.ingress.as_ref().unwrap();
            rules.iter().any(|rule| allows(facts, policy, rule, packet.source, from, packet, to))
        })
    });
    out && into
}

fn selecting<'a>(facts: &'a Facts, sandbox: &Sandbox, speaks: impl Fn(&Policy) -> bool) -> Vec<&'a Policy> {
    facts
        .policies
        .values()
        .filter(|policy| policy.namespace == sandbox.namespace)
        .filter(|policy| policy.selector.selects(&sandbox.labels))
        .filter(|policy| speaks(policy))
        .collect()
}

fn allows(
    facts: &Facts,
    policy: &Policy,
    rule: &Allowed,
    peer: IpAddr,
    peer_sandbox: Option<&Sandbox>,
    packet: &Packet,
    target: Option<&Sandbox>,
) -> bool {
    let peer_fits = match &rule.peers {
        None => true,
        Some(peers) => peers.iter().any(|one| match one {
            PolicyPeer::Block { cidr, except } => {
                cidr.contains(peer) && except.iter().all(|except| !except.contains(peer))
            }
            PolicyPeer::Sandboxes { namespaces, selector } => peer_sandbox.is_some_and(|sandbox| {
                let namespace = match namespaces {
                    Namespaces::Own => sandbox.namespace == policy.namespace,
                    Namespaces::Selected(wanted) => {
                        facts.namespaces.get(&sandbox.namespace).is_some_and(|labels| wanted.selects(labels))
                    }
                };
                namespace && selector.selects(&sandbox.labels)
            }),
        }),
    };
    let port_fits = match &rule.ports {
        None => true,
        Some(ports) => ports.iter().any(|port| port_fits(port, packet, target)),
    };
    peer_fits && port_fits
}

fn port_fits(port: &PolicyPort, packet: &Packet, target: Option<&Sandbox>) -> bool {
    let Some((protocol, number)) = packet.port else { return false };
    protocol == port.protocol
        && match &port.port {
            None => true,
            Some(PortChoice::Range(first, last)) => *first <= number && number <= *last,
            Some(PortChoice::Name(name)) => target.is_some_and(|sandbox| {
                sandbox
                    .ports
                    .iter()
                    .any(|one| one.name == *name && one.protocol == protocol && one.port == number)
            }),
        }
}
