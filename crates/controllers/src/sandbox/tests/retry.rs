//! A Pod that failed and may be made again.

use std::time::Duration;

use serde_json::json;

use super::world::*;
use crate::object::Pod;
use crate::sandbox::plan::{Action, Seen, plan};
use crate::sandbox::retry::{Failures, Retry};
use asb_types::condition::{FINISHED, READY};
use asb_types::{Sandbox, SandboxStatus};

fn patient() -> Sandbox {
    sandbox(json!({
        "podFailurePolicy": "Recreate",
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
    }))
}

fn failed_pod(uid: &str) -> Pod {
    pod("Failed").owned().edit(json!({"metadata": {"uid": uid}}))
}

fn seen_failed(retry: Option<Retry>) -> Seen {
    let claims = vec![Some(std::sync::Arc::new(claim("data-box").owned()))];
    Seen { retry, volume_claims: claims, ..seen(Some(failed_pod("1")), None) }
}

#[test]
fn failed_pod_stays_unless_the_policy_says_otherwise() {
    let mut failures = Failures::default();
    assert_eq!(failures.note(&sandbox(json!({})), &failed_pod("1"), at(0)), None);
    assert_eq!(failures.note(&patient(), &ready_pod(), at(0)), None);
    assert_eq!(failures.note(&patient(), &pod("Succeeded").owned(), at(0)), None, "that is no failure");
    assert_eq!(failures, Failures::default());
}

#[test]
fn pause_grows_with_every_pod_that_fails_and_has_an_end() {
    let mut failures = Failures::default();
    let mut pause = |uid: &str, second| failures.note(&patient(), &failed_pod(uid), at(second)).unwrap();
    let seconds = Duration::from_secs;
    assert_eq!(pause("1", 0), Retry { failures: 1, pause: seconds(1), left: seconds(1) });
    assert_eq!(pause("1", 1), Retry { failures: 1, pause: seconds(1), left: Duration::ZERO });
    assert_eq!(pause("2", 5), Retry { failures: 2, pause: seconds(2), left: seconds(2) });
    let last = (3..40).map(|n| pause(&n.to_string(), 5)).last().unwrap();
    assert_eq!((last.failures, last.pause), (39, seconds(300)));
}

#[test]
fn sandbox_that_was_ready_for_long_has_a_clean_record() {
    let mut failures = Failures::default();
    failures.note(&patient(), &failed_pod("1"), at(0));
    let mut ready = old_condition(READY, "True", "DependenciesReady");
    ready.last_transition_time.0 = at(100);
    let sandbox = Sandbox {
        status: Some(SandboxStatus { conditions: vec![ready], ..Default::default() }),
        ..patient()
    };
    assert_eq!(failures.note(&sandbox, &failed_pod("2"), at(699)).unwrap().failures, 2);
    assert_eq!(failures.note(&sandbox, &failed_pod("3"), at(700)).unwrap().failures, 1);
}

#[test]
fn failed_pod_is_deleted_after_the_pause_and_its_volumes_stay() {
    let pause = Duration::from_secs(4);
    let waiting = seen_failed(Some(Retry { failures: 3, pause, left: Duration::from_secs(2) }));
    let look = plan(&patient(), &waiting, at(100));
    assert!(look.actions.iter().all(|action| !matches!(action, Action::DeletePod(_))));
    assert_eq!(look.look_again, Some(Duration::from_secs(2)));

    let over = seen_failed(Some(Retry { failures: 3, pause, left: Duration::ZERO }));
    let actions = plan(&patient(), &over, at(102)).actions;
    assert!(matches!(actions[..], [Action::DeletePod(_)]), "{actions:?}");
    let gone = Seen { owned_pods: vec![], named_pod: None, ..seen_failed(None) };
    let actions = plan(&patient(), &gone, at(103)).actions;
    assert!(matches!(actions[..], [Action::CreatePod(_)]), "{actions:?}");
}

#[test]
fn sandbox_with_another_try_has_not_finished() {
    let retry = Retry { failures: 3, pause: Duration::from_secs(4), left: Duration::ZERO };
    let trying = status(&patient(), &seen_failed(Some(retry)), &[]);
    let message = "Pod failed 3 times in a row; another one is made after a pause of 4s";
    assert_eq!(said(&trying, READY), Some(("False", "DependenciesNotReady", message)));
    assert_eq!(said(&trying, FINISHED), None);
}
