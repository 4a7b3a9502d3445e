//! What decoding into Kubernetes' Go types does to an object of a built-in kind: wrong types are refused, unknown fields
//! go, and what is left has one spelling.
//!
//! Typed clients drop empty fields and rewrite quantities (`1000m` is `1`) whenever they read an object and write it
//! back. An object that is stored as they would write it does not change then.

use asb_types::Quantity;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::messages::{self, Field, Kind, Shape};
use crate::path::Path;

/// A field whose value is of another type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WrongType {
    pub path: String,
    pub wanted: &'static str,
    pub found: &'static str,
}

type Result<T> = std::result::Result<T, WrongType>;

/// Brings an object into the form of a message; returns the paths of fields that the message does not have.
pub(crate) fn conform(message: &str, object: &mut Value) -> Result<Vec<String>> {
    let mut unknown = Vec::new();
    fields(message, object, &Path::Root, &mut unknown)?;
    Ok(unknown)
}

/// The same for the metadata of an object of any kind.
pub(crate) fn conform_metadata(object: &mut Value) -> Result<Vec<String>> {
    let mut unknown = Vec::new();
    if let Some(metadata) = object.get_mut("metadata") {
        fields("meta.ObjectMeta", metadata, &Path::Field(&Path::Root, "metadata"), &mut unknown)?;
    }
    Ok(unknown)
}

fn fields(message: &str, object: &mut Value, path: &Path<'_>, unknown: &mut Vec<String>) -> Result<()> {
    let found = type_name(object);
    let Value::Object(map) = object else { return Err(wrong(path, "an object", found)) };
    let envelope = |name: &str| path.is_root() && matches!(name, "apiVersion" | "kind");
    let mut problem = None;
    map.retain(|name, value| {
        if problem.is_some() || envelope(name) {
            return true;
        }
        let here = Path::Field(path, name);
        let Some(field) = messages::by_name(message, name) else {
            unknown.push(here.to_string());
            return false;
        };
        match one_field(field, value, &here, unknown) {
            Ok(()) => !is_left_out(field, value),
            Err(error) => {
                problem = Some(error);
                true
            }
        }
    });
    problem.map_or(Ok(()), Err)
}

fn one_field(field: &Field, value: &mut Value, path: &Path<'_>, unknown: &mut Vec<String>) -> Result<()> {
    if value.is_null() {
        return Ok(());
    }
    let found = type_name(value);
    match field.shape {
        Shape::One | Shape::Inline => scalar(field.kind, value, path, unknown),
        Shape::List => {
            let Value::Array(items) = value else { return Err(wrong(path, "a list", found)) };
            for (at, item) in items.iter_mut().enumerate() {
                fill_null(field.kind, item);
                scalar(field.kind, item, &Path::Item(path, at), unknown)?;
            }
            Ok(())
        }
        Shape::Map => {
            let Value::Object(map) = value else { return Err(wrong(path, "an object", found)) };
            for (key, item) in map.iter_mut() {
                fill_null(field.kind, item);
                scalar(field.kind, item, &Path::Key(path, key), unknown)?;
            }
            Ok(())
        }
    }
}

fn scalar(kind: Kind, value: &mut Value, path: &Path<'_>, unknown: &mut Vec<String>) -> Result<()> {
    let found = type_name(value);
    let check =
        |fits: bool, wanted: &'static str| if fits { Ok(()) } else { Err(wrong(path, wanted, found)) };
    match kind {
        Kind::Message(message) => fields(message, value, path, unknown),
        Kind::Json => Ok(()),
        Kind::Text => check(value.is_string(), "a string"),
        Kind::Bytes => check(value.as_str().is_some_and(is_base64), "a string in base64"),
        Kind::Flag => check(value.is_boolean(), "true or false"),
        Kind::Int64 => check(value.is_i64(), "an integer"),
        Kind::Int32 => check(is_int32(value), "an integer of 32 bits"),
        Kind::IntOrText => check(value.is_string() || is_int32(value), "an integer of 32 bits or a string"),
        Kind::Time | Kind::MicroTime => {
            let is_time = |text: &str| text.contains('T') && text.parse::<jiff::Timestamp>().is_ok();
            check(value.as_str().is_some_and(is_time), "a time (RFC 3339)")
        }
        Kind::Quantity => {
            let canonical = Quantity::canonical(value).ok_or_else(|| wrong(path, "a quantity", found))?;
            *value = canonical.into();
            Ok(())
        }
    }
}

/// Go has no null in a list or a map: it has the empty value of the type.
fn fill_null(kind: Kind, value: &mut Value) {
    if value.is_null() {
        *value = match kind {
            Kind::Message(_) => Value::Object(Map::new()),
            Kind::Text | Kind::Bytes | Kind::Time | Kind::MicroTime => "".into(),
            Kind::Flag => false.into(),
            Kind::Int32 | Kind::Int64 | Kind::IntOrText | Kind::Quantity => 0.into(),
            Kind::Json => Value::Null,
        };
    }
}

/// Whether Go leaves the field out of JSON.
fn is_left_out(field: &Field, value: &Value) -> bool {
    match (field.shape, value) {
        (_, Value::Null) => true,
        (Shape::List, Value::Array(items)) => items.is_empty() && !field.always,
        (Shape::Map, Value::Object(map)) => map.is_empty() && !field.always,
        (Shape::One, Value::String(text)) => field.drops_empty && text.is_empty(),
        (Shape::One, Value::Bool(flag)) => field.drops_empty && !flag,
        (Shape::One, Value::Number(number)) => field.drops_empty && number.as_i64() == Some(0),
        _ => false,
    }
}

/// As Go reads it: lines may be broken.
fn is_base64(text: &str) -> bool {
    match text.contains(['\r', '\n']) {
        true => STANDARD.decode(text.replace(['\r', '\n'], "")).is_ok(),
        false => STANDARD.decode(text).is_ok(),
    }
}

fn is_int32(value: &Value) -> bool {
    value.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}

fn wrong(path: &Path<'_>, wanted: &'static str, found: &'static str) -> WrongType {
    WrongType { path: path.to_string(), wanted, found }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl std::fmt::Display for WrongType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, wanted, found } = self;
        write!(f, "{path} must be {wanted}, not {found}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: Value) -> Value {
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "spec": spec })
    }

    #[test]
    fn an_object_is_spelled_as_a_typed_client_would_write_it() {
        let mut object = pod(json!({
            "volumes": [], "nodeSelector": {}, "hostname": "", "restartPolicy": null, "hostNetwork": false,
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "stdin": false, "env": [{ "name": "A", "value": "" }], "args": null, "resources": {
                    "limits": { "cpu": 1, "memory": "1024Mi" }, "requests": { "cpu": "1000m" } },
                "securityContext": {},
            }],
        }));
        assert_eq!(conform("core.Pod", &mut object), Ok(Vec::new()));
        assert_eq!(
            object,
            pod(json!({
                "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "env": [{ "name": "A" }], "securityContext": {},
                    "resources": { "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "1" } },
                }],
            }))
        );
    }

    #[test]
    fn fields_that_a_kind_does_not_have_go_and_are_listed() {
        let mut service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "owner": "me" }, "spec": {
            "selectors": { "app": "web" }, "ports": [{ "port": 80, "containerPort": 80 }] } });
        let unknown = conform("core.Service", &mut service).expect("types are right");
        assert_eq!(unknown, ["metadata.owner", "spec.ports[0].containerPort", "spec.selectors"]);
        assert_eq!(service["spec"], json!({ "ports": [{ "port": 80 }] }));
    }

    #[test]
    fn wrong_types_name_the_field() {
        let service = |spec: Value| json!({ "metadata": {}, "spec": spec });
        for (message, mut object, problem) in [
            (
                "core.Service",
                service(json!({ "selector": { "version": 1 } })),
                "spec.selector[version] must be a string, not a number",
            ),
            (
                "core.Service",
                service(json!({ "ports": [{ "port": 80.0 }] })),
                "spec.ports[0].port must be an integer of 32 bits, not a number with a fraction",
            ),
            (
                "core.Service",
                service(json!({ "ports": [{ "port": 80, "targetPort": true }] })),
                "spec.ports[0].targetPort must be an integer of 32 bits or a string, not a boolean",
            ),
            ("core.Service", service(json!([])), "spec must be an object, not a list"),
            (
                "core.PersistentVolume",
                service(json!({ "accessModes": "ReadWriteOnce" })),
                "spec.accessModes must be a list, not a string",
            ),
            (
                "core.Pod",
                service(json!({ "terminationGracePeriodSeconds": 9.3e18 })),
                "spec.terminationGracePeriodSeconds must be an integer, not a number with a fraction",
            ),
            (
                "core.Secret",
                json!({ "metadata": {}, "stringData": { "port": 5432 } }),
                "stringData[port] must be a string, not a number",
            ),
            (
                "core.Secret",
                json!({ "metadata": {}, "data": { "key": "plain text" } }),
                "data[key] must be a string in base64, not a string",
            ),
            (
                "core.ConfigMap",
                json!({ "metadata": { "ownerReferences": [{ "controller": "true" }] } }),
                "metadata.ownerReferences[0].controller must be true or false, not a string",
            ),
            (
                "core.PersistentVolumeClaim",
                service(json!({ "resources": { "requests": { "storage": "1gb" } } })),
                "spec.resources.requests[storage] must be a quantity, not a string",
            ),
            (
                "coordination.Lease",
                service(json!({ "renewTime": "yesterday" })),
                "spec.renewTime must be a time (RFC 3339), not a string",
            ),
        ] {
            let wrong = conform(message, &mut object).expect_err(problem);
            assert_eq!(wrong.to_string(), problem);
        }
    }

    #[test]
    fn metadata_of_custom_kinds_is_checked_too() {
        let mut object =
            json!({ "metadata": { "name": "x", "labels": {}, "color": "red" }, "spec": { "any": 1.5 } });
        assert_eq!(conform_metadata(&mut object).expect("right"), ["metadata.color"]);
        assert_eq!(object, json!({ "metadata": { "name": "x" }, "spec": { "any": 1.5 } }));
        assert!(conform_metadata(&mut json!({ "metadata": { "labels": { "a": 1 } } })).is_err());
    }
}
