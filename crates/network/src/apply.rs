//! From rules as data to rules in the kernel: all at once the first time, by their differences from then on.
//!
//! ```text
//! arrival    from a sandbox, and not with its own address? ─► gone
//! translation  to a service: to a sandbox behind it instead (`services`)
//! input      to the machine: what its `machine` chain allows
//! forward    from a sandbox: `from` ─► its `out` chain ─► `passed` ─┬─► to a sandbox: `to` ─► its `in` chain ─► accepted
//!            to a sandbox from elsewhere ──────────────────────────┘└─► accepted
//! output     from the machine to a sandbox: `to`
//! departure  leaves the machine: with the machine's own address
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;

use crate::nft::{Batch, Element, Hook, Kind, Match, Verdict};
use crate::place::Place;
use crate::rules::{Chains, Direction, Peer, Port, Rule, Ruleset};
use crate::services;

/// Interface and address of every sandbox that has rules.
const KNOWN: &str = "known";
/// Maps from a sandbox's address to its chains.
const OUT: &str = "out";
const INTO: &str = "into";
const MACHINE: &str = "machine";
const TCP: u8 = 6;

/// Replaces whatever rules there are by these.
pub fn replace(place: &Place, rules: &Ruleset) -> io::Result<()> {
    let mut batch = Batch::new(&place.table());
    batch.replace_table();
    frame(&mut batch, place);
    difference(&mut batch, place, &Ruleset::default(), rules);
    batch.commit()
}

/// Makes what was into what is to be. The packets in between see either, never a mixture.
pub fn change(place: &Place, was: &Ruleset, to_be: &Ruleset) -> io::Result<()> {
    let mut batch = Batch::new(&place.table());
    difference(&mut batch, place, was, to_be);
    batch.commit()
}

/// Removes every rule.
pub fn remove(place: &Place) -> io::Result<()> {
    let mut batch = Batch::new(&place.table());
    batch.remove_table();
    batch.commit()
}

/// What is there whoever is there.
fn frame(batch: &mut Batch, place: &Place) {
    let ours = place.prefix();
    let from_us = || Match::InterfaceIn(ours.clone());
    let to_us = || Match::InterfaceOut(ours.clone());
    batch.add_set(KNOWN, Kind::InterfaceAndAddress);
    for map in [OUT, INTO, MACHINE] {
        batch.add_set(map, Kind::AddressToChain);
    }
    services::add_sets(batch);
    let hooks = [
        ("arrival", Hook::ARRIVAL),
        ("translation", Hook::TRANSLATION),
        ("input", Hook::INPUT),
        ("forward", Hook::FORWARD),
        ("output", Hook::OUTPUT),
        ("departure", Hook::DEPARTURE),
    ];
    for (chain, hook) in hooks {
        batch.add_chain(chain, Some(hook));
    }
    for chain in ["refuse", "from", "to", "passed", "host"] {
        batch.add_chain(chain, None);
    }
    services::add_translation(batch, place);
    let goto = |chain: &str| Verdict::Goto(chain.to_owned());
    let rule = |batch: &mut Batch, chain: &str, matches: &[Match], verdict: Verdict| {
        batch.add_rule(chain, matches, &verdict);
    };

    let own = Match::InterfaceAndSourceIn(KNOWN.to_owned());
    rule(batch, "arrival", &[from_us(), Match::Ipv4, own], Verdict::Accept);
    rule(batch, "arrival", &[from_us()], Verdict::Drop);

    rule(batch, "input", &[from_us()], goto("host"));
    rule(batch, "host", &[Match::Established], Verdict::Accept);
    rule(batch, "host", &[Match::Invalid], Verdict::Drop);
    rule(batch, "host", &[], Verdict::BySource(MACHINE));
    rule(batch, "host", &[], goto("refuse"));

    rule(batch, "forward", &[from_us()], goto("from"));
    rule(batch, "forward", &[to_us()], goto("to"));
    rule(batch, "output", &[to_us()], goto("to"));

    rule(batch, "from", &[Match::Established], Verdict::Accept);
    rule(batch, "from", &[Match::Invalid], Verdict::Drop);
    services::add_judgement(batch);
    rule(batch, "from", &[], Verdict::BySource(OUT));
    rule(batch, "from", &[], goto("refuse"));
    rule(batch, "passed", &[to_us()], goto("to"));
    rule(batch, "passed", &[], Verdict::Accept);

    rule(batch, "to", &[Match::Established], Verdict::Accept);
    rule(batch, "to", &[Match::Ipv4], Verdict::ByDestination(INTO));
    rule(batch, "to", &[], goto("refuse"));

    // A sandbox is told, so that nothing waits in vain; anybody else is not.
    rule(batch, "refuse", &[from_us(), Match::Protocol(TCP)], Verdict::Reset);
    rule(batch, "refuse", &[from_us()], Verdict::Unreachable);
    rule(batch, "refuse", &[], Verdict::Drop);

    services::add_departure(batch, place);
    let leaving = Match::NotInterfaceOut(ours.clone());
    rule(batch, "departure", &[Match::Ipv4, Match::Source(place.range()), leaving], Verdict::Masquerade);
}

/// New sets and chains first, then members, then what nothing refers to any more.
fn difference(batch: &mut Batch, place: &Place, was: &Ruleset, to_be: &Ruleset) {
    for set in added(&was.peers, &to_be.peers) {
        batch.add_set(&peers(set), Kind::Address);
    }
    for set in added(&was.ports, &to_be.ports) {
        batch.add_set(&ports(set), Kind::AddressAndPort);
    }
    for chain in added(&was.chains, &to_be.chains) {
        let (direction, rules) = &to_be.chains[chain];
        add_chain(batch, chain, *direction, rules);
    }

    members(batch, &was.peers, &to_be.peers, peers, |address| Element::address(*address));
    members(batch, &was.ports, &to_be.ports, ports, |(address, port)| {
        Element::address_and_port(*address, *port)
    });
    sandboxes(batch, place, was, to_be);
    services::change(batch, was, to_be);

    services::clear(batch, was, to_be);
    for chain in added(&to_be.chains, &was.chains) {
        batch.remove_chain(chain);
    }
    for set in added(&to_be.peers, &was.peers) {
        batch.remove_set(&peers(set));
    }
    for set in added(&to_be.ports, &was.ports) {
        batch.remove_set(&ports(set));
    }
}

fn sandboxes(batch: &mut Batch, place: &Place, was: &Ruleset, to_be: &Ruleset) {
    let known = |address: &Ipv4Addr| Element::interface_and_address(&place.interface_of(*address), *address);
    batch.remove_elements(KNOWN, added(&to_be.sandboxes, &was.sandboxes).map(known));
    leads(batch, OUT, was, to_be, |chains| &chains.out);
    leads(batch, INTO, was, to_be, |chains| &chains.into);
    leads(batch, MACHINE, was, to_be, |chains| &chains.machine);
    batch.add_elements(KNOWN, added(&was.sandboxes, &to_be.sandboxes).map(known));
}

/// Changes of one of the maps from sandboxes to chains.
fn leads(batch: &mut Batch, map: &str, was: &Ruleset, to_be: &Ruleset, chain: fn(&Chains) -> &String) {
    let all = |rules: &Ruleset| -> BTreeSet<(Ipv4Addr, String)> {
        rules.sandboxes.iter().map(|(address, chains)| (*address, chain(chains).clone())).collect()
    };
    let (before, after) = (all(was), all(to_be));
    let element = |(address, chain): &(Ipv4Addr, String)| Element::to_chain(*address, chain);
    batch.remove_elements(map, before.difference(&after).map(element));
    batch.add_elements(map, after.difference(&before).map(element));
}

/// What is in `to_be` and was not.
fn added<'a, K: Ord, V>(was: &'a BTreeMap<K, V>, to_be: &'a BTreeMap<K, V>) -> impl Iterator<Item = &'a K> {
    to_be.keys().filter(|key| !was.contains_key(key))
}

/// Members that come to or go from the sets that stay or are new.
fn members<T: Ord>(
    batch: &mut Batch,
    was: &BTreeMap<String, BTreeSet<T>>,
    to_be: &BTreeMap<String, BTreeSet<T>>,
    name: fn(&str) -> String,
    element: impl Fn(&T) -> Element,
) {
    let nothing = BTreeSet::new();
    for (set, after) in to_be {
        let before = was.get(set).unwrap_or(&nothing);
        batch.remove_elements(&name(set), before.difference(after).map(&element));
        batch.add_elements(&name(set), after.difference(before).map(&element));
    }
}

fn add_chain(batch: &mut Batch, name: &str, direction: Direction, rules: &[Rule]) {
    batch.add_chain(name, None);
    let allowed = match direction {
        Direction::Out => Verdict::Goto("passed".to_owned()),
        Direction::In | Direction::Machine => Verdict::Accept,
    };
    for rule in rules {
        let mut matches = peer(direction, &rule.peer);
        matches.extend(port(&rule.port));
        batch.add_rule(name, &matches, &allowed);
    }
    batch.add_rule(name, &[], &Verdict::Goto("refuse".to_owned()));
}

fn peer(direction: Direction, peer: &Peer) -> Vec<Match> {
    let inward = direction == Direction::In;
    match peer {
        Peer::Anyone => Vec::new(),
        Peer::In(set) if inward => vec![Match::SourceIn(peers(set))],
        Peer::In(set) => vec![Match::DestinationIn(peers(set))],
        Peer::Block { cidr, except } if inward => {
            let except = except.iter().map(|except| Match::NotSource(*except));
            std::iter::once(Match::Source(*cidr)).chain(except).collect()
        }
        Peer::Block { cidr, except } => {
            let except = except.iter().map(|except| Match::NotDestination(*except));
            std::iter::once(Match::Destination(*cidr)).chain(except).collect()
        }
    }
}

fn port(port: &Port) -> Vec<Match> {
    match port {
        Port::Any => Vec::new(),
        Port::Every(protocol) => vec![Match::Protocol(protocol.number())],
        Port::Range { protocol, first, last } => {
            vec![Match::Protocol(protocol.number()), Match::Ports(*first, *last)]
        }
        Port::Named { protocol, set } => {
            vec![Match::Protocol(protocol.number()), Match::DestinationAndPortIn(ports(set))]
        }
    }
}

/// Sets of the two kinds never share a name.
fn peers(set: &str) -> String {
    format!("peers-{set}")
}

fn ports(set: &str) -> String {
    format!("ports-{set}")
}
