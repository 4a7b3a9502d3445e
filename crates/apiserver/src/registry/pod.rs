//! What an API server knows about Pods: defaults, checks beyond the schema, and which fields may change.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::names::Rule;
use crate::status::FieldError;

/// Marks a Pod that only mirrors what runs on its node.
const MIRROR: &str = "kubernetes.io/config.mirror";
const CONTAINER_LISTS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// The defaults of a new Pod that the node or users rely on.
pub(super) fn set_defaults(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for (field, default) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
        ("enableServiceLinks", json!(true)),
    ] {
        set(spec, field, default);
    }
    if let Some(account) = spec.get("serviceAccountName").cloned() {
        set(spec, "serviceAccount", account);
    }
    for list in CONTAINER_LISTS {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                default_container(container);
            }
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        default_volume(volume);
    }
}

/// A new Pod is Pending, whatever its maker says.
pub(super) fn reset_status(pod: &mut Value) {
    pod["status"] = json!({ "phase": "Pending", "qosClass": qos_class(&pod["spec"]) });
}

fn default_container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or(image);
    let floating = !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    let policy = if floating { "Always" } else { "IfNotPresent" };
    for (field, default) in [
        ("imagePullPolicy", json!(policy)),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("resources", json!({})),
    ] {
        set(container, field, default);
    }
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            set(port, "protocol", json!("TCP"));
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            for (field, value) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                set(probe, field, json!(value));
            }
            if let Some(request) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
                set(request, "scheme", json!("HTTP"));
            }
        }
    }
    // A limit without a request is also the request.
    let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    if let Some(requests) = resources.entry("requests").or_insert(json!({})).as_object_mut() {
        limits.into_iter().for_each(|(resource, quantity)| set(requests, &resource, quantity));
    }
}

fn default_volume(volume: &mut Value) {
    for source in ["configMap", "secret", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
            set(source, "defaultMode", json!(0o644));
        }
    }
    let sourceless = volume.as_object().is_some_and(|volume| volume.len() == 1);
    if sourceless {
        volume["emptyDir"] = json!({});
    }
}

fn set(map: &mut Map<String, Value>, field: &str, default: Value) {
    if map.get(field).is_none_or(Value::is_null) {
        map.insert(field.to_owned(), default);
    }
}

fn qos_class(spec: &Value) -> &'static str {
    let containers: Vec<&Value> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| spec[*list].as_array().into_iter().flatten())
        .collect();
    let has = |kind: &str, resource: &str, c: &Value| !c["resources"][kind][resource].is_null();
    let any = |c: &&Value| {
        ["limits", "requests"]
            .iter()
            .any(|kind| ["cpu", "memory"].iter().any(|resource| has(kind, resource, c)))
    };
    let guaranteed = |c: &&Value| {
        ["cpu", "memory"].iter().all(|resource| {
            has("limits", resource, c)
                && c["resources"]["limits"][*resource] == c["resources"]["requests"][*resource]
        })
    };
    if !containers.iter().any(any) {
        "BestEffort"
    } else if containers.iter().all(guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

pub(super) fn validate(pod: &Value, errors: &mut Vec<FieldError>) {
    let spec = &pod["spec"];
    if spec["containers"].as_array().is_none_or(Vec::is_empty) {
        errors.push(FieldError::required("spec.containers", ""));
    }
    let mut names = HashSet::new();
    for list in CONTAINER_LISTS {
        for (at, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            let path = format!("spec.{list}[{at}]");
            check_name(&container["name"], &path, &mut names, errors);
            if container["image"].as_str().unwrap_or_default().trim().is_empty() {
                errors.push(FieldError::required(format!("{path}.image"), ""));
            }
            check_mounts(container, spec, &path, errors);
        }
    }
    let mut volumes = HashSet::new();
    for (at, volume) in spec["volumes"].as_array().into_iter().flatten().enumerate() {
        check_name(&volume["name"], &format!("spec.volumes[{at}]"), &mut volumes, errors);
    }
    let policies: [Value; 3] = ["Always".into(), "OnFailure".into(), "Never".into()];
    if !policies.contains(&spec["restartPolicy"]) {
        errors.push(FieldError::unsupported("spec.restartPolicy", &spec["restartPolicy"], &policies));
    }
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        errors.push(FieldError::invalid(
            "spec.terminationGracePeriodSeconds",
            &spec["terminationGracePeriodSeconds"],
            "must be greater than or equal to 0",
        ));
    }
    for field in ["hostname", "subdomain"] {
        if let Some(wrong) = spec[field].as_str().and_then(|text| Rule::Label.check(text)) {
            errors.push(FieldError::invalid(format!("spec.{field}"), &spec[field], wrong));
        }
    }
}

fn check_name<'a>(name: &'a Value, path: &str, seen: &mut HashSet<&'a str>, errors: &mut Vec<FieldError>) {
    let text = name.as_str().unwrap_or_default();
    let path = format!("{path}.name");
    if text.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if let Some(wrong) = Rule::Label.check(text) {
        errors.push(FieldError::invalid(path, name, wrong));
    } else if !seen.insert(text) {
        errors.push(FieldError::duplicate(path, name));
    }
}

fn check_mounts(container: &Value, spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut paths = HashSet::new();
    for (at, mount) in container["volumeMounts"].as_array().into_iter().flatten().enumerate() {
        let known =
            spec["volumes"].as_array().into_iter().flatten().any(|volume| volume["name"] == mount["name"]);
        if !known {
            errors.push(FieldError {
                field: format!("{path}.volumeMounts[{at}].name"),
                reason: "FieldValueNotFound",
                message: format!("Not found: {}", mount["name"]),
            });
        }
        if !paths.insert(mount["mountPath"].as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(
                format!("{path}.volumeMounts[{at}].mountPath"),
                &mount["mountPath"],
                "must be unique",
            ));
        }
    }
}

/// The spec of a Pod is fixed, except for images, a shorter deadline and more tolerations. So is whether it is a mirror:
/// its node must know from the start whether there is anything to run.
pub(super) fn validate_update(pod: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    if pod["metadata"]["annotations"][MIRROR] != old["metadata"]["annotations"][MIRROR] {
        let field = format!("metadata.annotations[{MIRROR}]");
        errors.push(FieldError::forbidden(field, "may not add, remove or update mirror pod annotation"));
    }
    let mut munged = pod["spec"].clone();
    for list in ["containers", "initContainers"] {
        let olds = old["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(news) = munged.get_mut(list).and_then(Value::as_array_mut) else { continue };
        for (new, old) in news.iter_mut().zip(olds) {
            restore(new, old, "image");
        }
    }
    let kept = |field: &str, list: &Value| {
        let new = list.as_array().map(Vec::as_slice).unwrap_or_default();
        old["spec"][field].as_array().into_iter().flatten().all(|item| new.contains(item))
    };
    if kept("tolerations", &munged["tolerations"]) {
        restore(&mut munged, &old["spec"], "tolerations");
    }
    restore(&mut munged, &old["spec"], "activeDeadlineSeconds");
    restore(&mut munged, &old["spec"], "terminationGracePeriodSeconds");
    // Binding: a Pod without a node may get one, and its gates may be lifted.
    if old["spec"]["nodeName"].as_str().unwrap_or_default().is_empty() {
        restore(&mut munged, &old["spec"], "nodeName");
    }
    restore(&mut munged, &old["spec"], "schedulingGates");
    if munged != old["spec"] {
        errors.push(FieldError::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ));
    }
}

fn restore(spec: &mut Value, old: &Value, field: &str) {
    let Some(map) = spec.as_object_mut() else { return };
    match old.get(field) {
        Some(value) => map.insert(field.to_owned(), value.clone()),
        None => map.remove(field),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        let mut pod = json!({ "spec": { "containers": [{ "name": "main", "image": "app:1" }] } });
        set_defaults(&mut pod);
        pod
    }

    #[test]
    fn a_pod_gets_the_defaults_the_node_relies_on() {
        let pod = pod();
        assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 30);
        assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
        assert_eq!(qos_class(&pod["spec"]), "BestEffort");
    }

    #[test]
    fn wrong_containers_are_named() {
        let mut pod = pod();
        pod["spec"]["containers"] = json!([{ "name": "A" }, { "name": "b", "image": "x", "volumeMounts": [{ "name": "v", "mountPath": "/" }] }]);
        let mut errors = Vec::new();
        validate(&pod, &mut errors);
        let fields: Vec<_> = errors.iter().map(|e| e.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.containers[0].name",
                "spec.containers[0].image",
                "spec.containers[1].volumeMounts[0].name"
            ]
        );
    }

    #[test]
    fn a_pod_stays_a_mirror_or_none() {
        let ordinary = pod();
        let mut mirror = pod();
        mirror["metadata"]["annotations"][MIRROR] = "x".into();
        for (new, old, wrong) in [(&ordinary, &mirror, 1), (&mirror, &ordinary, 1), (&mirror, &mirror, 0)] {
            let mut errors = Vec::new();
            validate_update(new, old, &mut errors);
            assert_eq!(errors.len(), wrong, "{errors:?}");
        }
    }

    #[test]
    fn only_a_few_fields_of_a_pod_may_change() {
        let old = pod();
        let mut new = old.clone();
        new["spec"]["containers"][0]["image"] = "app:2".into();
        new["spec"]["nodeName"] = "n".into();
        new["spec"]["tolerations"] = json!([{ "key": "k", "operator": "Exists" }]);
        let mut errors = Vec::new();
        validate_update(&new, &old, &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        new["spec"]["containers"][0]["command"] = json!(["sh"]);
        validate_update(&new, &old, &mut errors);
        assert_eq!(errors.len(), 1);
    }
}
