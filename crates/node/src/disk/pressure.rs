//! The machine's disk as a whole: when it is low, and who has to go. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use asb_runtime::tree::Size;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::limits::{RESOURCE, Usage};
use crate::pod::quantity::{binary, bytes};

/// How much of the disk is kept free for the engine and for what else the machine does.
///
/// By default a twentieth, but no more than 1 GiB: on a large disk a twentieth is more than anybody misses, and on a
/// small one 1 GiB may be most of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Floor {
    #[default]
    Usual,
    Bytes(u64),
    Percent(u64),
}

const USUAL: &str = "auto";
const USUAL_PERCENT: u64 = 5;
const USUAL_MOST: u64 = 1 << 30;
/// Files that can still be made, whatever the floor of bytes is; `0` bytes is no floor at all.
const FILES_PERCENT: u64 = 5;
const FILES_MOST: u64 = 100_000;
/// Above so many floors the disk is looked at less often: what fills it meanwhile does not reach the floor.
const FAR: u64 = 8;
/// Nobody is evicted for less than this part of what is missing.
const WORTH: u64 = 100;
const OFTEN: Duration = Duration::from_secs(1);
const RARELY: Duration = Duration::from_secs(5);

/// A filesystem. Some have no number of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Free {
    pub bytes: u64,
    pub of_bytes: u64,
    pub files: u64,
    pub of_files: u64,
}

/// What there is too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bytes,
    Files,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    pub kind: Kind,
    pub floor: u64,
    pub available: u64,
}

/// A Pod that runs, and what it takes.
#[derive(Debug, Clone, Default)]
pub struct Candidate {
    pub usage: Usage,
    /// What its containers asked for, by name.
    pub requests: BTreeMap<String, u64>,
    /// What its claims grew by since the last look.
    pub claims_grew: Size,
}

impl Floor {
    /// What there is too little of, if anything. Who is short needs a tenth more than the floor not to be any longer.
    pub fn shortage(self, free: Free, is_short: bool) -> Option<Shortage> {
        if self == Self::Bytes(0) {
            return None;
        }
        let files = percent(free.of_files, FILES_PERCENT).min(FILES_MOST);
        let both = [(Kind::Bytes, self.bytes(free), free.bytes), (Kind::Files, files, free.files)];
        let short = |(_, floor, available): &(Kind, u64, u64)| {
            *available < if is_short { above(*floor) } else { *floor }
        };
        let (kind, floor, available) = both.into_iter().find(short)?;
        Some(Shortage { kind, floor, available })
    }

    fn bytes(self, free: Free) -> u64 {
        match self {
            Self::Usual => percent(free.of_bytes, USUAL_PERCENT).min(USUAL_MOST),
            Self::Bytes(bytes) => bytes,
            Self::Percent(share) => percent(free.of_bytes, share),
        }
    }

    /// What is free above the floor.
    pub fn room(self, free: Free) -> u64 {
        free.bytes.saturating_sub(self.bytes(free))
    }

    /// When to look again while Pods run.
    pub fn pause(self, free: Free) -> Duration {
        if free.bytes / FAR >= self.bytes(free) { RARELY } else { OFTEN }
    }
}

/// Who is evicted: whoever has most of what is missing and would give it back. What claims hold is never removed, but
/// who fills one can be kept from going on. `None` when nothing to speak of would be gained.
pub fn culprit(shortage: &Shortage, all: &[Candidate]) -> Option<usize> {
    let share = |candidate: &Candidate| {
        let mut size = candidate.usage.total();
        size += candidate.claims_grew;
        match shortage.kind {
            Kind::Bytes => size.bytes,
            Kind::Files => size.files,
        }
    };
    let missing = above(shortage.floor).saturating_sub(shortage.available);
    let helps = |share: u64| share > 0 && share >= missing / WORTH;
    let shares = all.iter().map(share).enumerate().filter(|(_, share)| helps(*share));
    shares.max_by_key(|(_, share)| *share).map(|(index, _)| index)
}

/// How the message begins for a Pod that had to go for the sake of the others.
const LOW: &str = "The node was low on resource: ";

/// Whether a Pod that was told this is not to blame: one that went beyond its own limits was not disrupted.
pub fn is_disruption(message: &str) -> bool {
    message.starts_with(LOW)
}

/// What an evicted Pod is told, as the kubelet says it.
pub fn message(shortage: &Shortage, candidate: &Candidate) -> String {
    let mut message = format!("{LOW}{shortage}");
    if shortage.kind == Kind::Bytes {
        for (name, size) in &candidate.usage.containers {
            let asked = candidate.requests.get(name).copied().unwrap_or(0);
            if size.bytes > asked {
                let (used, asked) = (binary(size.bytes), binary(asked));
                let more = format!("request is {asked}, has larger consumption of {RESOURCE}");
                message += &format!("Container {name} was using {used}, {more}. ");
            }
        }
    }
    if candidate.claims_grew.bytes > 0 {
        message += &format!(
            "Its PersistentVolumeClaims grew by {}; what they hold is kept. ",
            binary(candidate.claims_grew.bytes)
        );
    }
    message
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, [floor, available]) = match self.kind {
            Kind::Bytes => (RESOURCE, [self.floor, self.available].map(binary)),
            Kind::Files => ("inodes", [self.floor, self.available].map(|count| count.to_string())),
        };
        write!(f, "{name}. Threshold quantity: {floor}, available: {available}. ")
    }
}

impl FromStr for Floor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = || format!("{text:?} is neither a quantity such as 2Gi nor a percentage such as 5%");
        match text.strip_suffix('%') {
            None if text == USUAL => Ok(Self::Usual),
            Some(share) => {
                share.parse().ok().filter(|share| *share < 100).map(Self::Percent).ok_or_else(problem)
            }
            None => bytes(&Quantity(text.to_owned())).map(Self::Bytes).ok_or_else(problem),
        }
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str(USUAL),
            Self::Bytes(bytes) => f.write_str(&binary(*bytes)),
            Self::Percent(share) => write!(f, "{share}%"),
        }
    }
}

/// Where a shortage ends.
fn above(floor: u64) -> u64 {
    floor.saturating_add(floor / 10)
}

fn percent(of: u64, share: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(share) / 100).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn free(bytes: u64, of_bytes: u64) -> Free {
        Free { bytes, of_bytes, ..Free::default() }
    }

    fn takes(bytes: u64, files: u64, claims_grew: u64) -> Candidate {
        let size = |bytes, files| Size { bytes, files, ..Size::default() };
        let containers = [("main".to_owned(), size(bytes, files))].into();
        let usage = Usage { containers, ..Usage::default() };
        Candidate { usage, claims_grew: size(claims_grew, 0), ..Candidate::default() }
    }

    #[test]
    fn usual_floor_is_a_twentieth_but_never_more_than_a_gibibyte() {
        let floor = |of| {
            let short = Floor::Usual.shortage(free(0, of), false);
            short.map(|shortage| shortage.floor)
        };
        assert_eq!(floor(10 * GIB), Some(GIB / 2));
        assert_eq!(floor(4000 * GIB), Some(GIB));
        assert_eq!(Floor::Bytes(0).shortage(free(0, GIB), false), None, "none at all");
    }

    #[test]
    fn shortage_ends_a_little_above_where_it_began() {
        let floor = Floor::Bytes(100);
        let short = |bytes, was| floor.shortage(free(bytes, 1000), was).is_some();
        assert_eq!([short(100, false), short(99, false)], [false, true]);
        assert_eq!([short(109, true), short(110, true)], [true, false]);
    }

    #[test]
    fn files_run_out_too_where_they_are_counted() {
        let files = Free { bytes: GIB, of_bytes: GIB, files: 40, of_files: 1000 };
        let shortage = Floor::Usual.shortage(files, false).unwrap();
        assert_eq!(shortage, Shortage { kind: Kind::Files, floor: 50, available: 40 });
        assert_eq!(shortage.to_string(), "inodes. Threshold quantity: 50, available: 40. ");
        assert_eq!(Floor::Usual.shortage(Free { files: 0, of_files: 0, ..files }, false), None);
    }

    #[test]
    fn whoever_has_most_goes_and_nobody_goes_for_nothing() {
        let short = |kind, all: &[Candidate]| culprit(&Shortage { kind, floor: 100, available: 10 }, all);
        assert_eq!(short(Kind::Bytes, &[takes(5, 9, 0), takes(7, 1, 0)]), Some(1));
        assert_eq!(short(Kind::Files, &[takes(5, 9, 0), takes(7, 1, 0)]), Some(0));
        assert_eq!(short(Kind::Bytes, &[takes(5, 9, 0), takes(1, 1, 20)]), Some(1), "it fills its claim");
        assert_eq!(short(Kind::Bytes, &[takes(0, 0, 0)]), None);
        let large = Shortage { kind: Kind::Bytes, floor: GIB, available: 0 };
        assert_eq!(culprit(&large, &[takes(4096, 1, 0)]), None, "it would not help");
    }

    #[test]
    fn evicted_pod_is_told_what_the_kubelet_tells() {
        let shortage = Shortage { kind: Kind::Bytes, floor: GIB, available: GIB / 2 };
        let expected = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi. \
            Container main was using 4Ki, request is 0, has larger consumption of ephemeral-storage. ";
        assert_eq!(message(&shortage, &takes(4096, 1, 0)), expected);
        let modest = Candidate { requests: [("main".to_owned(), 4096)].into(), ..takes(4096, 1, 0) };
        assert!(!message(&shortage, &modest).contains("main"), "it has what it asked for");
        assert!(message(&shortage, &takes(0, 0, 1 << 20)).ends_with("grew by 1Mi; what they hold is kept. "));
    }

    #[test]
    fn floors_are_quantities_or_percentages() {
        assert_eq!("2Gi".parse(), Ok(Floor::Bytes(2 * GIB)));
        assert_eq!("7%".parse(), Ok(Floor::Percent(7)));
        assert_eq!(Floor::Usual.to_string().parse(), Ok(Floor::Usual));
        for wrong in ["", "lots", "100%", "-1", "%"] {
            assert!(wrong.parse::<Floor>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn disk_is_looked_at_often_when_the_floor_is_near() {
        let pause = |bytes| Floor::Bytes(GIB).pause(free(bytes, 100 * GIB));
        assert_eq!((pause(50 * GIB), pause(2 * GIB)), (RARELY, OFTEN));
    }
}
