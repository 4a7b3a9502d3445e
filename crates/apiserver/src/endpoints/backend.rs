//! Which Pods stand behind a Service, in which condition and on which ports. Pure.

use serde_json::{Map, Value};

use crate::registry::pod;

/// The labels that a Service selects Pods by; `None` when its endpoints are written by users.
pub(crate) fn selector(service: &Value) -> Option<&Map<String, Value>> {
    let external = service["spec"]["type"] == "ExternalName";
    service["spec"]["selector"].as_object().filter(|labels| !labels.is_empty() && !external)
}

/// What a Service says about a Pod that it selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Condition {
    /// New connections may lead there.
    pub ready: bool,
    /// It answers, also while it is on its way out.
    pub serving: bool,
    pub terminating: bool,
}

/// The condition of a Pod; `None` when it is over. Whether it has an address is for the caller to ask.
pub(crate) fn condition(service: &Value, pod: &Value) -> Option<Condition> {
    if pod["status"]["phase"].as_str().is_some_and(pod::is_over) {
        return None;
    }
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let serving = conditions.filter(|it| it["type"] == "Ready").any(|it| it["status"] == "True");
    let terminating = pod["metadata"]["deletionTimestamp"].is_string();
    let published = service["spec"]["publishNotReadyAddresses"] == true;
    Some(Condition { ready: published || (serving && !terminating), serving, terminating })
}

/// The number of a Service's port in a Pod; `None` when the Pod has no port of that name.
pub(crate) fn port(service_port: &Value, pod: &Value) -> Option<u16> {
    let number =
        |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|it| *it > 0);
    match &service_port["targetPort"] {
        Value::String(name) => {
            let named = |port: &&Value| port["name"] == **name && protocol(port) == protocol(service_port);
            serving_containers(pod)
                .flat_map(|container| container["ports"].as_array().into_iter().flatten())
                .find(named)
                .and_then(|port| number(&port["containerPort"]))
        }
        Value::Null => number(&service_port["port"]),
        target => number(target).or_else(|| number(&service_port["port"])),
    }
}

pub(crate) fn protocol(port: &Value) -> &str {
    port["protocol"].as_str().unwrap_or("TCP")
}

/// The containers whose ports count: main ones, and init containers that keep running.
fn serving_containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let list = |field: &str| pod["spec"][field].as_array().into_iter().flatten();
    list("containers").chain(list("initContainers").filter(|it| it["restartPolicy"] == "Always"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn services_without_a_selector_are_written_by_users() {
        assert!(selector(&json!({"spec": {}})).is_none());
        assert!(selector(&json!({"spec": {"selector": {}}})).is_none());
        assert!(selector(&json!({"spec": {"selector": {"a": "b"}, "type": "ExternalName"}})).is_none());
        assert!(selector(&json!({"spec": {"selector": {"a": "b"}}})).is_some());
    }

    #[test]
    fn a_pod_is_ready_serving_or_terminating() {
        let of = |published: bool, phase: &str, ready: &str, deleted: Option<&str>| {
            let service = json!({"spec": {"publishNotReadyAddresses": published}});
            let pod = json!({
                "metadata": {"deletionTimestamp": deleted},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
            });
            condition(&service, &pod).map(|it| (it.ready, it.serving, it.terminating))
        };
        let now = Some("2026-01-01T00:00:00Z");
        for (published, phase, ready, deleted, expected) in [
            (false, "Running", "True", None, Some((true, true, false))),
            (false, "Running", "False", None, Some((false, false, false))),
            (false, "Running", "True", now, Some((false, true, true))),
            (true, "Pending", "False", None, Some((true, false, false))),
            (true, "Running", "True", now, Some((true, true, true))),
            (true, "Succeeded", "False", None, None),
            (false, "Failed", "False", None, None),
        ] {
            assert_eq!(
                of(published, phase, ready, deleted),
                expected,
                "{published} {phase} {ready} {deleted:?}"
            );
        }
    }

    #[test]
    fn ports_are_found_by_number_or_by_name_and_protocol() {
        let pod = json!({"spec": {
            "containers": [{"ports": [
                {"name": "web", "containerPort": 8080}, {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            ]}],
            "initContainers": [
                {"ports": [{"name": "once", "containerPort": 1}]},
                {"restartPolicy": "Always", "ports": [{"name": "beside", "containerPort": 9000}]},
            ],
        }});
        for (service_port, expected) in [
            (json!({"port": 80}), Some(80)),
            (json!({"port": 80, "targetPort": 8000}), Some(8000)),
            (json!({"port": 80, "targetPort": 0}), Some(80)),
            (json!({"port": 80, "targetPort": "web"}), Some(8080)),
            (json!({"port": 80, "targetPort": "dns"}), None),
            (json!({"port": 80, "targetPort": "dns", "protocol": "UDP"}), Some(53)),
            (json!({"port": 80, "targetPort": "beside"}), Some(9000)),
            (json!({"port": 80, "targetPort": "once"}), None),
            (json!({"port": 80, "targetPort": "gone"}), None),
        ] {
            assert_eq!(port(&service_port, &pod), expected, "{service_port}");
        }
    }
}
