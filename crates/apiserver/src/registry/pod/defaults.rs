//! The defaults of a Pod, as kube-apiserver sets them. Clients written in Go rely on all of them being there.

use serde_json::{Map, Value, json};

use super::CONTAINER_LISTS;

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
const HOOKS: [&str; 2] = ["postStart", "preStop"];
/// The sources of a volume that have a mode for their files.
const FILES: [&str; 4] = ["configMap", "secret", "downwardAPI", "projected"];
const FILE_MODE: i64 = 0o644;
const TOKEN_SECONDS: i64 = 3600;
/// The priorities of the classes that every cluster has, and of no class.
const PRIORITIES: [(&str, i64); 3] =
    [("", 0), ("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
/// Taints of a node that fails. Pods stay for a while.
const FAILURES: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const FAILURE_SECONDS: i64 = 300;

pub(in crate::registry) fn set_defaults(pod: &mut Value) {
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
    // As in Kubernetes, where negative values were once allowed.
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        spec.insert("terminationGracePeriodSeconds".to_owned(), json!(1));
    }
    account(spec);
    placement(spec);
    let host_network = spec.get("hostNetwork") == Some(&json!(true));
    for list in CONTAINER_LISTS {
        for container in objects(spec, list) {
            default_container(container);
            match list {
                "ephemeralContainers" => {}
                _ => ports_and_requests(container, host_network),
            }
        }
    }
    for volume in objects(spec, "volumes") {
        default_volume(volume);
    }
}

/// What the admission of a cluster adds: a priority, and patience with a node that fails.
fn placement(spec: &mut Map<String, Value>) {
    set(spec, "preemptionPolicy", json!("PreemptLowerPriority"));
    let class = spec.get("priorityClassName").and_then(Value::as_str).unwrap_or_default();
    if let Some((_, priority)) = PRIORITIES.iter().find(|(name, _)| *name == class) {
        set(spec, "priority", json!(priority));
    }
    let Some(tolerations) = spec.entry("tolerations").or_insert(json!([])).as_array_mut() else { return };
    for key in FAILURES {
        let tolerates = |it: &Value| {
            matches!(it["effect"].as_str(), None | Some("" | "NoExecute"))
                && (it["key"] == key
                    || (it["key"].as_str().unwrap_or_default().is_empty() && it["operator"] == "Exists"))
        };
        if !tolerations.iter().any(tolerates) {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": FAILURE_SECONDS,
            }));
        }
    }
}

/// `serviceAccount` is the old name of `serviceAccountName`.
fn account(spec: &mut Map<String, Value>) {
    for (from, to) in [("serviceAccountName", "serviceAccount"), ("serviceAccount", "serviceAccountName")] {
        if let Some(name) = spec.get(from).cloned() {
            set(spec, to, name);
        }
    }
}

fn default_container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    for (field, default) in [
        ("imagePullPolicy", json!(pull_policy(image))),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("resources", json!({})),
    ] {
        set(container, field, default);
    }
    for port in objects(container, "ports") {
        set(port, "protocol", json!("TCP"));
    }
    for probe in PROBES {
        if let Some(probe) = object(container, probe) {
            default_probe(probe);
        }
    }
    if let Some(lifecycle) = object(container, "lifecycle") {
        for hook in HOOKS {
            if let Some(hook) = object(lifecycle, hook) {
                default_request(hook);
            }
        }
    }
    for variable in objects(container, "env") {
        if let Some(source) = object(variable, "valueFrom") {
            default_references(source);
        }
    }
}

/// A tag that moves is pulled again each time.
fn pull_policy(image: &str) -> &'static str {
    let name = image.rsplit('/').next().unwrap_or(image);
    let floating = !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    if floating { "Always" } else { "IfNotPresent" }
}

fn default_probe(probe: &mut Map<String, Value>) {
    for (field, default) in
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        // Zero is what Go programs send for a number that was not given.
        if probe.get(field).is_none_or(|value| value.is_null() || *value == 0) {
            probe.insert(field.to_owned(), default.into());
        }
    }
    default_request(probe);
    if let Some(call) = object(probe, "grpc") {
        set(call, "service", json!(""));
    }
}

fn default_request(handler: &mut Map<String, Value>) {
    let Some(request) = object(handler, "httpGet") else { return };
    set(request, "path", json!("/"));
    set(request, "scheme", json!("HTTP"));
}

/// The references of the downward API.
fn default_references(source: &mut Map<String, Value>) {
    if let Some(reference) = object(source, "fieldRef") {
        set(reference, "apiVersion", json!("v1"));
    }
    if let Some(reference) = object(source, "resourceFieldRef") {
        set(reference, "divisor", json!("0"));
    }
    if let Some(reference) = object(source, "fileKeyRef") {
        set(reference, "optional", json!(false));
    }
}

/// Limits without requests are also the requests; with the network of the machine, ports are the machine's.
fn ports_and_requests(container: &mut Map<String, Value>, host_network: bool) {
    if host_network {
        for port in objects(container, "ports") {
            let number = port.get("containerPort").cloned();
            if let Some(number) = number.filter(|_| port.get("hostPort").is_none_or(|it| *it == 0)) {
                port.insert("hostPort".to_owned(), number);
            }
        }
    }
    let Some(resources) = object(container, "resources") else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    if let Some(requests) = resources.entry("requests").or_insert(json!({})).as_object_mut() {
        limits.into_iter().for_each(|(resource, quantity)| set(requests, &resource, quantity));
    }
}

fn default_volume(volume: &mut Map<String, Value>) {
    if volume.iter().all(|(field, source)| field == "name" || source.is_null()) {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for source in FILES {
        if let Some(source) = object(volume, source) {
            set(source, "defaultMode", json!(FILE_MODE));
        }
    }
    if let Some(path) = object(volume, "hostPath") {
        set(path, "type", json!(""));
    }
    if let Some(image) = object(volume, "image") {
        let reference = image.get("reference").and_then(Value::as_str).unwrap_or_default();
        let policy = json!(pull_policy(reference));
        set(image, "pullPolicy", policy);
    }
    if let Some(items) = object(volume, "downwardAPI") {
        objects(items, "items").for_each(default_references);
    }
    if let Some(template) =
        object(volume, "ephemeral").and_then(|source| object(source, "volumeClaimTemplate"))
    {
        set(template, "metadata", json!({}));
        if let Some(spec) = object(template, "spec") {
            set(spec, "volumeMode", json!("Filesystem"));
        }
    }
    let Some(projected) = object(volume, "projected") else { return };
    for source in objects(projected, "sources") {
        if let Some(token) = object(source, "serviceAccountToken") {
            set(token, "expirationSeconds", json!(TOKEN_SECONDS));
        }
        if let Some(items) = object(source, "downwardAPI") {
            objects(items, "items").for_each(default_references);
        }
    }
}

fn object<'a>(map: &'a mut Map<String, Value>, field: &str) -> Option<&'a mut Map<String, Value>> {
    map.get_mut(field).and_then(Value::as_object_mut)
}

fn objects<'a>(
    map: &'a mut Map<String, Value>,
    field: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let list = map.get_mut(field).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Sets a field that is not given. An empty text is what Go programs send for one that was not.
fn set(map: &mut Map<String, Value>, field: &str, default: Value) {
    let unset = match map.get(field) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if unset {
        map.insert(field.to_owned(), default);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(spec: Value) -> Value {
        let mut pod = json!({ "spec": spec });
        set_defaults(&mut pod);
        pod["spec"].take()
    }

    fn container(fields: Value) -> Value {
        let mut container = json!({ "name": "main", "image": "app:1" });
        for (field, value) in fields.as_object().expect("fields") {
            container[field] = value.clone();
        }
        defaulted(json!({ "containers": [container] }))["containers"][0].take()
    }

    #[test]
    fn a_container_gets_every_default() {
        let made = container(json!({
            "imagePullPolicy": "", "ports": [{ "containerPort": 80 }],
            "livenessProbe": { "httpGet": { "port": 80 }, "timeoutSeconds": 0, "periodSeconds": 3 },
            "startupProbe": { "grpc": { "port": 80 } },
            "lifecycle": { "preStop": { "httpGet": { "port": 80, "scheme": "HTTPS" } } },
            "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                { "name": "B", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } }],
            "resources": { "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "500m" } },
        }));
        assert_eq!(made["imagePullPolicy"], "IfNotPresent");
        assert_eq!(made["terminationMessagePath"], "/dev/termination-log");
        assert_eq!(made["terminationMessagePolicy"], "File");
        assert_eq!(made["ports"], json!([{ "containerPort": 80, "protocol": "TCP" }]));
        assert_eq!(
            made["livenessProbe"],
            json!({ "httpGet": { "port": 80, "path": "/", "scheme": "HTTP" }, "timeoutSeconds": 1,
                "periodSeconds": 3, "successThreshold": 1, "failureThreshold": 3 })
        );
        assert_eq!(made["startupProbe"]["grpc"], json!({ "port": 80, "service": "" }));
        assert_eq!(
            made["lifecycle"]["preStop"]["httpGet"],
            json!({ "port": 80, "path": "/", "scheme": "HTTPS" })
        );
        assert_eq!(made["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(made["env"][1]["valueFrom"]["resourceFieldRef"]["divisor"], "0");
        assert_eq!(made["resources"]["requests"], json!({ "cpu": "500m", "memory": "1Gi" }));
        for (image, policy) in
            [("app", "Always"), ("r:5000/app:latest", "Always"), ("r:5000/app@sha256:0", "IfNotPresent")]
        {
            assert_eq!(container(json!({ "image": image }))["imagePullPolicy"], policy, "{image}");
        }
    }

    #[test]
    fn volumes_get_every_default() {
        let made = defaulted(json!({ "volumes": [
            { "name": "none" },
            { "name": "path", "hostPath": { "path": "/x" } },
            { "name": "projected", "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } },
                { "downwardAPI": { "items": [{ "path": "n", "fieldRef": { "fieldPath": "metadata.name" } }] } }] } },
            { "name": "downward", "downwardAPI": { "items": [
                { "path": "c", "resourceFieldRef": { "resource": "limits.cpu", "containerName": "main" } }] } },
            { "name": "own", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } },
            { "name": "image", "image": { "reference": "app" } },
        ] }));
        let volumes = &made["volumes"];
        assert_eq!(volumes[0]["emptyDir"], json!({}));
        assert_eq!(volumes[1]["hostPath"]["type"], "");
        let projected = &volumes[2]["projected"];
        assert_eq!(projected["defaultMode"], 420);
        assert_eq!(projected["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3600);
        assert_eq!(projected["sources"][1]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(volumes[3]["downwardAPI"]["items"][0]["resourceFieldRef"]["divisor"], "0");
        assert_eq!(volumes[4]["ephemeral"]["volumeClaimTemplate"]["spec"]["volumeMode"], "Filesystem");
        assert_eq!(volumes[5]["image"]["pullPolicy"], "Always");
    }

    #[test]
    fn a_pod_gets_every_default() {
        let made = defaulted(json!({
            "serviceAccount": "robot", "hostNetwork": true, "dnsPolicy": "",
            "containers": [{ "name": "main", "image": "app", "ports": [{ "containerPort": 80 }] }],
            "initContainers": [{ "name": "first", "image": "app", "resources": { "limits": { "cpu": "1" } } }],
            "ephemeralContainers": [{ "name": "debug", "image": "app" }],
        }));
        assert_eq!(
            (&made["serviceAccountName"], &made["dnsPolicy"]),
            (&json!("robot"), &json!("ClusterFirst"))
        );
        assert_eq!(
            (&made["priority"], &made["preemptionPolicy"]),
            (&json!(0), &json!("PreemptLowerPriority"))
        );
        let keys: Vec<&Value> =
            made["tolerations"].as_array().expect("a list").iter().map(|it| &it["key"]).collect();
        assert_eq!(keys, FAILURES);
        let own = json!([{ "operator": "Exists" }]);
        assert_eq!(defaulted(json!({ "tolerations": own }))["tolerations"], own, "it tolerates them already");
        assert_eq!(made["containers"][0]["ports"][0]["hostPort"], 80);
        assert_eq!(made["initContainers"][0]["resources"]["requests"]["cpu"], "1");
        assert_eq!(made["ephemeralContainers"][0]["terminationMessagePolicy"], "File");
    }
}
