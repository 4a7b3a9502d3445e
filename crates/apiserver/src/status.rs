//! Errors as Kubernetes writes them: a `Status` object with a code, a reason and the fields at fault.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};

/// What every failed request is answered with.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Value>,
}

/// One wrong field of an object, in the words of Kubernetes' field errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub field: String,
    pub reason: &'static str,
    /// Everything after the path, for example `Required value`.
    pub message: String,
}

impl FieldError {
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let message =
            if detail.is_empty() { "Required value".into() } else { format!("Required value: {detail}") };
        Self { field: field.into(), reason: "FieldValueRequired", message }
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: impl std::fmt::Display) -> Self {
        Self {
            field: field.into(),
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value}: {detail}"),
        }
    }

    pub fn type_invalid(field: impl Into<String>, value: &Value, detail: impl std::fmt::Display) -> Self {
        Self { reason: "FieldValueTypeInvalid", ..Self::invalid(field, value, detail) }
    }

    pub fn unsupported(field: impl Into<String>, value: &Value, supported: &[Value]) -> Self {
        let list: Vec<String> = supported.iter().map(Value::to_string).collect();
        Self {
            field: field.into(),
            reason: "FieldValueNotSupported",
            message: format!("Unsupported value: {value}: supported values: {}", list.join(", ")),
        }
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self {
            field: field.into(),
            reason: "FieldValueDuplicate",
            message: format!("Duplicate value: {value}"),
        }
    }

    pub fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Self { field: field.into(), reason: "FieldValueNotFound", message: format!("Not found: {value}") }
    }

    pub fn too_long(field: impl Into<String>, max: usize) -> Self {
        Self {
            field: field.into(),
            reason: "FieldValueTooLong",
            message: format!("Too long: may not be more than {max} bytes"),
        }
    }

    pub fn too_many(field: impl Into<String>, count: usize, max: usize) -> Self {
        Self {
            field: field.into(),
            reason: "FieldValueTooMany",
            message: format!("Too many: {count}: must have at most {max} items"),
        }
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self { field: field.into(), reason: "FieldValueForbidden", message: format!("Forbidden: {detail}") }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

/// `sandboxes.agents.x-k8s.io`, or plain `pods` for the core group.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

fn named(name: &str, group: &str, kind: &str) -> Option<Value> {
    let mut details = json!({ "name": name, "kind": kind });
    if !group.is_empty() {
        details["group"] = group.into();
    }
    Some(details)
}

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", qualified(resource, group));
        Self { details: named(name, group, resource), ..Self::new(404, "NotFound", message) }
    }

    /// No such path or kind at all.
    pub fn no_resource() -> Self {
        let details = Some(
            json!({ "causes": [{ "reason": "UnexpectedServerResponse", "message": "404 page not found" }] }),
        );
        Self { details, ..Self::new(404, "NotFound", "the server could not find the requested resource") }
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", qualified(resource, group));
        Self { details: named(name, group, resource), ..Self::new(409, "AlreadyExists", message) }
    }

    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", qualified(resource, group));
        Self { details: named(name, group, resource), ..Self::new(409, "Conflict", message) }
    }

    /// The usual conflict: somebody else wrote in between.
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, resource, name, why)
    }

    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let list: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        let list = if list.len() == 1 { list[0].clone() } else { format!("[{}]", list.join(", ")) };
        let message = format!("{} \"{name}\" is invalid: {list}", qualified(kind, group));
        let causes: Vec<Value> = errors
            .iter()
            .map(|e| json!({ "reason": e.reason, "message": e.message, "field": e.field }))
            .collect();
        let mut details = named(name, group, kind);
        if let Some(details) = &mut details {
            details["causes"] = causes.into();
        }
        Self { details, ..Self::new(422, "Invalid", message) }
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {why}", qualified(resource, group));
        Self { details: named(name, group, resource), ..Self::new(403, "Forbidden", message) }
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    pub fn unsupported_media(got: &str, accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format ({got}) - accepted media types include: {accepted}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn too_large(limit: usize) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    pub fn internal(message: impl std::fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"))
    }

    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        json_response(code, &self.to_status())
    }
}

pub(crate) fn json_response(code: StatusCode, body: &Value) -> Response {
    raw_response(code, body.to_string().into())
}

pub(crate) fn raw_response(code: StatusCode, body: bytes::Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_wrong_fields_are_listed_in_brackets() {
        let errors = [FieldError::required("spec.a", ""), FieldError::required("spec.b", "needed")];
        let error = ApiError::invalid("agents.x-k8s.io", "Sandbox", "x", &errors);
        assert_eq!(
            error.message,
            "Sandbox.agents.x-k8s.io \"x\" is invalid: [spec.a: Required value, spec.b: Required value: needed]"
        );
        assert_eq!(error.to_status()["details"]["causes"][1]["field"], "spec.b");
    }
}
