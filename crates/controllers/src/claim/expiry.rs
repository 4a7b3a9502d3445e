//! When a claim's time is up.

use std::time::Duration;

use asb_types::claim::Lifecycle;
use asb_types::condition::{self, reason};
use asb_types::{Claim, ClaimStatus, WarmPool};
use jiff::{SignedDuration, Timestamp};

/// The lifecycle that a claim has. The one place that decides it.
pub fn lifecycle(claim: &Claim, _pool: Option<&WarmPool>) -> Option<Lifecycle> {
    claim.spec.lifecycle.clone()
}

/// How much time a claim has left; `None` means for ever, zero that it has expired.
///
/// `status` is the one that counts: what the claim says, or is about to say.
pub fn time_left(lifecycle: Option<&Lifecycle>, status: &ClaimStatus, now: Timestamp) -> Option<Duration> {
    let lifecycle = lifecycle?;
    let shutdown = lifecycle.shutdown_time.as_ref().map(|at| at.0);
    let finished = condition::get(&status.conditions, condition::FINISHED)
        .filter(|finished| finished.status == "True")
        .map(|finished| finished.last_transition_time.0)
        .filter(|at| *at != Timestamp::UNIX_EPOCH);
    let ttl = lifecycle.ttl_seconds_after_finished.map(|seconds| SignedDuration::from_secs(seconds.into()));
    let after_finish = finished.zip(ttl).and_then(|(at, ttl)| at.checked_add(ttl).ok());
    let at = shutdown.into_iter().chain(after_finish).min()?;
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

/// Whether the status already says that the claim has expired.
pub fn is_marked(status: &ClaimStatus) -> bool {
    condition::get(&status.conditions, condition::READY)
        .is_some_and(|ready| ready.reason == reason::CLAIM_EXPIRED)
}
