//! Which events are written, and which only count one that is there. Pure.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

/// Events that are remembered in order to count them. With more, all are forgotten, and counts begin again.
const KNOWN: usize = 4096;
/// So many times an event is counted as it happens.
const PROMPT: u32 = 10;
/// After that, its count is written this often: a probe that fails every second is not a write every second.
const PAUSE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Series {
    known: HashMap<u64, Known>,
    last_stamp: u64,
}

struct Known {
    stamp: u64,
    count: u32,
    written: Timestamp,
}

/// What to write about an event; `stamp` is the part of its name that is its own.
#[derive(Debug, PartialEq, Eq)]
pub enum Write {
    Create { stamp: u64 },
    Count { stamp: u64, count: u32 },
    Nothing,
}

impl Series {
    /// Takes note of an event. `key` is equal for all that are told as one.
    pub fn note(&mut self, key: u64, at: Timestamp) -> Write {
        if let Some(known) = self.known.get_mut(&key) {
            known.count = known.count.saturating_add(1);
            let since = Duration::try_from(at.duration_since(known.written)).unwrap_or_default();
            if known.count > PROMPT && since < PAUSE {
                return Write::Nothing;
            }
            known.written = at;
            return Write::Count { stamp: known.stamp, count: known.count };
        }
        if self.known.len() >= KNOWN {
            self.known.clear();
        }
        let stamp = u64::try_from(at.as_nanosecond()).unwrap_or_default().max(self.last_stamp + 1);
        self.last_stamp = stamp;
        self.known.insert(key, Known { stamp, count: 1, written: at });
        Write::Create { stamp }
    }

    /// Forgets an event that is not there any more.
    pub fn forget(&mut self, key: u64) {
        self.known.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn repeated_event_is_one_object_with_a_count() {
        let mut series = Series::default();
        let stamp = 1_000_000_000;
        assert_eq!(series.note(7, at(1)), Write::Create { stamp });
        assert_eq!(series.note(8, at(1)), Write::Create { stamp: stamp + 1 }, "no two have one name");
        for count in 2..=PROMPT {
            assert_eq!(series.note(7, at(i64::from(count))), Write::Count { stamp, count });
        }
        assert_eq!(series.note(7, at(11)), Write::Nothing);
        assert_eq!(series.note(7, at(75)), Write::Count { stamp, count: PROMPT + 2 }, "none is lost");
        series.forget(7);
        assert!(matches!(series.note(7, at(76)), Write::Create { .. }));
    }

    #[test]
    fn memory_is_bounded() {
        let mut series = Series::default();
        (0..10 * KNOWN as u64).for_each(|key| {
            series.note(key, at(1));
        });
        assert!(series.known.len() <= KNOWN);
    }
}
