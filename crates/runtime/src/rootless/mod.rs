//! Being root without being root: an ordinary user's engine lives in a user namespace, in which it is root.
//!
//! ```text
//! user 1000 ─► does a sandbox live, or an engine? ─ yes ─► its namespace: what runs there can be signalled and entered
//!                                                 └ no ──► a new one: 0 is the user, 1 to 65536 are subordinate ids
//! ```
//!
//! Without subordinate ids the namespace has one id. What follows from that is decided by [`crate::Powers`], once; all
//! else is the same code that root runs.

mod hub;
mod ids;
mod namespace;
mod outside;

use std::path::Path;

use asb_supervisor::launch::{Identity, file};

pub use self::hub::{Hub, in_new_network};
pub use self::ids::{Lack, Maps};
pub use self::namespace::{Error, enter};
pub use self::outside::{NoWay, Outside};
use crate::driver::find_program;

/// What may be in a namespace that is to be entered again.
#[derive(Debug, Clone)]
pub struct Member(Identity);

/// The sandboxes of a state directory that were alive when somebody last looked.
pub fn members(dir: &Path) -> Vec<Member> {
    let entries = std::fs::read_dir(dir.join("sandbox")).into_iter().flatten().flatten();
    let identity = |place: &Path| {
        let files = [file::STARTED, file::STARTING].map(|name| place.join(name));
        let text = files.iter().find_map(|path| std::fs::read(path).ok())?;
        serde_json::from_slice(&text).ok().map(Member)
    };
    entries.filter_map(|entry| identity(&entry.path())).collect()
}

/// The process that holds the network of a data directory's engine.
pub fn keeper(data_dir: &Path) -> Option<Member> {
    hub::read(data_dir).map(|record| Member(record.keeper))
}

/// Why the user who runs this has only one id for sandboxes, if so.
pub fn lack() -> Option<Lack> {
    maps().err()
}

/// What the user who runs this has to make a namespace from. Also from inside one.
pub fn maps() -> Result<Maps, Lack> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let outside = |map: &str, id| ids::outside(&read(map), id);
    let user = outside("/proc/self/uid_map", rustix::process::geteuid().as_raw());
    let group = outside("/proc/self/gid_map", rustix::process::getegid().as_raw());
    let programs = ["newuidmap", "newgidmap"].map(find_program);
    ids::maps(user, group, &read("/etc/passwd"), &read("/etc/subuid"), &read("/etc/subgid"), programs)
}
