//! What a program may do on the machine, told from the ids it has. Pure.

use serde::{Deserialize, Serialize};

use crate::launch::IDS;

/// As whom sandboxes are made. Decided once, by the program that makes them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Powers {
    /// Root of the machine: ids of its own for each sandbox, and files shown with their ids mapped.
    #[default]
    Machine,
    /// Root of a user namespace with all ids a sandbox can have, and one more: sandboxes share them.
    Range,
    /// Root of a user namespace that has one id: whoever runs in a sandbox is that one.
    One,
}

impl Powers {
    /// What follows from `/proc/self/uid_map` and `gid_map`.
    pub fn of(uid_map: &str, gid_map: &str) -> Self {
        let have = |map: &str| {
            if is_everything(map) {
                Self::Machine
            } else if holds(map, IDS) {
                Self::Range
            } else {
                Self::One
            }
        };
        match (have(uid_map), have(gid_map)) {
            (Self::Machine, Self::Machine) => Self::Machine,
            (Self::One, _) | (_, Self::One) => Self::One,
            _ => Self::Range,
        }
    }

    /// Whether the machine's root is somebody else.
    pub fn is_rootless(self) -> bool {
        self != Self::Machine
    }

    /// What overlayfs takes for "nothing below is visible". Only root of the machine may write what is trusted.
    pub fn opaque(self) -> &'static str {
        match self {
            Self::Machine => "trusted.overlay.opaque",
            Self::Range | Self::One => "user.overlay.opaque",
        }
    }

    /// The id that a file gets which belongs to `id` inside.
    pub fn owner(self, id: u32) -> u32 {
        if self == Self::One { 0 } else { id }
    }
}

fn is_everything(map: &str) -> bool {
    extents(map).any(|extent| extent == [0, 0, u64::from(u32::MAX)])
}

/// Whether every id from 0 to `last` is there.
fn holds(map: &str, last: u32) -> bool {
    let mut extents: Vec<_> = extents(map).collect();
    extents.sort_unstable();
    let reached =
        extents.iter().fold(
            0,
            |reached, [first, _, count]| {
                if *first <= reached { reached.max(first + count) } else { reached }
            },
        );
    reached > u64::from(last)
}

/// Inside, outside, how many.
fn extents(map: &str) -> impl Iterator<Item = [u64; 3]> {
    map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
        Some([numbers.next()?, numbers.next()?, numbers.next()?])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_tell_what_can_be_done() {
        let all = "         0          0 4294967295\n";
        let range = "0 1000 1\n1 100000 65536\n";
        let apart = "1 100000 65536\n0 1000 1\n";
        let short = "0 100000 65536\n";
        for (uid_map, gid_map, expected) in [
            (all, all, Powers::Machine),
            (range, range, Powers::Range),
            (apart, range, Powers::Range),
            (all, range, Powers::Range),
            (short, range, Powers::One),
            ("0 1000 1\n", "0 1000 1\n", Powers::One),
            ("0 1000 1\n2 100000 65536\n", range, Powers::One),
            ("", "", Powers::One),
        ] {
            assert_eq!(Powers::of(uid_map, gid_map), expected, "{uid_map:?} {gid_map:?}");
        }
    }
}
