//! The machine, for a network that is not in the machine's own namespace: what leads out of there as an ordinary program
//! of the machine also leads to the machine's own addresses. Nobody is to get there.

use std::io;
use std::net::Ipv4Addr;

use crate::cidr::Cidr;
use crate::netlink::{Buffer, Socket, attributes, flag};
use crate::nft::{Batch, Family, Hook, Match, Verdict};

const TABLE: &str = "asb-machine";

const RTM_GETADDR: u16 = 22;
const IFA_LOCAL: u16 = 2;
const AF_INET: u8 = 2;

/// Every IPv4 address of the calling thread's namespace, sorted.
pub fn addresses() -> io::Result<Vec<Ipv4Addr>> {
    let mut question = Buffer::default();
    let open = question.message(RTM_GETADDR, flag::DUMP);
    question.put(&[AF_INET, 0, 0, 0, 0, 0, 0, 0]);
    question.end_message(open);
    let mut found = Vec::new();
    Socket::route()?.dump(&question, |answer| found.extend(local(answer)))?;
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

fn local(answer: &[u8]) -> Option<Ipv4Addr> {
    let (_, value) = attributes(answer.get(8..)?).find(|(kind, _)| *kind == IFA_LOCAL)?;
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?))
}
