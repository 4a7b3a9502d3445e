//! What a Pod is refused for, as kube-apiserver 1.36 words it, and what may change.

use super::*;

fn pod() -> Value {
    let mut pod = json!({ "spec": { "containers": [{ "name": "main", "image": "app:1" }] } });
    set_defaults(&mut pod);
    pod
}

#[test]
fn a_pod_without_limits_is_best_effort() {
    assert_eq!(qos_class(&pod()["spec"]), "BestEffort");
}

/// The errors of a Pod whose spec has `fields` besides a container, and whose container has `container`.
fn errors(fields: Value, container: Value) -> Vec<String> {
    let mut spec = json!({ "containers": [{ "name": "main", "image": "app:1" }] });
    for (field, value) in fields.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    for (field, value) in container.as_object().expect("fields") {
        spec["containers"][0][field] = value.clone();
    }
    let mut pod = json!({ "spec": spec });
    set_defaults(&mut pod);
    let mut errors = Errors::new();
    validate(&pod, &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn wrong_containers_are_named() {
    for (container, wanted) in [
        (json!({ "name": "A" }), "spec.containers[0].name: Invalid value: \"A\": a lowercase RFC 1123 label"),
        (json!({ "image": "" }), "spec.containers[0].image: Required value"),
        (
            json!({ "image": " app" }),
            "spec.containers[0].image: Invalid value: \" app\": must not have leading or trailing whitespace",
        ),
        (
            json!({ "imagePullPolicy": "always" }),
            "spec.containers[0].imagePullPolicy: Unsupported value: \"always\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            json!({ "terminationMessagePolicy": "Logs" }),
            "spec.containers[0].terminationMessagePolicy: Unsupported value: \"Logs\": supported values: \"File\", \"FallbackToLogsOnError\"",
        ),
        (
            json!({ "restartPolicy": "Maybe" }),
            "spec.containers[0].restartPolicy: Unsupported value: \"Maybe\"",
        ),
        (
            json!({ "ports": [{ "containerPort": 0 }] }),
            "spec.containers[0].ports[0].containerPort: Required value",
        ),
        (
            json!({ "ports": [{ "containerPort": 70000 }] }),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            json!({ "ports": [{ "containerPort": 1, "protocol": "tcp" }] }),
            "spec.containers[0].ports[0].protocol: Unsupported value: \"tcp\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (
            json!({ "ports": [{ "containerPort": 1, "name": "a" }, { "containerPort": 2, "name": "a" }] }),
            "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
        ),
        (
            json!({ "ports": [{ "containerPort": 1, "hostPort": 9 }, { "containerPort": 2, "hostPort": 9 }] }),
            "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//9\"",
        ),
        (
            json!({ "env": [{ "name": "A=B" }] }),
            "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name",
        ),
        (json!({ "env": [{ "name": "" }] }), "spec.containers[0].env[0].name: Required value"),
        (
            json!({ "env": [{ "name": "A", "valueFrom": {} }] }),
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`",
        ),
        (
            json!({ "env": [{ "name": "A", "value": "x", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }] }),
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
        ),
        (
            json!({ "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "spec.color" } } }] }),
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.color\": error converting fieldPath: field label not supported: spec.color",
        ),
        (
            json!({ "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "status.phase" } } }] }),
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"status.phase\": supported values: \"metadata.name\", \"metadata.namespace\"",
        ),
        (
            json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "a b" } } }] }),
            "spec.containers[0].env[0].valueFrom.secretKeyRef.key: Invalid value: \"a b\": a valid config key",
        ),
        (
            json!({ "env": [{ "name": "A", "valueFrom": { "resourceFieldRef": { "resource": "limits.gpu" } } }] }),
            "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Unsupported value: \"limits.gpu\"",
        ),
        (
            json!({ "envFrom": [{ "prefix": "A_" }] }),
            "spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
        ),
        (
            json!({ "volumeMounts": [{ "name": "v", "mountPath": "/" }] }),
            "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
        ),
        (
            json!({ "resources": { "limits": { "cpu": "1" }, "requests": { "cpu": "1500m" } } }),
            "spec.containers[0].resources.requests: Invalid value: \"1500m\": must be less than or equal to cpu limit of 1",
        ),
        (
            json!({ "resources": { "limits": { "memory": "-1Gi" } } }),
            "spec.containers[0].resources.limits[memory]: Invalid value: \"-1Gi\": must be greater than or equal to 0",
        ),
        (
            json!({ "resources": { "limits": { "gpu": "1" } } }),
            "spec.containers[0].resources.limits[gpu]: Invalid value: \"gpu\": must be a standard resource type or fully qualified",
        ),
        (
            json!({ "resources": { "requests": { "example.com/gpu": 1 } } }),
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            json!({ "livenessProbe": {} }),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        (
            json!({ "livenessProbe": { "exec": { "command": ["x"] }, "tcpSocket": { "port": 1 } } }),
            "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
        ),
        (
            json!({ "livenessProbe": { "exec": {} } }),
            "spec.containers[0].livenessProbe.exec.command: Required value",
        ),
        (
            json!({ "livenessProbe": { "tcpSocket": { "port": 0 } } }),
            "spec.containers[0].livenessProbe.tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (
            json!({ "livenessProbe": { "tcpSocket": { "port": 1 }, "successThreshold": 2 } }),
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            json!({ "readinessProbe": { "tcpSocket": { "port": 1 }, "periodSeconds": -1 } }),
            "spec.containers[0].readinessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            json!({ "readinessProbe": { "httpGet": { "port": 1, "scheme": "http" } } }),
            "spec.containers[0].readinessProbe.httpGet.scheme: Unsupported value: \"http\": supported values: \"HTTP\", \"HTTPS\"",
        ),
        (
            json!({ "lifecycle": { "preStop": {} } }),
            "spec.containers[0].lifecycle.preStop: Required value: must specify a handler type",
        ),
        (
            json!({ "lifecycle": { "preStop": { "sleep": { "seconds": 31 } } } }),
            "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
        ),
        (
            json!({ "securityContext": { "runAsUser": -1 } }),
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        ),
        (
            json!({ "securityContext": { "seccompProfile": { "type": "localhost" } } }),
            "spec.containers[0].securityContext.seccompProfile.type: Unsupported value: \"localhost\"",
        ),
    ] {
        let found = errors(json!({}), container.clone());
        assert!(found.iter().any(|error| error.starts_with(wanted)), "{container}: {found:?}");
    }
}

#[test]
fn wrong_fields_of_the_spec_are_named() {
    for (fields, wanted) in [
        (json!({ "containers": [] }), "spec.containers: Required value"),
        (
            json!({ "restartPolicy": "always" }),
            "spec.restartPolicy: Unsupported value: \"always\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ),
        (
            json!({ "dnsPolicy": "None" }),
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
        ),
        (json!({ "dnsPolicy": "Cluster" }), "spec.dnsPolicy: Unsupported value: \"Cluster\""),
        (
            json!({ "dnsConfig": { "nameservers": ["1.2.3"] } }),
            "spec.dnsConfig.nameservers[0]: Invalid value: \"1.2.3\": must be a valid IP address",
        ),
        (
            json!({ "activeDeadlineSeconds": 0 }),
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
        (
            json!({ "volumes": [{ "name": "v", "emptyDir": {}, "secret": { "secretName": "s" } }] }),
            "spec.volumes[0].secret: Forbidden: may not specify more than 1 volume type",
        ),
        (
            json!({ "volumes": [{ "name": "v", "sizes": {} }] }),
            "spec.volumes[0]: Required value: must specify a volume type",
        ),
        (
            json!({ "volumes": [{ "name": "v" }, { "name": "v" }] }),
            "spec.volumes[1].name: Duplicate value: \"v\"",
        ),
        (
            json!({ "volumes": [{ "name": "v", "secret": { "secretName": "s", "defaultMode": 1000 } }] }),
            "spec.volumes[0].secret.defaultMode: Invalid value: 1000: must be a number between 0 and 0777 (octal), both inclusive",
        ),
        (
            json!({ "volumes": [{ "name": "v", "configMap": { "name": "" } }] }),
            "spec.volumes[0].configMap.name: Required value",
        ),
        (
            json!({ "volumes": [{ "name": "v", "configMap": { "name": "c", "items": [{ "key": "k", "path": "../x" }] } }] }),
            "spec.volumes[0].configMap.items[0].path: Invalid value: \"../x\": must not contain '..'",
        ),
        (
            json!({ "volumes": [{ "name": "v", "hostPath": { "path": "/x", "type": "Dir" } }] }),
            "spec.volumes[0].hostPath.type: Unsupported value: \"Dir\"",
        ),
        (
            json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "" } }] }),
            "spec.volumes[0].persistentVolumeClaim.claimName: Required value",
        ),
        (
            json!({ "volumes": [{ "name": "v", "downwardAPI": { "items": [{ "path": "n" }] } }] }),
            "spec.volumes[0].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required",
        ),
        (
            json!({ "volumes": [{ "name": "v", "projected": { "sources": [{ "secret": { "name": "a" }, "configMap": { "name": "b" } }] } }] }),
            "spec.volumes[0].projected.sources[0]: Forbidden: may not specify more than 1 volume type per source",
        ),
        (
            json!({ "volumes": [{ "name": "v", "projected": { "sources": [{ "serviceAccountToken": { "path": "t", "expirationSeconds": 9 } }] } }] }),
            "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 9: may not specify a duration less than 10 minutes",
        ),
        (
            json!({ "volumes": [{ "name": "v", "emptyDir": { "sizeLimit": "-1" } }] }),
            "spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
        ),
        (
            json!({ "tolerations": [{ "operator": "Equal" }] }),
            "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty",
        ),
        (
            json!({ "tolerations": [{ "key": "a", "effect": "noexecute" }] }),
            "spec.tolerations[0].effect: Unsupported value: \"noexecute\"",
        ),
        (
            json!({ "nodeSelector": { "a": "b c" } }),
            "spec.nodeSelector: Invalid value: \"b c\": a valid label",
        ),
        (json!({ "securityContext": { "fsGroup": -1 } }), "spec.securityContext.fsGroup: Invalid value: -1"),
        (
            json!({ "initContainers": [{ "name": "main", "image": "x" }] }),
            "spec.initContainers[0].name: Duplicate value: \"main\"",
        ),
        (
            json!({ "initContainers": [{ "name": "first", "image": "x", "readinessProbe": { "exec": { "command": ["x"] } } }] }),
            "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ),
        (
            json!({ "ephemeralContainers": [{ "name": "debug", "image": "x", "ports": [{ "containerPort": 1 }] }] }),
            "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
        ),
    ] {
        let found = errors(fields.clone(), json!({}));
        assert!(found.iter().any(|error| error.starts_with(wanted)), "{fields}: {found:?}");
    }
}

#[test]
fn wrong_rules_about_the_place_are_named() {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let wrong = json!({ "labelSelector": { "matchExpressions": [
        { "key": "a", "operator": "in", "values": ["b"] }, { "key": "a", "operator": "In", "values": ["b c"] }] } });
    let named = json!({ "topologyKey": "host", "namespaces": ["A"], "matchLabelKeys": ["x"] });
    for kind in ["podAffinity", "podAntiAffinity"] {
        let affinity = json!({ "affinity": { kind: {
            REQUIRED: [wrong, named], PREFERRED: [{ "weight": 101, "podAffinityTerm": wrong }] } } });
        let found = errors(affinity, json!({}));
        let at = format!("spec.affinity.{kind}");
        let of_term = |term: String| {
            [
                format!(
                    "{term}.labelSelector.matchExpressions[0].operator: Invalid value: \"in\": not a valid selector operator"
                ),
                format!(
                    "{term}.labelSelector.matchExpressions[1].values[0]: Invalid value: \"b c\": a valid label"
                ),
                format!("{term}.topologyKey: Required value: can not be empty"),
                format!("{term}.topologyKey: Invalid value: \"\": name part must be non-empty"),
            ]
        };
        let mut wanted: Vec<String> = of_term(format!("{at}.{REQUIRED}[0]")).into();
        wanted
            .push(format!("{at}.{REQUIRED}[1].namespace: Invalid value: \"A\": a lowercase RFC 1123 label"));
        wanted.push(format!(
            "{at}.{REQUIRED}[1].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"
        ));
        wanted.push(format!("{at}.{PREFERRED}[0].weight: Invalid value: 101: must be in the range 1-100"));
        wanted.extend(of_term(format!("{at}.{PREFERRED}[0].podAffinityTerm")));
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!(found.starts_with(wanted), "{found} is not {wanted}");
        }
    }
    let fields = json!({ "matchFields": [{ "key": "metadata.uid", "operator": "Exists" }],
        "matchExpressions": [{ "key": "a", "operator": "Gt", "values": ["1", "2"] }] });
    let nodes = json!({ "affinity": { "nodeAffinity": { REQUIRED: { "nodeSelectorTerms": [fields] } } } });
    let found = errors(nodes, json!({}));
    assert!(found.len() == 3 && found[0].contains("must be specified single value"), "{found:?}");

    let spread = json!({ "topologySpreadConstraints": [
        { "maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Never", "minDomains": 0, "nodeTaintsPolicy": "No" },
        { "maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 1,
          "labelSelector": { "matchExpressions": [{ "key": "a", "operator": "Is" }] } },
        { "maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway" },
        { "topologyKey": "zone" },
    ] });
    let found = errors(spread, json!({}));
    let at = |index: usize| format!("spec.topologySpreadConstraints[{index}]");
    let wanted = [
        format!("{}.maxSkew: Invalid value: 0: must be greater than zero", at(0)),
        format!("{}.topologyKey: Required value: can not be empty", at(0)),
        format!("{}.whenUnsatisfiable: Unsupported value: \"Never\": supported", at(0)),
        format!("{}.minDomains: Invalid value: 0: must be greater than zero", at(0)),
        format!("{}.minDomains: Invalid value: 0: can only use minDomains if", at(0)),
        format!("{}.nodeTaintsPolicy: Unsupported value: \"No\": supported", at(0)),
        format!(
            "{}.{{topologyKey, whenUnsatisfiable}}: Duplicate value: \"{{host, ScheduleAnyway}}\"",
            at(1)
        ),
        format!("{}.minDomains: Invalid value: 1: can only use minDomains if", at(1)),
        format!("{}.labelSelector.matchExpressions[0].operator: Invalid value: \"Is\"", at(1)),
        format!("{}.maxSkew: Invalid value: 0: must be greater than zero", at(3)),
        format!("{}.whenUnsatisfiable: Unsupported value: \"\": supported", at(3)),
    ];
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!(found.starts_with(wanted), "{found} is not {wanted}");
    }
}

#[test]
fn a_negative_grace_period_is_one_second() {
    assert_eq!(errors(json!({ "terminationGracePeriodSeconds": -1 }), json!({})), Vec::<String>::new());
    let mut pod = json!({ "spec": { "terminationGracePeriodSeconds": -30 } });
    set_defaults(&mut pod);
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 1);
}

#[test]
fn a_pod_that_uses_everything_is_accepted() {
    let volumes = json!([
        { "name": "none" },
        { "name": "secret", "secret": { "secretName": "s", "items": [{ "key": "k", "path": "a/b", "mode": 256 }] } },
        { "name": "claim", "persistentVolumeClaim": { "claimName": "c" } },
        { "name": "downward", "downwardAPI": { "items": [
            { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
            { "path": "app", "fieldRef": { "fieldPath": "metadata.labels['app']" } },
            { "path": "cpu", "resourceFieldRef": { "containerName": "main", "resource": "limits.cpu", "divisor": "1m" } }] } },
        { "name": "own", "ephemeral": { "volumeClaimTemplate": { "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } } } },
        { "name": "all", "projected": { "sources": [
            { "serviceAccountToken": { "path": "token" } }, { "configMap": { "name": "c" } }] } },
    ]);
    let container = json!({
        "ports": [{ "name": "http", "containerPort": 80 }, { "containerPort": 80, "protocol": "UDP" }],
        "env": [{ "name": "A", "value": "$(B)" }, { "name": "A", "value": "again" }, { "name": "with space" },
            { "name": "C", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k.v" } } }],
        "envFrom": [{ "prefix": "X_", "configMapRef": { "name": "c" } }],
        "volumeMounts": [{ "name": "none", "mountPath": "/a", "subPath": "b" }, { "name": "none", "mountPath": "/c" }],
        "volumeDevices": [{ "name": "claim", "devicePath": "/dev/x" }],
        "resources": { "limits": { "cpu": 1, "memory": "1Gi", "example.com/gpu": "2" }, "requests": { "cpu": "1000m", "memory": "512Mi" } },
        "livenessProbe": { "httpGet": { "port": "http", "httpHeaders": [{ "name": "X-A", "value": "b" }] } },
        "readinessProbe": { "grpc": { "port": 9 }, "successThreshold": 3 },
        "startupProbe": { "exec": { "command": ["true"] }, "initialDelaySeconds": 0 },
        "lifecycle": { "postStart": { "exec": { "command": ["true"] } }, "preStop": { "sleep": { "seconds": 5 } } },
        "securityContext": { "runAsUser": 0, "seccompProfile": { "type": "RuntimeDefault" }, "procMount": "Default" },
    });
    let fields = json!({
        "volumes": volumes, "serviceAccountName": "robot", "hostname": "h", "activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 5,
        "initContainers": [{ "name": "side", "image": "x", "restartPolicy": "Always",
            "startupProbe": { "tcpSocket": { "port": 1 } } }, { "name": "first", "image": "x" }],
        "ephemeralContainers": [{ "name": "debug", "image": "x", "targetContainerName": "main", "stdin": true }],
        "tolerations": [{ "operator": "Exists" }, { "key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 3 }],
        "nodeSelector": { "kubernetes.io/arch": "amd64" }, "dnsPolicy": "None", "dnsConfig": { "nameservers": ["::1"] },
        "hostAliases": [{ "ip": "1.2.3.4", "hostnames": ["a.b"] }], "overhead": { "cpu": "10m" },
        "securityContext": { "fsGroup": 1, "supplementalGroups": [2], "sysctls": [{ "name": "a", "value": "b" }] },
    });
    assert_eq!(errors(fields, container), Vec::<String>::new());
}

#[test]
fn a_pod_stays_a_mirror_or_none() {
    let ordinary = pod();
    let mut mirror = pod();
    mirror["metadata"]["annotations"][MIRROR] = "x".into();
    for (new, old, wrong) in [(&ordinary, &mirror, 1), (&mirror, &ordinary, 1), (&mirror, &mirror, 0)] {
        let mut errors = Errors::new();
        validate_update(new, old, &mut errors);
        assert_eq!(errors.len(), wrong, "{errors:?}");
    }
}

#[test]
fn a_pod_stored_without_a_default_may_change() {
    let volumes = json!([{ "name": "v", "hostPath": { "path": "/x" } }]);
    let mut old = pod();
    old["spec"]["volumes"] = volumes;
    let mut new = old.clone();
    set_defaults(&mut new);
    let mut errors = Errors::new();
    validate_update(&new, &old, &mut errors);
    assert!(new["spec"] != old["spec"] && errors.is_empty(), "{errors:?}");
}

#[test]
fn only_a_few_fields_of_a_pod_may_change() {
    let old = pod();
    let mut new = old.clone();
    new["spec"]["containers"][0]["image"] = "app:2".into();
    let more = json!({ "key": "k", "operator": "Exists" });
    new["spec"]["tolerations"].as_array_mut().expect("a list").push(more);
    let mut errors = Errors::new();
    validate_update(&new, &old, &mut errors);
    assert!(errors.is_empty(), "{errors:?}");
    for (field, value) in [("nodeName", json!("n")), ("hostname", json!("h"))] {
        let mut new = new.clone();
        new["spec"][field] = value;
        let mut errors = Errors::new();
        validate_update(&new, &old, &mut errors);
        assert_eq!(errors.len(), 1, "{field}");
    }
    new["spec"]["containers"][0]["command"] = json!(["sh"]);
    validate_update(&new, &old, &mut errors);
    assert_eq!(errors.len(), 1);
}

#[test]
fn scheduling_gates_may_only_be_removed() {
    let with = |gates: Value| {
        let mut pod = pod();
        pod["spec"]["schedulingGates"] = gates;
        pod
    };
    let gate = |name: &str| json!({ "name": name });
    let both = json!([gate("example.com/a"), gate("example.com/b")]);
    for (old, new, expected) in [
        (both.clone(), json!([gate("example.com/b")]), None),
        (both.clone(), Value::Null, None),
        (json!([gate("example.com/a")]), both, Some("found new scheduling gate 'example.com/b'")),
        (Value::Null, json!([gate("example.com/a")]), Some("spec.schedulingGates: Forbidden: only deletion")),
    ] {
        let mut errors = Errors::new();
        validate_update(&with(new.clone()), &with(old.clone()), &mut errors);
        let found = errors.first().map(ToString::to_string).unwrap_or_default();
        let is_right = expected.map_or(errors.is_empty(), |expected| found.contains(expected));
        assert!(is_right, "{old} {new}: {errors:?}");
    }
}
