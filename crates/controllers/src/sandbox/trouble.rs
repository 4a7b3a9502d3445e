//! Why a Pod is not well, in one line: its own reason, that of the scheduler, or that of the first container that says one. Pure.

use asb_types::condition;

use crate::object::{ContainerStatus, Pod, Terminated};

/// Characters of a container's or Pod's message that are repeated; the rest stays where it is.
const LONGEST: usize = 512;
/// The container is not waiting for a remedy but for a time, which changes with every restart.
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// Why a Pod failed, is not running or is not ready, if anything says so.
pub fn of(pod: &Pod) -> Option<String> {
    let status = &pod.status;
    if !status.reason.is_empty() {
        return Some(with_message(&status.reason, &status.message));
    }
    let unscheduled = pod
        .condition(condition::POD_SCHEDULED)
        .filter(|found| found.status == "False" && !found.reason.is_empty());
    if let Some(found) = unscheduled {
        return Some(with_message(&found.reason, &found.message));
    }
    let (mains, inits) = (&status.container_statuses, &status.init_container_statuses);
    // What ends a Pod are its main containers: sidecars are killed afterwards. What it waits for comes before them.
    let (first, second) = if status.phase == "Failed" { (mains, inits) } else { (inits, mains) };
    first.iter().chain(second).find_map(of_container)
}

fn of_container(container: &ContainerStatus) -> Option<String> {
    let name = &container.name;
    let ended = |end: &Terminated| {
        let (code, reason) = (end.exit_code, Some(&end.reason).filter(|reason| !reason.is_empty()));
        let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        with_message(&format!("container {name} terminated with exit code {code}{reason}"), &end.message)
    };
    if let Some(end) = &container.state.terminated {
        return Some(ended(end));
    }
    let waiting = container.state.waiting.as_ref()?;
    match &container.last_state.terminated {
        Some(end) if waiting.reason == CRASH_LOOP => Some(format!("{CRASH_LOOP}: {}", ended(end))),
        _ => {
            Some(with_message(&format!("container {name} is waiting: {}", waiting.reason), &waiting.message))
        }
    }
}

fn with_message(what: &str, message: &str) -> String {
    let message = message.trim();
    match message.char_indices().nth(LONGEST) {
        _ if message.is_empty() => what.to_owned(),
        Some((at, _)) => format!("{what}: {}…", &message[..at]),
        None => format!("{what}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn why(status: Value) -> Option<String> {
        of(&serde_json::from_value(json!({"metadata": {"name": "box"}, "status": status})).unwrap())
    }

    #[test]
    fn most_telling_part_of_the_status_is_repeated() {
        let ended =
            |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error", "message": "boom\n"}});
        let waits = |reason: &str| json!({"waiting": {"reason": reason, "message": "later"}});
        let one = |name: &str, state: Value| json!({"name": name, "state": state, "lastState": {}});
        let back_off = json!({"name": "main", "state": waits("CrashLoopBackOff"), "lastState": ended(7)});
        let cases = [
            (json!({"phase": "Pending"}), None),
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "too much. "}),
                Some("Evicted: too much."),
            ),
            (json!({"phase": "Failed", "reason": "DeadlineExceeded"}), Some("DeadlineExceeded")),
            (
                json!({"phase": "Pending", "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"},
                ]}),
                Some("Unschedulable: 0/1 nodes"),
            ),
            (
                json!({"phase": "Failed", "containerStatuses": [one("main", ended(3))],
                       "initContainerStatuses": [one("side", ended(143))]}),
                Some("container main terminated with exit code 3 (Error): boom"),
            ),
            (
                json!({"phase": "Failed", "containerStatuses": [one("main", waits("PodInitializing"))],
                       "initContainerStatuses": [one("init", ended(1))]}),
                Some("container init terminated with exit code 1 (Error): boom"),
            ),
            (
                json!({"phase": "Pending", "containerStatuses": [one("main", waits("ContainerCreating"))]}),
                None,
            ),
            (
                json!({"phase": "Pending", "containerStatuses": [one("main", waits("ImagePullBackOff"))]}),
                Some("container main is waiting: ImagePullBackOff: later"),
            ),
            (
                json!({"phase": "Running", "containerStatuses": [back_off]}),
                Some("CrashLoopBackOff: container main terminated with exit code 7 (Error): boom"),
            ),
            (
                json!({"phase": "Running", "containerStatuses": [one("main", ended(0)), one("two", json!({"running": {}}))]}),
                None,
            ),
            (json!({"phase": "Running", "containerStatuses": null}), None),
        ];
        for (status, expected) in cases {
            assert_eq!(why(status.clone()).as_deref(), expected, "{status}");
        }
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let why = why(json!({"reason": "Long", "message": "ü".repeat(10_000)})).unwrap();
        assert_eq!((why.chars().count(), why.ends_with("ü…")), ("Long: ".len() + LONGEST + 1, true));
    }
}
