//! What to do about the Lease. Pure: the time is handed in.
//!
//! Clocks of two machines differ, so the times *in* the Lease decide nothing. A candidate notes when it saw
//! the Lease change, by its own monotonic clock, and calls it expired when it has not changed for as long
//! as it was taken for. The holder counts from before it sent its renewal, a candidate from after it saw
//! it: the holder always gives up first.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

/// What the Lease says, and since when it has said so.
#[derive(Debug, Clone)]
pub struct Seen {
    pub lease: Lease,
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is ours.
    Hold,
    /// It is nobody's.
    Take,
    /// It is somebody's.
    Wait,
}

impl Seen {
    /// Takes in a look at the Lease; only a change of what it says starts the time anew.
    pub fn look(before: Option<&Self>, lease: Lease, now: Instant) -> Self {
        let unchanged = before.filter(|before| before.lease.spec == lease.spec);
        Self { lease, since: unchanged.map_or(now, |before| before.since) }
    }
}

/// Decides for `me`, who knows this of the Lease.
pub fn decide(seen: Option<&Seen>, me: &str, now: Instant) -> Step {
    let Some(seen) = seen else { return Step::Take };
    let (holder, duration) = terms(&seen.lease);
    if holder == me {
        return Step::Hold;
    }
    let expired = now >= seen.since + duration;
    if holder.is_empty() || expired { Step::Take } else { Step::Wait }
}

pub fn holder(lease: &Lease) -> &str {
    terms(lease).0
}

fn terms(lease: &Lease) -> (&str, Duration) {
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
    (holder, Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
}

/// The Lease as its holder writes it; the resourceVersion of `before` makes sure that nobody came between.
pub fn held(before: &Lease, me: &str, duration: Duration, now: Timestamp) -> Lease {
    let mut lease = before.clone();
    let ours = holder(before) == me;
    let spec = lease.spec.get_or_insert_default();
    if !ours {
        spec.acquire_time = Some(MicroTime(now));
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1)));
    }
    spec.holder_identity = Some(me.to_owned());
    spec.lease_duration_seconds = Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX));
    spec.renew_time = Some(MicroTime(now));
    lease
}

/// The Lease as a holder leaves it.
pub fn released(before: &Lease, now: Timestamp) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        ..before.spec.clone().unwrap_or_default()
    };
    Lease { spec: Some(spec), ..before.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn lease_of_nobody_is_taken() {
        let now = Instant::now();
        assert_eq!(decide(None, "me", now), Step::Take);
        let free = released(&held(&Lease::default(), "other", LEASE, at(0)), at(1));
        assert_eq!(decide(Some(&Seen::look(None, free, now)), "me", now), Step::Take);
    }

    #[test]
    fn lease_expires_when_it_has_not_changed_for_its_duration_whatever_times_it_holds() {
        let start = Instant::now();
        // The other's clock is a year behind; then a year ahead.
        for skew in [-31_536_000, 31_536_000] {
            let lease = held(&Lease::default(), "other", LEASE, at(skew));
            let seen = Seen::look(None, lease.clone(), start);
            assert_eq!(decide(Some(&seen), "me", start), Step::Wait);
            let later = start + Duration::from_secs(14);
            let again = Seen::look(Some(&seen), lease.clone(), later);
            assert_eq!(decide(Some(&again), "me", later), Step::Wait);
            assert_eq!(decide(Some(&again), "me", start + LEASE), Step::Take);

            let renewed = held(&lease, "other", LEASE, at(skew + 2));
            let seen = Seen::look(Some(&again), renewed, start + LEASE);
            assert_eq!(decide(Some(&seen), "me", start + LEASE), Step::Wait, "it changed, so it lives");
        }
    }

    #[test]
    fn own_lease_is_held_even_when_it_looks_old() {
        let now = Instant::now();
        let seen = Seen::look(None, held(&Lease::default(), "me", LEASE, at(0)), now);
        assert_eq!(decide(Some(&seen), "me", now + LEASE * 2), Step::Hold);
    }

    #[test]
    fn only_a_change_of_holder_counts_as_a_transition() {
        let first = held(&Lease::default(), "a", LEASE, at(0)).spec.unwrap();
        assert_eq!((first.lease_transitions, first.acquire_time.clone()), (Some(0), Some(MicroTime(at(0)))));
        let lease = Lease { spec: Some(first), ..Lease::default() };
        let renewed = held(&lease, "a", LEASE, at(2)).spec.unwrap();
        assert_eq!((renewed.lease_transitions, renewed.acquire_time), (Some(0), Some(MicroTime(at(0)))));
        assert_eq!(renewed.renew_time, Some(MicroTime(at(2))));
        let taken = held(&released(&lease, at(3)), "b", LEASE, at(4)).spec.unwrap();
        assert_eq!((taken.lease_transitions, taken.acquire_time), (Some(1), Some(MicroTime(at(4)))));
        assert_eq!(taken.lease_duration_seconds, Some(15));
    }
}
