//! Addresses of services in the kernel: whoever connects to one is led to a sandbox behind it, before rules are asked.
//!
//! ```text
//! translation  from a sandbox to an address of services: `doors` ─► `spread-…` ─► one of its sandboxes, by chance
//! from         to itself through a service: accepted ─ still to an address of services: leads nowhere, refused
//! departure    to itself: from the gateway, or it would not believe its eyes
//! ```

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use crate::nft::{Batch, Element, Family, Kind, Match, Verdict};
use crate::place::{Place, SERVICES};
use crate::rules::{Door, Ruleset, Spread};

/// From an address, protocol and port to a chain.
const DOORS: &str = "doors";
/// Sandboxes behind services, twice: as source and as destination.
const ITSELF: &str = "itself";

pub fn add_sets(batch: &mut Batch) {
    batch.add_set(DOORS, Kind::DoorToChain);
    batch.add_set(ITSELF, Kind::TwoAddresses);
}

pub fn add_translation(batch: &mut Batch, place: &Place) {
    let to_service =
        [Match::InterfaceIn(place.prefix()), Match::Family(Family::V4), Match::Destination(SERVICES)];
    batch.add_rule("translation", &to_service, &Verdict::ByDoor(DOORS));
}

/// Before what a sandbox may reach is asked: that is about sandboxes, not about addresses in front of them.
pub fn add_judgement(batch: &mut Batch) {
    batch.add_rule("from", &[Match::Family(Family::V4), itself()], &Verdict::Accept);
    let leads_nowhere = [Match::Family(Family::V4), Match::Destination(SERVICES)];
    batch.add_rule("from", &leads_nowhere, &Verdict::Goto("refuse".to_owned()));
}

pub fn add_departure(batch: &mut Batch, place: &Place) {
    batch.add_rule("departure", &[Match::Family(Family::V4), itself()], &Verdict::SendAs(place.gateway()));
}

fn itself() -> Match {
    Match::SourceAndDestinationIn(ITSELF.to_owned())
}

/// New chains and all that leads to them.
pub fn change(batch: &mut Batch, was: &Ruleset, to_be: &Ruleset) {
    for (name, spread) in to_be.spreads.iter().filter(|(name, _)| !was.spreads.contains_key(*name)) {
        add_spread(batch, name, spread);
    }
    let doors = |rules: &Ruleset| -> BTreeSet<(Door, String)> {
        rules.doors.iter().map(|(door, spread)| (*door, chain(spread))).collect()
    };
    let (before, after) = (doors(was), doors(to_be));
    let element = |(door, chain): &(Door, String)| Element::door(door, chain);
    batch.remove_elements(DOORS, before.difference(&after).map(element));
    batch.add_elements(DOORS, after.difference(&before).map(element));
    let (before, after) = (members(was), members(to_be));
    let element = |address: &Ipv4Addr| Element::twice(*address);
    batch.remove_elements(ITSELF, before.difference(&after).map(element));
    batch.add_elements(ITSELF, after.difference(&before).map(element));
}

/// Chains that nothing leads to any more.
pub fn clear(batch: &mut Batch, was: &Ruleset, to_be: &Ruleset) {
    for name in was.spreads.keys().filter(|name| !to_be.spreads.contains_key(*name)) {
        batch.remove_chain(&chain(name));
    }
}

fn add_spread(batch: &mut Batch, name: &str, spread: &Spread) {
    let chain = chain(name);
    batch.add_chain(&chain, None);
    let count = spread.to.len() as u32;
    for (number, (address, port)) in (0..).zip(&spread.to) {
        let chosen = match (spread.sticky, count - number) {
            (_, 1) => vec![],
            (true, _) => vec![Match::SourceShare { number, of: count }],
            // Of those that are left each has the same chance.
            (false, left) => vec![Match::OneIn(left)],
        };
        batch.add_rule(&chain, &chosen, &Verdict::LeadTo(*address, *port));
    }
}

fn members(rules: &Ruleset) -> BTreeSet<Ipv4Addr> {
    rules.spreads.values().flat_map(|spread| spread.to.iter().map(|(address, _)| *address)).collect()
}

fn chain(spread: &str) -> String {
    format!("spread-{spread}")
}
