//! What particular built-in kinds need beyond a schema: defaults, initial status and extra checks.

use base64::Engine as _;
use serde_json::{Value, json};

use super::{Resource, pod, service};
use crate::status::FieldError;

/// Sets the defaults of a built-in kind.
pub(crate) fn set_defaults(resource: &Resource, object: &mut Value) {
    if resource.custom {
        return;
    }
    drop_nulls(object);
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => pod::set_defaults(object),
        ("", "services") => service::set_defaults(object),
        ("", "secrets") => fold_string_data(object),
        ("", "persistentvolumeclaims") => {
            if let Some(spec) = object.get_mut("spec") {
                default(spec, "volumeMode", json!("Filesystem"));
            }
        }
        ("", "namespaces") => {
            let name = object["metadata"]["name"].clone();
            default(&mut object["metadata"], "labels", json!({}));
            default(&mut object["metadata"]["labels"], "kubernetes.io/metadata.name", name);
            default(object, "spec", json!({}));
            default(&mut object["spec"], "finalizers", json!(["kubernetes"]));
        }
        ("storage.k8s.io", "storageclasses") => {
            default(object, "reclaimPolicy", json!("Delete"));
            default(object, "volumeBindingMode", json!("Immediate"));
        }
        ("networking.k8s.io", "networkpolicies") => default_policy(object),
        _ => {}
    }
}

fn default_policy(policy: &mut Value) {
    let Some(spec) = policy.get_mut("spec") else { return };
    let egress = spec.get("egress").is_some();
    default(spec, "policyTypes", if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
    let list = |value: &mut Value, field: &str| {
        value.get_mut(field).and_then(Value::as_array_mut).map(std::mem::take)
    };
    for direction in ["ingress", "egress"] {
        let Some(mut rules) = list(spec, direction) else { continue };
        for rule in &mut rules {
            let Some(mut ports) = list(rule, "ports") else { continue };
            ports.iter_mut().for_each(|port| default(port, "protocol", json!("TCP")));
            rule["ports"] = ports.into();
        }
        spec[direction] = rules.into();
    }
}

/// The status that a new object of a built-in kind starts with.
pub(crate) fn initial_status(resource: &Resource, object: &mut Value) {
    if resource.custom {
        return;
    }
    match &*resource.plural {
        "pods" => pod::reset_status(object),
        "persistentvolumeclaims" => object["status"] = json!({ "phase": "Pending" }),
        "namespaces" => object["status"] = json!({ "phase": "Active" }),
        "services" => object["status"] = json!({ "loadBalancer": {} }),
        "persistentvolumes" if object["status"].is_null() => {
            object["status"] = json!({ "phase": "Available" })
        }
        // A node registers itself together with its status.
        _ => {}
    }
}

/// Whether the server counts spec changes of this kind in `metadata.generation`.
pub(crate) fn has_generation(resource: &Resource) -> bool {
    resource.custom || matches!(&*resource.plural, "pods" | "networkpolicies" | "customresourcedefinitions")
}

/// Carries over what the server has given to an object and its owner does not repeat.
pub(crate) fn keep_assigned(resource: &Resource, new: &mut Value, old: &Value) {
    if resource.is("", "services") {
        service::keep_assigned(new, old);
    }
}

/// What is accepted, but not done here.
pub(crate) fn warnings(resource: &Resource, object: &Value) -> Vec<String> {
    if resource.is("", "services") { service::warnings(object) } else { Vec::new() }
}

pub(crate) fn validate(
    resource: &Resource,
    object: &Value,
    old: Option<&Value>,
    errors: &mut Vec<FieldError>,
) {
    if resource.custom {
        return;
    }
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => {
            pod::validate(object, errors);
            if let Some(old) = old {
                pod::validate_update(object, old, errors);
            }
        }
        ("", "services") => service::validate(object, old, errors),
        ("", "configmaps" | "secrets") => validate_data(object, old, errors),
        ("", "persistentvolumeclaims") => validate_claim(object, old, errors),
        ("apiextensions.k8s.io", _) => errors.extend(super::crd::validate(object)),
        ("storage.k8s.io", _) if object["provisioner"].as_str().unwrap_or_default().is_empty() => {
            errors.push(FieldError::required("provisioner", ""));
        }
        ("node.k8s.io", _) if object["handler"].as_str().unwrap_or_default().is_empty() => {
            errors.push(FieldError::required("handler", ""));
        }
        _ => {}
    }
}

/// In built-in kinds a null is the same as nothing.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, child| !child.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Sets a field that is not given. What is not an object has no fields and is left for validation to refuse.
pub(super) fn default(object: &mut Value, field: &str, value: Value) {
    if let Some(map) = object.as_object_mut() {
        let field = map.entry(field).or_insert(Value::Null);
        if field.is_null() {
            *field = value;
        }
    }
}

/// `stringData` is a write-only way of giving `data`.
fn fold_string_data(secret: &mut Value) {
    let Some(map) = secret.as_object_mut() else { return };
    map.entry("type").or_insert(json!("Opaque"));
    let Some(Value::Object(plain)) = map.remove("stringData") else { return };
    for (key, value) in plain {
        let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
        default(secret, "data", json!({}));
        if let Some(data) = secret.get_mut("data").and_then(Value::as_object_mut) {
            data.insert(key, encoded.into());
        }
    }
}

fn validate_data(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let valid = |key: &str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        !key.is_empty()
            && key.len() <= 253
            && key.bytes().all(allowed)
            && key != "."
            && !key.starts_with("..")
    };
    for field in ["data", "binaryData"] {
        for key in
            object[field].as_object().into_iter().flatten().map(|(key, _)| key).filter(|key| !valid(key))
        {
            let detail = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
            errors.push(FieldError::invalid(format!("{field}[{key}]"), &key.as_str().into(), detail));
        }
    }
    let Some(old) = old.filter(|old| old["immutable"] == true) else { return };
    for field in ["data", "binaryData", "immutable"] {
        if old[field] != object[field] {
            errors.push(FieldError::forbidden(field, "field is immutable when `immutable` is set"));
        }
    }
}

fn validate_claim(claim: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &claim["spec"];
    if spec["accessModes"].as_array().is_none_or(Vec::is_empty) {
        errors.push(FieldError::required("spec.accessModes", "at least 1 access mode is required"));
    }
    if spec["resources"]["requests"]["storage"].is_null() {
        errors.push(FieldError::required("spec.resources[storage]", ""));
    }
    let Some(old) = old else { return };
    let mut munged = spec.clone();
    if let Some(map) = munged.as_object_mut() {
        map.insert("resources".into(), old["spec"]["resources"].clone());
    }
    for field in ["volumeName", "storageClassName", "volumeAttributesClassName"] {
        if old["spec"][field].is_null()
            && let Some(map) = munged.as_object_mut()
        {
            map.remove(field);
        }
    }
    if munged != old["spec"] {
        errors.push(FieldError::forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ));
    }
}
