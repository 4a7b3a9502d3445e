//! Decides what a pool's status says, and when it is time to say it. Pure.

use std::sync::Arc;
use std::time::Duration;

use asb_types::{Sandbox, Template, WarmPool, WarmPoolStatus, condition, key};
use jiff::Timestamp;

use super::blueprint::Blueprint;
use super::plan::{hash, is_ours, leaving};
use super::rollout;

/// Numbers of members are told when they have been different for this long.
const SETTLES: Duration = Duration::from_millis(500);

/// The status that tells what is there.
pub fn judge(
    pool: &WarmPool,
    sandboxes: &[Arc<Sandbox>],
    template: Option<&Template>,
    stuck: bool,
    now: Timestamp,
) -> WarmPoolStatus {
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let blueprint = template.map(Blueprint::of);
    let (mut members, mut ready, mut updated) = (0, 0, 0);
    for member in sandboxes.iter().filter(|sandbox| is_ours(pool, sandbox) && !leaving(sandbox)) {
        let stale = blueprint.as_ref().is_some_and(|blueprint| blueprint.is_stale(member));
        members += 1;
        ready += usize::from(member.is_ready());
        updated += usize::from(!stale);
    }
    let before = pool.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let mut status = WarmPoolStatus {
        replicas: count(members),
        ready_replicas: count(ready),
        selector: Some(format!("{}={}", key::WARM_POOL_SANDBOX, hash(pool))),
        observed_generation: pool.metadata.generation,
        updated_replicas: None,
        conditions: before,
    };
    match rollout::progress(pool, updated, members, stuck) {
        Some(verdict) => {
            status.updated_replicas = Some(count(updated));
            condition::set(&mut status.conditions, verdict, pool.metadata.generation, now);
        }
        None => condition::remove(&mut status.conditions, rollout::PROGRESSING),
    }
    status
}

/// How long a status should wait until it is written; `None` when it says nothing new.
///
/// A member that is taken and replaced meanwhile changes nothing, and many that come and go are told in one write.
/// An answer to a changed spec does not wait. `unsaid` is since when the numbers are not those of the pool.
pub fn wait(
    before: Option<&WarmPoolStatus>,
    after: &WarmPoolStatus,
    unsaid: &mut Option<Timestamp>,
    now: Timestamp,
) -> Option<Duration> {
    if before == Some(after) {
        *unsaid = None;
        return None;
    }
    let answers = before.is_none_or(|before| before.observed_generation != after.observed_generation);
    let since = *unsaid.get_or_insert(now);
    let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    let left = if answers { Duration::ZERO } else { SETTLES.saturating_sub(waited) };
    if left.is_zero() {
        *unsaid = None;
    }
    Some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_when_they_have_settled_and_answers_at_once() {
        let at = |millisecond| Timestamp::from_millisecond(millisecond).unwrap();
        let status = |replicas, generation| WarmPoolStatus {
            replicas,
            observed_generation: Some(generation),
            ..WarmPoolStatus::default()
        };
        let mut unsaid = None;
        let mut wait = |after, now| super::wait(Some(&status(3, 1)), &after, &mut unsaid, at(now));
        assert_eq!(wait(status(2, 1), 0), Some(Duration::from_millis(500)));
        assert_eq!(wait(status(1, 1), 400), Some(Duration::from_millis(100)), "never put off again");
        assert_eq!(wait(status(3, 1), 450), None, "replaced meanwhile: nothing to tell");
        assert_eq!(wait(status(2, 1), 460), Some(Duration::from_millis(500)));
        assert_eq!(wait(status(2, 2), 470), Some(Duration::ZERO), "the spec changed");
        assert_eq!(wait(status(2, 1), 1000), Some(Duration::from_millis(500)));
        assert_eq!(wait(status(2, 1), 1500), Some(Duration::ZERO));
        assert_eq!(super::wait(None, &status(0, 1), &mut None, at(0)), Some(Duration::ZERO));
    }
}
