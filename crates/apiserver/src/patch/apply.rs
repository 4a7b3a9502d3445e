//! Server-side apply in a simple form.
//!
//! Maps merge; lists merge by the keys their schema names; other lists are replaced. The manager's entry in
//! `managedFields` records what it applied, and a field it applied before but leaves out now is removed, unless
//! another manager also applied it. What this does not do: report ownership conflicts. The last writer wins, as with `force`.

use serde_json::{Map, Value, json};

use crate::registry::Target;
use crate::schema::{List, Schema};

pub(super) fn merge(object: &mut Value, config: &Value, manager: &str, target: &Target, now: &str) {
    let mut config = config.clone();
    if let Some(meta) = config.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"] {
            meta.remove(field);
        }
    }
    let schema = Some(&target.version().compiled().schema);
    complete_keys(&mut config, schema);
    let fields = fields_of(&config, schema, true);
    let mut managers = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let mine = |entry: &Value| entry["manager"] == manager && entry["operation"] == "Apply";
    if let Some(at) = managers.iter().position(mine) {
        let before = managers.remove(at)["fieldsV1"].clone();
        let others: Vec<Value> = managers.iter().map(|entry| entry["fieldsV1"].clone()).collect();
        remove_left_out(object, &before, &fields, &others, schema);
    }
    merge_value(object, &config, schema);
    managers.push(json!({
        "manager": manager, "operation": "Apply", "apiVersion": target.api_version(), "time": now,
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    }));
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.insert("managedFields".into(), managers.into());
    }
}

/// Sets the keys of list items that are left out and have a default: a port without a protocol is the TCP one.
fn complete_keys(config: &mut Value, schema: Option<&Schema>) {
    match config {
        Value::Object(map) => {
            map.iter_mut().for_each(|(name, value)| complete_keys(value, child_schema(schema, name)));
        }
        Value::Array(items) => {
            let of_items = schema.and_then(Schema::items);
            let keys = list_keys(schema, items).unwrap_or_default();
            for item in items {
                complete_keys(item, of_items);
                let Some(item) = item.as_object_mut() else { continue };
                for key in &keys {
                    let default = child_schema(of_items, key).and_then(Schema::default_value);
                    if let Some(default) = default.filter(|_| !item.contains_key(key)) {
                        item.insert(key.clone(), default.clone());
                    }
                }
            }
        }
        _ => {}
    }
}

fn merge_value(target: &mut Value, config: &Value, schema: Option<&Schema>) {
    match (&mut *target, config) {
        (Value::Object(map), Value::Object(config)) => {
            for (name, value) in config {
                let child = child_schema(schema, name);
                merge_value(map.entry(name).or_insert(Value::Null), value, child);
            }
        }
        (Value::Array(items), Value::Array(config)) => {
            let Some(keys) = list_keys(schema, config) else {
                *items = config.clone();
                return;
            };
            let item_schema = schema.and_then(Schema::items);
            for value in config {
                match items.iter_mut().find(|item| same(item, value, &keys)) {
                    Some(item) => merge_value(item, value, item_schema),
                    None => items.push(value.clone()),
                }
            }
        }
        (target, config) => *target = config.clone(),
    }
}

fn child_schema<'a>(schema: Option<&'a Schema>, name: &str) -> Option<&'a Schema> {
    schema.and_then(|schema| schema.property(name))
}

/// The fields that tell the items of a list apart; empty for a set; none for a list that is one value.
fn list_keys(schema: Option<&Schema>, config: &[Value]) -> Option<Vec<String>> {
    match schema.map(Schema::list) {
        Some(List::Map(keys)) => Some(keys.iter().map(ToString::to_string).collect()),
        Some(List::Set) => Some(Vec::new()),
        Some(List::Atomic) => None,
        // Metadata has no schema: owner references are told apart by uid, finalizers are a set.
        None if config.iter().all(|item| item["uid"].is_string()) => Some(vec!["uid".into()]),
        None if config.iter().all(Value::is_string) => Some(Vec::new()),
        None => None,
    }
}

fn same(a: &Value, b: &Value, keys: &[String]) -> bool {
    if keys.is_empty() { a == b } else { keys.iter().all(|key| a[key] == b[key]) }
}

/// The `fieldsV1` set of a configuration.
fn fields_of(config: &Value, schema: Option<&Schema>, root: bool) -> Value {
    let mut fields = Map::new();
    match config {
        Value::Object(map) => {
            for (name, value) in map {
                if root && matches!(name.as_str(), "apiVersion" | "kind") {
                    continue;
                }
                let mut child = fields_of(value, child_schema(schema, name), false);
                if root
                    && name == "metadata"
                    && let Some(child) = child.as_object_mut()
                {
                    child.retain(|field, _| field != "f:name" && field != "f:namespace");
                }
                fields.insert(format!("f:{name}"), child);
            }
        }
        Value::Array(items) => {
            let Some(keys) = list_keys(schema, items) else { return json!({}) };
            for item in items {
                if keys.is_empty() {
                    fields.insert(format!("v:{item}"), json!({}));
                    continue;
                }
                let identity: Map<String, Value> =
                    keys.iter().map(|key| (key.clone(), item[key].clone())).collect();
                let mut child = fields_of(item, schema.and_then(Schema::items), false);
                child["."] = json!({});
                fields.insert(format!("k:{}", Value::Object(identity)), child);
            }
        }
        _ => {}
    }
    fields.into()
}

/// Removes from `object` what `before` has and neither `now` nor another manager's set has.
fn remove_left_out(
    object: &mut Value,
    before: &Value,
    now: &Value,
    others: &[Value],
    schema: Option<&Schema>,
) {
    for (field, below) in before.as_object().into_iter().flatten() {
        let theirs: Vec<Value> = others.iter().filter_map(|other| other.get(field)).cloned().collect();
        let kept = now.get(field).is_some() || !theirs.is_empty();
        let empty = json!({});
        let now = now.get(field).unwrap_or(&empty);
        if let Some(name) = field.strip_prefix("f:") {
            let leaf = below.as_object().is_none_or(Map::is_empty);
            let Some(map) = object.as_object_mut() else { continue };
            if leaf && !kept {
                map.remove(name);
            } else if let Some(child) = map.get_mut(name) {
                remove_left_out(child, below, now, &theirs, child_schema(schema, name));
                let emptied = child.as_object().is_some_and(Map::is_empty)
                    || child.as_array().is_some_and(Vec::is_empty);
                if emptied && !kept {
                    map.remove(name);
                }
            }
        } else if let (Some(key), Some(items)) = (field.strip_prefix("k:"), object.as_array_mut()) {
            let Ok(Value::Object(identity)) = serde_json::from_str::<Value>(key) else { continue };
            let matches = |item: &Value| identity.iter().all(|(name, value)| item[name] == *value);
            if !kept {
                items.retain(|item| !matches(item));
            } else if let Some(item) = items.iter_mut().find(|item| matches(item)) {
                remove_left_out(item, below, now, &theirs, schema.and_then(Schema::items));
            }
        } else if let (Some(text), Some(items), false) =
            (field.strip_prefix("v:"), object.as_array_mut(), kept)
        {
            let gone: Value = serde_json::from_str(text).unwrap_or_default();
            items.retain(|item| *item != gone);
        }
    }
}
