//! Reading request bodies: JSON with duplicate detection, or YAML.

use std::cell::RefCell;
use std::fmt;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, header};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::protobuf::{self, Unreadable};
use crate::path::Path;
use crate::status::ApiError;

/// As in Kubernetes.
pub(crate) const LIMIT: usize = 3 << 20;

const ACCEPTED: &str = "application/json, application/yaml";

pub(super) async fn read(body: Body) -> Result<Bytes, ApiError> {
    axum::body::to_bytes(body, LIMIT).await.map_err(|error| {
        let mut source: Option<&dyn std::error::Error> = Some(&error);
        while let Some(cause) = source {
            if cause.is::<http_body_util::LengthLimitError>() {
                return ApiError::too_large(LIMIT);
            }
            source = cause.source();
        }
        ApiError::bad_request(format!("the body could not be read: {error}"))
    })
}

/// The media type without its parameters.
pub(super) fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Reads an object. Also returns the paths of fields that stood twice.
pub(super) fn parse_object(media_type: &str, raw: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let (value, duplicates) = match media_type {
        "" | "application/json" | "*/*" => parse_json_strict(raw)?,
        "application/yaml" | "application/x-yaml" | "text/yaml" => (parse_yaml(raw)?, Vec::new()),
        "application/vnd.kubernetes.protobuf" => match protobuf::parse(raw) {
            Ok(value) => (value, Vec::new()),
            Err(Unreadable::Kind) => return Err(ApiError::unsupported_media(media_type, ACCEPTED)),
            Err(Unreadable::Malformed) => {
                return Err(ApiError::bad_request("the body is not valid protobuf of Kubernetes"));
            }
        },
        other => return Err(ApiError::unsupported_media(other, ACCEPTED)),
    };
    if !value.is_object() {
        return Err(ApiError::bad_request("the body must be an object"));
    }
    Ok((value, duplicates))
}

pub(crate) fn parse_json(raw: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(raw)
        .map_err(|error| ApiError::bad_request(format!("the body is not valid JSON: {error}")))
}

pub(crate) fn parse_yaml(raw: &[u8]) -> Result<Value, ApiError> {
    if raw.first() == Some(&b'{') {
        return parse_json(raw);
    }
    serde_saphyr::from_slice(raw)
        .map_err(|error| ApiError::bad_request(format!("the body is not valid YAML: {error}")))
}

fn parse_json_strict(raw: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let duplicates = RefCell::new(Vec::new());
    let mut deserializer = serde_json::Deserializer::from_slice(raw);
    let value = Node { path: &Path::Root, duplicates: &duplicates }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| ApiError::bad_request(format!("the body is not valid JSON: {error}")))?;
    Ok((value, duplicates.into_inner()))
}

struct Node<'a> {
    path: &'a Path<'a>,
    duplicates: &'a RefCell<Vec<String>>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = Path::Item(self.path, items.len());
            match access.next_element_seed(Node { path: &path, duplicates: self.duplicates })? {
                Some(item) => items.push(item),
                None => return Ok(items.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let path = Path::Field(self.path, &name);
            let value = access.next_value_seed(Node { path: &path, duplicates: self.duplicates })?;
            if map.contains_key(&name) {
                self.duplicates.borrow_mut().push(path.to_string());
            }
            map.insert(name, value);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_found_with_their_path() {
        let (value, duplicates) =
            parse_object("application/json", br#"{"spec":{"a":1,"l":[{"b":1,"b":2}],"a":3}}"#)
                .expect("readable");
        assert_eq!(value["spec"]["a"], 3);
        assert_eq!(duplicates, ["spec.l[0].b", "spec.a"]);
    }

    #[test]
    fn yaml_is_read_and_unknown_protobuf_is_not() {
        let (value, _) = parse_object("application/yaml", b"kind: Pod\nspec:\n  n: 1\n").expect("readable");
        assert_eq!(value["spec"]["n"], 1);
        assert_eq!(
            parse_object("application/vnd.kubernetes.protobuf", b"k8s\0").expect_err("no protobuf").code,
            400
        );
        assert_eq!(parse_object("application/json", b"[1]").expect_err("not an object").code, 400);
    }
}
