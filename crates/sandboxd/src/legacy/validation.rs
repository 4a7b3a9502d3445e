//! What a request must look like, and how it is told that it does not (422).

use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};

/// Nobody waits longer than this for one command; also keeps absurd numbers out of the timer.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The body of `POST /execute`.
#[derive(Debug, PartialEq)]
pub struct Execute {
    pub command: String,
    pub timeout: Option<Duration>,
}

/// Reads the body of `POST /execute`, or gives the one problem it has.
pub fn execute(headers: &HeaderMap, body: &[u8]) -> Result<Execute, Value> {
    if body.is_empty() {
        return Err(missing(&["body"], Value::Null));
    }
    if !is_json(headers) {
        return Err(not_an_object(String::from_utf8_lossy(body).into()));
    }
    let value: Value = serde_json::from_slice(body).map_err(|error| not_json(body, &error))?;
    let Value::Object(fields) = &value else { return Err(not_an_object(value)) };
    let command = match fields.get("command") {
        Some(Value::String(command)) => command.clone(),
        Some(other) => {
            return Err(json!({"type": "string_type", "loc": ["body", "command"],
                "msg": "Input should be a valid string", "input": other}));
        }
        None => return Err(missing(&["body", "command"], value)),
    };
    let timeout = fields.get("timeout_seconds").filter(|given| !given.is_null()).map(timeout).transpose()?;
    Ok(Execute { command, timeout })
}

/// The `file` part of an upload is not there.
pub fn file_missing() -> Value {
    missing(&["body", "file"], Value::Null)
}

/// The `file` part of an upload is a plain field, without a file name.
pub fn file_is_a_field(text: &str) -> Value {
    json!({"type": "value_error", "loc": ["body", "file"],
        "msg": "Value error, Expected UploadFile, received: <class 'str'>", "input": text, "ctx": {"error": {}}})
}

fn timeout(given: &Value) -> Result<Duration, Value> {
    let problem = |kind: &str, message: &str| json!({"type": kind, "loc": ["body", "timeout_seconds"], "msg": message, "input": given});
    let seconds = given.as_f64().ok_or_else(|| problem("float_type", "Input should be a valid number"))?;
    if seconds <= 0.0 {
        return Err(problem("greater_than", "Input should be greater than 0"));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST))
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let kind = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.strip_prefix("application/").is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}

fn missing(location: &[&str], input: Value) -> Value {
    json!({"type": "missing", "loc": location, "msg": "Field required", "input": input})
}

fn not_an_object(input: Value) -> Value {
    json!({"type": "model_attributes_type", "loc": ["body"],
        "msg": "Input should be a valid dictionary or object to extract fields from", "input": input})
}

fn not_json(body: &[u8], error: &serde_json::Error) -> Value {
    let before = body.split(|&byte| byte == b'\n').take(error.line().saturating_sub(1));
    let offset = before.map(|line| line.len() + 1).sum::<usize>() + error.column().saturating_sub(1);
    json!({"type": "json_invalid", "loc": ["body", offset], "msg": "JSON decode error", "input": {},
        "ctx": {"error": error.to_string()}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: &'static str, body: &str) -> Result<Execute, Value> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        execute(&headers, body.as_bytes())
    }

    #[test]
    fn unknown_fields_are_accepted_and_a_null_timeout_is_none() {
        let wanted = Execute { command: "ls".to_owned(), timeout: None };
        assert_eq!(
            read("application/json", r#"{"command":"ls","new":1,"timeout_seconds":null}"#),
            Ok(wanted)
        );
    }

    #[test]
    fn a_timeout_may_be_a_fraction_or_absurdly_large() {
        let timeout = |text| read("application/json; charset=utf-8", text).unwrap().timeout.unwrap();
        assert_eq!(timeout(r#"{"command":"ls","timeout_seconds":0.5}"#), Duration::from_millis(500));
        assert_eq!(timeout(r#"{"command":"ls","timeout_seconds":1e300}"#), LONGEST);
    }

    #[test]
    fn each_wrong_body_has_its_own_problem() {
        for (kind, body, problem, location) in [
            ("application/json", "", "missing", json!(["body"])),
            ("application/json", "{}", "missing", json!(["body", "command"])),
            ("application/json", r#"{"command":5}"#, "string_type", json!(["body", "command"])),
            ("application/json", "[1]", "model_attributes_type", json!(["body"])),
            ("application/json", "{\n oops", "json_invalid", json!(["body", 3])),
            ("text/plain", r#"{"command":"ls"}"#, "model_attributes_type", json!(["body"])),
            (
                "application/json",
                r#"{"command":"ls","timeout_seconds":0}"#,
                "greater_than",
                json!(["body", "timeout_seconds"]),
            ),
            (
                "application/json",
                r#"{"command":"ls","timeout_seconds":"5"}"#,
                "float_type",
                json!(["body", "timeout_seconds"]),
            ),
        ] {
            let error = read(kind, body).unwrap_err();
            assert_eq!((&error["type"], &error["loc"]), (&json!(problem), &location), "{body}");
        }
    }
}
