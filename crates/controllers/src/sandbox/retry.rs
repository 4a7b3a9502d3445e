//! When a failed Pod is made again: after a pause that grows with every failure. Pure.
//!
//! The count is only in memory: a new leader begins with the shortest pause.

use std::time::Duration;

use asb_types::{PodFailurePolicy, Sandbox, condition};
use jiff::Timestamp;

use crate::object::Pod;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// A Sandbox that was Ready for so long before its Pod failed has a clean record.
const FORGIVEN_AFTER: Duration = Duration::from_secs(10 * 60);

/// The failures of a Sandbox's Pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failures {
    count: u32,
    /// The last Pod that failed, and when that was seen.
    last: Option<(String, Timestamp)>,
}

/// What follows from a failed Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    pub failures: u32,
    pub pause: Duration,
    /// What is left of the pause.
    pub left: Duration,
}

impl Failures {
    /// Takes notice of a failed Pod. `None` when it stays as it is.
    pub fn note(&mut self, sandbox: &Sandbox, pod: &Pod, now: Timestamp) -> Option<Retry> {
        if sandbox.spec.pod_failure_policy != Some(PodFailurePolicy::Recreate) || pod.status.phase != "Failed"
        {
            return None;
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if self.last.as_ref().is_none_or(|(known, _)| *known != uid) {
            self.count = if long_ready(sandbox, now) { 1 } else { self.count.saturating_add(1) };
            self.last = Some((uid, now));
        }
        let since = self.last.as_ref().map_or(now, |(_, since)| *since);
        let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let doublings = self.count.saturating_sub(1).min(16);
        let pause = FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE);
        Some(Retry { failures: self.count, pause, left: pause.saturating_sub(waited) })
    }
}

fn long_ready(sandbox: &Sandbox, now: Timestamp) -> bool {
    sandbox.condition(condition::READY).is_some_and(|ready| {
        let since = Duration::try_from(now.duration_since(ready.last_transition_time.0)).unwrap_or_default();
        ready.status == "True" && since >= FORGIVEN_AFTER
    })
}
