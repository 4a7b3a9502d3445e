//! Strategic merge patch: like a merge patch, but the lists of built-in kinds merge by key.

use serde_json::{Map, Value};

/// Lists that merge, and the field that tells their items apart.
const MERGE_KEYS: &[(&str, &str)] = &[
    ("containers", "name"),
    ("initContainers", "name"),
    ("ephemeralContainers", "name"),
    ("volumes", "name"),
    ("env", "name"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("imagePullSecrets", "name"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
    ("resourceClaims", "name"),
    ("ownerReferences", "uid"),
    ("conditions", "type"),
    ("addresses", "type"),
    ("taints", "key"),
    ("podIPs", "ip"),
    ("hostIPs", "ip"),
    ("secrets", "name"),
    ("readinessGates", "conditionType"),
    ("schedulingGates", "name"),
];
/// Lists of plain values that merge as sets.
const SETS: [&str; 1] = ["finalizers"];

pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if patch.get("$patch").is_some_and(|directive| directive == "replace") {
        *target = Value::Object(without_directives(patch));
        return;
    }
    if patch.get("$patch").is_some_and(|directive| directive == "delete") {
        *target = Value::Object(Map::new());
        return;
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(map) = target.as_object_mut() else { return };
    if let Some(Value::Array(retained)) = patch.get("$retainKeys") {
        map.retain(|name, _| retained.iter().any(|kept| kept == name));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().map(Vec::as_slice).unwrap_or_default();
            if let Some(items) = map.get_mut(list).and_then(Value::as_array_mut) {
                items.retain(|item| !gone.contains(item));
            }
        }
        if name.starts_with('$') {
            continue;
        }
        match value {
            Value::Null => {
                map.remove(name);
            }
            Value::Array(items) => {
                merge_list(map.entry(name).or_insert(Value::Array(Vec::new())), name, items)
            }
            Value::Object(_) => merge(map.entry(name).or_insert(Value::Object(Map::new())), value),
            plain => {
                map.insert(name.clone(), plain.clone());
            }
        }
    }
    for (name, order) in patch {
        if let (Some(list), Some(order)) = (name.strip_prefix("$setElementOrder/"), order.as_array())
            && let Some(items) = map.get_mut(list).and_then(Value::as_array_mut)
        {
            reorder(items, list, order);
        }
    }
}

pub(super) fn merge_key(list: &str, item: &Value) -> Option<&'static str> {
    if list == "ports" {
        return ["containerPort", "port"].into_iter().find(|key| !item[*key].is_null());
    }
    MERGE_KEYS.iter().find(|(name, _)| *name == list).map(|(_, key)| *key)
}

fn merge_list(target: &mut Value, name: &str, patch: &[Value]) {
    if !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Some(items) = target.as_array_mut() else { return };
    if SETS.contains(&name) {
        for value in patch {
            if !items.contains(value) {
                items.push(value.clone());
            }
        }
        return;
    }
    let replace = patch.iter().any(|item| item["$patch"] == "replace");
    let keyed =
        patch.iter().all(|item| item.is_object()) && patch.iter().any(|item| merge_key(name, item).is_some());
    if replace
        || (!keyed && !patch.is_empty())
        || (patch.is_empty() && merge_key(name, &Value::Null).is_none())
    {
        *items = patch
            .iter()
            .filter(|item| item["$patch"] != "replace" || item.as_object().is_some_and(|map| map.len() > 1))
            .map(|item| item.as_object().map_or_else(|| item.clone(), |map| without_directives(map).into()))
            .collect();
        return;
    }
    for change in patch {
        let Some(key) = merge_key(name, change) else {
            items.push(change.clone());
            continue;
        };
        let found = items.iter().position(|item| item[key] == change[key]);
        match (found, change["$patch"] == "delete") {
            (Some(at), true) => {
                items.remove(at);
            }
            (None, true) => {}
            (Some(at), false) => merge(&mut items[at], change),
            (None, false) => {
                let mut item = Value::Object(Map::new());
                merge(&mut item, change);
                items.push(item);
            }
        }
    }
}

fn reorder(items: &mut [Value], list: &str, order: &[Value]) {
    let place = |item: &Value| {
        let place = order.iter().position(|wanted| match merge_key(list, wanted) {
            Some(key) if wanted.is_object() => wanted[key] == item[key],
            _ => wanted == item,
        });
        place.unwrap_or(usize::MAX)
    };
    items.sort_by_key(place);
}

fn without_directives(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter()
        .filter(|(name, _)| !name.starts_with('$'))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn merged(mut target: Value, patch: Value) -> Value {
        merge(&mut target, &patch);
        target
    }

    #[test]
    fn containers_merge_by_name() {
        let pod = json!({ "spec": { "containers": [{ "name": "a", "image": "1", "env": [{ "name": "X", "value": "1" }] }, { "name": "b" }] } });
        let patch = json!({ "spec": { "containers": [{ "name": "a", "image": "2", "env": [{ "name": "Y", "value": "2" }] }, { "name": "b", "$patch": "delete" }, { "name": "c" }] } });
        assert_eq!(
            merged(pod, patch)["spec"]["containers"],
            json!([{ "name": "a", "image": "2", "env": [{ "name": "X", "value": "1" }, { "name": "Y", "value": "2" }] }, { "name": "c" }])
        );
    }

    #[test]
    fn directives_replace_delete_and_order() {
        let object = json!({ "m": { "a": 1 }, "metadata": { "finalizers": ["a", "b"] }, "conditions": [{ "type": "A" }, { "type": "B" }], "args": [1, 2] });
        let patch = json!({
            "m": { "$patch": "replace", "b": 2 },
            "metadata": { "finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"] },
            "conditions": [{ "type": "C" }],
            "$setElementOrder/conditions": [{ "type": "C" }, { "type": "B" }, { "type": "A" }],
            "args": [3],
        });
        let result = merged(object, patch);
        assert_eq!(result["m"], json!({ "b": 2 }));
        let mut finalizers: Vec<_> = result["metadata"]["finalizers"].as_array().expect("a list").clone();
        finalizers.sort_by_key(ToString::to_string);
        assert_eq!(finalizers, [json!("b"), json!("c")]);
        assert_eq!(result["conditions"], json!([{ "type": "C" }, { "type": "B" }, { "type": "A" }]));
        assert_eq!(result["args"], json!([3]));
    }

    #[test]
    fn service_ports_merge_by_port() {
        let service = json!({ "ports": [{ "port": 80, "name": "http" }, { "port": 443 }] });
        let result = merged(service, json!({ "ports": [{ "port": 80, "targetPort": 8080 }] }));
        assert_eq!(
            result["ports"],
            json!([{ "port": 80, "name": "http", "targetPort": 8080 }, { "port": 443 }])
        );
    }
}
