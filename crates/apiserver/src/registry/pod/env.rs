//! Checks of environment variables and of the references that the downward API resolves.

use super::super::field::{Errors, Field};
use crate::names::{self, Rule};
use crate::status::FieldError;
use asb_types::Quantity;
use serde_json::json;

const SOURCES: [&str; 5] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
const NO_SOURCE: &str =
    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
const IN_VARIABLES: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const IN_FILES: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Fields that exist, but that a variable cannot have.
const OTHERS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase"];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const HUGE_PAGES: [&str; 2] = ["limits.hugepages-", "requests.hugepages-"];
const BYTES: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Where a reference of the downward API stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Variable,
    File,
}

pub(super) fn check(container: &Field<'_, '_>, errors: &mut Errors) {
    for variable in container.get("env").items() {
        let name = variable.get("name");
        if name.required(errors)
            && let Some(wrong) = names::variable(name.text())
        {
            name.invalid(wrong, errors);
        }
        let source = variable.get("valueFrom");
        if source.is_given() {
            value_from(&source, !variable.get("value").text().is_empty(), errors);
        }
    }
    let sources = container.get("envFrom");
    for source in sources.items() {
        let prefix = source.get("prefix");
        if let Some(wrong) = names::variable(prefix.text()) {
            prefix.invalid(wrong, errors);
        }
        let mut given = 0;
        for field in ["configMapRef", "secretRef"] {
            let reference = source.get(field);
            if reference.is_given() {
                given += 1;
                let name = reference.get("name");
                name.required(errors);
                name.named(Rule::Subdomain, errors);
            }
        }
        one_source(&sources, given, "must specify one of: `configMapRef` or `secretRef`", errors);
    }
}

fn value_from(source: &Field<'_, '_>, with_value: bool, errors: &mut Errors) {
    let mut given = 0;
    for field in SOURCES {
        let reference = source.get(field);
        if !reference.is_given() {
            continue;
        }
        given += 1;
        match field {
            "fieldRef" => object_field(&reference, Place::Variable, errors),
            "resourceFieldRef" => resource_field(&reference, Place::Variable, errors),
            "fileKeyRef" => file_key(&reference, errors),
            _ => {
                let name = reference.get("name");
                if let Some(wrong) = Rule::Subdomain.check(name.text()) {
                    name.with(&json!(name.text())).invalid(wrong, errors);
                }
                reference.get("key").config_key(errors);
            }
        }
    }
    if given > 0 && with_value {
        let why = "may not be specified when `value` is not empty";
        errors.push(FieldError::invalid(source.path(), &json!(""), why));
    } else {
        one_source(source, given, NO_SOURCE, errors);
    }
}

fn one_source(parent: &Field<'_, '_>, given: usize, none: &str, errors: &mut Errors) {
    let why = match given {
        0 => none,
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(FieldError::invalid(parent.path(), &json!(""), why));
}

/// `fieldRef`: a field of the Pod.
pub(super) fn object_field(reference: &Field<'_, '_>, place: Place, errors: &mut Errors) {
    let path = reference.get("fieldPath");
    if !reference.get("apiVersion").required(errors) || !path.required(errors) {
        return;
    }
    let version = reference.get("apiVersion").text();
    if version != "v1" {
        return path
            .invalid(format!("error converting fieldPath: unsupported pod version: {version}"), errors);
    }
    let allowed: &[&str] = if place == Place::Variable { &IN_VARIABLES } else { &IN_FILES };
    if let Some((field, key)) = subscript(path.text()) {
        let wrong = match field {
            "metadata.annotations" => names::label_key(&key.to_lowercase()),
            "metadata.labels" => names::label_key(key),
            _ => {
                let why = "error converting fieldPath: field label does not support subscript";
                return path.invalid(format!("{why}: {}", path.text()), errors);
            }
        };
        if let Some(wrong) = wrong {
            errors.push(FieldError::invalid(reference.path(), &json!(key), wrong));
        }
    } else if !IN_VARIABLES.contains(&path.text()) && !OTHERS.contains(&path.text()) {
        path.invalid(
            format!("error converting fieldPath: field label not supported: {}", path.text()),
            errors,
        );
    } else {
        path.one_of(allowed, errors);
    }
}

/// `metadata.labels['app']` is `metadata.labels` and `app`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (field, key) = path.split_once("['")?;
    Some((field, key.strip_suffix("']")?))
}

/// `resourceFieldRef`: a limit or request of a container.
pub(super) fn resource_field(reference: &Field<'_, '_>, place: Place, errors: &mut Errors) {
    let resource = reference.get("resource");
    let name = resource.text();
    if place == Place::File && reference.get("containerName").text().is_empty() {
        reference.get("containerName").missing("", errors);
    } else if resource.required(errors) && !HUGE_PAGES.iter().any(|prefix| name.starts_with(prefix)) {
        resource.one_of(&RESOURCES, errors);
    }
    let divisor = reference.get("divisor");
    let Some(quantity) = Quantity::of(divisor.value).filter(|it| it.is_positive() || it.is_negative()) else {
        return;
    };
    let is = |allowed: &[&str]| allowed.iter().any(|one| Quantity::of(&json!(one)) == Some(quantity));
    let (right, why) = match name.split_once('.').map(|(_, resource)| resource) {
        Some("cpu") => (
            is(&["1m", "1"]),
            "only divisor's values 1m and 1 are supported with the cpu resource".to_owned(),
        ),
        Some(kind) => {
            let kind = match kind {
                "ephemeral-storage" => "local ephemeral storage",
                "memory" => "memory",
                _ => "hugepages",
            };
            let list = BYTES.join(", ");
            (is(&BYTES), format!("only divisor's values {list} are supported with the {kind} resource"))
        }
        None => return,
    };
    if !right {
        errors.push(FieldError::invalid(divisor.path(), &json!(name), why));
    }
}

fn file_key(reference: &Field<'_, '_>, errors: &mut Errors) {
    let (key, volume, path) = (reference.get("key"), reference.get("volumeName"), reference.get("path"));
    if key.required(errors)
        && let Some(wrong) = names::variable(key.text())
    {
        key.invalid(wrong, errors);
    }
    volume.required(errors);
    volume.named(Rule::Label, errors);
    path.required(errors);
    path.no_backsteps(errors);
}
