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
    pub fn wait(&self, pool: &Key, now: Instant) -> Option<Duration> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = changes.get(pool)?;
        let left = (*last + QUIET).min(*first + LONGEST).saturating_duration_since(now);
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
        assert_eq!(gathering.wait(&pool, begun), None, "nothing to wait for");
        gathering.changed(&pool, at(0));
        assert_eq!(gathering.wait(&pool, at(5)), Some(Duration::from_millis(15)));
        gathering.changed(&pool, at(15));
        assert_eq!(gathering.wait(&pool, at(20)), Some(Duration::from_millis(15)), "not quiet yet");
        assert_eq!(gathering.wait(&pool, at(35)), None);
        assert_eq!(gathering.wait(&pool, at(35)), None, "answered");

        (0..20).for_each(|change| gathering.changed(&pool, at(100 + 10 * change)));
        assert_eq!(gathering.wait(&pool, at(290)), Some(Duration::from_millis(10)), "200 after the first");
        assert_eq!(gathering.wait(&pool, at(300)), None);
    }
}
