//! What the status says in each situation.

use serde_json::json;

use super::world::*;
use crate::sandbox::judge::worth_writing;
use crate::sandbox::plan::{Problem, ProblemKind, Seen, Step};
use asb_types::condition::{FINISHED, POD_SCHEDULED, READY, SUSPENDED};
use asb_types::{SandboxStatus, condition};

const NOT_SUSPENDED: Option<(&str, &str, &str)> = Some(("False", "NotSuspended", "Sandbox is not suspended"));

/// SB-001
#[test]
fn nothing_exists_yet() {
    let status = status(&sandbox(json!({"service": true})), &Seen::default(), &[]);
    assert_eq!(said(&status, SUSPENDED), NOT_SUSPENDED);
    let message = "Pod does not exist; Service does not exist";
    assert_eq!(said(&status, READY), Some(("False", "DependenciesNotReady", message)));
    assert_eq!(said(&status, POD_SCHEDULED), None);
}

/// SB-002, SB-036
#[test]
fn service_that_exists_is_part_of_the_sandbox_even_when_not_asked_for() {
    let absent = sandbox(json!({}));
    let with = status(&absent, &seen(None, Some(service().owned())), &[]);
    assert_eq!(said(&with, READY).unwrap().2, "Pod does not exist; Service Exists");
    let without = status(&absent, &seen(Some(ready_pod()), None), &[]);
    assert_eq!(said(&without, READY), Some(("True", "DependenciesReady", "Pod is Ready")));
}

/// SB-003, SB-004, SB-005, SB-013, SB-031
#[test]
fn ready_message_follows_the_pod() {
    let box_ = sandbox(json!({}));
    let ip = json!({"podIPs": [{"ip": "10.0.0.1"}]});
    let cases = [
        (pod(""), "Pod exists with phase: "),
        (pod("Pending"), "Pod exists with phase: Pending"),
        (pod("Unknown"), "Pod exists with phase: Unknown"),
        (pod("Running").edit(json!({"status": ip})), "Pod is Running but not Ready"),
        (ready_pod().edit(json!({"status": {"podIPs": []}})), "Pod is Ready but has no podIPs yet"),
    ];
    for (pod, message) in cases {
        let status = status(&box_, &seen(Some(pod.owned()), None), &[]);
        assert_eq!(said(&status, READY), Some(("False", "DependenciesNotReady", message)));
    }
}

/// SB-021, SB-022, SB-034, SB-083
#[test]
fn ready_pod_makes_a_ready_sandbox() {
    let status =
        status(&sandbox(json!({"service": true})), &seen(Some(ready_pod()), Some(service().owned())), &[]);
    assert_eq!(said(&status, READY), Some(("True", "DependenciesReady", "Pod is Ready; Service Exists")));
    assert_eq!(status.pod_ips, ["10.0.0.1", "fd00::1"]);
    assert_eq!(status.node_name.as_deref(), Some("node-1"));
    assert_eq!(status.service.as_deref(), Some("box"));
    assert_eq!(status.service_fqdn.as_deref(), Some("box.ns.svc.cluster.local"));
    assert!(status.selector.unwrap().starts_with("agents.x-k8s.io/sandbox-name-hash="));
    assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(3)));
    let kinds: Vec<_> = status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(kinds, [SUSPENDED, POD_SCHEDULED, READY]);
}

/// SB-006, SB-007, SB-009, SB-062, SB-063
#[test]
fn suspended_tells_how_far_it_got() {
    let box_ = sandbox(json!({"operatingMode": "Suspended"}));
    let status_of = |pod| status(&box_, &seen(pod, None), &[]);

    let draining = status_of(Some(ready_pod()));
    let message = "Pod is terminating. Sandbox is suspending";
    assert_eq!(said(&draining, SUSPENDED), Some(("False", "PodTerminating", message)));
    assert_eq!(said(&draining, READY), Some(("False", "SandboxSuspended", "Sandbox is suspending")));
    assert!(said(&draining, POD_SCHEDULED).is_some());

    let gone = status_of(None);
    let message = "Pod has been terminated. Sandbox is suspended";
    assert_eq!(said(&gone, SUSPENDED), Some(("True", "PodTerminated", message)));
    assert_eq!(said(&gone, READY), Some(("False", "SandboxSuspended", "Sandbox is suspended")));
    assert_eq!(said(&gone, POD_SCHEDULED), None);

    let stranger = status_of(Some(ready_pod().foreign()));
    assert_eq!(said(&stranger, SUSPENDED).unwrap().1, "PodNotOwned");
    assert_eq!((said(&stranger, POD_SCHEDULED), said(&stranger, FINISHED)), (None, None));
    assert!(stranger.pod_ips.is_empty() && stranger.node_name.is_none() && stranger.selector.is_some());
}

/// SB-008, SB-010, SB-011, SB-017
#[test]
fn error_beats_the_state_of_dependencies() {
    let problem = [failed(Step::Pod, "boom")];
    let message = Some(("False", "ReconcilerError", "Error seen: boom"));

    let running = status(&sandbox(json!({})), &Seen::default(), &problem);
    assert_eq!((said(&running, READY), said(&running, SUSPENDED)), (message, NOT_SUSPENDED));
    assert_eq!(said(&running, POD_SCHEDULED).unwrap().1, "PodSchedulingUnknown");

    let box_ = sandbox(json!({"operatingMode": "Suspended"}));
    let unknown = status(&box_, &Seen::default(), &problem);
    assert_eq!(said(&unknown, READY), message);
    assert_eq!(said(&unknown, SUSPENDED).map(|it| (it.0, it.1)), Some(("Unknown", "PodStateUnknown")));
    let known = status(&box_, &seen(Some(ready_pod()), None), &problem);
    assert_eq!(said(&known, SUSPENDED).unwrap().1, "PodTerminating");
}

/// SB-080: nobody knows what became of the Service, so the status keeps what it said
#[test]
fn error_about_the_service_keeps_its_name_in_the_status() {
    let mut box_ = sandbox(json!({"service": true}));
    let ready = seen(Some(ready_pod()), Some(service().owned()));
    box_.status = Some(status(&box_, &ready, &[]));
    let foreign = seen(Some(ready_pod()), Some(service().foreign()));
    let kept = |problems: &[Problem]| status(&box_, &foreign, problems).service_fqdn;
    assert_eq!(kept(&[failed(Step::Service, "boom")]).as_deref(), Some("box.ns.svc.cluster.local"));
    assert_eq!(kept(&[failed(Step::VolumeClaims, "boom")]), None, "this one is somebody else's");
}

#[test]
fn child_rejected_as_invalid_is_a_configuration_error() {
    let invalid =
        |message: &str| Problem { step: Step::Pod, kind: ProblemKind::Invalid, message: message.into() };
    let box_ = sandbox(json!({}));
    let alone = status(&box_, &Seen::default(), &[invalid("spec.x: bad")]);
    assert_eq!(said(&alone, READY), Some(("False", "InvalidConfiguration", "Error seen: spec.x: bad")));
    let joined =
        status(&box_, &Seen::default(), &[failed(Step::VolumeClaims, "boom"), invalid("spec.x: bad")]);
    assert_eq!(said(&joined, READY).unwrap().1, "ReconcilerError", "a retry may still help");
}

#[test]
fn conflict_is_retried_and_not_reported() {
    let conflict = Problem { step: Step::Pod, kind: ProblemKind::Conflict, message: "later".into() };
    let status = status(&sandbox(json!({})), &seen(Some(ready_pod()), None), &[conflict]);
    assert_eq!(said(&status, READY).unwrap().0, "True");
}

/// SB-012
#[test]
fn resumed_sandbox_is_not_suspended_even_before_its_pod_exists() {
    let mut box_ = sandbox(json!({}));
    box_.status = Some(SandboxStatus {
        conditions: vec![old_condition(SUSPENDED, "True", "PodTerminated")],
        ..Default::default()
    });
    assert_eq!(said(&status(&box_, &Seen::default(), &[]), SUSPENDED), NOT_SUSPENDED);
}

/// SB-014, SB-015, SB-016
#[test]
fn only_an_owned_terminal_pod_finishes_a_sandbox() {
    for (phase, reason) in [("Failed", "PodFailed"), ("Succeeded", "PodSucceeded")] {
        let owned = status(&sandbox(json!({})), &seen(Some(pod(phase).owned()), None), &[]);
        assert_eq!(said(&owned, FINISHED).map(|it| (it.0, it.1)), Some(("True", reason)));
        assert_eq!(said(&owned, READY).map(|it| (it.0, it.1)), Some(("False", reason)));
        let stranger = status(&sandbox(json!({})), &seen(Some(pod(phase).foreign()), None), &[]);
        assert_eq!(said(&stranger, FINISHED), None);
    }
}

#[test]
fn ready_and_finished_say_why_the_pod_is_not_well() {
    let ended = json!({"terminated": {"exitCode": 3, "reason": "Error", "message": "no such file"}});
    let waits = json!({"waiting": {"reason": "ErrImagePull", "message": "no image"}});
    let with = |phase: &str, state: &serde_json::Value| {
        pod(phase).owned().edit(json!({"status": {"containerStatuses": [{"name": "main", "state": state}]}}))
    };
    for (pod, reason, message) in [
        (
            with("Failed", &ended),
            "PodFailed",
            "Pod failed: container main terminated with exit code 3 (Error): no such file",
        ),
        (
            with("Pending", &waits),
            "DependenciesNotReady",
            "Pod exists with phase: Pending: container main is waiting: ErrImagePull: no image",
        ),
        (
            with("Running", &ended),
            "DependenciesNotReady",
            "Pod is Running but not Ready: container main terminated with exit code 3 (Error): no such file",
        ),
        (
            pod("Failed").owned().edit(json!({"status": {"reason": "Evicted", "message": "too much"}})),
            "PodFailed",
            "Pod failed: Evicted: too much",
        ),
        (with("Succeeded", &json!({})), "PodSucceeded", "Pod completed successfully"),
    ] {
        let status = status(&sandbox(json!({})), &seen(Some(pod), None), &[]);
        assert_eq!(said(&status, READY), Some(("False", reason, message)));
        if reason.starts_with("Pod") {
            assert_eq!(said(&status, FINISHED), Some(("True", reason, message)));
        }
    }
}

/// SB-018, SB-019
#[test]
fn scheduling_is_mirrored_from_the_pod() {
    let scheduled = |condition| {
        let pod = pod("Pending").owned().edit(json!({"status": {"conditions": [condition]}}));
        let status = status(&sandbox(json!({})), &seen(Some(pod), None), &[]);
        let (status, reason, message) = said(&status, POD_SCHEDULED).unwrap();
        (status.to_owned(), reason.to_owned(), message.to_owned())
    };
    let verbatim = scheduled(
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}),
    );
    assert_eq!(verbatim, ("False".into(), "Unschedulable".into(), "0/1 nodes".into()));
    assert_eq!(scheduled(json!({"type": "PodScheduled", "status": "False"})).1, "PodSchedulingUnknown");
    assert_eq!(scheduled(json!({"type": "PodScheduled", "status": "True"})).1, "PodScheduled");
    assert_eq!(scheduled(json!({"type": "Other", "status": "True"})).0, "Unknown");
}

/// SB-020, SB-058, SB-059
#[test]
fn two_owned_pods_are_reported_and_left_alone() {
    let one = std::sync::Arc::new(ready_pod());
    let two = Seen { owned_pods: vec![one.clone(), one], ..Seen::default() };
    let mut world = World::new(sandbox(json!({"service": true})), two);
    let plan = world.settle();
    assert!(world.history.is_empty(), "nothing is created, deleted or patched");
    let mut problems = plan.problems;
    problems.push(failed(Step::VolumeClaims, "boom"));
    let status = status(&world.sandbox, &world.seen, &problems);
    let message = "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod";
    assert_eq!(said(&status, READY), Some(("False", "MultiplePods", message)));
    assert!(status.pod_ips.is_empty() && status.node_name.is_none());
}

/// SB-110
#[test]
fn node_name_alone_waits_until_the_pod_is_ready() {
    let write = |before: &SandboxStatus, after: &SandboxStatus| worth_writing(Some(before), after);
    let box_ = sandbox(json!({}));
    let pending = status(&box_, &seen(Some(pod("Pending").owned()), None), &[]);
    let placed = SandboxStatus { node_name: Some("node-1".into()), ..pending.clone() };
    assert!(!write(&pending, &placed));
    assert!(!write(&placed, &placed));
    let ready = status(&box_, &seen(Some(ready_pod()), None), &[]);
    assert!(write(&placed, &ready));
    let moved = SandboxStatus { node_name: Some("node-2".into()), ..ready.clone() };
    assert!(write(&ready, &moved));
}

/// SB-120
#[test]
fn suspended_transition_time_moves_only_on_true_and_false() {
    let mut box_ = sandbox(json!({"operatingMode": "Suspended"}));
    box_.status = Some(SandboxStatus {
        conditions: vec![old_condition(SUSPENDED, "False", "NotSuspended")],
        ..Default::default()
    });
    let time = |status: &SandboxStatus| {
        condition::get(&status.conditions, SUSPENDED).unwrap().last_transition_time.0
    };
    assert_eq!(
        time(&status(&box_, &seen(Some(ready_pod()), None), &[])),
        at(1),
        "still False: PodTerminating"
    );
    assert_eq!(time(&status(&box_, &Seen::default(), &[])), at(100), "now True");
}
