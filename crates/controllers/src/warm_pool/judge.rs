//! Decides what a pool's status says, and when it is time to say it. Pure.

use std::sync::Arc;
use std::time::Duration;

use asb_types::{Sandbox, Template, WarmPool, WarmPoolStatus, condition, key};
use jiff::Timestamp;

use super::blueprint::Blueprint;
use super::plan::{hash, is_ours, leaving, ready};
use super::rollout;

/// Numbers of members change with every claim: they are told at most this often.
const PAUSE: Duration = Duration::from_secs(1);

/// The status that tells what is there.
pub fn judge(
    pool: &WarmPool,
    sandboxes: &[Arc<Sandbox>],
    template: Option<&Template>,
    stuck: bool,
    now: Timestamp,
) -> WarmPoolStatus {
    let members = || sandboxes.iter().filter(|sandbox| is_ours(pool, sandbox) && !leaving(sandbox));
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let blueprint = template.map(Blueprint::of);
    let follows =
        |member: &&Arc<Sandbox>| blueprint.as_ref().is_none_or(|blueprint| !blueprint.is_stale(member));
    let before = pool.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let mut status = WarmPoolStatus {
        replicas: count(members().count()),
        ready_replicas: count(members().filter(|sandbox| ready(sandbox)).count()),
        selector: Some(format!("{}={}", key::WARM_POOL_SANDBOX, hash(pool))),
        observed_generation: pool.metadata.generation,
        updated_replicas: None,
        conditions: before,
    };
    let updated = members().filter(follows).count();
    match rollout::progress(pool, updated, members().count(), stuck) {
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
/// An answer to a changed spec does not wait.
pub fn wait(
    before: Option<&WarmPoolStatus>,
    after: &WarmPoolStatus,
    told: Option<Timestamp>,
    now: Timestamp,
) -> Option<Duration> {
    if before == Some(after) {
        return None;
    }
    let answers = before.is_none_or(|before| before.observed_generation != after.observed_generation);
    let since = told.map(|told| Duration::try_from(now.duration_since(told)).unwrap_or_default());
    Some(match since {
        Some(since) if !answers => PAUSE.saturating_sub(since),
        _ => Duration::ZERO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_once_a_second_and_answers_at_once() {
        let at = |millisecond| Timestamp::from_millisecond(millisecond).unwrap();
        let status = |replicas, generation| WarmPoolStatus {
            replicas,
            observed_generation: Some(generation),
            ..WarmPoolStatus::default()
        };
        let told = Some(at(1000));
        let wait = |after, now| super::wait(Some(&status(3, 1)), &after, told, at(now));
        assert_eq!(wait(status(3, 1), 1200), None, "nothing new");
        assert_eq!(wait(status(2, 1), 1200), Some(Duration::from_millis(800)));
        assert_eq!(wait(status(2, 1), 2500), Some(Duration::ZERO));
        assert_eq!(wait(status(2, 2), 1200), Some(Duration::ZERO), "the spec changed");
        assert_eq!(super::wait(None, &status(0, 1), None, at(0)), Some(Duration::ZERO));
    }
}
