//! Which changes wake which claims.

use std::sync::Arc;

use asb_types::Sandbox;
use serde_json::{Value, json};

use super::world::*;
use crate::cache::Change;
use crate::claim::{concerns, gives_other_lifecycle, is_new_spec, waits_for_a_member, woken_by};

fn woken(before: Option<Sandbox>, after: Option<Sandbox>) -> Vec<String> {
    let change = Change { before: before.map(Arc::new), after: after.map(Arc::new) };
    let mut names: Vec<_> = woken_by(&change).into_iter().map(|key| key.name).collect();
    names.dedup();
    names
}

/// CL-123
#[test]
fn claim_wakes_for_what_it_mirrors_and_nothing_else() {
    let claim = claim("c", json!({}));
    let bound = taken_by(ready(member("m", 1)), &claim);
    let after = |patch: Value| woken(Some(bound.clone()), Some(edit(&bound, patch)));
    let said = |kind: &str, reason: &str| {
        let old = json!(bound.status)["conditions"][0].clone();
        let new = json!({"type": kind, "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": at(1).to_string()});
        let conditions = if kind == "Ready" { vec![new] } else { vec![old, new] };
        json!({"status": {"conditions": conditions}})
    };
    for news in [
        json!({"metadata": {"deletionTimestamp": at(1).to_string()}}),
        json!({"status": {"podIPs": ["10.0.0.2"]}}),
        json!({"status": {"serviceFQDN": "m.ns.svc"}}),
        said("Ready", "PodFailed"),
        said("Finished", "PodFailed"),
    ] {
        assert_eq!(after(news.clone()), ["c"], "{news}");
    }
    for nothing in [json!({}), said("Suspended", "X"), json!({"status": {"nodeName": "n"}})] {
        assert_eq!(after(nothing.clone()), [""; 0], "{nothing}");
    }
    assert_eq!(woken(None, Some(bound.clone())), ["c"]);
    assert_eq!(woken(Some(ready(member("m", 1))), Some(bound.clone())), ["c"], "it was taken");
    assert_eq!(woken(Some(bound), None), ["c", "m"], "and whoever waits for its name");
    assert_eq!(woken(None, Some(member("m", 1))), [""; 0]);
}

/// CL-120, CL-121, CL-122
#[test]
fn status_of_a_pool_wakes_nobody() {
    let change = |before: Option<Value>, after: Option<Value>| {
        let side = |patch: Option<Value>| patch.map(|patch| Arc::new(edit(&pool(json!({})), patch)));
        Change { before: side(before), after: side(after) }
    };
    let generation = |generation| json!({"metadata": {"generation": generation}});
    let ready = json!({"metadata": {"generation": 1}, "status": {"readyReplicas": 3}});
    assert!(!is_new_spec(&change(Some(generation(1)), Some(ready))));
    assert!(is_new_spec(&change(Some(generation(1)), Some(generation(2)))));
    assert!(is_new_spec(&change(None, Some(generation(1)))));
    assert!(is_new_spec(&change(Some(generation(1)), None)));

    let lives = |seconds| json!({"spec": {"claimLifecycle": {"shutdownAfterSeconds": seconds}}});
    assert!(gives_other_lifecycle(&change(Some(lives(1)), Some(lives(2)))));
    assert!(!gives_other_lifecycle(&change(Some(lives(1)), Some(lives(1)))));
    assert!(!gives_other_lifecycle(&change(None, Some(json!({})))));

    // CL-120
    let bound = claim("c", json!({"status": {"sandbox": {"name": "m"}}}));
    let resized = change(Some(generation(1)), Some(generation(2)));
    assert!(concerns(&resized, &claim("c", json!({}))) && !concerns(&resized, &bound));
    assert!(concerns(&change(Some(lives(1)), Some(lives(2))), &bound), "its time is another");
}

#[test]
fn only_new_claims_that_a_pool_can_serve_stand_in_line() {
    assert!(waits_for_a_member(&claim("c", json!({}))));
    let heard = json!([{"type": "Ready", "status": "False", "reason": "X", "message": "",
        "lastTransitionTime": at(1).to_string()}]);
    for other in [
        json!({"spec": {"env": [{"name": "A", "value": "1"}]}}),
        json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "a"}, "spec": {}}]}}),
        json!({"metadata": {"deletionTimestamp": at(1).to_string()}}),
        json!({"status": {"conditions": heard}}),
    ] {
        assert!(!waits_for_a_member(&claim("c", other.clone())), "{other}");
    }
}
