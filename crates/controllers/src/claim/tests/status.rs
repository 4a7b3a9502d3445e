//! What a claim says, and when its time is up.

use std::time::Duration;

use asb_types::{Claim, ClaimStatus, Sandbox, condition};
use serde_json::{Value, json};

use super::world::*;
use crate::claim::expiry::{is_marked, lifecycle, time_left};
use crate::claim::judge::{judge, mark_expired, patch, retained};
use crate::claim::problem::Problem;

fn ready_of(status: &ClaimStatus) -> (String, String, String) {
    let ready = condition::get(&status.conditions, "Ready").unwrap();
    (ready.status.clone(), ready.reason.clone(), ready.message.clone())
}

fn with(claim: &Claim, status: ClaimStatus) -> Claim {
    Claim { status: Some(status), ..claim.clone() }
}

fn finished(sandbox: Sandbox) -> Sandbox {
    let said = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "PodFailed",
        "message": "Pod failed", "lastTransitionTime": at(200).to_string(), "observedGeneration": 9})
    };
    edit(&sandbox, json!({"status": {"conditions": [said("Finished", "True"), said("Ready", "False")]}}))
}

/// CL-001, CL-010
#[test]
fn sandbox_without_a_word_is_not_ready() {
    let status = judge(&claim("c", json!({})), Ok(&member("m", 1)), at(300));
    assert_eq!(status.conditions.len(), 1);
    assert_eq!(ready_of(&status), ("False".into(), "SandboxNotReady".into(), "Sandbox is not ready".into()));
    assert_eq!(status.sandbox.unwrap().name, "m");
}

/// CL-008: and the claim was not Ready before it was there (weak spot 9)
#[test]
fn ready_is_forwarded_with_the_claims_generation() {
    let sandbox = edit(&ready(member("m", 1)), json!({"status": {"serviceFQDN": "m.ns.svc"}}));
    let status = judge(&claim("c", json!({})), Ok(&sandbox), at(300));
    let ready = condition::get(&status.conditions, "Ready").unwrap();
    assert_eq!((ready.observed_generation, ready.reason.as_str()), (Some(3), "DependenciesReady"));
    assert_eq!(ready.last_transition_time.0, at(100), "the Sandbox was Ready at 50, the claim came at 100");
    assert_eq!(
        json!(status.sandbox),
        json!({"name": "m", "podIPs": ["10.0.0.1"], "serviceFQDN": "m.ns.svc"})
    );
    let early = claim("c", json!({"metadata": {"creationTimestamp": at(10).to_string()}}));
    let since = |claim: &Claim, sandbox: &Sandbox| {
        let status = judge(claim, Ok(sandbox), at(300));
        (condition::get(&status.conditions, "Ready").unwrap().last_transition_time.0, status)
    };
    let (time, status) = since(&early, &sandbox);
    assert_eq!(time, at(50));
    let mut later = sandbox;
    later.status.as_mut().unwrap().conditions[0].last_transition_time.0 = at(200);
    assert_eq!(since(&with(&early, status.clone()), &later).0, at(50), "Ready all the time");
    let lost = saying(later.clone(), "False", "PodFailed");
    let lost = with(&early, judge(&with(&early, status), Ok(&lost), at(150)));
    assert_eq!(since(&lost, &later).0, at(200), "Ready again");
}

/// Reasons that are final for clients reach the claim as they are; an expired Sandbox has a reason of its own.
#[test]
fn final_reasons_are_forwarded() {
    for reason in ["InvalidConfiguration", "PodFailed", "PodSucceeded", "SandboxSuspended"] {
        let status = judge(&claim("c", json!({})), Ok(&saying(member("m", 1), "False", reason)), at(300));
        assert_eq!(ready_of(&status).1, reason);
    }
    let status =
        judge(&claim("c", json!({})), Ok(&saying(member("m", 1), "False", "SandboxExpired")), at(300));
    assert_eq!(ready_of(&status).1, "SandboxExpired");
    assert!(ready_of(&status).2.contains("independently of the claim"));
}

/// CL-063: and it goes when the Sandbox takes it back
#[test]
fn finished_is_mirrored_as_it_is() {
    let claim = claim("c", json!({}));
    let status = judge(&claim, Ok(&finished(member("m", 1))), at(300));
    let types: Vec<_> = status.conditions.iter().map(|it| it.type_.as_str()).collect();
    assert_eq!(types, ["Finished", "Ready"]);
    let mirrored = condition::get(&status.conditions, "Finished").unwrap();
    assert_eq!((mirrored.observed_generation, mirrored.last_transition_time.0), (Some(9), at(200)));
    let status = judge(&with(&claim, status), Ok(&ready(member("m", 1))), at(400));
    assert_eq!(status.conditions.len(), 1);
}

/// CL-111; weak spot 8 of the reference: a passing error does not make anybody forget that the Pod had ended
#[test]
fn problem_keeps_what_was_known_of_the_sandbox() {
    let claim = claim("c", json!({}));
    let known = with(&claim, judge(&claim, Ok(&finished(member("m", 1))), at(300)));
    let status = judge(&known, Err(&Problem::Failed("no route".into())), at(400));
    assert_eq!(ready_of(&status), ("False".into(), "ReconcilerError".into(), "Error seen: no route".into()));
    assert_eq!(status.sandbox.unwrap().name, "m");
    assert!(condition::get(&status.conditions, "Finished").is_some());
}

/// CL-107
#[test]
fn conflict_says_nothing_of_the_api_servers_words() {
    let problem = Problem::Conflict("Sandbox \"m\" could not be taken".into());
    assert_eq!(problem.reason(), "AdoptionConflict");
    assert_eq!(
        problem.message(),
        "Sandbox \"m\" could not be taken (conflicting concurrent write); the next pass retries"
    );
}

#[test]
fn status_patch_names_what_is_gone() {
    let status = judge(&claim("c", json!({})), Ok(&member("m", 1)), at(300));
    assert_eq!(patch(&status)["sandbox"], json!({"name": "m", "podIPs": null, "serviceFQDN": null}));
    assert_eq!(patch(&ClaimStatus::default()), json!({"conditions": [], "sandbox": null}));
}

fn left(lifecycle_: Value, finished_at: Option<i64>, now: i64) -> Option<Duration> {
    let claim = claim("c", json!({"spec": {"lifecycle": lifecycle_}}));
    let conditions: Vec<_> = finished_at
        .map(|second| {
            json!({"type": "Finished", "status": "True", "reason": "X", "message": "",
            "lastTransitionTime": at(second).to_string()})
        })
        .into_iter()
        .collect();
    let status = serde_json::from_value(json!({"conditions": conditions})).unwrap();
    time_left(lifecycle(&claim, None).as_ref(), &status, at(now))
}

/// CL-066
#[test]
fn the_earlier_of_shutdown_time_and_ttl_ends_a_claim() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let shutdown = json!({"shutdownTime": at(1000).to_string()});
    let both = json!({"shutdownTime": at(1000).to_string(), "ttlSecondsAfterFinished": 60});
    assert_eq!(left(json!(null), Some(1), 5000), None);
    assert_eq!(left(json!({}), Some(1), 5000), None);
    assert_eq!(left(shutdown.clone(), None, 900), seconds(100));
    assert_eq!(left(shutdown.clone(), None, 1000), seconds(0));
    assert_eq!(left(shutdown, None, 2000), seconds(0));
    assert_eq!(left(json!({"ttlSecondsAfterFinished": 60}), None, 5000), None, "not finished");
    assert_eq!(left(json!({"ttlSecondsAfterFinished": 60}), Some(100), 130), seconds(30));
    assert_eq!(left(json!({"ttlSecondsAfterFinished": 0}), Some(100), 100), seconds(0));
    assert_eq!(left(both.clone(), Some(100), 100), seconds(60));
    assert_eq!(left(both, Some(990), 990), seconds(10));
    assert_eq!(left(json!({"ttlSecondsAfterFinished": 0}), Some(0), 100), None, "a time that says nothing");
}

/// CL-064, CL-065
#[test]
fn expiry_is_said_before_anything_goes() {
    let claim = claim("c", json!({}));
    let marked = mark_expired(&claim, judge(&claim, Ok(&finished(member("m", 1))), at(300)), at(300));
    assert!(is_marked(&marked));
    assert_eq!(
        ready_of(&marked),
        ("False".into(), "ClaimExpired".into(), "Claim expired. Sandbox cleanup initiated.".into())
    );
    assert!(condition::get(&marked.conditions, "Finished").is_some());
    assert_eq!(marked.sandbox.unwrap().name, "m");
}

/// CL-060, CL-061, CL-064
#[test]
fn retained_claim_keeps_its_story_and_loses_its_sandbox() {
    let claim = claim("c", json!({}));
    let mine = finished(member("m", 1));
    let marked = with(&claim, mark_expired(&claim, judge(&claim, Ok(&mine), at(300)), at(300)));
    let going = retained(&marked, Some(&leaving(mine)), None, at(301));
    assert_eq!(Some(&going), marked.status.as_ref(), "nothing to say until it is gone");
    let gone = retained(&marked, None, None, at(302));
    assert_eq!(gone.sandbox, None);
    assert!(condition::get(&gone.conditions, "Finished").is_some());
    assert_eq!(ready_of(&gone).1, "ClaimExpired");
    let skipped = retained(&marked, None, Some("m"), at(302));
    assert_eq!(skipped.sandbox, None);
    assert!(ready_of(&skipped).2.contains("deletion was skipped"));
    assert_eq!(retained(&with(&claim, skipped.clone()), None, None, at(303)), skipped, "at rest");
}

#[test]
fn pool_gives_a_lifecycle_to_claims_that_have_none() {
    let giving = pool(json!({"claimLifecycle": {"shutdownAfterSeconds": 60, "shutdownPolicy": "Delete"}}));
    let silent = claim("c", json!({"metadata": {"creationTimestamp": at(100).to_string()}}));
    let given = json!(lifecycle(&silent, Some(&giving)));
    assert_eq!(given, json!({"shutdownTime": at(160).to_string(), "shutdownPolicy": "Delete"}));
    assert_eq!(lifecycle(&silent, Some(&pool(json!({})))), None);

    let own = claim("c", json!({"spec": {"lifecycle": {"ttlSecondsAfterFinished": 5}}}));
    assert_eq!(lifecycle(&own, Some(&giving)), own.spec.lifecycle, "its own word counts");
}
