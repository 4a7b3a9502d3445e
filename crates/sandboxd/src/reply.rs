//! The shapes an answer can have; clients and their tests know each of them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

use crate::body::Body;
use crate::process::Held;

pub type Reply = Response<Body>;

/// The last second of the year 9999, since 1970.
const LAST_DATE: Duration = Duration::from_secs(253_402_300_799);

pub fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    let bytes = serde_json::to_vec(value).expect("answers are plain data and always serialise");
    let mut reply = Response::new(Body::new(bytes));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// What a handler says, good or bad: `{"message": …}`.
pub fn message(status: StatusCode, text: impl Into<String>) -> Reply {
    json(status, &json!({ "message": text.into() }))
}

/// The caller named a path outside the base directory.
pub fn access_denied() -> Reply {
    message(StatusCode::FORBIDDEN, "Access denied")
}

/// No such route: `{"detail": …}`.
pub fn not_found() -> Reply {
    json(StatusCode::NOT_FOUND, &json!({ "detail": "Not Found" }))
}

pub fn method_not_allowed(allow: &'static str) -> Reply {
    let mut reply = json(StatusCode::METHOD_NOT_ALLOWED, &json!({ "detail": "Method Not Allowed" }));
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    reply
}

/// The request does not have the right shape: a list with one problem in it.
pub fn invalid(problem: Value) -> Reply {
    json(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "detail": [problem] }))
}

/// What the REST API reports: a code that programs read, and a text for people. Ends with a newline, as all JSON of that API.
pub fn error(status: StatusCode, code: &str, message: &str) -> Reply {
    json_line(status, &json!({ "code": code, "message": message }))
}

pub fn json_line(status: StatusCode, value: &impl Serialize) -> Reply {
    let mut bytes = serde_json::to_vec(value).expect("answers are plain data and always serialise");
    bytes.push(b'\n');
    let mut reply = Response::new(Body::new(bytes));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// Lets `held` count until the last byte of the answer is out.
pub fn keep(reply: &mut Reply, mut held: Held) {
    let length = hyper::body::Body::size_hint(reply.body()).exact();
    held.shrink_to(length.and_then(|length| length.try_into().ok()).unwrap_or(usize::MAX));
    reply.extensions_mut().insert(Arc::new(held));
}

pub fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = status;
    reply
}

/// The time in the form of `Last-Modified`. HTTP dates lie in the years 1970 to 9999, but a file can have any time: one
/// outside is shown as the nearest date.
pub fn http_date(time: SystemTime) -> String {
    httpdate::fmt_http_date(time.clamp(SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + LAST_DATE))
}
