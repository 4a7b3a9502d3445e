//! Pruning and defaulting, in one walk.

use serde_json::{Map, Value};

use super::{Additional, Kind, MAX_DEPTH, Schema};
use crate::path::Path;

/// Fields of every object that no schema lists.
const ENVELOPE: [&str; 3] = ["apiVersion", "kind", "metadata"];

impl Schema {
    /// Removes what the schema does not know and adds what it defaults. Returns the paths that were removed.
    pub fn fill(&self, object: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        self.walk(object, &Path::Root, &mut unknown, 0);
        unknown
    }

    fn walk(&self, value: &mut Value, path: &Path<'_>, unknown: &mut Vec<String>, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        match value {
            Value::Object(map) => {
                self.prune(map, path, unknown);
                // As in Kubernetes: a null that is not allowed means "not given".
                map.retain(|name, child| {
                    !child.is_null() || self.property(name).is_none_or(|schema| schema.nullable)
                });
                self.set_defaults(map);
                for (name, child) in map.iter_mut() {
                    // Metadata is the same for all kinds, whatever a schema says about it.
                    if (path.is_root() || self.embedded) && name == "metadata" {
                        continue;
                    }
                    if let Some(schema) = self.property(name) {
                        schema.walk(child, &Path::Field(path, name), unknown, depth + 1);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for (at, item) in items.iter_mut().enumerate() {
                        schema.walk(item, &Path::Item(path, at), unknown, depth + 1);
                    }
                }
            }
            Value::Number(number) if self.kind == Some(Kind::Integer) => {
                if let Some(whole) = number.as_f64().filter(|_| number.is_f64()).and_then(whole) {
                    *value = whole.into();
                }
            }
            _ => {}
        }
    }

    fn prune(&self, map: &mut Map<String, Value>, path: &Path<'_>, unknown: &mut Vec<String>) {
        if self.preserve_unknown || !matches!(self.additional, Additional::None) {
            return;
        }
        let extra: Vec<String> = map
            .keys()
            .filter(|name| !self.properties.contains_key(name.as_str()))
            .filter(|name| !((path.is_root() || self.embedded) && ENVELOPE.contains(&name.as_str())))
            .cloned()
            .collect();
        for name in extra {
            map.remove(&name);
            unknown.push(Path::Field(path, &name).to_string());
        }
    }

    fn set_defaults(&self, map: &mut Map<String, Value>) {
        for (name, schema) in &self.properties {
            let Some(default) = &schema.default else { continue };
            if !map.contains_key(name.as_ref()) {
                map.insert(name.to_string(), default.clone());
            }
        }
    }
}

/// `30.0` is the integer 30, as for kube-apiserver; most programs that read it afterwards would refuse it.
fn whole(number: f64) -> Option<i64> {
    const LARGEST: f64 = 9_007_199_254_740_992.0; // beyond it, not every integer is a float
    (number.fract() == 0.0 && number.abs() <= LARGEST).then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema(value: Value) -> Schema {
        Schema::compile(&value).expect("a valid schema")
    }

    #[test]
    fn unknown_fields_go_and_defaults_come() {
        let schema = schema(
            json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
                "mode": { "type": "string", "default": "Running" },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                "list": { "type": "array", "items": { "type": "object", "properties": { "n": { "type": "integer", "default": 1 } } } },
            }}}}),
        );
        let mut object = json!({ "kind": "X", "metadata": {}, "spec": {
            "color": "red", "free": { "any": 1 }, "list": [{ "m": 2, "n": null }], "mode": null } });
        let unknown = schema.fill(&mut object);
        assert_eq!(unknown, ["spec.color", "spec.list[0].m"]);
        assert_eq!(object["spec"], json!({ "mode": "Running", "free": { "any": 1 }, "list": [{ "n": 1 }] }));
    }

    #[test]
    fn an_integer_with_a_fraction_of_zero_is_stored_as_one() {
        let schema = schema(
            json!({ "type": "object", "properties": { "n": { "type": "integer" }, "x": { "type": "number" } } }),
        );
        let mut object = json!({ "n": 30.0, "x": 30.0 });
        schema.fill(&mut object);
        assert_eq!(object.to_string(), r#"{"n":30,"x":30.0}"#);
        let mut object = json!({ "n": 30.5 });
        schema.fill(&mut object);
        assert_eq!(object, json!({ "n": 30.5 }));
    }

    #[test]
    fn an_embedded_resource_keeps_its_envelope() {
        let schema = schema(
            json!({ "type": "object", "properties": { "metadata": { "type": "object" }, "inner": {
            "type": "object", "x-kubernetes-embedded-resource": true, "properties": { "spec": { "type": "string" } } } } }),
        );
        let mut object = json!({
            "metadata": { "name": "kept" },
            "inner": { "kind": "K", "apiVersion": "v1", "metadata": { "name": "kept" }, "spec": "s", "x": 1 },
        });
        assert_eq!(schema.fill(&mut object), ["inner.x"]);
        assert_eq!(object["inner"]["kind"], "K");
        assert_eq!(object["inner"]["metadata"]["name"], "kept");
        assert_eq!(object["metadata"]["name"], "kept");
    }
}
