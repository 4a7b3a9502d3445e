//! What every written object goes through: pruning, defaults, validation, CEL.

use serde_json::Value;

use super::{Part, WriteOptions, is_crd, now};
use crate::names;
use crate::registry::pod::ephemeral;
use crate::registry::{Target, crd, rules};
use crate::status::{ApiError, FieldError};

/// What happens to fields that the schema does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

const META_FIELDS: [&str; 15] = [
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// Completes and checks `object`. Returns warnings for the caller.
pub(super) fn admit(
    target: &Target,
    object: &mut Value,
    old: Option<&Value>,
    part: Part,
    options: &WriteOptions,
) -> Result<Vec<String>, ApiError> {
    let compiled = target.version().compiled();
    check_shape(target, object)?;
    if is_crd(target) {
        crd::complete(object, &now());
    }
    let mut unknown = prune_metadata(object);
    unknown.extend(compiled.schema.fill(object));
    rules::set_defaults(&target.resource, object);
    let mut warnings = report(unknown, &options.duplicates, options.validation)?;
    let mut errors = check(target, object, old);
    if let Some(old) = old {
        // What was wrong before may stay wrong: a stricter schema must not lock an object.
        if !errors.is_empty() {
            let before = check(target, old, Some(old));
            errors.retain(|error| !before.contains(error));
        }
        if part == Part::EphemeralContainers {
            // Nothing else of the spec differs, and these may be added here.
            errors.retain(|error| error.field != "spec");
            ephemeral::validate_update(object, old, &mut errors);
        }
        if part == Part::Status {
            errors.retain(|error| error.field.starts_with("status"));
        }
    }
    if errors.is_empty() {
        warnings.extend(rules::warnings(&target.resource, object).into_iter().filter(|_| old.is_none()));
        return Ok(warnings);
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    Err(ApiError::invalid(&target.resource.group, &target.resource.kind, name, &errors))
}

/// Refuses what the rest of the server relies on: maps are maps and lists are lists.
fn check_shape(target: &Target, object: &Value) -> Result<(), ApiError> {
    let meta = &object["metadata"];
    let maps = [
        ("metadata", meta),
        ("metadata.labels", &meta["labels"]),
        ("metadata.annotations", &meta["annotations"]),
    ];
    let stanzas = [("spec", &object["spec"]), ("status", &object["status"])];
    let lists = [
        ("metadata.finalizers", &meta["finalizers"]),
        ("metadata.ownerReferences", &meta["ownerReferences"]),
        ("metadata.managedFields", &meta["managedFields"]),
    ];
    let built_in = !target.resource.custom;
    let wrong = maps
        .iter()
        .chain(stanzas.iter().filter(|_| built_in))
        .find(|(_, value)| !value.is_object() && !value.is_null())
        .map(|(path, _)| (path, "an object"))
        .or_else(|| {
            lists
                .iter()
                .find(|(_, value)| !value.is_array() && !value.is_null())
                .map(|(path, _)| (path, "a list"))
        });
    match wrong {
        None => Ok(()),
        Some((path, want)) => Err(ApiError::bad_request(format!(
            "{} in version {:?} cannot be read: {path} must be {want}",
            target.resource.kind,
            &*target.version().name
        ))),
    }
}

fn check(target: &Target, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let resource = &target.resource;
    let compiled = target.version().compiled();
    let mut errors = Vec::new();
    names::metadata(names::Rule::of(&resource.group, &resource.kind), object, &mut errors);
    errors.extend(compiled.schema.validate(object));
    // The other checks rely on types being right.
    if errors.is_empty() {
        rules::validate(resource, object, old, &mut errors);
    }
    if let (true, Some(rules)) = (errors.is_empty(), &compiled.rules) {
        errors.extend(rules.check(object, old));
    }
    errors
}

fn prune_metadata(object: &mut Value) -> Vec<String> {
    let Some(meta) = object["metadata"].as_object_mut() else { return Vec::new() };
    let unknown: Vec<String> =
        meta.keys().filter(|key| !META_FIELDS.contains(&key.as_str())).cloned().collect();
    unknown.iter().for_each(|key| drop(meta.remove(key)));
    meta.remove("selfLink");
    unknown.into_iter().map(|key| format!("metadata.{key}")).collect()
}

fn report(
    unknown: Vec<String>,
    duplicates: &[String],
    mode: FieldValidation,
) -> Result<Vec<String>, ApiError> {
    let messages: Vec<String> = unknown
        .into_iter()
        .map(|path| format!("unknown field \"{path}\""))
        .chain(duplicates.iter().map(|path| format!("duplicate field \"{path}\"")))
        .take(100)
        .collect();
    match mode {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Warn => Ok(messages),
        FieldValidation::Strict if messages.is_empty() => Ok(messages),
        FieldValidation::Strict => {
            Err(ApiError::bad_request(format!("strict decoding error: {}", messages.join(", "))))
        }
    }
}
