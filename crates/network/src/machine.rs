//! The machine, for a network that is not in the machine's own namespace: what leads out of there as an ordinary program
//! of the machine also leads to the machine's own addresses. Nobody is to get there.

use std::io;
use std::net::Ipv4Addr;

use crate::cidr::Cidr;
use crate::link::Links;
use crate::nft::{Batch, Family, Hook, Match, Verdict};

const TABLE: &str = "asb-machine";

/// Every IPv4 address of the calling thread's namespace, sorted.
pub fn addresses() -> io::Result<Vec<Ipv4Addr>> {
    let mut found = Links::open()?.addresses()?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Refuses to pass on to these, in the calling thread's namespace, whatever other rules say.
pub fn refuse(addresses: &[Ipv4Addr]) -> io::Result<()> {
    let mut batch = Batch::new(TABLE);
    batch.replace_table();
    batch.add_chain("forward", Some(Hook::FORWARD));
    for address in addresses {
        let there = [Match::Family(Family::V4), Match::Destination(Cidr::single(*address))];
        batch.add_rule("forward", &there, &Verdict::Drop);
    }
    batch.commit()
}
