//! What an object of a backup must be like before a store begins with it. Pure.
//!
//! A store is read without the checks of the API, and the node makes directories of names and UIDs. A backup may come from
//! anywhere.

use asb_apiserver::backup::Stored;
use serde_json::Value;

use crate::commands::volume::is_plain;

/// What is wrong with an object.
pub fn check(stored: &Stored) -> Result<(), String> {
    let (key, object) = (&stored.key, &stored.object);
    let [collection, namespace, name] = *key.split('/').collect::<Vec<_>>() else {
        return Err("its key is not COLLECTION/NAMESPACE/NAME".to_owned());
    };
    // Empty for objects of the whole cluster.
    let namespace = Some(namespace).filter(|it| !it.is_empty());
    if !is_plain(collection) {
        return Err("its key begins with no collection".to_owned());
    }
    let metadata = &object["metadata"];
    let differs = |field: &str, wanted: Option<&str>| {
        let found = metadata[field].as_str().filter(|text| !text.is_empty());
        (found != wanted).then(|| format!("metadata.{field} is {}, its key says {wanted:?}", metadata[field]))
    };
    if let Some(problem) = differs("name", Some(name)).or_else(|| differs("namespace", namespace)) {
        return Err(problem);
    }
    // Names of roles have colons in them; only some become directories.
    let becomes_a_directory =
        ["pods", "persistentvolumes", "persistentvolumeclaims", "nodes"].contains(&collection);
    if if becomes_a_directory { !is_plain(name) } else { !is_segment(name) } {
        return Err(format!("metadata.name: {name:?} is no name"));
    }
    if let Some(namespace) = namespace.filter(|it| !is_label(it)) {
        return Err(format!("metadata.namespace: {namespace:?} is no name"));
    }
    let uid = metadata["uid"].as_str().unwrap_or_default();
    if uid.is_empty() || !uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(format!("metadata.uid: {} is no UID", metadata["uid"]));
    }
    match collection {
        "persistentvolumeclaims" => claim(object),
        "pods" => pod(object),
        _ => Ok(()),
    }
}

fn claim(claim: &Value) -> Result<(), String> {
    match &claim["spec"]["volumeName"] {
        Value::Null => Ok(()),
        Value::String(name) if name.is_empty() || is_plain(name) => Ok(()),
        other => Err(format!("spec.volumeName: {other} is no name")),
    }
}

/// Containers have logs and records by their name, volumes a directory.
fn pod(pod: &Value) -> Result<(), String> {
    for field in ["containers", "initContainers", "ephemeralContainers", "volumes"] {
        for one in pod["spec"][field].as_array().into_iter().flatten() {
            if !one["name"].as_str().is_some_and(is_label) {
                return Err(format!("spec.{field}: {} is no name", one["name"]));
            }
        }
    }
    Ok(())
}

fn is_label(name: &str) -> bool {
    name.len() <= 63 && !name.contains('.') && is_plain(name)
}

fn is_segment(name: &str) -> bool {
    !name.is_empty() && name.len() <= 253 && !matches!(name, "." | "..") && !name.contains(['/', '%', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problem(key: &str, patch: Value) -> Option<String> {
        let parts: Vec<_> = key.split('/').collect();
        let mut object = json!({"metadata": {"name": parts.last(), "uid": "1-a"}, "spec": {}});
        if let [_, namespace, _] = *parts
            && !namespace.is_empty()
        {
            object["metadata"]["namespace"] = namespace.into();
        }
        for (path, value) in patch.as_object().expect("an object") {
            *object.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value.clone();
        }
        check(&Stored { key: key.to_owned(), object }).err()
    }

    #[test]
    fn objects_as_an_engine_stores_them_pass() {
        for key in [
            "namespaces//default",
            "pods/default/web-0",
            "persistentvolumes//pvc-1",
            "clusterroles.rbac.authorization.k8s.io//system:node",
            "sandboxes.agents.x-k8s.io/default/keeper",
            "customresourcedefinitions.apiextensions.k8s.io//sandboxes.agents.x-k8s.io",
        ] {
            assert_eq!(problem(key, json!({})), None, "{key}");
        }
        assert_eq!(
            problem("persistentvolumeclaims/default/d", json!({"/spec": {"volumeName": "pvc-1"}})),
            None
        );
        assert_eq!(problem("pods/default/web", json!({"/spec": {"containers": [{"name": "main"}]}})), None);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused_by_their_field() {
        for (key, patch, field) in [
            ("persistentvolumes//..", json!({}), "metadata.name"),
            ("persistentvolumes//.clone-x", json!({}), "metadata.name"),
            ("persistentvolumes//pvc-1", json!({"/metadata/name": "../../etc"}), "metadata.name"),
            ("secrets/default/..", json!({}), "metadata.name"),
            ("pods/../web", json!({}), "metadata.namespace"),
            ("pods/default/web", json!({"/metadata/namespace": "other"}), "metadata.namespace"),
            ("pods/default/web", json!({"/metadata/uid": "../volumes"}), "metadata.uid"),
            ("pods/default/web", json!({"/metadata/uid": null}), "metadata.uid"),
            ("pods/default/web", json!({"/spec": {"containers": [{"name": "../x"}]}}), "spec.containers"),
            ("pods/default/web", json!({"/spec": {"volumes": [{"name": "../x"}]}}), "spec.volumes"),
            ("persistentvolumeclaims/default/d", json!({"/spec": {"volumeName": ".."}}), "spec.volumeName"),
            ("persistentvolumeclaims/default/d", json!({"/spec": {"volumeName": 1}}), "spec.volumeName"),
            ("pods/default/web/more", json!({}), "key"),
            ("pods", json!({}), "key"),
            ("persistentvolumes/pvc-1", json!({}), "key"),
            ("../default/web", json!({}), "key"),
        ] {
            let found = problem(key, patch.clone()).unwrap_or_default();
            assert!(found.contains(field), "{key} {patch}: {found}");
        }
    }
}
