//! Validation with the paths and messages of a Kubernetes API server.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{Additional, Checks, Kind, List, MAX_DEPTH, Schema, format};
use crate::path::Path;
use crate::status::FieldError;

/// Errors reported for one object at most.
const MAX_ERRORS: usize = 64;

impl Schema {
    pub fn validate(&self, object: &Value) -> Vec<FieldError> {
        self.accepts(object, &Path::Root, 0)
    }

    fn accepts(&self, value: &Value, path: &Path<'_>, depth: usize) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.check(value, path, &mut errors, depth);
        errors
    }

    fn check(&self, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>, depth: usize) {
        if errors.len() >= MAX_ERRORS {
            return;
        }
        if depth > MAX_DEPTH {
            errors.push(FieldError::forbidden(path, &format!("nested more than {MAX_DEPTH} levels deep")));
            return;
        }
        if value.is_null() && self.nullable {
            return;
        }
        if !self.right_type(value) {
            errors.push(self.wrong_type(value, path));
            return;
        }
        if let Some(checks) = &self.checks {
            checks.check(value, path, errors, depth);
        }
        match value {
            Value::Object(map) => self.check_object(map, path, errors, depth),
            Value::Array(items) => self.check_array(items, path, errors, depth),
            _ => {}
        }
    }

    fn right_type(&self, value: &Value) -> bool {
        if self.int_or_string {
            return value.is_string() || value.is_i64() || value.is_u64();
        }
        match self.kind {
            None => true,
            Some(Kind::Object) => value.is_object(),
            Some(Kind::Array) => value.is_array(),
            Some(Kind::String) => value.is_string(),
            Some(Kind::Boolean) => value.is_boolean(),
            Some(Kind::Number) => value.is_number(),
            Some(Kind::Integer) => {
                value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
            }
        }
    }

    fn wrong_type(&self, value: &Value, path: &Path<'_>) -> FieldError {
        let want = if self.int_or_string { "integer,string" } else { self.kind.map_or("any", Kind::name) };
        let got = type_name(value);
        FieldError::type_invalid(
            path,
            &got.into(),
            format!("{path} in body must be of type {want}: \"{got}\""),
        )
    }

    fn check_object(
        &self,
        map: &Map<String, Value>,
        path: &Path<'_>,
        errors: &mut Vec<FieldError>,
        depth: usize,
    ) {
        for name in &self.required {
            if !map.contains_key(name.as_ref()) {
                errors.push(FieldError::required(Path::Field(path, name), ""));
            }
        }
        if self.embedded {
            for name in ["apiVersion", "kind"] {
                if map.get(name).and_then(Value::as_str).unwrap_or_default().is_empty() {
                    errors.push(FieldError::required(Path::Field(path, name), "must not be empty"));
                }
            }
        }
        for (name, child) in map {
            if let Some(schema) = self.properties.get(name.as_str()) {
                schema.check(child, &Path::Field(path, name), errors, depth + 1);
            } else if let Additional::Schema(schema) = &self.additional {
                schema.check(child, &Path::Field(path, name), errors, depth + 1);
            }
        }
    }

    fn check_array(&self, items: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>, depth: usize) {
        if let Some(schema) = &self.items {
            for (at, item) in items.iter().enumerate() {
                schema.check(item, &Path::Item(path, at), errors, depth + 1);
            }
        }
        let mut seen = HashSet::new();
        for (at, item) in items.iter().enumerate() {
            let identity = match &self.list {
                List::Atomic => return,
                _ if self.duplicates_allowed => return,
                List::Set => item.clone(),
                List::Map(keys) => Value::Object(
                    keys.iter()
                        .filter_map(|key| Some((key.to_string(), item.get(key.as_ref())?.clone())))
                        .collect(),
                ),
            };
            if !seen.insert(identity.to_string()) {
                errors.push(FieldError::duplicate(Path::Item(path, at), &identity));
            }
        }
    }
}

impl Checks {
    fn check(&self, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>, depth: usize) {
        let mut fail = |detail: String| {
            errors.push(FieldError::invalid(path, value, format!("{path} in body {detail}")))
        };
        if let Some(number) = value.as_f64() {
            match self.minimum {
                Some(min) if self.exclusive_minimum && number <= min => {
                    fail(format!("should be greater than {min}"))
                }
                Some(min) if !self.exclusive_minimum && number < min => {
                    fail(format!("should be greater than or equal to {min}"));
                }
                _ => {}
            }
            match self.maximum {
                Some(max) if self.exclusive_maximum && number >= max => {
                    fail(format!("should be less than {max}"))
                }
                Some(max) if !self.exclusive_maximum && number > max => {
                    fail(format!("should be less than or equal to {max}"));
                }
                _ => {}
            }
            if let Some(step) = self.multiple_of.filter(|step| *step > 0.0 && (number / step).fract() != 0.0)
            {
                fail(format!("should be a multiple of {step}"));
            }
        }
        if let Some(text) = value.as_str() {
            let length = text.chars().count() as u64;
            if let Some(min) = self.min_length.filter(|min| length < *min) {
                fail(format!("should be at least {min} chars long"));
            }
            if let Some(pattern) = self.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
                fail(format!("should match '{pattern}'"));
            }
            if let Some(max) = self.max_length.filter(|max| length > *max) {
                errors.push(FieldError::too_long(path, max as usize));
            }
        }
        if let Some(name) = self.format.as_ref().filter(|name| !format::holds(name, value)) {
            let detail = format!("{path} in body must be of type {name}: {value}");
            errors.push(FieldError::type_invalid(path, value, detail));
        }
        if !self.allowed.is_empty() && !self.allowed.contains(value) {
            errors.push(FieldError::unsupported(path, value, &self.allowed));
        }
        self.check_sizes(value, path, errors);
        self.check_branches(value, path, errors, depth);
    }

    fn check_sizes(&self, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
        let few = |count: usize, min: u64, what: &str| {
            FieldError::invalid(
                path,
                &count.into(),
                format!("{path} in body should have at least {min} {what}"),
            )
        };
        if let Some(items) = value.as_array() {
            if let Some(min) = self.min_items.filter(|min| (items.len() as u64) < *min) {
                errors.push(few(items.len(), min, "items"));
            }
            if let Some(max) = self.max_items.filter(|max| items.len() as u64 > *max) {
                errors.push(FieldError::too_many(path, items.len(), max as usize));
            }
            if self.unique {
                let mut seen = HashSet::new();
                if !items.iter().all(|item| seen.insert(item.to_string())) {
                    errors.push(FieldError::invalid(
                        path,
                        value,
                        format!("{path} in body shouldn't contain duplicates"),
                    ));
                }
            }
        }
        if let Some(map) = value.as_object() {
            if let Some(min) = self.min_properties.filter(|min| (map.len() as u64) < *min) {
                errors.push(few(map.len(), min, "properties"));
            }
            if let Some(max) = self.max_properties.filter(|max| map.len() as u64 > *max) {
                errors.push(FieldError::too_many(path, map.len(), max as usize));
            }
        }
    }

    fn check_branches(&self, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>, depth: usize) {
        for branch in &self.all_of {
            branch.check(value, path, errors, depth + 1);
        }
        let shown: Value = type_name(value).into();
        let accepted = |branches: &[Schema]| {
            branches.iter().filter(|branch| branch.accepts(value, path, depth + 1).is_empty()).count()
        };
        if !self.any_of.is_empty() && accepted(&self.any_of) == 0 {
            let detail = format!("{path} in body must validate at least one schema (anyOf)");
            errors.push(FieldError::invalid(path, &shown, detail));
            errors.extend(self.any_of[0].accepts(value, path, depth + 1));
        }
        if !self.one_of.is_empty() && accepted(&self.one_of) != 1 {
            let found = accepted(&self.one_of);
            let detail = format!(
                "{path} in body must validate one and only one schema (oneOf). Found {}",
                match found {
                    0 => "none valid".to_owned(),
                    many => format!("{many} valid alternatives"),
                }
            );
            errors.push(FieldError::invalid(path, &shown, detail));
        }
        if self.not.as_ref().is_some_and(|not| not.accepts(value, path, depth + 1).is_empty()) {
            errors.push(FieldError::invalid(
                path,
                &shown,
                format!("{path} in body must not validate the schema (not)"),
            ));
        }
    }
}

pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors(schema: Value, object: Value) -> Vec<String> {
        let schema = json!({ "type": "object", "properties": { "spec": schema } });
        Schema::compile(&schema)
            .expect("valid")
            .validate(&json!({ "spec": object }))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn messages_are_those_of_kubernetes() {
        for (schema, value, want) in [
            (
                json!({ "type": "string", "enum": ["Running", "Suspended"] }),
                json!("Foo"),
                r#"spec: Unsupported value: "Foo": supported values: "Running", "Suspended""#,
            ),
            (
                json!({ "type": "integer" }),
                json!("x"),
                r#"spec: Invalid value: "string": spec in body must be of type integer: "string""#,
            ),
            (
                json!({ "type": "integer", "minimum": 0 }),
                json!(-1),
                "spec: Invalid value: -1: spec in body should be greater than or equal to 0",
            ),
            (
                json!({ "type": "string", "pattern": "^a+$" }),
                json!("b"),
                r#"spec: Invalid value: "b": spec in body should match '^a+$'"#,
            ),
            (json!({ "type": "object", "required": ["image"] }), json!({}), "spec.image: Required value"),
            (
                json!({ "type": "array", "items": { "type": "object" }, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"] }),
                json!([{ "name": "a" }, { "name": "a", "x": 1 }]),
                r#"spec[1]: Duplicate value: {"name":"a"}"#,
            ),
            (
                json!({ "type": "string", "maxLength": 3 }),
                json!("abcd"),
                "spec: Too long: may not be more than 3 bytes",
            ),
            (
                json!({ "type": "array", "maxItems": 1 }),
                json!([1, 2]),
                "spec: Too many: 2: must have at most 1 items",
            ),
            (
                json!({ "type": "string", "format": "date-time" }),
                json!("soon"),
                r#"spec: Invalid value: "soon": spec in body must be of type date-time: "soon""#,
            ),
        ] {
            assert_eq!(errors(schema, value), [want]);
        }
    }

    #[test]
    fn int_or_string_and_nullable_are_honoured() {
        let schema = json!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] });
        assert!(errors(schema.clone(), json!(1)).is_empty());
        assert!(errors(schema.clone(), json!("50%")).is_empty());
        assert_eq!(errors(schema, json!(true)).len(), 1);
        assert!(errors(json!({ "type": "string", "nullable": true }), json!(null)).is_empty());
        assert_eq!(errors(json!({ "type": "string" }), json!(null)).len(), 1);
    }
}
