//! Lets the machine pass packets on for sandboxes, and for nobody else.
//!
//! A machine that passes packets on does so between all its interfaces. Where that was off, a table of rules that all
//! engines share refuses whatever neither comes from a sandbox nor goes to one; the last engine to leave switches
//! passing on off again and removes the table. Where it was on, the machine's owner wants it so, and nothing changes.

use std::fs::File;
use std::io;

use crate::link;
use crate::nft::{Batch, Hook, Match, Verdict, table_exists};
use crate::place::Place;

/// One for each network namespace, so a lock on it is one for each as well.
const SWITCH: &str = "/proc/sys/net/ipv4/ip_forward";
const GUARD: &str = "asb-guard";
/// What the names of all our interfaces begin with.
const OURS: &str = "asb";

/// Held while engines change what they share.
pub struct Lock(#[expect(dead_code, reason = "held, not read")] File);

/// Waits until no other engine changes anything.
pub fn lock() -> io::Result<Lock> {
    let file = File::open(SWITCH)?;
    file.lock()?;
    Ok(Lock(file))
}

/// Lets packets of sandboxes through; whether a guard is needed for that.
pub fn switch_on(_: &Lock) -> io::Result<bool> {
    if is_on()? {
        return table_exists(GUARD);
    }
    // The guard first: at no time does the machine pass on what it did not before.
    guard()?;
    std::fs::write(SWITCH, "1")?;
    Ok(true)
}

/// Refuses to pass on what is nobody's of ours.
pub fn guard() -> io::Result<()> {
    let mut batch = Batch::new(GUARD);
    batch.replace_table();
    batch.add_chain("forward", Some(Hook::FORWARD));
    let nobodys = [Match::NotInterfaceIn(OURS.to_owned()), Match::NotInterfaceOut(OURS.to_owned())];
    batch.add_rule("forward", &nobodys, &Verdict::Drop);
    batch.commit()
}

/// Whether somebody has removed the guard.
pub fn is_unguarded() -> bool {
    !table_exists(GUARD).unwrap_or(true)
}

/// Puts things back as they were, unless another engine still needs them.
pub fn switch_off(_: &Lock) -> io::Result<()> {
    if link::names()?.iter().any(|name| Place::of_holder(name).is_some()) || !table_exists(GUARD)? {
        return Ok(());
    }
    std::fs::write(SWITCH, "0")?;
    let mut batch = Batch::new(GUARD);
    batch.remove_table();
    batch.commit()
}

fn is_on() -> io::Result<bool> {
    std::fs::read_to_string(SWITCH).map(|text| text.trim() == "1")
}
