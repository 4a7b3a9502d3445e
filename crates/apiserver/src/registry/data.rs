//! ConfigMaps and Secrets: their keys, their size, and what a Secret of a type must hold.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::field::Errors;
use super::rules::default;
use crate::names;
use crate::status::FieldError;

/// The values of an object together.
const MOST_BYTES: usize = 1 << 20;
/// The keys that a Secret of a type must have.
const NEEDED: [(&str, &[&str]); 4] = [
    ("kubernetes.io/dockercfg", &[".dockercfg"]),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"]),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"]),
    ("kubernetes.io/tls", &["tls.crt", "tls.key"]),
];
const REDACTED: &str = "<secret contents redacted>";

/// `stringData` is a write-only way of giving `data`.
pub(super) fn fold_string_data(secret: &mut Value) {
    let Some(map) = secret.as_object_mut() else { return };
    if map.get("type").is_none_or(|kind| *kind == "") {
        map.insert("type".to_owned(), json!("Opaque"));
    }
    let Some(Value::Object(plain)) = map.remove("stringData") else { return };
    for (key, value) in plain {
        let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
        default(secret, "data", json!({}));
        if let Some(data) = secret.get_mut("data").and_then(Value::as_object_mut) {
            data.insert(key, encoded.into());
        }
    }
}

pub(super) fn validate_config_map(map: &Value, old: Option<&Value>, errors: &mut Errors) {
    keys(map, "data", errors);
    keys(map, "binaryData", errors);
    for (key, _) in entries(map, "data").filter(|(key, _)| !map["binaryData"][key].is_null()) {
        let why = "duplicate of key present in binaryData";
        errors.push(FieldError::invalid(format!("data[{key}]"), &key.into(), why));
    }
    let plain: usize = entries(map, "data").map(|(_, value)| value.len()).sum();
    if plain + decoded(map, "binaryData") > MOST_BYTES {
        // The path that kube-apiserver writes for the whole object.
        errors.push(FieldError::too_long("[]", MOST_BYTES));
    }
    immutable(map, old, &["data", "binaryData"], errors);
}

pub(super) fn validate_secret(secret: &Value, old: Option<&Value>, errors: &mut Errors) {
    keys(secret, "data", errors);
    if decoded(secret, "data") > MOST_BYTES {
        errors.push(FieldError::too_long("data", MOST_BYTES));
    }
    check_type(secret, errors);
    if old.is_some_and(|old| old["type"] != secret["type"]) {
        errors.push(FieldError::invalid("type", &secret["type"], "field is immutable"));
    }
    immutable(secret, old, &["data"], errors);
}

fn check_type(secret: &Value, errors: &mut Errors) {
    let kind = secret["type"].as_str().unwrap_or_default();
    let data = &secret["data"];
    let path = |key: &str| format!("data[{key}]");
    match kind {
        "kubernetes.io/service-account-token" => {
            const ACCOUNT: &str = "kubernetes.io/service-account.name";
            if secret["metadata"]["annotations"][ACCOUNT].as_str().unwrap_or_default().is_empty() {
                errors.push(FieldError::required(format!("metadata.annotations[{ACCOUNT}]"), ""));
            }
        }
        "kubernetes.io/basic-auth" if data["username"].is_null() && data["password"].is_null() => {
            errors.extend(["username", "password"].map(|key| FieldError::required(path(key), "")));
        }
        _ => {}
    }
    let needed = NEEDED.iter().find(|(name, _)| *name == kind).map_or(&[][..], |(_, keys)| keys);
    for key in needed {
        match data[*key].as_str() {
            None => errors.push(FieldError::required(path(key), "")),
            Some("") if *key == "ssh-privatekey" => errors.push(FieldError::required(path(key), "")),
            Some(text) if key.starts_with(".docker") => {
                let raw = STANDARD.decode(text).unwrap_or_default();
                if let Err(error) = serde_json::from_slice::<serde_json::Map<String, Value>>(&raw) {
                    errors.push(FieldError::invalid(path(key), &REDACTED.into(), error));
                }
            }
            Some(_) => {}
        }
    }
}

fn keys(object: &Value, field: &str, errors: &mut Errors) {
    for key in object[field].as_object().into_iter().flatten().map(|(key, _)| key) {
        let path = format!("{field}[{key}]");
        let wrong = names::config_key(key).into_iter();
        errors.extend(wrong.map(|why| FieldError::invalid(&path, &key.as_str().into(), why)));
    }
}

fn immutable(object: &Value, old: Option<&Value>, fields: &[&str], errors: &mut Errors) {
    let Some(old) = old.filter(|old| old["immutable"] == true) else { return };
    for field in fields.iter().chain(&["immutable"]).filter(|field| old[**field] != object[**field]) {
        errors.push(FieldError::forbidden(*field, "field is immutable when `immutable` is set"));
    }
}

fn entries<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let entries = object[field].as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

/// How many bytes the values are that are given in base64.
fn decoded(object: &Value, field: &str) -> usize {
    let size = |text: &str| text.len() / 4 * 3 - text.bytes().rev().take_while(|b| *b == b'=').count().min(2);
    entries(object, field).filter(|(_, text)| !text.is_empty()).map(|(_, text)| size(text)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(kind: &str, data: Value) -> Vec<String> {
        let mut errors = Errors::new();
        validate_secret(&json!({ "type": kind, "data": data }), None, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_mebibyte_is_the_most() {
        let of = |bytes: usize| STANDARD.encode(vec![0; bytes]);
        assert!(secret("Opaque", json!({ "a": of(MOST_BYTES - 1), "b": of(1) })).is_empty());
        let large = secret("Opaque", json!({ "a": of(MOST_BYTES), "b": of(1) }));
        assert_eq!(large, ["data: Too long: may not be more than 1048576 bytes"]);
        let mut errors = Errors::new();
        let map = json!({ "data": { "a": "x".repeat(MOST_BYTES) }, "binaryData": { "b": of(1) } });
        validate_config_map(&map, None, &mut errors);
        assert_eq!(errors[0].to_string(), "[]: Too long: may not be more than 1048576 bytes");
    }

    #[test]
    fn a_secret_holds_what_its_type_says() {
        for (kind, data, wanted) in [
            ("kubernetes.io/tls", json!({ "tls.crt": "" }), "data[tls.key]: Required value"),
            ("kubernetes.io/ssh-auth", json!({}), "data[ssh-privatekey]: Required value"),
            ("kubernetes.io/dockerconfigjson", json!({}), "data[.dockerconfigjson]: Required value"),
            ("kubernetes.io/basic-auth", json!({}), "data[username]: Required value"),
            (
                "kubernetes.io/service-account-token",
                json!({}),
                "metadata.annotations[kubernetes.io/service-account.name]: Required value",
            ),
            ("Opaque", json!({ "a b": "" }), "data[a b]: Invalid value: \"a b\": a valid config key"),
        ] {
            assert!(secret(kind, data)[0].starts_with(wanted), "{kind}");
        }
        let broken = json!({ ".dockerconfigjson": STANDARD.encode("{") });
        let message = &secret("kubernetes.io/dockerconfigjson", broken)[0];
        assert!(
            message.starts_with("data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\""),
            "{message}"
        );
        assert!(secret("kubernetes.io/basic-auth", json!({ "password": "" })).is_empty());
        assert!(secret("example.com/own", json!({})).is_empty());
    }

    #[test]
    fn what_is_immutable_stays() {
        let old = json!({ "type": "Opaque", "immutable": true, "data": { "a": "" } });
        let mut errors = Errors::new();
        validate_secret(&json!({ "type": "Other", "immutable": true, "data": {} }), Some(&old), &mut errors);
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["type", "data"]);
    }
}
