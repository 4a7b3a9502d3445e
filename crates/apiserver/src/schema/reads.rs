//! What the rules of a schema read of an object. Giving them only that saves turning whole Pod templates into CEL.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reads {
    All,
    /// These fields of an object.
    Fields(BTreeMap<String, Reads>),
    /// The same of every item of a list, or of every value of a map.
    Each(Box<Reads>),
}

impl Reads {
    /// What all rules of a schema read together.
    pub fn of_rules(schema: &Value) -> Self {
        let mut fields = BTreeMap::new();
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            for text in ["rule", "messageExpression"].iter().filter_map(|field| rule[*field].as_str()) {
                let Some(named) = named_fields(text) else { return Reads::All };
                fields.extend(named.map(|field| (field.to_owned(), Reads::All)));
            }
        }
        for (name, child) in schema["properties"].as_object().into_iter().flatten() {
            match Self::of_rules(child) {
                Reads::Fields(none) if none.is_empty() => {}
                reads => _ = fields.entry(name.clone()).or_insert(reads),
            }
        }
        let each = ["items", "additionalProperties"].iter().find_map(|field| schema.get(field));
        match each.filter(|child| child.is_object()).map(Self::of_rules) {
            Some(Reads::Fields(none)) if none.is_empty() => Reads::Fields(fields),
            Some(each) if fields.is_empty() => Reads::Each(Box::new(each)),
            Some(_) => Reads::All,
            None => Reads::Fields(fields),
        }
    }

    /// The part of an object that is read.
    pub fn pick(&self, value: &Value) -> Value {
        match (self, value) {
            (Reads::Fields(fields), Value::Object(object)) => {
                let picked = fields.iter().filter_map(|(name, reads)| {
                    object.get(name).map(|value| (name.clone(), reads.pick(value)))
                });
                Value::Object(picked.collect())
            }
            (Reads::Each(reads), Value::Array(items)) => items.iter().map(|item| reads.pick(item)).collect(),
            (Reads::Each(reads), Value::Object(object)) => {
                Value::Object(object.iter().map(|(name, value)| (name.clone(), reads.pick(value))).collect())
            }
            (_, value) => value.clone(),
        }
    }
}

/// The fields that a rule reads, if it reads nothing but fields by their names.
fn named_fields(rule: &str) -> Option<impl Iterator<Item = &str>> {
    static SELF: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\b(?:self|oldSelf)\b(?:\.([A-Za-z][A-Za-z0-9]*)\b)?").expect("it is valid")
    });
    let found = || SELF.captures_iter(rule).map(|found| found.get(1).map(|name| name.as_str()));
    found().all(|name| name.is_some()).then(|| found().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(rule: &str) -> Reads {
        Reads::of_rules(
            &json!({ "properties": { "spec": { "x-kubernetes-validations": [{ "rule": rule }] } } }),
        )
    }

    #[test]
    fn only_named_fields_are_read() {
        let object = json!({ "spec": { "size": 1, "claims": [2], "big": { "x": 1 } }, "status": {} });
        let cases = [
            ("self.size > 0", json!({ "size": 1 })),
            (
                "has(self.claims) == has(oldSelf.claims) && self.size >= oldSelf.size",
                json!({ "size": 1, "claims": [2] }),
            ),
            ("self.gone == 1", json!({})),
            ("self.size.all(x, x == self)", object["spec"].clone()),
            ("size(self) > 0", object["spec"].clone()),
            ("self['size'] > 0", object["spec"].clone()),
            ("self.?size.orValue(1) > 0", object["spec"].clone()),
            ("self.big__dot__x == 1", object["spec"].clone()),
        ];
        for (rule, read) in cases {
            assert_eq!(of(rule).pick(&object), json!({ "spec": read }), "{rule}");
        }
    }

    #[test]
    fn rules_on_items_read_every_item() {
        let schema = json!({ "properties": {
            "list": { "items": { "x-kubernetes-validations": [{ "rule": "self.a == 1" }] } },
            "map": { "additionalProperties": { "x-kubernetes-validations": [{ "rule": "self.b == 1" }] } },
            "mixed": { "x-kubernetes-validations": [{ "rule": "self.a == 1" }],
                "properties": { "c": { "x-kubernetes-validations": [{ "rule": "self.d == 1" }] } } },
        } });
        let object = json!({
            "list": [{ "a": 1, "b": 2 }, "wrong"], "map": { "k": { "a": 1, "b": 2 } },
            "mixed": { "a": 1, "b": 2, "c": { "d": 3, "e": 4 } },
        });
        let read = json!({
            "list": [{ "a": 1 }, "wrong"], "map": { "k": { "b": 2 } }, "mixed": { "a": 1, "c": { "d": 3 } },
        });
        assert_eq!(Reads::of_rules(&schema).pick(&object), read);
    }
}
