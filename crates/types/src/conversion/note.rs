//! Notes: what one version knows and the other has no field for, kept in an annotation of the other one.
//!
//! | annotation, below `api.agents.x-k8s.io/` | on objects at | holds |
//! |---|---|---|
//! | `v1alpha1-<kind>-state` | v1beta1 | the fields as they were at v1alpha1, in an object of the same shape |
//! | `v1beta1-<kind>-state` | v1alpha1 | the fields of v1beta1, in an object of the same shape |
//! | `v1beta1-volume-claim-templates-policy` | v1alpha1 | that field of a SandboxTemplate, as plain text |
//!
//! Other implementations write the whole v1alpha1 object into the first one. It is read the same way; ours holds only what
//! is needed, so that it stays far below the limit for annotations.

use serde_json::{Map, Value};

use super::Error;

/// Notes longer than this are left out: all annotations of an object together may have 256 KiB.
pub(super) const LIMIT: usize = 128 << 10;

/// Removes an annotation, and the map around it when nothing else is left.
pub(super) fn take(object: &mut Value, annotation: &str) -> Option<String> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let taken = annotations.remove(annotation)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    taken.as_str().map(str::to_owned)
}

/// Like [`take`], for a note that may hold anything: what cannot be read counts as absent.
pub(super) fn take_any(object: &mut Value, annotation: &str) -> Option<Value> {
    serde_json::from_str(&take(object, annotation)?).ok().filter(Value::is_object)
}

/// Like [`take`], for a note that becomes fields: what cannot be read is refused.
pub(super) fn take_checked(object: &mut Value, annotation: &str) -> Result<Value, Error> {
    let Some(text) = take(object, annotation) else { return Ok(Value::Null) };
    let parsed = serde_json::from_str(&text).ok().filter(Value::is_object);
    parsed.ok_or_else(|| wrong(annotation, "a JSON object"))
}

pub(super) fn put(object: &mut Value, annotation: &str, text: String) {
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Map::new().into());
    let Some(metadata) = metadata.as_object_mut() else { return };
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    if annotations.is_null() {
        *annotations = Map::new().into();
    }
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(annotation.to_owned(), text.into());
    }
}

pub(super) fn wrong(annotation: &str, expected: &'static str) -> Error {
    Error::Annotation { annotation: annotation.to_owned(), expected }
}

/// Removes `<part>.<field>`. A null counts as absent; a status that becomes empty goes too.
pub(super) fn take_field(object: &mut Value, part: &str, field: &str) -> Option<Value> {
    let fields = object.get_mut(part)?.as_object_mut()?;
    let taken = fields.remove(field)?;
    if part == "status" && fields.is_empty() {
        object.as_object_mut()?.remove(part);
    }
    Some(taken).filter(|value| !value.is_null())
}

/// Sets `<part>.<field>`. A part that is not an object is left for validation to refuse.
pub(super) fn set_field(object: &mut Value, part: &str, field: &str, value: Value) {
    let Some(object) = object.as_object_mut() else { return };
    let fields = object.entry(part).or_insert(Value::Null);
    if fields.is_null() {
        *fields = Map::new().into();
    }
    if let Some(fields) = fields.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}
