//! What every written object goes through: pruning, defaults, validation, CEL.

use serde_json::Value;

use super::{Part, WriteOptions, is_crd, now};
use crate::names;
use crate::registry::pod::ephemeral;
use crate::registry::{Target, conform, crd, messages, rules};
use crate::status::{ApiError, FieldError};

/// What happens to fields that the schema does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

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
    let mut unknown = conform(target, object)?;
    if is_crd(target) {
        crd::complete(object, &now());
    }
    drop_self_link(object);
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

/// Brings the object into the form of its kind, as far as its kind has one. Returns the fields that it does not have.
fn conform(target: &Target, object: &mut Value) -> Result<Vec<String>, ApiError> {
    let kind = &target.resource.kind;
    let message = messages::of_kind(&target.api_version(), kind).filter(|_| !target.resource.custom);
    let conformed = match message {
        Some(message) => conform::conform(message, object),
        None => conform::conform_metadata(object),
    };
    conformed.map_err(|wrong| {
        let version = &*target.version().name;
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {wrong}"))
    })
}

fn drop_self_link(object: &mut Value) {
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("selfLink");
    }
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
