//! The four kinds of patches.

mod apply;
mod strategic;

use serde_json::Value;

use crate::http::body;
use crate::registry::Target;
use crate::status::{ApiError, FieldError};

/// What patches can be written in. Strategic ones are for built-in kinds, whose lists are known.
const MEDIA_TYPES: &str = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml";
const OF_CUSTOM_KINDS: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
/// Operations in one JSON patch.
const MAX_OPERATIONS: usize = 10_000;

#[derive(Debug)]
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
    Apply { config: Value, manager: String },
}

/// The field that tells the items of a built-in kind's list apart in a strategic merge patch, if they merge.
///
/// `fields` are the properties of an item, by which lists of the same name are told apart.
pub(crate) fn merge_key_of(list: &str, fields: &Value) -> Option<&'static str> {
    strategic::merge_key(list, fields)
}

impl Patch {
    pub fn parse(
        media_type: &str,
        raw: &[u8],
        manager: Option<&str>,
        target: &Target,
    ) -> Result<Self, ApiError> {
        match media_type {
            "application/json-patch+json" => {
                let patch: json_patch::Patch = serde_json::from_slice(raw).map_err(|error| {
                    ApiError::bad_request(format!("the JSON patch cannot be read: {error}"))
                })?;
                if patch.0.len() > MAX_OPERATIONS {
                    let message = format!(
                        "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                        patch.0.len()
                    );
                    return Err(ApiError::new(413, "RequestEntityTooLarge", message));
                }
                Ok(Patch::Json(patch))
            }
            "application/merge-patch+json" => Ok(Patch::Merge(body::parse_json(raw)?)),
            "application/strategic-merge-patch+json" if !target.resource.custom => {
                Ok(Patch::Strategic(body::parse_json(raw)?))
            }
            "application/apply-patch+yaml" => {
                let manager = manager.filter(|manager| !manager.is_empty()).ok_or_else(|| {
                    let error = FieldError::required("fieldManager", "is required for apply patch");
                    ApiError::invalid("meta.k8s.io", "PatchOptions", "", &[error])
                })?;
                let config = body::parse_yaml(raw)?;
                Ok(Patch::Apply { config, manager: manager.to_owned() })
            }
            other => {
                let accepted = if target.resource.custom { OF_CUSTOM_KINDS } else { MEDIA_TYPES };
                Err(ApiError::unsupported_media(other, accepted))
            }
        }
    }

    pub fn is_apply(&self) -> bool {
        matches!(self, Patch::Apply { .. })
    }

    /// The resourceVersion that the patch insists on.
    pub fn locked_to(&self) -> Option<&str> {
        match self {
            Patch::Merge(patch) | Patch::Strategic(patch) | Patch::Apply { config: patch, .. } => {
                patch["metadata"]["resourceVersion"].as_str().filter(|version| !version.is_empty())
            }
            Patch::Json(_) => None,
        }
    }

    /// The object that `current` becomes.
    pub fn apply(&self, current: &Value, target: &Target, now: &str) -> Result<Value, ApiError> {
        let mut object = current.clone();
        match self {
            Patch::Json(patch) => json_patch::patch(&mut object, patch).map_err(|error| {
                ApiError::new(
                    422,
                    "Invalid",
                    format!("the server rejected our request due to an error in our request: {error}"),
                )
            })?,
            Patch::Merge(patch) => json_patch::merge(&mut object, patch),
            Patch::Strategic(patch) => strategic::merge(&mut object, patch),
            Patch::Apply { config, manager } => apply::merge(&mut object, config, manager, target, now),
        }
        if !object.is_object() {
            return Err(ApiError::bad_request("the patch does not leave an object"));
        }
        Ok(object)
    }
}
