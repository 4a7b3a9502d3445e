//! From what was seen of a container to the status of its Pod, as the kubelet writes it. Pure.

use std::net::Ipv4Addr;
use std::time::SystemTime;

use asb_runtime::{Ended, Exit};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::spec::{Refusal, container};

/// The machine, as its Pods are told.
pub const HOST_ADDRESS: &str = "127.0.0.1";

/// What a Pod's container is doing.
#[derive(Debug, Clone)]
pub enum Container {
    /// Cannot be started (yet).
    Waiting(Refusal),
    Running {
        since: SystemTime,
        address: Ipv4Addr,
    },
    /// Ended, and will not be started again.
    Ended {
        since: SystemTime,
        ended: Ended,
        address: Ipv4Addr,
    },
    /// Ended, and waits to be started again.
    BackOff {
        since: SystemTime,
        ended: Ended,
        address: Ipv4Addr,
    },
    /// The Pod asks for what this node does not do.
    Refused(Refusal),
}

/// The whole status of a Pod, for a merge patch.
pub fn status(pod: &Pod, state: &Container, restarts: u32, image_id: &str, now: Timestamp) -> Value {
    let now = whole_seconds(now);
    let running = matches!(state, Container::Running { .. });
    let phase = match state {
        Container::Waiting(_) => "Pending",
        Container::Running { .. } | Container::BackOff { .. } => "Running",
        Container::Ended { ended, .. } if ended.exit == Exit::Code(0) => "Succeeded",
        Container::Ended { .. } | Container::Refused(_) => "Failed",
    };
    let not_ready = match state {
        Container::Running { .. } => None,
        Container::Ended { ended, .. } if ended.exit == Exit::Code(0) => Some("PodCompleted"),
        _ => Some("ContainersNotReady"),
    };
    let condition = |kind: &str, ok: bool, reason: Option<&str>| {
        let status = if ok { "True" } else { "False" };
        let since = transition(pod, kind, status).unwrap_or(now);
        let mut condition = json!({"type": kind, "status": status, "lastTransitionTime": since});
        reason.into_iter().for_each(|reason| condition["reason"] = json!(reason));
        condition
    };
    let mut status = json!({
        "phase": phase,
        "reason": null,
        "message": null,
        "startTime": pod.status.as_ref().and_then(|status| status.start_time.clone()).map_or(now, |time| time.0),
        "hostIP": HOST_ADDRESS,
        "hostIPs": [{"ip": HOST_ADDRESS}],
        "conditions": [
            condition("PodScheduled", true, None),
            condition("Initialized", true, None),
            condition("ContainersReady", running, not_ready),
            condition("Ready", running, not_ready),
        ],
    });
    match state {
        Container::Running { address, .. }
        | Container::Ended { address, .. }
        | Container::BackOff { address, .. } => {
            status["podIP"] = json!(address);
            status["podIPs"] = json!([{"ip": address}]);
        }
        Container::Waiting(_) => {}
        Container::Refused(refusal) => {
            status["reason"] = json!(refusal.reason);
            status["message"] = json!(refusal.message);
            return status;
        }
    }
    status["containerStatuses"] = json!([container_status(pod, state, restarts, image_id)]);
    status
}

fn container_status(pod: &Pod, state: &Container, restarts: u32, image_id: &str) -> Value {
    let container = container(pod);
    let running = matches!(state, Container::Running { .. });
    let (now, last) = match state {
        Container::Running { since, .. } => (json!({"running": {"startedAt": seconds(*since)}}), Value::Null),
        Container::Waiting(refusal) => (waiting(refusal.reason, &refusal.message), Value::Null),
        Container::Ended { since, ended, .. } => (terminated(*since, ended), Value::Null),
        Container::BackOff { since, ended, .. } => {
            let message = "the container ended and will be started again after a pause";
            (waiting("CrashLoopBackOff", message), terminated(*since, ended))
        }
        Container::Refused(_) => (Value::Null, Value::Null),
    };
    json!({
        "name": container.map(|it| it.name.as_str()),
        "image": container.and_then(|it| it.image.as_deref()),
        "imageID": image_id,
        "containerID": pod.metadata.uid.as_ref().map(|uid| format!("native://{uid}")),
        "ready": running,
        "started": running,
        "restartCount": restarts,
        "state": now,
        "lastState": if last.is_null() { json!({}) } else { last },
    })
}

fn waiting(reason: &str, message: &str) -> Value {
    let message = Some(message).filter(|message| !message.is_empty());
    json!({"waiting": {"reason": reason, "message": message}})
}

fn terminated(since: SystemTime, ended: &Ended) -> Value {
    let code = match ended.exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128 + signal,
        Exit::OutOfMemory => 137,
    };
    let reason = match ended.exit {
        Exit::Code(0) => "Completed",
        Exit::OutOfMemory => "OOMKilled",
        _ => "Error",
    };
    json!({"terminated": {
        "exitCode": code, "reason": reason,
        "startedAt": seconds(since), "finishedAt": seconds(ended.at),
    }})
}

/// When the Pod's condition took the status that it still has.
fn transition(pod: &Pod, kind: &str, status: &str) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let known = conditions.iter().find(|condition| condition.type_ == kind && condition.status == status)?;
    known.last_transition_time.as_ref().map(|time| time.0)
}

fn seconds(time: SystemTime) -> Option<Timestamp> {
    Timestamp::try_from(time).ok().map(whole_seconds)
}

/// Kubernetes writes whole seconds.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn pod() -> Pod {
        let pod = json!({"metadata": {"name": "box", "uid": "u"}, "spec": {"containers": [{"name": "main", "image": "host"}]}});
        serde_json::from_value(pod).unwrap()
    }

    fn of(state: Container) -> Value {
        status(&pod(), &state, 2, "id", Timestamp::from_second(50).unwrap())
    }

    fn ended(exit: Exit) -> Ended {
        Ended { exit, at: SystemTime::UNIX_EPOCH + Duration::from_secs(30) }
    }

    const SINCE: SystemTime = SystemTime::UNIX_EPOCH;
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);

    #[test]
    fn running_container_makes_a_ready_pod_with_an_address() {
        let status = of(Container::Running { since: SINCE, address: ADDRESS });
        assert_eq!((&status["phase"], &status["podIP"]), (&json!("Running"), &json!("10.88.0.2")));
        let conditions = status["conditions"].as_array().unwrap();
        assert!(conditions.iter().all(|condition| condition["status"] == "True"));
        let container = &status["containerStatuses"][0];
        assert_eq!((&container["restartCount"], &container["imageID"]), (&json!(2), &json!("id")));
    }

    #[test]
    fn end_of_a_container_decides_phase_reason_and_exit_code() {
        for (exit, phase, reason, code) in [
            (Exit::Code(0), "Succeeded", "Completed", 0),
            (Exit::Code(3), "Failed", "Error", 3),
            (Exit::Signal(9), "Failed", "Error", 137),
            (Exit::OutOfMemory, "Failed", "OOMKilled", 137),
        ] {
            let status = of(Container::Ended { since: SINCE, ended: ended(exit), address: ADDRESS });
            let state = &status["containerStatuses"][0]["state"]["terminated"];
            assert_eq!(
                (&status["phase"], &state["reason"], &state["exitCode"]),
                (&json!(phase), &json!(reason), &json!(code))
            );
        }
    }

    #[test]
    fn pod_that_waits_says_why() {
        let refusal = Refusal::new("ErrImagePull", "spec.containers[0].image: no image");
        let status = of(Container::Waiting(refusal));
        assert_eq!(status["phase"], "Pending");
        assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "ErrImagePull");
        let crash = of(Container::BackOff { since: SINCE, ended: ended(Exit::Code(1)), address: ADDRESS });
        assert_eq!(crash["containerStatuses"][0]["state"]["waiting"]["reason"], "CrashLoopBackOff");
        assert_eq!(crash["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 1);
    }
}
