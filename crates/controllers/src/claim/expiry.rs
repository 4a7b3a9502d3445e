//! When a claim's time is up.

use std::time::Duration;

use asb_types::claim::Lifecycle;
use asb_types::condition::{self, reason};
use asb_types::{Claim, ClaimStatus, WarmPool};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The lifecycle that a claim has: its own, else the one that its pool gives to claims. The one place that decides it.
pub fn lifecycle(claim: &Claim, pool: Option<&WarmPool>) -> Option<Lifecycle> {
    let of_the_pool = || {
        let given = pool?.spec.claim_lifecycle.as_ref()?;
        let born = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let after = given.shutdown_after_seconds.map(|seconds| SignedDuration::from_secs(seconds.into()));
        let shutdown_time = born.zip(after).and_then(|(born, after)| born.checked_add(after).ok()).map(Time);
        let (ttl_seconds_after_finished, shutdown_policy) =
            (given.ttl_seconds_after_finished, given.shutdown_policy);
        Some(Lifecycle { shutdown_time, ttl_seconds_after_finished, shutdown_policy })
    };
    claim.spec.lifecycle.clone().or_else(of_the_pool)
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
