//! What particular built-in kinds need beyond a schema: defaults, initial status and extra checks.

use serde_json::{Value, json};

use super::field::Field;
use super::{Resource, claim, data, pod, policy, service, volume};
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
        ("", "secrets") => data::fold_string_data(object),
        ("", "persistentvolumeclaims") => {
            if let Some(spec) = object.get_mut("spec") {
                default(spec, "volumeMode", json!("Filesystem"));
            }
        }
        ("", "persistentvolumes") => {
            if let Some(spec) = object.get_mut("spec") {
                default(spec, "volumeMode", json!("Filesystem"));
                default(spec, "persistentVolumeReclaimPolicy", json!("Retain"));
                if let Some(path) = spec.get_mut("hostPath") {
                    default(path, "type", json!(""));
                }
            }
        }
        ("", "endpoints") => {
            for subset in items(object, "subsets") {
                items(subset, "ports").for_each(|port| default(port, "protocol", json!("TCP")));
            }
        }
        ("discovery.k8s.io", "endpointslices") => {
            for port in items(object, "ports") {
                default(port, "name", json!(""));
                default(port, "protocol", json!("TCP"));
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
        ("networking.k8s.io", "networkpolicies") => policy::set_defaults(object),
        _ => {}
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
            match old {
                Some(old) => pod::validate_update(object, old, errors),
                None => pod::validate_create(object, errors),
            }
        }
        ("", "services") => service::validate(object, old, errors),
        ("", "configmaps") => data::validate_config_map(object, old, errors),
        ("", "secrets") => data::validate_secret(object, old, errors),
        ("networking.k8s.io", "networkpolicies") => policy::validate(object, errors),
        ("", "persistentvolumeclaims") => validate_claim(object, old, errors),
        ("", "persistentvolumes") => volume::validate(object, old, errors),
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

fn items<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

fn validate_claim(claim: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &claim["spec"];
    claim::validate_spec(&Field::root(claim).get("spec"), errors);
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
