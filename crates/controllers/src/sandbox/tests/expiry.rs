//! A Sandbox whose time is up.

use std::time::Duration;

use serde_json::json;

use super::world::*;
use crate::sandbox::plan::{Action, Seen, plan};
use asb_types::condition::{FINISHED, READY};

fn expired(policy: &str) -> World {
    let spec = json!({"service": true, "shutdownTime": "1970-01-01T00:01:40Z", "shutdownPolicy": policy});
    World::new(sandbox(spec), seen(Some(ready_pod()), Some(service().owned())))
}

/// SB-100
#[test]
fn look_again_exactly_when_the_time_is_up() {
    let until = |second: i64| {
        let sandbox = sandbox(json!({"shutdownTime": at(second).to_string()}));
        (sandbox.spec.expired(at(100)), plan(&sandbox, &seen(Some(ready_pod()), None), at(100)).look_again)
    };
    assert_eq!(plan(&sandbox(json!({})), &seen(None, None), at(100)).look_again, None);
    assert_eq!(until(160), (false, Some(Duration::from_secs(60))));
    assert_eq!(until(101), (false, Some(Duration::from_secs(1))), "not a second late");
    assert_eq!(until(100), (true, Some(Duration::ZERO)));
    assert!(until(99).0);
}

/// SB-101, SB-106
#[test]
fn expiry_first_tells_then_tears_down_and_keeps_the_sandbox() {
    let mut world = expired("Retain");
    let finished = old_condition(FINISHED, "True", "PodSucceeded");
    world.sandbox.status = Some(asb_types::SandboxStatus {
        conditions: vec![finished],
        pod_ips: vec!["10.0.0.1".into()],
        ..Default::default()
    });
    let marking = world.pass();
    assert_eq!((marking.actions, marking.look_again), (vec![], Some(Duration::ZERO)));
    let status = world.sandbox.status.clone().unwrap();
    assert_eq!(said(&status, READY), Some(("False", "SandboxExpired", "Sandbox has expired")));
    assert_eq!(status.pod_ips, ["10.0.0.1"], "nothing is gone yet");
    let rest = world.settle();
    assert_eq!(rest.look_again, None);
    assert!(world.seen.named_pod.is_none() && world.seen.service.is_none() && !world.sandbox_deleted);
    let status = world.sandbox.status.clone().unwrap();
    assert_eq!((status.pod_ips.len(), status.service.is_none()), (0, true));
    assert_eq!(said(&status, FINISHED).unwrap().1, "PodSucceeded");
}

/// SB-103
#[test]
fn policy_delete_removes_the_sandbox_after_its_children() {
    let mut world = expired("Delete");
    world.pass();
    world.pass();
    assert!(world.sandbox_deleted);
    assert!(matches!(
        world.history[..],
        [Action::DeletePod(_), Action::DeleteService(_), Action::DeleteSandbox(_)]
    ));
}

/// SB-104
#[test]
fn pod_of_somebody_else_survives_expiry() {
    let mut world = expired("Retain");
    world.seen = seen(Some(ready_pod().foreign()), Some(service().owned()));
    world.settle();
    assert!(world.seen.named_pod.is_some() && world.seen.service.is_none());
}

#[test]
fn moving_the_time_brings_an_expired_sandbox_back() {
    let mut world = expired("Retain");
    world.settle();
    world.sandbox.spec.shutdown_time = None;
    world.settle();
    assert!(world.seen.named_pod.is_some());
    assert_eq!(said(&world.sandbox.status.clone().unwrap(), READY).unwrap().1, "DependenciesNotReady");
}

/// SB-102
#[test]
fn expiry_deletes_the_pod_whatever_its_name() {
    let mut world = expired("Retain");
    let older = ready_pod().edit(json!({"metadata": {"name": "older"}}));
    world.seen = Seen { owned_pods: vec![std::sync::Arc::new(older)], ..Seen::default() };
    world.pass();
    let deleted = world.pass().actions;
    assert!(matches!(&deleted[..], [Action::DeletePod(pod)] if pod.name == "older"), "{deleted:?}");
}

/// SB-105
#[test]
fn expiry_without_children_needs_one_pass() {
    let mut world = expired("Retain");
    world.seen = seen(None, None);
    world.pass();
    let status = world.sandbox.status.clone();
    assert_eq!(said(&status.clone().unwrap(), READY).unwrap().1, "SandboxExpired");
    world.settle();
    assert_eq!(world.sandbox.status, status);
}
