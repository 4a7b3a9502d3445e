//! Which claims this process has seen since when, and which of them have been counted as started.
//!
//! The reference writes both onto the claim, at two API writes per claim. Here they live in memory. A claim whose
//! past this process does not know counts as counted: a latency may be missed in a restart, never told twice.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use asb_types::{Claim, condition, key};
use jiff::Timestamp;

use crate::object::Key;

#[derive(Default)]
pub struct Observed {
    claims: Mutex<HashMap<Key, Entry>>,
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    uid: String,
    since: Timestamp,
    counted: bool,
}

impl Observed {
    /// Remembers when a claim was first seen.
    pub fn see(&self, claim: &Claim, now: Timestamp) {
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let mut claims = self.lock();
        let known = claims.get(&Key::of(claim)).is_some_and(|entry| entry.uid == uid);
        if !known {
            claims.insert(Key::of(claim), Entry { uid, since: now, counted: has_a_past(claim) });
        }
    }

    /// Forgets a claim that is gone; one that has its name by now is another.
    pub fn forget(&self, claim: &Claim) {
        let mut claims = self.lock();
        if claims.get(&Key::of(claim)).is_some_and(|entry| Some(&entry.uid) == claim.metadata.uid.as_ref()) {
            claims.remove(&Key::of(claim));
        }
    }

    /// When a claim was first seen, the first time that this is asked; afterwards never again.
    pub fn count(&self, claim: &Claim) -> Option<Timestamp> {
        let mut claims = self.lock();
        let entry = claims.get_mut(&Key::of(claim))?;
        let same = Some(&entry.uid) == claim.metadata.uid.as_ref();
        (same && !std::mem::replace(&mut entry.counted, true)).then_some(entry.since)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a claim may have been Ready before.
fn has_a_past(claim: &Claim) -> bool {
    let conditions = claim.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let noted = claim
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|notes| notes.contains_key(key::CLAIM_FIRST_READY_AT));
    noted || condition::get(conditions, condition::READY).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(uid: &str, patch: Value) -> Claim {
        let mut object = json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": uid}, "spec": {"warmPoolRef": {"name": "p"}},
        });
        json_patch::merge(&mut object, &patch);
        serde_json::from_value(object).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// CL-142
    #[test]
    fn first_sight_counts_once_and_another_claim_of_that_name_begins_anew() {
        let observed = Observed::default();
        let (old, new) = (claim("1", json!({})), claim("2", json!({})));
        observed.see(&old, at(1));
        observed.see(&old, at(2));
        observed.see(&new, at(3));
        observed.forget(&old);
        assert_eq!(observed.count(&old), None, "it is gone");
        assert_eq!((observed.count(&new), observed.count(&new)), (Some(at(3)), None));
        observed.forget(&new);
        assert!(observed.lock().is_empty(), "nothing is remembered longer than needed");
    }

    /// MG-31, MG-33: neither a restart nor a flap counts a claim twice
    #[test]
    fn claim_with_a_past_is_never_counted() {
        let ready = json!({"type": "Ready", "status": "False", "reason": "X", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        for past in [
            json!({"status": {"conditions": [ready]}}),
            json!({"metadata": {"annotations": {key::CLAIM_FIRST_READY_AT: "unknown"}}}),
        ] {
            let observed = Observed::default();
            let claim = claim("1", past);
            observed.see(&claim, at(1));
            assert_eq!(observed.count(&claim), None);
        }
    }
}
