//! Has changes of members that come close together answered in one pass, when it has become quiet.
//!
//! A look at a pool is a look at all its members, and starting new ones is work for the whole machine: claims that are
//! being served come first.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::object::Key;

/// Without a change for this long it is quiet.
pub const QUIET: Duration = Duration::from_millis(20);
/// No change waits longer than this for its answer.
const LONGEST: Duration = Duration::from_millis(200);
/// Or than this, while claims on the pool are being served: as long as that goes on.
const LONGEST_SERVING: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Gathering {
    /// The first and the last change that has no answer yet.
    changes: Mutex<HashMap<Key, (Instant, Instant)>>,
}

impl Gathering {
    pub fn changed(&self, pool: &Key, now: Instant) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.entry(pool.clone()).or_insert((now, now)).1 = now;
    }

    /// How long to wait before a pool is looked at; `None` when its time has come.
    pub fn wait(&self, pool: &Key, serving: bool, now: Instant) -> Option<Duration> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = changes.get(pool)?;
        let left = match serving {
            // Without a change for that long, those who wait are not waiting for members.
            true => (now + QUIET).min(*last + LONGEST).min(*first + LONGEST_SERVING),
            false => (*last + QUIET).min(*first + LONGEST),
        };
        let left = left.saturating_duration_since(now);
        if left.is_zero() {
            changes.remove(pool);
            return None;
        }
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_answered_when_it_is_quiet_and_never_much_later() {
        let (gathering, pool, begun) = (Gathering::default(), Key::new("ns", "pool"), Instant::now());
        let at = |millis| begun + Duration::from_millis(millis);
        let wait = |now| gathering.wait(&pool, false, now);
        assert_eq!(wait(begun), None, "nothing to wait for");
        gathering.changed(&pool, at(0));
        assert_eq!(wait(at(5)), Some(Duration::from_millis(15)));
        gathering.changed(&pool, at(15));
        assert_eq!(wait(at(20)), Some(Duration::from_millis(15)), "not quiet yet");
        assert_eq!(wait(at(35)), None);
        assert_eq!(wait(at(35)), None, "answered");

        (0..20).for_each(|change| gathering.changed(&pool, at(100 + 10 * change)));
        assert_eq!(wait(at(290)), Some(Duration::from_millis(10)), "200 after the first");
        let serving = |now| gathering.wait(&pool, true, now);
        assert_eq!(serving(at(300)), Some(QUIET), "claims come first");
        assert_eq!(serving(at(480)), Some(Duration::from_millis(10)), "while members are taken");
        (20..100).for_each(|change| gathering.changed(&pool, at(100 + 10 * change)));
        assert_eq!(serving(at(1095)), Some(Duration::from_millis(5)), "but not for ever");
        assert_eq!(wait(at(310)), None);
    }
}
