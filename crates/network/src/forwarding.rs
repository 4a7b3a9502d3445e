//! Lets the machine pass packets on for sandboxes, and for nobody else.
//!
//! A machine that passes packets on does so between all its interfaces. Where that was off, a table of rules that all
//! engines share refuses whatever neither comes from a sandbox nor goes to one; the last engine to leave switches
//! passing on off again and removes the table. Where it was on, the machine's owner wants it so, and nothing changes.
//! All that once for each family of addresses.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::link::{self, Links};
use crate::nft::{Batch, Family, Hook, Match, Verdict, table_exists};
use crate::place::Place;

/// What the names of all our interfaces begin with.
const OURS: &str = "asb";
const NO_IPV6: &str = "/proc/sys/net/ipv6/conf/all/disable_ipv6";

/// Held while engines change what they share.
pub struct Lock(#[expect(dead_code, reason = "held, not read")] File);

/// Waits until no other engine changes anything.
pub fn lock() -> io::Result<Lock> {
    // One for each network namespace, so a lock on it is one for each as well.
    let file = File::open(switch(Family::V4))?;
    file.lock()?;
    Ok(Lock(file))
}

/// Whether the kernel knows IPv6 at all.
pub fn has_six() -> bool {
    Path::new(NO_IPV6).exists()
}

/// Whether sandboxes can have IPv6: the machine has it, and does not lose its own by passing packets on. One that does
/// no longer listens to routers and forgets what they said, unless its owner has seen to that.
pub fn may_pass_six() -> io::Result<bool> {
    let has_it = has_six() && std::fs::read_to_string(NO_IPV6)?.trim() == "0";
    Ok(has_it && (is_on(Family::V6)? || !Links::open()?.has_advertised_routes()?))
}

/// The families that the machine passes on only because of us.
pub struct Guarded(Vec<Family>);

/// Lets packets of sandboxes through.
pub fn switch_on(families: &[Family], _: &Lock) -> io::Result<Guarded> {
    let mut guarded = Vec::new();
    for family in families {
        if !is_on(*family)? {
            // The guard first: at no time does the machine pass on what it did not before.
            guard(*family)?;
            std::fs::write(switch(*family), "1")?;
        }
        if table_exists(table(*family))? {
            guarded.push(*family);
        }
    }
    Ok(Guarded(guarded))
}

impl Guarded {
    /// Makes the guards anew that somebody has removed.
    pub fn heal(&self) -> io::Result<()> {
        let unguarded = |family: &&Family| !table_exists(table(**family)).unwrap_or(true);
        self.0.iter().filter(unguarded).try_for_each(|family| guard(*family))
    }
}

/// Puts things back as they were, unless another engine still needs them.
pub fn switch_off(_: &Lock) -> io::Result<()> {
    if link::names()?.iter().any(|name| Place::of_holder(name).is_some()) {
        return Ok(());
    }
    for family in Family::BOTH {
        if table_exists(table(family))? {
            std::fs::write(switch(family), "0")?;
            let mut batch = Batch::new(table(family));
            batch.remove_table();
            batch.commit()?;
        }
    }
    Ok(())
}

/// Refuses to pass on what is nobody's of ours.
fn guard(family: Family) -> io::Result<()> {
    let mut batch = Batch::new(table(family));
    batch.replace_table();
    batch.add_chain("forward", Some(Hook::FORWARD));
    let ours = || OURS.to_owned();
    let nobodys = [Match::Family(family), Match::NotInterfaceIn(ours()), Match::NotInterfaceOut(ours())];
    batch.add_rule("forward", &nobodys, &Verdict::Drop);
    batch.commit()
}

fn switch(family: Family) -> &'static str {
    match family {
        Family::V4 => "/proc/sys/net/ipv4/ip_forward",
        Family::V6 => "/proc/sys/net/ipv6/conf/all/forwarding",
    }
}

/// The table of the guard.
fn table(family: Family) -> &'static str {
    match family {
        Family::V4 => "asb-guard",
        Family::V6 => "asb-guard6",
    }
}

fn is_on(family: Family) -> io::Result<bool> {
    std::fs::read_to_string(switch(family)).map(|text| text.trim() == "1")
}
