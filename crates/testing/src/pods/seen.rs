//! From a Pod and its events to the lines that are compared. Pure.
//!
//! What differs between any two runs is replaced: the Pod's UID, the namespace and the node. Words of the runtime below
//! (containerd and runc, or our own) are left out, those of the kubelet are not.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Event, Pod};

/// Conditions that a kubelet or a scheduler writes.
const CONDITIONS: [&str; 6] = [
    "PodScheduled",
    "PodReadyToStartContainers",
    "Initialized",
    "ContainersReady",
    "Ready",
    "DisruptionTarget",
];
/// Whose events are compared. Others tell of the cluster, not of the Pod.
const WRITERS: [&str; 2] = ["kubelet", "default-scheduler"];
/// Reasons whose message is that of the runtime, or of a registry.
const RUNTIME: [&str; 9] = [
    "CreateContainerError",
    "ErrImagePull",
    "RunContainerError",
    "StartError",
    "ContainerCannotRun",
    "PostStartHookError",
    "FailedPostStartHook",
    "FailedPreStopHook",
    "PreStopHookError",
];
/// The reason of a container that waits for its next round.
const CRASHES: &str = "CrashLoopBackOff";
/// Beginnings of messages that go on with words of the runtime or of a program in the Pod.
const CUT: [&str; 12] = [
    "Liveness probe failed",
    "Liveness probe errored",
    "Readiness probe failed",
    "Readiness probe errored",
    "Startup probe failed",
    "Startup probe errored",
    "Error: failed to create containerd task",
    "Error: failed to start containerd task",
    "Error: failed to generate container",
    "Failed to pull image",
    "Successfully pulled image",
    "PostStartHook failed",
];

/// A Pod as it was last seen.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    pub pod: Option<Pod>,
    pub gone: bool,
    pub events: Vec<Event>,
}

/// What is compared.
pub fn lines(seen: &Seen) -> Vec<String> {
    let Some(pod) = &seen.pod else { return Vec::new() };
    let status = pod.status.clone().unwrap_or_default();
    let words = Words::of(pod);
    let mut lines = vec![
        sentence(
            &["phase", status.phase.as_deref().unwrap_or("none"), status.reason.as_deref().unwrap_or("")],
            &words.normal(status.message.as_deref().unwrap_or("")),
        ),
        format!("qos {}", status.qos_class.as_deref().unwrap_or("none")),
    ];
    for kind in CONDITIONS {
        for condition in status.conditions.iter().flatten().filter(|it| it.type_ == kind) {
            let reason = condition.reason.as_deref().unwrap_or("");
            let message = words.normal(condition.message.as_deref().unwrap_or(""));
            lines.push(sentence(&["condition", kind, &condition.status, reason], &message));
        }
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    containers.for_each(|it| lines.extend(container(it, &words)));
    if seen.gone {
        lines.push("gone".to_owned());
    }
    let told_by = |event: &&Event| WRITERS.iter().any(|it| event.reporting_component.as_deref() == Some(*it));
    let mut events: Vec<_> = seen.events.iter().filter(told_by).map(|event| told(event, &words)).collect();
    events.sort();
    events.dedup();
    lines.extend(events);
    lines
}

fn container(status: &ContainerStatus, words: &Words<'_>) -> Vec<String> {
    let name = &status.name;
    let now = status.state.as_ref().map_or_else(|| "nothing".to_owned(), |state| doing(state, words));
    let mut lines = vec![format!("{name} {now}")];
    if let Some(end) = status.last_state.as_ref().and_then(|it| it.terminated.as_ref()) {
        lines.push(format!("{name} last {}", ended(end, words)));
    }
    let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
    let loops = waiting.and_then(|waiting| waiting.reason.as_deref()) == Some(CRASHES);
    // A busy kubelet does not tell of every round.
    let restarts =
        if loops && status.restart_count > 0 { "1 or more" } else { &status.restart_count.to_string() };
    lines.push(format!("{name} restarts {restarts}"));
    let started = match status.started {
        Some(true) => "started",
        Some(false) => "not started",
        None => "not known to have started",
    };
    lines.push(format!("{name} {}, {started}", if status.ready { "ready" } else { "not ready" }));
    lines
}

fn doing(state: &ContainerState, words: &Words<'_>) -> String {
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or("");
        return sentence(&["waiting", reason], &words.message(reason, waiting.message.as_deref()));
    }
    state
        .terminated
        .as_ref()
        .map_or_else(|| "running".to_owned(), |end| format!("terminated {}", ended(end, words)))
}

fn ended(end: &ContainerStateTerminated, words: &Words<'_>) -> String {
    let reason = end.reason.as_deref().unwrap_or("");
    let code = end.exit_code.to_string();
    let signal = end.signal.filter(|signal| *signal != 0).map(|signal| format!("signal {signal}"));
    sentence(
        &[reason, &code, signal.as_deref().unwrap_or("")],
        &words.message(reason, end.message.as_deref()),
    )
}

fn told(event: &Event, words: &Words<'_>) -> String {
    let kind = event.type_.as_deref().unwrap_or("");
    let reason = event.reason.as_deref().unwrap_or("");
    let message = words.message(reason, event.message.as_deref());
    let message = CUT.iter().find(|cut| message.starts_with(**cut)).map_or(message.as_str(), |cut| *cut);
    // `spec.containers{main}`
    let path = event.involved_object.field_path.as_deref().unwrap_or("");
    let container = path.split_once('{').map_or("", |(_, name)| name.trim_end_matches('}'));
    let of = if container.is_empty() { "" } else { "of" };
    sentence(&["event", kind, reason, of, container], message)
}

/// Words with a message behind them, if there is one; all on one line.
fn sentence(words: &[&str], message: &str) -> String {
    let words: Vec<_> = words.iter().copied().filter(|word| !word.is_empty()).collect();
    let message = message.trim_end().replace('\n', " | ");
    if message.is_empty() { words.join(" ") } else { format!("{}: {message}", words.join(" ")) }
}

/// What is replaced in messages about a Pod.
struct Words<'a> {
    replaced: [(&'a str, &'static str); 3],
}

impl<'a> Words<'a> {
    fn of(pod: &'a Pod) -> Self {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).unwrap_or_default();
        Self { replaced: [(uid, "UID"), (node, "NODE"), (address, "ADDRESS")] }
    }

    fn normal(&self, message: &str) -> String {
        let known = self.replaced.iter().filter(|(what, _)| !what.is_empty());
        known.fold(message.to_owned(), |text, (what, with)| match text.strip_suffix(what) {
            // The name of a node is a word of English often enough.
            Some(before) if *with == "NODE" => format!("{before}{with}"),
            _ if *with == "NODE" => text,
            _ => text.replace(what, with),
        })
    }

    fn message(&self, reason: &str, message: Option<&str>) -> String {
        if RUNTIME.contains(&reason) {
            return String::new();
        }
        let message = self.normal(message.unwrap_or(""));
        if let Some((_, rest)) = message.split_once(" restarting").filter(|_| reason == CRASHES) {
            return format!("back-off TIME restarting{rest}");
        }
        // What follows is said by a registry, or by who did not reach it.
        match message.find(": ErrImagePull: ") {
            Some(end) => message[..end].to_owned(),
            None => message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen() -> Seen {
        let pod = json!({
            "metadata": {"name": "box", "uid": "7f1c"}, "spec": {"nodeName": "here", "containers": []},
            "status": {
                "phase": "Running", "qosClass": "BestEffort",
                "conditions": [
                    {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "unready: [main]"},
                    {"type": "example.com/own", "status": "True"},
                ],
                "containerStatuses": [{
                    "name": "main", "image": "i", "imageID": "", "ready": false, "started": false, "restartCount": 1,
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting pod=box(7f1c)"}},
                    "lastState": {"terminated": {"exitCode": 137, "signal": 9, "reason": "Error", "message": "a\nb\n"}},
                }],
            },
        });
        let event = |writer: &str, reason: &str, message: &str| {
            serde_json::from_value(json!({
                "metadata": {}, "type": "Normal", "reason": reason, "message": message,
                "reportingComponent": writer, "involvedObject": {"fieldPath": "spec.containers{main}"},
            }))
        };
        let events = [
            event("kubelet", "Pulled", "Successfully pulled image \"x\" in 3s"),
            event("taint-eviction-controller", "TaintManagerEviction", "Cancelling"),
            event("default-scheduler", "Scheduled", "assigned to here"),
        ];
        let events = events.map(|event| event.expect("an event")).to_vec();
        Seen { pod: Some(serde_json::from_value(pod).expect("a Pod")), gone: true, events }
    }

    #[test]
    fn lines_tell_the_state_and_nothing_that_only_this_run_has() {
        let expected = [
            "phase Running",
            "qos BestEffort",
            "condition Ready False ContainersNotReady: unready: [main]",
            "main waiting CrashLoopBackOff: back-off TIME restarting pod=box(UID)",
            "main last Error 137 signal 9: a | b",
            "main restarts 1 or more",
            "main not ready, not started",
            "gone",
            "event Normal Pulled of main: Successfully pulled image",
            "event Normal Scheduled of main: assigned to NODE",
        ];
        assert_eq!(lines(&seen()), expected);
        assert!(lines(&Seen::default()).is_empty());
    }

    #[test]
    fn words_of_a_registry_are_left_out() {
        let mut seen = seen();
        let status = seen.pod.as_mut().and_then(|pod| pod.status.as_mut()).expect("it has a status");
        let container = &mut status.container_statuses.as_mut().expect("it has containers")[0];
        let waits = |reason: &str, message: &str| {
            serde_json::from_value(json!({"waiting": {"reason": reason, "message": message}}))
                .expect("a state")
        };
        container.state = waits("ImagePullBackOff", "Back-off pulling image \"x\": ErrImagePull: it said no");
        assert_eq!(lines(&seen)[3], "main waiting ImagePullBackOff: Back-off pulling image \"x\"");
        let status = seen.pod.as_mut().and_then(|pod| pod.status.as_mut()).expect("it has a status");
        status.container_statuses.as_mut().expect("it has containers")[0].state =
            waits("ErrImagePull", "it said no");
        assert_eq!(lines(&seen)[3], "main waiting ErrImagePull");
    }
}
