//! The CEL rules of a schema (`x-kubernetes-validations`), transition rules included.

use kube_cel::{CompilationError, CompiledSchema, ErrorKind, Validator, compile_schema};
use serde_json::{Map, Value};

use super::reads::Reads;
use super::types;
use crate::status::FieldError;

thread_local! {
    /// The evaluator is not shareable between threads and costs little.
    static VALIDATOR: Validator = Validator::new();
}

pub(crate) struct Rules {
    compiled: CompiledSchema,
    reads: Reads,
}

impl Rules {
    /// Compiles the rules of `schema`, or nothing when it has none.
    pub fn compile(schema: &Value) -> Option<Self> {
        branch_with_rules(schema)
            .map(|slice| Self { compiled: compile_schema(&slice), reads: Reads::of_rules(&slice) })
    }

    pub fn check(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let (read, old) = (self.reads.pick(object), old.map(|old| self.reads.pick(old)));
        let result =
            VALIDATOR.with(|validator| validator.validate_compiled(&self.compiled, &read, old.as_ref()));
        let Err(failures) = result else { return Vec::new() };
        failures
            .into_vec()
            .into_iter()
            .map(|failure| {
                let path = failure.field_path.trim_start_matches('.').to_owned();
                let value: Value = super::validate::type_name(at(object, &path)).into();
                let detail = match failure.kind {
                    ErrorKind::ValidationFailure => failure.message,
                    _ => format!("rule {:?} could not be evaluated: {}", failure.rule, failure.message),
                };
                match failure.reason.as_deref() {
                    Some("FieldValueForbidden") => FieldError::forbidden(path, &detail),
                    Some("FieldValueRequired") => FieldError::required(path, &detail),
                    _ => FieldError::invalid(path, &value, detail),
                }
            })
            .collect()
    }
}

/// Why a rule of a definition cannot be used, with the field of the rule that is at fault.
pub(crate) fn rule_problem(rule: &Value, schema: &Value) -> Option<(&'static str, String)> {
    let alone = serde_json::json!({ "x-kubernetes-validations": [rule] });
    if let Some(error) = compile_schema(&alone).compilation_errors().first() {
        let source = std::error::Error::source(error).map(ToString::to_string);
        let why = source.unwrap_or_else(|| error.to_string());
        return Some(match error {
            CompilationError::MessageExpressionParse { .. } => {
                ("messageExpression", format!("messageExpression compilation failed: {why}"))
            }
            _ => ("rule", format!("compilation failed: {why}")),
        });
    }
    let text = |field: &str| rule[field].as_str().unwrap_or_default();
    if let Some(why) = types::problem(text("rule"), schema) {
        return Some(("rule", format!("compilation failed: {why}")));
    }
    let why = types::message_problem(text("messageExpression"), schema)?;
    Some(("messageExpression", format!("messageExpression compilation failed: {why}")))
}

fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').filter(|part| !part.is_empty()).fold(object, |value, part| {
        let (name, index) = match part.split_once('[') {
            Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().ok()),
            None => (part, None),
        };
        let value = &value[name];
        index.map_or(value, |index| &value[index])
    })
}

/// The part of a schema that rules look at: everything below a rule, and the way to it.
///
/// A Pod template has thousands of nodes and no rule; compiling those would cost memory for nothing.
fn branch_with_rules(schema: &Value) -> Option<Value> {
    if schema.get("x-kubernetes-validations").is_some() {
        return Some(schema.clone());
    }
    let node = schema.as_object()?;
    let mut kept = Map::new();
    for name in ["items", "additionalProperties"] {
        if let Some(child) = node.get(name).and_then(branch_with_rules) {
            kept.insert(name.into(), child);
        }
    }
    let properties: Map<String, Value> = node
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(name, child)| Some((name.clone(), branch_with_rules(child)?)))
        .collect();
    if !properties.is_empty() {
        kept.insert("properties".into(), properties.into());
    }
    if kept.is_empty() {
        return None;
    }
    for name in ["type", "nullable", "x-kubernetes-preserve-unknown-fields"] {
        if let Some(value) = node.get(name) {
            kept.insert(name.into(), value.clone());
        }
    }
    Some(kept.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn transition_rules_compare_with_the_old_object() {
        let schema = json!({ "type": "object", "properties": {
            "other": { "type": "object", "properties": { "x": { "type": "string" } } },
            "spec": { "type": "object", "properties": { "size": {
                "type": "integer",
                "x-kubernetes-validations": [{ "rule": "self >= oldSelf", "message": "may only grow" }] } } } } });
        let rules = Rules::compile(&schema).expect("there is a rule");
        assert!(!rules.compiled.properties.contains_key("other"));
        let (small, big) = (json!({ "spec": { "size": 1 } }), json!({ "spec": { "size": 2 } }));
        assert!(rules.check(&small, None).is_empty());
        assert!(rules.check(&big, Some(&small)).is_empty());
        let errors = rules.check(&small, Some(&big));
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].to_string(), r#"spec.size: Invalid value: "integer": may only grow"#);
        assert!(Rules::compile(&json!({ "type": "object" })).is_none());
    }
}
