//! When a claim's time is up.

use std::time::Duration;

use asb_types::claim::Lifecycle;
use asb_types::condition::{self, reason};
use asb_types::{Claim, ClaimStatus, WarmPool};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The lifecycle that a claim has: its own, else the one that its pool gives to claims.
pub fn lifecycle(claim: &Claim, pool: Option<&WarmPool>) -> Option<Lifecycle> {
    let given = || {
        let given = pool?.spec.claim_lifecycle.as_ref()?;
        let born = claim.metadata.creation_timestamp.as_ref();
        let shutdown = born.zip(given.shutdown_after_seconds).and_then(|(born, seconds)| {
            born.0.checked_add(SignedDuration::from_secs(seconds.into())).ok().map(Time)
        });
        Some(Lifecycle {
            shutdown_time: shutdown,
            ttl_seconds_after_finished: given.ttl_seconds_after_finished,
            shutdown_policy: given.shutdown_policy,
        })
    };
    claim.spec.lifecycle.clone().or_else(given)
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
