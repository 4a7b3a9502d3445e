//! Which fields of a Pod this node honours. Any other that is set is refused by its path, never ignored.

use serde_json::{Map, Value};

use super::container::TRACING;
use super::{capabilities, hosts};

/// Fields that are honoured, or that ask for nothing beyond what every sandbox has.
const POD: &[&str] = &[
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers", // checked one by one, when they are started
    "hostAliases",
    "hostname",
    "imagePullSecrets",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];
const CONTAINER: &[&str] = &[
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "resizePolicy", // says how a resize would be done; a running Pod is not resized
    "resources",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeMounts",
    "workingDir",
];
const CONTAINER_SECURITY: &[&str] = &[
    "allowPrivilegeEscalation",
    "capabilities",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seccompProfile",
];
const POD_SECURITY: &[&str] = &[
    "fsGroup",
    "fsGroupChangePolicy",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seccompProfile",
    "supplementalGroups",
    "supplementalGroupsPolicy",
];
const PROBE: &[&str] = &[
    "exec",
    "failureThreshold",
    "grpc",
    "httpGet",
    "initialDelaySeconds",
    "periodSeconds",
    "successThreshold",
    "tcpSocket",
    "terminationGracePeriodSeconds",
    "timeoutSeconds",
];
const LIFECYCLE: &[&str] = &["postStart", "preStop"];
const HOOK: &[&str] = &["exec", "httpGet", "sleep", "tcpSocket"];
const ENV: &[&str] = &["name", "value", "valueFrom"];
const ENV_SOURCE: &[&str] = &["configMapKeyRef", "fieldRef", "resourceFieldRef", "secretKeyRef"];
const ENV_FROM: &[&str] = &["configMapRef", "prefix", "secretRef"];
const PORT: &[&str] = &["containerPort", "name", "protocol"];
const MOUNT: &[&str] =
    &["mountPath", "mountPropagation", "name", "readOnly", "recursiveReadOnly", "subPath", "subPathExpr"];
/// What a container can be given; what is not here no node of this kind has.
const RESOURCES: &[&str] = &["limits", "requests"];
const RESOURCE: &[&str] = &["cpu", "ephemeral-storage", "memory"];
const VOLUME: &[&str] = &[
    "configMap",
    "downwardAPI",
    "emptyDir",
    "hostPath",
    "name",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const PROJECTED: &[&str] = &["configMap", "downwardAPI", "secret"];

/// The first field of a Pod spec that this node cannot honour, as a message with its path. Whether privileged containers are
/// run is the operator's to say.
pub fn check(spec: &Value, privileged: bool) -> Result<(), String> {
    only(spec, "spec", POD)?;
    only(&spec["securityContext"], "spec.securityContext", POD_SECURITY)?;
    only_as(&spec["os"], "spec.os", "name", "linux")?;
    for (at, container) in list(spec, "containers") {
        check_container(container, &format!("spec.containers[{at}]"), CONTAINER, privileged)?;
    }
    for (at, container) in list(spec, "initContainers") {
        let path = format!("spec.initContainers[{at}]");
        check_container(container, &path, &[CONTAINER, &["restartPolicy"]].concat(), privileged)?;
        match container["restartPolicy"].as_str() {
            None | Some("" | "Always") => {}
            Some(other) => {
                return Err(format!(
                    "{path}.restartPolicy: {other:?} is not available; use \"Always\" or none"
                ));
            }
        }
    }
    for (at, volume) in list(spec, "volumes") {
        let path = format!("spec.volumes[{at}]");
        only(volume, &path, VOLUME)?;
        for (at, source) in list(&volume["projected"], "sources") {
            only(source, &format!("{path}.projected.sources[{at}]"), PROJECTED)?;
        }
    }
    hosts::check(&spec["hostAliases"])?;
    check_seccomp(&spec["securityContext"], "spec.securityContext", false)
}

/// The same of one container that was added to a Pod. Whose processes it wants to see says nothing here: containers of a Pod
/// never see each other's, as with a kubelet whose runtime cannot show them.
pub fn check_ephemeral(spec: &Value, at: usize, privileged: bool) -> Result<(), String> {
    let (mut container, path) =
        (spec["ephemeralContainers"][at].clone(), format!("spec.ephemeralContainers[{at}]"));
    if let Some(add) =
        container.pointer_mut("/securityContext/capabilities/add").and_then(Value::as_array_mut)
    {
        add.retain(|name| name != TRACING);
    }
    check_container(&container, &path, &[CONTAINER, &["targetContainerName"]].concat(), privileged)
}

fn check_container(container: &Value, path: &str, known: &[&str], privileged: bool) -> Result<(), String> {
    only(container, path, known)?;
    let security = &container["securityContext"];
    only(security, &format!("{path}.securityContext"), CONTAINER_SECURITY)?;
    check_security(security, &format!("{path}.securityContext"), privileged)?;
    for (at, env) in list(container, "env") {
        only(env, &format!("{path}.env[{at}]"), ENV)?;
        only(&env["valueFrom"], &format!("{path}.env[{at}].valueFrom"), ENV_SOURCE)?;
    }
    for (at, source) in list(container, "envFrom") {
        only(source, &format!("{path}.envFrom[{at}]"), ENV_FROM)?;
    }
    for (at, port) in list(container, "ports") {
        only(port, &format!("{path}.ports[{at}]"), PORT)?;
    }
    for (at, mount) in list(container, "volumeMounts") {
        let path = format!("{path}.volumeMounts[{at}]");
        only(mount, &path, MOUNT)?;
        only_as(mount, &path, "mountPropagation", "None")?;
        only_as(mount, &path, "recursiveReadOnly", "Disabled")?;
    }
    let resources = &container["resources"];
    only(resources, &format!("{path}.resources"), RESOURCES)?;
    for kind in RESOURCES {
        only(&resources[kind], &format!("{path}.resources.{kind}"), RESOURCE)?;
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        only(&container[probe], &format!("{path}.{probe}"), PROBE)?;
    }
    let lifecycle = &container["lifecycle"];
    only(lifecycle, &format!("{path}.lifecycle"), LIFECYCLE)?;
    LIFECYCLE.iter().try_for_each(|hook| only(&lifecycle[hook], &format!("{path}.lifecycle.{hook}"), HOOK))
}

/// Sandboxes are given no more rights than all of them have, unless they are privileged and may be.
fn check_security(security: &Value, path: &str, allowed: bool) -> Result<(), String> {
    let privileged = security["privileged"] == true;
    if privileged && !allowed {
        return Err(format!(
            "{path}.privileged: privileged containers are not run here; remove the field, or have the engine started \
             with `asb up --allow-privileged`"
        ));
    }
    if privileged && security["allowPrivilegeEscalation"] == false {
        return Err(format!("{path}.allowPrivilegeEscalation: cannot be false together with privileged"));
    }
    only_as(security, path, "procMount", "Default")?;
    capabilities::of(&security["capabilities"], &format!("{path}.capabilities"), privileged)?;
    check_seccomp(security, path, privileged)
}

fn check_seccomp(security: &Value, path: &str, privileged: bool) -> Result<(), String> {
    match security["seccompProfile"]["type"].as_str() {
        None | Some("RuntimeDefault") => Ok(()),
        // As with a kubelet, no profile applies to them anyway.
        Some("Unconfined") if privileged => Ok(()),
        Some(other) => {
            Err(format!("{path}.seccompProfile.type: {other:?} is not available; use \"RuntimeDefault\""))
        }
    }
}

fn list<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    object[field].as_array().into_iter().flatten().enumerate()
}

/// Refuses fields that are set and not in `known`. Empty and false ask for nothing.
fn only(object: &Value, path: &str, known: &[&str]) -> Result<(), String> {
    let empty = Map::new();
    let fields = object.as_object().unwrap_or(&empty);
    let unknown =
        fields.iter().find(|(field, value)| !known.contains(&field.as_str()) && !asks_nothing(value));
    match unknown {
        Some((field, _)) => Err(format!("{path}.{field}: not supported by this node; remove the field")),
        None => Ok(()),
    }
}

/// Refuses a field that is set to anything but what every sandbox has.
fn only_as(object: &Value, path: &str, field: &str, known: &str) -> Result<(), String> {
    match object[field].as_str() {
        None | Some("") => Ok(()),
        Some(value) if value == known => Ok(()),
        Some(other) => Err(format!("{path}.{field}: {other:?} is not available; use {known:?} or none")),
    }
}

fn asks_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(asks_nothing),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn added_containers_are_checked_apart_from_their_pod() {
        let spec = json!({"containers": [{"name": "main"}], "ephemeralContainers": [
            {"name": "good", "targetContainerName": "main", "stdin": true, "tty": true,
             "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}},
            {"name": "bad", "volumeDevices": [{"name": "d", "devicePath": "/d"}]},
        ]});
        assert_eq!(check(&spec, false), Ok(()));
        assert_eq!(check_ephemeral(&spec, 0, false), Ok(()));
        let refused = check_ephemeral(&spec, 1, false).expect_err("must be refused");
        assert!(refused.contains("spec.ephemeralContainers[1].volumeDevices"), "{refused}");
    }

    #[test]
    fn unsupported_fields_are_refused_by_their_path() {
        let cases = [
            (json!({"hostNetwork": true}), "spec.hostNetwork"),
            (json!({"shareProcessNamespace": true}), "spec.shareProcessNamespace"),
            (
                json!({"initContainers": [{"name": "x", "restartPolicy": "Never"}]}),
                "spec.initContainers[0].restartPolicy",
            ),
            (
                json!({"containers": [{"name": "a"}, {"name": "b", "restartPolicy": "Always"}]}),
                "spec.containers[1].restartPolicy",
            ),
            (
                json!({"containers": [{"lifecycle": {"stopSignal": "SIGINT"}}]}),
                "spec.containers[0].lifecycle.stopSignal",
            ),
            (
                json!({"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]}),
                "spec.containers[0].ports[0].hostPort",
            ),
            (
                json!({"containers": [{"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "x"}}}]}]}),
                "spec.containers[0].env[0].valueFrom.fileKeyRef",
            ),
            (
                json!({"containers": [{"securityContext": {"privileged": true}}]}),
                "spec.containers[0].securityContext.privileged",
            ),
            (
                json!({"containers": [{"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}),
                "spec.containers[0].securityContext.capabilities.add[0]",
            ),
            (
                json!({"containers": [{"resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}}]}),
                "spec.containers[0].resources.limits.nvidia.com/gpu",
            ),
            (
                json!({"containers": [{"resources": {"requests": {"hugepages-2Mi": "4Mi"}}}]}),
                "spec.containers[0].resources.requests.hugepages-2Mi",
            ),
            (
                json!({"containers": [{"resources": {"claims": [{"name": "gpu"}]}}]}),
                "spec.containers[0].resources.claims",
            ),
            (
                json!({"containers": [{"volumeMounts": [{"mountPropagation": "Bidirectional"}]}]}),
                "spec.containers[0].volumeMounts[0].mountPropagation",
            ),
            (
                json!({"containers": [{"securityContext": {"procMount": "Unmasked"}}]}),
                "spec.containers[0].securityContext.procMount",
            ),
            (json!({"os": {"name": "windows"}}), "spec.os.name"),
            (json!({"setHostnameAsFQDN": true}), "spec.setHostnameAsFQDN"),
            (json!({"hostUsers": true}), "spec.hostUsers"),
            (json!({"resourceClaims": [{"name": "gpu"}]}), "spec.resourceClaims"),
            (json!({"securityContext": {"sysctls": [{"name": "a"}]}}), "spec.securityContext.sysctls"),
            (
                json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
                "spec.securityContext.seccompProfile.type",
            ),
            (json!({"volumes": [{"name": "n", "nfs": {"server": "x"}}]}), "spec.volumes[0].nfs"),
            (
                json!({"volumes": [{"name": "m", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
                "spec.volumes[0].projected.sources[0].serviceAccountToken",
            ),
        ];
        for (spec, path) in cases {
            let refused = check(&spec, false).expect_err("must be refused");
            assert!(refused.contains(path), "{refused:?} names {path}");
        }
    }

    #[test]
    fn fields_that_ask_for_nothing_are_fine() {
        let spec = json!({
            "hostNetwork": false, "hostUsers": false, "initContainers": [], "securityContext": {}, "os": {"name": "linux"},
            "containers": [{
                "name": "a", "image": "host", "lifecycle": {},
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                "securityContext": {"privileged": false, "procMount": "Default", "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"mountPropagation": "None", "recursiveReadOnly": "Disabled"}],
                "resources": {"limits": {"memory": "1Gi"}, "requests": {"ephemeral-storage": "1Gi"}, "claims": []},
            }],
            "volumes": [{"name": "e", "emptyDir": {}}],
        });
        assert_eq!(check(&spec, false), Ok(()));
    }

    #[test]
    fn privileged_containers_are_the_operators_to_allow() {
        let container = |security: Value| json!({"containers": [{"securityContext": security}]});
        let privileged = container(json!({"privileged": true, "seccompProfile": {"type": "Unconfined"}}));
        assert!(check(&privileged, false).is_err_and(|message| message.contains("--allow-privileged")));
        assert_eq!(check(&privileged, true), Ok(()));
        let torn = container(json!({"privileged": true, "allowPrivilegeEscalation": false}));
        let refused = check(&torn, true).expect_err("as a kube-apiserver refuses it");
        assert!(
            refused.starts_with("spec.containers[0].securityContext.allowPrivilegeEscalation: "),
            "{refused}"
        );
        let init = json!({"initContainers": [{"securityContext": {"privileged": true}}]});
        let refused = check(&init, false).expect_err("refused");
        assert!(refused.starts_with("spec.initContainers[0].securityContext.privileged: "), "{refused}");
        let more = container(json!({"capabilities": {"add": ["SYS_ADMIN"]}}));
        assert!(check(&more, true).is_err(), "others have no more than before");
    }
}
