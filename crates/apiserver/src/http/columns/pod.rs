//! The row of a Pod, as kubectl users know it: containers that are ready, one word for how it is doing, and restarts.
//!
//! Sidecars (init containers with `restartPolicy: Always`) count as containers of the Pod. While it initializes, the row is
//! about its init containers alone.

use jiff::Timestamp;
use serde_json::Value;

use super::{age, list};

pub(super) struct Row {
    pub ready: String,
    pub status: String,
    pub restarts: String,
}

/// What is counted over containers.
#[derive(Default)]
struct Restarts<'a> {
    count: i64,
    /// When the last instance before the current one ended.
    last: Option<&'a str>,
}

impl<'a> Restarts<'a> {
    fn add(&mut self, container: &'a Value) {
        self.count += container["restartCount"].as_i64().unwrap_or(0);
        // Times are written alike, so they compare as text.
        self.last = self.last.max(container["lastState"]["terminated"]["finishedAt"].as_str());
    }

    fn text(&self, now: Timestamp) -> String {
        match self.last.filter(|_| self.count > 0) {
            Some(time) => {
                let ago = age(&time.into(), now);
                format!("{} ({} ago)", self.count, ago.as_str().unwrap_or_default())
            }
            None => self.count.to_string(),
        }
    }
}

pub(super) fn row(pod: &Value, now: Timestamp) -> Row {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let inits = list(&spec["initContainers"]);
    let sidecar =
        |name: &Value| inits.iter().any(|it| it["name"] == *name && it["restartPolicy"] == "Always");
    let (mut ready, mut word) = (0, phase(status));
    let (mut of_inits, mut of_pod) = (Restarts::default(), Restarts::default());
    let mut initializing = None;
    for (at, container) in list(&status["initContainerStatuses"]).iter().enumerate() {
        of_inits.add(container);
        let stays = sidecar(&container["name"]);
        if stays {
            of_pod.add(container);
        }
        let state = &container["state"];
        if state["terminated"]["exitCode"] == 0 {
            continue;
        }
        if stays && container["started"] == true {
            ready += usize::from(container["ready"] == true);
            continue;
        }
        initializing = Some(match (state["terminated"].is_object(), state["waiting"]["reason"].as_str()) {
            (true, _) => format!("Init:{}", ended(&state["terminated"])),
            (false, Some(reason)) if !matches!(reason, "" | "PodInitializing") => format!("Init:{reason}"),
            _ => format!("Init:{at}/{}", inits.len()),
        });
        break;
    }
    let begun = initializing.is_none() || condition(status, "Initialized");
    word = initializing.unwrap_or(word);
    let mut running = false;
    for container in list(&status["containerStatuses"]).iter().rev().filter(|_| begun) {
        of_pod.add(container);
        let state = &container["state"];
        match state["waiting"]["reason"].as_str() {
            Some(reason) if !reason.is_empty() => word = reason.to_owned(),
            _ if state["terminated"].is_object() => word = ended(&state["terminated"]),
            _ if container["ready"] == true && state["running"].is_object() => {
                (running, ready) = (true, ready + 1);
            }
            _ => {}
        }
    }
    if word == "Completed" && running {
        word = if condition(status, "Ready") { "Running" } else { "NotReady" }.to_owned();
    }
    let over = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
    if pod["metadata"]["deletionTimestamp"].is_string() && !over {
        word = "Terminating".to_owned();
    }
    let total = list(&spec["containers"]).len() + inits.iter().filter(|it| sidecar(&it["name"])).count();
    Row {
        ready: format!("{ready}/{total}"),
        status: word,
        restarts: if begun { of_pod } else { of_inits }.text(now),
    }
}

/// How many of the Pod's readiness gates are open.
pub(super) fn gates(pod: &Value) -> String {
    let gates = list(&pod["spec"]["readinessGates"]);
    let open = |gate: &&Value| condition(&pod["status"], gate["conditionType"].as_str().unwrap_or_default());
    match gates.len() {
        0 => "<none>".to_owned(),
        all => format!("{}/{all}", gates.iter().filter(open).count()),
    }
}

fn phase(status: &Value) -> String {
    let gated = |it: &&Value| it["type"] == "PodScheduled" && it["reason"] == "SchedulingGated";
    if list(&status["conditions"]).iter().any(|it| gated(&it)) {
        return "SchedulingGated".to_owned();
    }
    let reason = status["reason"].as_str().filter(|reason| !reason.is_empty());
    reason.or(status["phase"].as_str()).unwrap_or_default().to_owned()
}

fn condition(status: &Value, kind: &str) -> bool {
    list(&status["conditions"]).iter().any(|it| it["type"] == kind && it["status"] == "True")
}

fn ended(terminated: &Value) -> String {
    match (terminated["reason"].as_str(), terminated["signal"].as_i64().filter(|signal| *signal != 0)) {
        (Some(reason), _) if !reason.is_empty() => reason.to_owned(),
        (_, Some(signal)) => format!("Signal:{signal}"),
        _ => format!("ExitCode:{}", terminated["exitCode"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(pod: &Value) -> (String, String, String) {
        let row = row(pod, "2026-01-01T01:00:00Z".parse().unwrap());
        (row.ready, row.status, row.restarts)
    }

    fn row_of(ready: &str, status: &str, restarts: &str) -> (String, String, String) {
        (ready.to_owned(), status.to_owned(), restarts.to_owned())
    }

    fn container(name: &str, state: Value) -> Value {
        json!({"name": name, "state": state, "ready": state["running"].is_object()})
    }

    fn running() -> Value {
        json!({"running": {}})
    }

    fn waits(reason: &str) -> Value {
        json!({"waiting": {"reason": reason}})
    }

    fn exited(code: i32) -> Value {
        json!({"terminated": {"exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" }}})
    }

    #[test]
    fn most_telling_container_gives_the_word() {
        let spec = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        for (phase, a, b, ready, status) in [
            ("Pending", waits("ContainerCreating"), waits("ContainerCreating"), "0/2", "ContainerCreating"),
            ("Pending", waits("ErrImagePull"), running(), "1/2", "ErrImagePull"),
            ("Running", running(), running(), "2/2", "Running"),
            ("Running", running(), waits("CrashLoopBackOff"), "1/2", "CrashLoopBackOff"),
            ("Running", running(), exited(0), "1/2", "NotReady"),
            ("Running", running(), exited(1), "1/2", "Error"),
            ("Succeeded", exited(0), exited(0), "0/2", "Completed"),
            ("Failed", exited(1), exited(0), "0/2", "Error"),
            ("Failed", json!({"terminated": {"exitCode": 3}}), exited(0), "0/2", "ExitCode:3"),
            ("Failed", json!({"terminated": {"exitCode": 9, "signal": 9}}), exited(0), "0/2", "Signal:9"),
        ] {
            let statuses = [container("a", a), container("b", b)];
            let mut pod = json!({"spec": spec, "status": {"phase": phase, "containerStatuses": statuses}});
            assert_eq!(of(&pod), row_of(ready, status, "0"));
            pod["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
            let leaving = if matches!(phase, "Succeeded" | "Failed") { status } else { "Terminating" };
            assert_eq!(of(&pod).1, leaving, "what is over is not said to end");
        }
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let statuses = [container("a", running()), container("b", exited(0))];
        let pod = json!({"spec": spec, "status": {"phase": "Running", "conditions": ready, "containerStatuses": statuses}});
        assert_eq!(of(&pod).1, "Running");
        assert_eq!(
            of(&json!({"spec": spec, "status": {"phase": "Failed", "reason": "Evicted"}})).1,
            "Evicted"
        );
    }

    #[test]
    fn init_containers_and_sidecars_are_counted_as_kubectl_counts_them() {
        let spec = json!({
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "m"}],
        });
        let sidecar = |state: Value, started: bool| {
            let mut one = container("s", state);
            one["started"] = json!(started);
            one
        };
        let not_yet = || container("m", waits("PodInitializing"));
        for (init, side, main, initialized, ready, status) in [
            (running(), sidecar(waits("PodInitializing"), false), not_yet(), false, "0/2", "Init:0/2"),
            (
                waits("CrashLoopBackOff"),
                sidecar(waits("PodInitializing"), false),
                not_yet(),
                false,
                "0/2",
                "Init:CrashLoopBackOff",
            ),
            (exited(1), sidecar(waits("PodInitializing"), false), not_yet(), false, "0/2", "Init:Error"),
            (exited(0), sidecar(running(), false), not_yet(), false, "0/2", "Init:1/2"),
            (exited(0), sidecar(running(), true), not_yet(), false, "1/2", "PodInitializing"),
            (exited(0), sidecar(running(), true), container("m", running()), true, "2/2", "Running"),
            (
                exited(0),
                sidecar(waits("CrashLoopBackOff"), false),
                container("m", running()),
                true,
                "1/2",
                "Init:CrashLoopBackOff",
            ),
            (exited(0), sidecar(exited(0), false), container("m", exited(0)), true, "0/2", "Completed"),
        ] {
            let conditions =
                json!([{"type": "Initialized", "status": if initialized { "True" } else { "False" }}]);
            let pod = json!({"spec": spec, "status": {
                "phase": if initialized { "Running" } else { "Pending" }, "conditions": conditions,
                "initContainerStatuses": [container("i", init), side], "containerStatuses": [main],
            }});
            assert_eq!(of(&pod), row_of(ready, status, "0"));
        }
    }

    #[test]
    fn restarts_say_when_the_last_one_was() {
        let spec = json!({"initContainers": [{"name": "i"}], "containers": [{"name": "m"}]});
        let restarted = |name: &str, state: Value, count: u32, time: &str| {
            let mut one = container(name, state);
            one["restartCount"] = json!(count);
            one["lastState"] = json!({"terminated": {"finishedAt": time}});
            one
        };
        let init = |state: Value| restarted("i", state, 4, "2026-01-01T00:50:00Z");
        let main = restarted("m", running(), 3, "2026-01-01T00:58:00Z");
        let begun = json!({"spec": spec, "status": {"initContainerStatuses": [init(exited(0))], "containerStatuses": [main]}});
        assert_eq!(of(&begun).2, "3 (2m ago)", "those of init containers are past");
        let initializing =
            json!({"spec": spec, "status": {"initContainerStatuses": [init(waits("CrashLoopBackOff"))]}});
        assert_eq!(of(&initializing).2, "4 (10m ago)");
    }

    #[test]
    fn readiness_gates_are_counted() {
        let pod = json!({
            "spec": {"readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
            "status": {"conditions": [{"type": "b", "status": "True"}]},
        });
        assert_eq!(gates(&pod), "1/2");
        assert_eq!(gates(&json!({})), "<none>");
    }
}
