//! What a Pod may be told about itself: `fieldRef` and `resourceFieldRef`, as the kubelet answers them. Pure.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use super::quantity::millis;
use super::status::HOST_ADDRESS;
use crate::disk::RESOURCE;

/// What a container that names no limit may take.
#[derive(Debug, Clone, Copy)]
pub struct Ceiling {
    pub memory: u64,
    pub cpus: usize,
    pub disk: u64,
}

/// A field of the Pod itself, such as `metadata.labels['app']`. The error says what can be asked for.
pub fn field_of_metadata(pod: &Pod, path: &str) -> Result<String, String> {
    let (field, key) = split(path);
    match (field, key) {
        ("metadata.name", None) => Ok(pod.name_any()),
        ("metadata.namespace", None) => Ok(pod.namespace().unwrap_or_default()),
        ("metadata.uid", None) => Ok(pod.metadata.uid.clone().unwrap_or_default()),
        ("metadata.labels", Some(key)) => Ok(pod.labels().get(key).cloned().unwrap_or_default()),
        ("metadata.annotations", Some(key)) => Ok(pod.annotations().get(key).cloned().unwrap_or_default()),
        _ => Err(format!(
            "{path:?} is not available; use metadata.name, metadata.namespace, metadata.uid, \
             metadata.labels['KEY'] or metadata.annotations['KEY']"
        )),
    }
}

/// A field for a variable: also what is known only once the Pod has its place.
pub fn field_for_variable(
    pod: &Pod,
    path: &str,
    address: Ipv4Addr,
    address6: Option<Ipv6Addr>,
) -> Result<String, String> {
    let spec = pod.spec.as_ref();
    let of_spec = |value: Option<&String>| value.cloned().unwrap_or_default();
    match path {
        "spec.nodeName" => Ok(of_spec(spec.and_then(|spec| spec.node_name.as_ref()))),
        "spec.serviceAccountName" => {
            let name = of_spec(spec.and_then(|spec| spec.service_account_name.as_ref()));
            Ok(if name.is_empty() { "default".to_owned() } else { name })
        }
        "status.hostIP" | "status.hostIPs" => Ok(HOST_ADDRESS.to_owned()),
        "status.podIP" => Ok(address.to_string()),
        "status.podIPs" => Ok(match address6 {
            Some(six) => format!("{address},{six}"),
            None => address.to_string(),
        }),
        _ => field_of_metadata(pod, path).map_err(|problem| {
            format!("{problem}, spec.nodeName, spec.serviceAccountName, status.hostIP or status.podIP")
        }),
    }
}

/// A field for a file: also all labels or all annotations, a line each.
pub fn field_for_file(pod: &Pod, path: &str) -> Result<String, String> {
    match path {
        "metadata.labels" => Ok(lines(pod.labels())),
        "metadata.annotations" => Ok(lines(pod.annotations())),
        _ => field_of_metadata(pod, path),
    }
}

/// A limit or request in units of the divisor, rounded up.
pub fn resource(
    container: &Container,
    selector: &ResourceFieldSelector,
    ceiling: Ceiling,
) -> Result<String, String> {
    let name = &selector.resource;
    let set = container.resources.as_ref();
    let limit = |of: &str| set.and_then(|it| it.limits.as_ref()?.get(of));
    let request = |of: &str| set.and_then(|it| it.requests.as_ref()?.get(of)).or_else(|| limit(of));
    let (quantity, unset) = match name.as_str() {
        "limits.cpu" => (limit("cpu"), ceiling.cpus as u128 * 1000),
        "limits.memory" => (limit("memory"), u128::from(ceiling.memory) * 1000),
        "requests.cpu" => (request("cpu"), 0),
        "requests.memory" => (request("memory"), 0),
        "limits.ephemeral-storage" => (limit(RESOURCE), u128::from(ceiling.disk) * 1000),
        "requests.ephemeral-storage" => (request(RESOURCE), 0),
        _ => {
            let known = "cpu, memory or ephemeral-storage";
            return Err(format!("resource: {name:?} is not available; use limits or requests of {known}"));
        }
    };
    let read = |field: &str, quantity: &Quantity| {
        millis(quantity).ok_or_else(|| format!("{field}: {:?} is not a quantity", quantity.0))
    };
    let value = quantity.map_or(Ok(unset), |quantity| read("resource", quantity))?;
    let divisor = selector.divisor.as_ref().map_or(Ok(0), |divisor| read("divisor", divisor))?;
    let divisor = if divisor == 0 { 1000 } else { divisor };
    Ok(value.div_ceil(divisor).to_string())
}

/// `metadata.labels['app']` is `metadata.labels` and `app`.
fn split(path: &str) -> (&str, Option<&str>) {
    let key = path.split_once("['").and_then(|(field, rest)| Some((field, rest.strip_suffix("']")?)));
    key.map_or((path, None), |(field, key)| (field, Some(key)))
}

fn lines(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect::<Vec<_>>().join("\n")
}

/// As Go quotes a string: one line, whatever it holds.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            other if other.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(other))),
            other => out.push(other),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        let pod = json!({
            "metadata": {
                "name": "box", "namespace": "ns", "uid": "u", "labels": {"app": "web", "b/c": "x"},
                "annotations": {"note": "two\nlines \"quoted\""},
            },
            "spec": {"nodeName": "here", "containers": []},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn variables_know_the_pod_and_its_place() {
        let address = Ipv4Addr::new(10, 88, 0, 9);
        for (path, expected) in [
            ("metadata.name", "box"),
            ("metadata.namespace", "ns"),
            ("metadata.uid", "u"),
            ("metadata.labels['b/c']", "x"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['note']", "two\nlines \"quoted\""),
            ("spec.nodeName", "here"),
            ("spec.serviceAccountName", "default"),
            ("status.podIP", "10.88.0.9"),
            ("status.podIPs", "10.88.0.9"),
            ("status.hostIP", HOST_ADDRESS),
        ] {
            assert_eq!(field_for_variable(&pod(), path, address, None).as_deref(), Ok(expected), "{path}");
        }
        let both = field_for_variable(&pod(), "status.podIPs", address, Some(Ipv6Addr::LOCALHOST));
        assert_eq!(both.as_deref(), Ok("10.88.0.9,::1"));
        for path in ["metadata.labels", "metadata.name['x']", "spec.hostname", ""] {
            assert!(field_for_variable(&pod(), path, address, None).is_err(), "{path} was taken");
        }
    }

    #[test]
    fn files_can_hold_all_labels_and_annotations() {
        assert_eq!(field_for_file(&pod(), "metadata.labels").unwrap(), "app=\"web\"\nb/c=\"x\"");
        let annotations = field_for_file(&pod(), "metadata.annotations").unwrap();
        assert_eq!(annotations, r#"note="two\nlines \"quoted\"""#);
        assert!(field_for_file(&pod(), "status.podIP").is_err());
    }

    #[test]
    fn resources_are_divided_rounded_up_and_never_absent() {
        let container: Container = serde_json::from_value(json!({
            "name": "main", "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}},
        }))
        .unwrap();
        let none: Container = serde_json::from_value(json!({"name": "main"})).unwrap();
        let ceiling = Ceiling { memory: 1 << 30, cpus: 4, disk: 1 << 40 };
        let ask =
            |container, selector| resource(container, &serde_json::from_value(selector).unwrap(), ceiling);
        for (selector, expected) in [
            (json!({"resource": "limits.cpu"}), "2"),
            (json!({"resource": "limits.cpu", "divisor": "1m"}), "1500"),
            (json!({"resource": "requests.cpu", "divisor": "0"}), "2"),
            (json!({"resource": "limits.memory"}), "67108864"),
            (json!({"resource": "limits.memory", "divisor": "1Mi"}), "64"),
        ] {
            assert_eq!(ask(&container, selector).as_deref(), Ok(expected));
        }
        assert_eq!(ask(&none, json!({"resource": "limits.memory", "divisor": "1Gi"})).as_deref(), Ok("1"));
        assert_eq!(ask(&none, json!({"resource": "limits.cpu"})).as_deref(), Ok("4"));
        let disk = json!({"resource": "limits.ephemeral-storage", "divisor": "1Gi"});
        assert_eq!(ask(&none, disk).as_deref(), Ok("1024"));
        assert_eq!(ask(&none, json!({"resource": "requests.cpu"})).as_deref(), Ok("0"));
        assert!(ask(&none, json!({"resource": "limits.gpu"})).unwrap_err().contains("of cpu, memory"));
        assert!(
            ask(&none, json!({"resource": "limits.cpu", "divisor": "x"})).unwrap_err().contains("divisor")
        );
    }
}
