//! OpenAPI v3: an index and a document per group and version, enough for kubectl's `apply`, `explain` and validation.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::response::Response;
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::describe::{describe, describe_embedded};
use crate::ops::Api;
use crate::patch;
use crate::registry::{Form, Target, absent, group_version};
use crate::status::{ApiError, json_response};

pub(super) const TITLE: &str = "Kubernetes";
pub(super) const VERSION: &str = "v1.36.0";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

pub(super) fn index(api: &Api) -> Value {
    let mut paths = Map::new();
    for target in targets(api) {
        let path = document_path(&target.resource.group, &target.version().name);
        let mut hasher = DefaultHasher::new();
        for other in targets(api).iter().filter(|other| other.api_version() == target.api_version()) {
            (&other.resource.plural, &other.version().schema).hash(&mut hasher);
        }
        let url = format!("/openapi/v3/{path}?hash={:016X}", hasher.finish());
        paths.insert(path, json!({ "serverRelativeURL": url }));
    }
    json!({ "paths": paths })
}

pub(super) fn document(api: &Api, group: &str, version: &str) -> Result<Response, ApiError> {
    let members: Vec<Target> = targets(api)
        .into_iter()
        .filter(|target| *target.resource.group == *group && *target.version().name == *version)
        .collect();
    if members.is_empty() {
        return Err(ApiError::no_resource());
    }
    let mut schemas = Map::new();
    schemas.insert(OBJECT_META.into(), object_meta());
    let mut paths = Map::new();
    for target in &members {
        schemas.insert(model_name(target), model(target));
        describe_paths(target, &mut paths);
    }
    let body = json!({
        "openapi": "3.0.0", "info": { "title": TITLE, "version": VERSION },
        "paths": paths, "components": { "schemas": schemas },
    });
    Ok(json_response(StatusCode::OK, &body))
}

fn targets(api: &Api) -> Vec<Target> {
    let all = api.registry.all();
    let versions = all.iter().flat_map(|resource| {
        let served = resource.versions.iter().enumerate().filter(|(_, version)| version.served);
        served.map(|(version, _)| Target { resource: resource.clone(), version })
    });
    versions.collect()
}

fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The group reversed, as Kubernetes names its models: `io.x-k8s.agents.v1beta1.Sandbox`.
fn model_name(target: &Target) -> String {
    let group = match &*target.resource.group {
        "" => "io.k8s.api.core".to_owned(),
        group => group.split('.').rev().collect::<Vec<_>>().join("."),
    };
    format!("{group}.{}.{}", target.version().name, target.resource.kind)
}

fn kind(target: &Target) -> Value {
    json!({ "group": &*target.resource.group, "version": &*target.version().name, "kind": &*target.resource.kind })
}

fn model(target: &Target) -> Value {
    let mut schema: Value = match &target.version().schema {
        Some(text) => serde_json::from_str(text).unwrap_or_default(),
        None => json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }),
    };
    let text = |description: &str| json!({ "type": "string", "description": description });
    schema["properties"]["apiVersion"] = text("The version of the schema of this object.");
    schema["properties"]["kind"] = text("The kind of this object.");
    schema["properties"]["metadata"] = json!({
        "allOf": [{ "$ref": format!("#/components/schemas/{OBJECT_META}") }], "default": {},
        "description": "Standard object's metadata.",
    });
    if target.resource.form == Form::Converted {
        describe_embedded(&mut schema);
    }
    if !target.resource.custom {
        describe(&target.resource.group, &target.resource.kind, &mut schema);
        merge_keys(&mut schema);
    }
    if let Some(sentence) = absent::sentence(&target.resource.group, &target.resource.plural) {
        schema["description"] = sentence.into();
    }
    schema["x-kubernetes-group-version-kind"] = json!([kind(target)]);
    schema
}

/// Says of each list by which key its items merge: kubectl computes its patches by that.
fn merge_keys(schema: &mut Value) {
    if let Some(items) = schema.get_mut("items") {
        merge_keys(items);
    }
    for (name, property) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
    {
        if property["type"] == "array"
            && let Some(key) = patch::merge_key_of(name, &property["items"]["properties"])
        {
            property["x-kubernetes-patch-strategy"] = "merge".into();
            property["x-kubernetes-patch-merge-key"] = key.into();
        }
        merge_keys(property);
    }
}

fn object_meta() -> Value {
    let map = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    let text = json!({ "type": "string" });
    json!({
        "description": "Metadata that all persisted objects have.", "type": "object",
        "properties": {
            "name": text, "generateName": text, "namespace": text, "uid": text, "resourceVersion": text,
            "creationTimestamp": text, "deletionTimestamp": text, "labels": map, "annotations": map,
            "generation": { "type": "integer" }, "deletionGracePeriodSeconds": { "type": "integer" },
            "finalizers": { "type": "array", "items": text, "x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge" },
            "ownerReferences": { "type": "array", "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"], "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "uid" },
            "managedFields": { "type": "array", "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
        },
    })
}

fn describe_paths(target: &Target, paths: &mut Map<String, Value>) {
    let root = match &*target.resource.group {
        "" => format!("/api/{}", target.version().name),
        group => format!("/apis/{}", group_version(group, &target.version().name)),
    };
    let space = if target.resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let list = format!("{root}{space}/{}", target.resource.plural);
    let parameter = |name: &str, place: &str, required: bool| json!({ "name": name, "in": place, "required": required, "schema": { "type": "string", "uniqueItems": true } });
    let write = [
        parameter("dryRun", "query", false),
        parameter("fieldManager", "query", false),
        parameter("fieldValidation", "query", false),
    ];
    let reference = json!({ "$ref": format!("#/components/schemas/{}", model_name(target)) });
    let content = json!({ "application/json": { "schema": reference } });
    let operation = |action: &str, id: &str, parameters: &[Value], body: Option<&Value>| {
        let mut operation = json!({
            "operationId": format!("{id}{}", target.resource.kind), "tags": [],
            "responses": { "200": { "description": "OK", "content": content } },
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind(target), "parameters": parameters,
        });
        if let Some(body) = body {
            operation["requestBody"] = json!({ "content": body, "required": true });
        }
        operation
    };
    let anything = json!({ "schema": { "type": "object" } });
    let mut patches = json!({
        "application/json-patch+json": anything, "application/merge-patch+json": anything,
        "application/apply-patch+yaml": anything,
    });
    // kubectl takes the strategic patch wherever it is offered.
    if !target.resource.custom {
        patches["application/strategic-merge-patch+json"] = anything;
    }
    let mut common = Vec::new();
    if target.resource.namespaced {
        common.push(parameter("namespace", "path", true));
    }
    paths.insert(list.clone(), json!({
        "get": operation("list", "list", &[], None), "post": operation("post", "create", &write, Some(&content)),
        "parameters": common,
    }));
    common.push(parameter("name", "path", true));
    paths.insert(format!("{list}/{{name}}"), json!({
        "get": operation("get", "read", &[], None), "put": operation("put", "replace", &write, Some(&content)),
        "patch": operation("patch", "patch", &write, Some(&patches)), "delete": operation("delete", "delete", &[], None),
        "parameters": common,
    }));
}
