//! Checks of containers, whichever list they are in.

use std::collections::HashSet;

use super::super::field::{Errors, Field};
use super::{env, probe, resources, security, volume};
use crate::names::Rule;
use crate::status::FieldError;

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const RESTART_POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
/// What an ephemeral container may not have.
const NOT_EPHEMERAL: [&str; 7] = [
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "restartPolicy",
    "resizePolicy",
];

/// Checks every container of a Pod.
pub(super) fn check(spec: &Field<'_, '_>, errors: &mut Errors) {
    let containers = spec.get("containers");
    if containers.items().next().is_none() {
        containers.missing("", errors);
    }
    let volumes: HashSet<&str> = spec.get("volumes").items().map(|it| it.get("name").text()).collect();
    let claims: HashSet<&str> =
        spec.get("volumes").items().filter(volume::is_claim).map(|it| it.get("name").text()).collect();
    let mut names = HashSet::new();
    let mut host_ports = HashSet::new();
    for list in super::CONTAINER_LISTS {
        for container in spec.get(list).items() {
            check_name(&container, &mut names, errors);
            common(spec, &container, &volumes, &claims, errors);
            match list {
                "containers" => {
                    running(spec, &container, errors);
                    check_host_ports(&container, &mut host_ports, errors);
                }
                "initContainers" => {
                    init(spec, &container, errors);
                    // They run one after the other.
                    check_host_ports(&container, &mut HashSet::new(), errors);
                }
                _ => ephemeral(spec, &container, errors),
            }
        }
    }
}

pub(super) fn check_name<'v>(object: &Field<'_, 'v>, seen: &mut HashSet<&'v str>, errors: &mut Errors) {
    let name = object.get("name");
    let before = errors.len();
    if name.required(errors) {
        name.named(Rule::Label, errors);
    }
    if errors.len() == before && !seen.insert(name.text()) {
        name.duplicate(errors);
    }
}

fn common(
    spec: &Field<'_, '_>,
    container: &Field<'_, '_>,
    volumes: &HashSet<&str>,
    claims: &HashSet<&str>,
    errors: &mut Errors,
) {
    let image = container.get("image");
    if image.required(errors) && image.text().trim() != image.text() {
        image.invalid("must not have leading or trailing whitespace", errors);
    }
    container.get("terminationMessagePolicy").one_of(&["File", "FallbackToLogsOnError"], errors);
    container.get("imagePullPolicy").one_of(&["Always", "IfNotPresent", "Never"], errors);
    ports(&container.get("ports"), spec.get("hostNetwork").value == true, errors);
    env::check(container, errors);
    mounts(container, volumes, errors);
    devices(container, claims, volumes, errors);
    resources::check(&container.get("resources"), errors);
    resize_policies(spec, &container.get("resizePolicy"), errors);
    let host_users = spec.get("hostUsers").value != false;
    security::container(&container.get("securityContext"), host_users, errors);
}

fn ports(ports: &Field<'_, '_>, host_network: bool, errors: &mut Errors) {
    let mut names = HashSet::new();
    for port in ports.items() {
        let name = port.get("name");
        if !name.text().is_empty() {
            let before = errors.len();
            name.port(errors);
            if errors.len() == before && !names.insert(name.text()) {
                name.duplicate(errors);
            }
        }
        let number = port.get("containerPort");
        match number.value.as_i64() {
            None | Some(0) => number.missing("", errors),
            Some(_) => number.port(errors),
        }
        let host = port.get("hostPort");
        if host.value != 0 {
            host.port(errors);
        }
        if host_network && host.value != number.value {
            host.invalid("must match `containerPort` when `hostNetwork` is true", errors);
        }
        port.get("protocol").one_of(&PROTOCOLS, errors);
    }
}

/// A port of the machine can be given to one container only.
fn check_host_ports(container: &Field<'_, '_>, taken: &mut HashSet<String>, errors: &mut Errors) {
    for port in container.get("ports").items() {
        let host = port.get("hostPort");
        let Some(number) = host.value.as_i64().filter(|number| *number != 0) else { continue };
        let key = format!("{}/{}/{number}", port.get("protocol").text(), port.get("hostIP").text());
        if !taken.insert(key.clone()) {
            errors.push(FieldError::duplicate(host.path(), &key.into()));
        }
    }
}

fn mounts(container: &Field<'_, '_>, volumes: &HashSet<&str>, errors: &mut Errors) {
    let privileged = container.get("securityContext").get("privileged").value == true;
    let mounts = container.get("volumeMounts");
    // kube-apiserver leaves the index of the mount out of these paths.
    let (below_path, expression_path) = (mounts.get("subPath"), mounts.get("subPathExpr"));
    let (propagation_path, recursion_path) =
        (mounts.get("mountPropagation"), mounts.get("recursiveReadOnly"));
    let mut paths = HashSet::new();
    for mount in mounts.items() {
        let (name, path) = (mount.get("name"), mount.get("mountPath"));
        name.required(errors);
        if !volumes.contains(name.text()) {
            errors.push(FieldError::not_found(name.path(), name.value));
        }
        path.required(errors);
        if !paths.insert(path.text()) {
            path.invalid("must be unique", errors);
        }
        let (below, expression) = (mount.get("subPath"), mount.get("subPathExpr"));
        below_path.with(below.value).descending_path(errors);
        if !expression.text().is_empty() && !below.text().is_empty() {
            expression.invalid("subPathExpr and subPath are mutually exclusive", errors);
        }
        expression_path.with(expression.value).descending_path(errors);
        let propagation = propagation_path.with(mount.get("mountPropagation").value);
        propagation.one_of(&["Bidirectional", "HostToContainer", "None"], errors);
        if propagation.text() == "Bidirectional" && !privileged {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            propagation.forbidden(why, errors);
        }
        let recursion = recursion_path.with(mount.get("recursiveReadOnly").value);
        recursion.one_of(&["Disabled", "Enabled", "IfPossible"], errors);
        if matches!(recursion.text(), "Enabled" | "IfPossible") {
            if mount.get("readOnly").value != true {
                recursion.forbidden("may only be specified when readOnly is true", errors);
            }
            if propagation.is_given() && propagation.text() != "None" {
                let why = "may only be specified when mountPropagation is None or not specified";
                recursion.forbidden(why, errors);
            }
        }
    }
}

fn devices(container: &Field<'_, '_>, claims: &HashSet<&str>, volumes: &HashSet<&str>, errors: &mut Errors) {
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    for device in container.get("volumeDevices").items() {
        let (name, path) = (device.get("name"), device.get("devicePath"));
        if name.required(errors) && !names.insert(name.text()) {
            name.invalid("must be unique", errors);
        }
        if !volumes.contains(name.text()) {
            errors.push(FieldError::not_found(name.path(), name.value));
        } else if !claims.contains(name.text()) {
            let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
            name.invalid(why, errors);
        }
        if path.required(errors) && !paths.insert(path.text()) {
            path.invalid("must be unique", errors);
        }
        if path.text().split('/').any(|part| part == "..") {
            path.invalid("can not contain backsteps ('..')", errors);
        }
    }
}

fn resize_policies(spec: &Field<'_, '_>, policies: &Field<'_, '_>, errors: &mut Errors) {
    let never = spec.get("restartPolicy").text() == "Never";
    let mut seen = HashSet::new();
    for policy in policies.items() {
        // kube-apiserver reports both fields under the list.
        let resource = policies.with(policy.get("resourceName").value);
        let restart = policies.with(policy.get("restartPolicy").value);
        if !seen.insert(resource.text()) {
            policy.with(resource.value).duplicate(errors);
        }
        resource.one_of(&["cpu", "memory"], errors);
        restart.one_of(&["NotRequired", "RestartContainer"], errors);
        if never && restart.text() == "RestartContainer" {
            restart.invalid("must be 'NotRequired' when pod `restartPolicy` is 'Never'", errors);
        }
    }
}

/// What a container has that is watched while it runs.
fn running(spec: &Field<'_, '_>, container: &Field<'_, '_>, errors: &mut Errors) {
    let grace = spec.get("terminationGracePeriodSeconds").value.as_i64();
    probe::lifecycle(&container.get("lifecycle"), &spec.get("os"), grace, errors);
    probe::check(&container.get("livenessProbe"), probe::Kind::Liveness, errors);
    probe::check(&container.get("readinessProbe"), probe::Kind::Readiness, errors);
    probe::check(&container.get("startupProbe"), probe::Kind::Startup, errors);
    restart_rules(container, errors);
}

fn init(spec: &Field<'_, '_>, container: &Field<'_, '_>, errors: &mut Errors) {
    if container.get("restartPolicy").text() == "Always" {
        return running(spec, container, errors);
    }
    restart_rules(container, errors);
    for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        let given = container.get(field);
        if given.is_given() {
            given.forbidden("may not be set for init containers without restartPolicy=Always", errors);
        }
    }
}

fn restart_rules(container: &Field<'_, '_>, errors: &mut Errors) {
    let (policy, rules) = (container.get("restartPolicy"), container.get("restartPolicyRules"));
    policy.one_of(&RESTART_POLICIES, errors);
    if !policy.is_given() && rules.items().next().is_some() {
        policy.missing("must specify restartPolicy when restart rules are used", errors);
    }
    for rule in rules.items() {
        rule.get("action").one_of(&["Restart", "RestartAllContainers"], errors);
        let codes = rule.get("exitCodes");
        if !codes.is_given() {
            codes.missing("must be specified", errors);
        }
        codes.get("operator").one_of(&["In", "NotIn"], errors);
    }
}

fn ephemeral(spec: &Field<'_, '_>, container: &Field<'_, '_>, errors: &mut Errors) {
    const WHY: &str = "cannot be set for an Ephemeral Container";
    for field in NOT_EPHEMERAL {
        let given = container.get(field);
        if given.is_given() {
            given.forbidden(WHY, errors);
        }
    }
    let resources = container.get("resources");
    if resources.entries().next().is_some() {
        resources.forbidden(WHY, errors);
    }
    for mount in container.get("volumeMounts").items() {
        for field in ["subPath", "subPathExpr"] {
            let given = mount.get(field);
            if !given.text().is_empty() {
                given.forbidden(WHY, errors);
            }
        }
    }
    let target = container.get("targetContainerName");
    let known = ["containers", "initContainers"]
        .iter()
        .any(|list| spec.get(list).items().any(|other| other.get("name").text() == target.text()));
    if !target.text().is_empty() && !known {
        errors.push(FieldError::not_found(target.path(), target.value));
    }
}
