//! What a network has left behind. For tests: after an engine without sandboxes has stopped, there must be nothing.

use std::path::Path;

use crate::place::Place;
use crate::{link, nft};

/// Every trace that the network of a data directory has left on the machine, one sentence each.
///
/// Namespaces need no looking for: nothing pins one, and each has an interface on the machine.
pub fn check(data_dir: &Path) -> Vec<String> {
    let Ok(Some(place)) = Place::read(data_dir) else { return Vec::new() };
    let ours = |name: &String| *name == place.holder() || name.starts_with(&place.prefix());
    let interfaces = link::names().unwrap_or_default().into_iter().filter(ours);
    let mut traces: Vec<_> = interfaces.map(|name| format!("interface {name}")).collect();
    if nft::table_exists(&place.table()).unwrap_or(false) {
        traces.push(format!("table {} of packet filter rules", place.table()));
    }
    traces
}
