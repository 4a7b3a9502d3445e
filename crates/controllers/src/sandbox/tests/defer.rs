//! Writes that wait a moment for a better one.

use std::time::Duration;

use serde_json::json;

use super::world::*;
use crate::object::Pod;
use crate::sandbox::defer::{first_status, pod_patch};
use crate::sandbox::plan::{Action, Plan, plan};
use asb_types::Sandbox;

const HOUR: Duration = Duration::from_secs(3600);

/// A running Pod that lacks a label of its template.
fn drifted() -> (Sandbox, Pod) {
    (sandbox(json!({"podTemplate": {"metadata": {"labels": {"app": "x"}}}})), ready_pod())
}

fn planned(second: i64) -> Plan {
    let (sandbox, pod) = drifted();
    plan(&sandbox, &seen(Some(pod), None), at(second))
}

/// SB-112
#[test]
fn without_a_window_the_patch_goes_out_at_once() {
    let (mut plan, mut since) = (planned(100), None);
    pod_patch(&mut plan, &mut since, Duration::ZERO, at(100));
    assert!(matches!(plan.actions[..], [Action::PatchPod { .. }]));
    assert_eq!((plan.look_again, since), (None, None));
}

/// SB-113
#[test]
fn within_the_window_the_patch_waits_and_is_not_renewed() {
    let (mut first, mut since) = (planned(100), None);
    pod_patch(&mut first, &mut since, HOUR, at(100));
    assert_eq!((first.actions.len(), first.look_again), (0, Some(Duration::from_secs(1))), "never an hour");

    let later = at(100) + Duration::from_millis(400);
    let mut second = planned(100);
    pod_patch(&mut second, &mut since, HOUR, later);
    assert_eq!((second.actions.len(), second.look_again), (0, Some(Duration::from_millis(600))));

    let mut third = planned(101);
    pod_patch(&mut third, &mut since, HOUR, at(101));
    assert_eq!(third.actions, planned(101).actions, "the same patch as without a window");
    assert_eq!((third.look_again, since), (None, None), "nothing is remembered");
}

/// SB-113: the status does not wait
#[test]
fn status_is_the_same_while_the_patch_waits() {
    let (sandbox, pod) = drifted();
    let patched = pod.clone().edit(json!({"metadata": {"labels": {"app": "x"}}}));
    let waiting = status(&sandbox, &seen(Some(pod), None), &[]);
    assert_eq!(waiting, status(&sandbox, &seen(Some(patched), None), &[]));
}

/// SB-114
#[test]
fn new_process_begins_the_window_anew_and_ends_it() {
    let mut since = None;
    let mut plan = planned(500);
    pod_patch(&mut plan, &mut since, HOUR, at(500));
    assert!(plan.actions.is_empty());
    let mut plan = planned(501);
    pod_patch(&mut plan, &mut since, HOUR, at(501));
    assert_eq!(plan.actions, planned(100).actions);
}

#[test]
fn adoption_of_a_pod_never_waits() {
    let (sandbox, _) = drifted();
    let free = pod("Running").edit(json!({"metadata": {"labels": {asb_types::key::ADOPTABLE: "true"}}}));
    let mut plan = plan(&sandbox, &seen(Some(free), None), at(100));
    pod_patch(&mut plan, &mut None, HOUR, at(100));
    assert!(matches!(plan.actions[..], [Action::PatchPod { .. }]));
}

#[test]
fn sandbox_says_nothing_before_it_is_ready_or_late() {
    let pool = json!([{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
        "name": "pool", "uid": "pool-uid", "controller": true}]);
    let pooled = sandbox(json!({})).edit(json!({"metadata": {"ownerReferences": pool}}));
    for (sandbox, quiet) in [(sandbox(json!({})), 1), (pooled, 10)] {
        let starting = status(&sandbox, &seen(Some(pod("Pending").owned()), None), &[]);
        let mut since = None;
        let mut wait = |at| first_status(&sandbox, &starting, &mut since, at);
        let first = at(100) + Duration::from_millis(300);
        assert_eq!(wait(first), Some(Duration::from_secs(quiet)));
        let left = Duration::from_secs(quiet) - Duration::from_millis(200);
        assert_eq!(wait(first + Duration::from_millis(200)), Some(left), "a pass begins nothing anew");
        assert_eq!(wait(first + Duration::from_secs(quiet)), None, "late");
        assert_eq!(wait(first + Duration::from_secs(quiet + 1)), None, "until it was told");

        let at_once = |status| first_status(&sandbox, &status, &mut None, at(100)).is_none();
        assert!(at_once(status(&sandbox, &seen(Some(ready_pod()), None), &[])));
        let boom = [failed(super::super::plan::Step::Pod, "boom")];
        assert!(at_once(status(&sandbox, &seen(None, None), &boom)), "trouble");
        let homeless = pod("Pending").owned().edit(json!({"status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"},
        ]}}));
        assert!(at_once(status(&sandbox, &seen(Some(homeless), None), &[])), "it may wait for long");
        let known = Sandbox { status: Some(starting.clone()), ..sandbox.clone() };
        assert_eq!(first_status(&known, &starting, &mut None, at(100)), None, "it was told of before");
    }
}
