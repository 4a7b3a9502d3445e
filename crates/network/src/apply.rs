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
use std::net::{IpAddr, Ipv4Addr};

use crate::address6::Block6;
use crate::cidr::Cidr;
use crate::nft::{Batch, Element, Family, Hook, Kind, Match, Verdict};
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
    let sides = Side::all(place);
    for Side { family, .. } in &sides {
        batch.add_set(&family.name(KNOWN), Kind::InterfaceAndAddress(*family));
        for map in [OUT, INTO, MACHINE] {
            batch.add_set(&family.name(map), Kind::AddressToChain(*family));
        }
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

    let each = |batch: &mut Batch, chain: &str, verdict: fn(Family) -> Verdict| {
        for Side { family, .. } in &sides {
            batch.add_rule(chain, &[Match::Family(*family)], &verdict(*family));
        }
    };

    for Side { family, .. } in &sides {
        let own = Match::InterfaceAndSourceIn(*family, family.name(KNOWN));
        rule(batch, "arrival", &[from_us(), Match::Family(*family), own], Verdict::Accept);
    }
    rule(batch, "arrival", &[from_us()], Verdict::Drop);

    rule(batch, "input", &[from_us()], goto("host"));
    rule(batch, "host", &[Match::Established], Verdict::Accept);
    rule(batch, "host", &[Match::Invalid], Verdict::Drop);
    each(batch, "host", |family| Verdict::BySource(family, family.name(MACHINE)));
    rule(batch, "host", &[], goto("refuse"));

    rule(batch, "forward", &[from_us()], goto("from"));
    rule(batch, "forward", &[to_us()], goto("to"));
    rule(batch, "output", &[to_us()], goto("to"));

    // To a sandbox that is gone: there is no wire any more, and elsewhere nobody is meant.
    for side in &sides {
        let gone = Match::NotInterfaceOut(ours.clone());
        let for_us = [Match::Family(side.family), Match::Destination(side.range(place)), gone];
        rule(batch, "from", &for_us, goto("refuse"));
    }
    rule(batch, "from", &[Match::Established], Verdict::Accept);
    rule(batch, "from", &[Match::Invalid], Verdict::Drop);
    services::add_judgement(batch);
    each(batch, "from", |family| Verdict::BySource(family, family.name(OUT)));
    rule(batch, "from", &[], goto("refuse"));
    rule(batch, "passed", &[to_us()], goto("to"));
    rule(batch, "passed", &[], Verdict::Accept);

    rule(batch, "to", &[Match::Established], Verdict::Accept);
    each(batch, "to", |family| Verdict::ByDestination(family, family.name(INTO)));
    rule(batch, "to", &[], goto("refuse"));

    // A sandbox is told, so that nothing waits in vain; anybody else is not.
    rule(batch, "refuse", &[from_us(), Match::Protocol(TCP)], Verdict::Reset);
    rule(batch, "refuse", &[from_us()], Verdict::Unreachable);
    rule(batch, "refuse", &[], Verdict::Drop);

    services::add_departure(batch, place);
    for side in &sides {
        let leaving = Match::NotInterfaceOut(ours.clone());
        let ours = [Match::Family(side.family), Match::Source(side.range(place)), leaving];
        rule(batch, "departure", &ours, Verdict::Masquerade);
    }
}

/// What is said once for each family of addresses that sandboxes have.
struct Side {
    family: Family,
    six: Option<Block6>,
}

impl Side {
    fn all(place: &Place) -> Vec<Self> {
        let four = Self { family: Family::V4, six: None };
        let six = place.six().map(|six| Self { family: Family::V6, six: Some(six) });
        std::iter::once(four).chain(six).collect()
    }

    /// The address of the sandbox that has this one.
    fn address(&self, address: Ipv4Addr) -> IpAddr {
        self.six.map_or(address.into(), |six| six.beside(address).into())
    }

    fn range(&self, place: &Place) -> Cidr {
        self.six.map_or(place.range(), Block6::range)
    }
}

/// New sets and chains first, then members, then what nothing refers to any more.
fn difference(batch: &mut Batch, place: &Place, was: &Ruleset, to_be: &Ruleset) {
    let sides = Side::all(place);
    for Side { family, .. } in &sides {
        for set in added(&was.peers, &to_be.peers) {
            batch.add_set(&peers(*family, set), Kind::Address(*family));
        }
        for set in added(&was.ports, &to_be.ports) {
            batch.add_set(&ports(*family, set), Kind::AddressAndPort(*family));
        }
    }
    for chain in added(&was.chains, &to_be.chains) {
        let (direction, rules) = &to_be.chains[chain];
        add_chain(batch, chain, *direction, rules, &sides);
    }

    for side in &sides {
        let name = |set: &str| peers(side.family, set);
        members(batch, &was.peers, &to_be.peers, name, |address| Element::address(side.address(*address)));
        let name = |set: &str| ports(side.family, set);
        members(batch, &was.ports, &to_be.ports, name, |(address, port)| {
            Element::address_and_port(side.address(*address), *port)
        });
        sandboxes(batch, place, side, was, to_be);
    }
    services::change(batch, was, to_be);

    services::clear(batch, was, to_be);
    for chain in added(&to_be.chains, &was.chains) {
        batch.remove_chain(chain);
    }
    for Side { family, .. } in &sides {
        for set in added(&to_be.peers, &was.peers) {
            batch.remove_set(&peers(*family, set));
        }
        for set in added(&to_be.ports, &was.ports) {
            batch.remove_set(&ports(*family, set));
        }
    }
}

fn sandboxes(batch: &mut Batch, place: &Place, side: &Side, was: &Ruleset, to_be: &Ruleset) {
    let known = |address: &Ipv4Addr| {
        Element::interface_and_address(&place.interface_of(*address), side.address(*address))
    };
    let name = side.family.name(KNOWN);
    batch.remove_elements(&name, added(&to_be.sandboxes, &was.sandboxes).map(known));
    leads(batch, side, OUT, was, to_be, |chains| &chains.out);
    leads(batch, side, INTO, was, to_be, |chains| &chains.into);
    leads(batch, side, MACHINE, was, to_be, |chains| &chains.machine);
    batch.add_elements(&name, added(&was.sandboxes, &to_be.sandboxes).map(known));
}

/// Changes of one of the maps from sandboxes to chains.
fn leads(
    batch: &mut Batch,
    side: &Side,
    map: &str,
    was: &Ruleset,
    to_be: &Ruleset,
    chain: fn(&Chains) -> &String,
) {
    let differs = |from: &Ruleset, address: &Ipv4Addr, chains: &Chains| {
        from.sandboxes.get(address).map(chain) != Some(chain(chains))
    };
    let element =
        |(address, chains): (&Ipv4Addr, &Chains)| Element::to_chain(side.address(*address), chain(chains));
    let gone = was.sandboxes.iter().filter(|(address, chains)| differs(to_be, address, chains));
    let new = to_be.sandboxes.iter().filter(|(address, chains)| differs(was, address, chains));
    let map = side.family.name(map);
    batch.remove_elements(&map, gone.map(element));
    batch.add_elements(&map, new.map(element));
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
    name: impl Fn(&str) -> String,
    element: impl Fn(&T) -> Element,
) {
    let nothing = BTreeSet::new();
    for (set, after) in to_be {
        let before = was.get(set).unwrap_or(&nothing);
        batch.remove_elements(&name(set), before.difference(after).map(&element));
        batch.add_elements(&name(set), after.difference(before).map(&element));
    }
}

fn add_chain(batch: &mut Batch, name: &str, direction: Direction, rules: &[Rule], sides: &[Side]) {
    batch.add_chain(name, None);
    let allowed = match direction {
        Direction::Out => Verdict::Goto("passed".to_owned()),
        Direction::In | Direction::Machine => Verdict::Accept,
    };
    for rule in rules {
        for matches in matches(direction, rule, sides) {
            batch.add_rule(name, &matches, &allowed);
        }
    }
    batch.add_rule(name, &[], &Verdict::Goto("refuse".to_owned()));
}

/// What one rule looks at: in packets of any family alike, or in those of each family that it speaks of.
fn matches(direction: Direction, rule: &Rule, sides: &[Side]) -> Vec<Vec<Match>> {
    let is_alike = rule.peer == Peer::Anyone && !matches!(rule.port, Port::Named { .. });
    if is_alike {
        return vec![port(Family::V4, &rule.port)];
    }
    let speaks_of = |family: &Family| match &rule.peer {
        Peer::Block { cidr, .. } => Family::of(*cidr) == *family,
        Peer::Anyone | Peer::In(_) => true,
    };
    let families = sides.iter().map(|side| side.family).filter(speaks_of);
    let each = |family| {
        let mut matches = vec![Match::Family(family)];
        matches.extend(peer(family, direction, &rule.peer));
        matches.extend(port(family, &rule.port));
        matches
    };
    families.map(each).collect()
}

fn peer(family: Family, direction: Direction, peer: &Peer) -> Vec<Match> {
    let inward = direction == Direction::In;
    match peer {
        Peer::Anyone => Vec::new(),
        Peer::In(set) if inward => vec![Match::SourceIn(family, peers(family, set))],
        Peer::In(set) => vec![Match::DestinationIn(family, peers(family, set))],
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

fn port(family: Family, port: &Port) -> Vec<Match> {
    match port {
        Port::Any => Vec::new(),
        Port::Every(protocol) => vec![Match::Protocol(protocol.number())],
        Port::Range { protocol, first, last } => {
            vec![Match::Protocol(protocol.number()), Match::Ports(*first, *last)]
        }
        Port::Named { protocol, set } => {
            let named = Match::DestinationAndPortIn(family, ports(family, set));
            vec![Match::Protocol(protocol.number()), named]
        }
    }
}

/// Sets of the two kinds never share a name.
fn peers(family: Family, set: &str) -> String {
    format!("{}-{set}", family.name("peers"))
}

fn ports(family: Family, set: &str) -> String {
    format!("{}-{set}", family.name("ports"))
}
