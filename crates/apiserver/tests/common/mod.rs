//! A server in a temporary directory, spoken to through its Router or a `kube::Client`.
#![allow(dead_code)] // each test file uses its part

pub mod served;

use std::time::Duration;

use asb_apiserver::{ApiServer, Config};
use axum::body::Body;
use futures::StreamExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const GADGETS: &str = "/apis/example.com/v1/namespaces/default/gadgets";
pub const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub const JSON: &str = "application/json";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";

pub struct World {
    pub server: ApiServer,
    pub dir: tempfile::TempDir,
}

/// A response: its code and its body.
pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub headers: http::HeaderMap,
}

/// The events of a watch.
pub struct Events {
    body: axum::body::BodyDataStream,
    buffer: Vec<u8>,
}

/// A CRD with the features that tests look at.
pub fn gadgets() -> Value {
    let spec = json!({ "type": "object", "required": ["size"], "properties": {
        "size": { "type": "integer", "minimum": 1,
            "x-kubernetes-validations": [{ "rule": "self >= oldSelf", "message": "size may only grow" }] },
        "mode": { "type": "string", "enum": ["Running", "Suspended"], "default": "Running" },
        "replicas": { "type": "integer", "default": 1 },
        "ports": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": { "type": "object", "required": ["name"],
                "properties": { "name": { "type": "string" }, "port": { "type": "integer" } } } },
        "tags": { "type": "array", "items": { "type": "string" } },
        "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    } });
    let schema = json!({ "type": "object", "required": ["spec"], "properties": {
        "apiVersion": { "type": "string" }, "kind": { "type": "string" }, "metadata": { "type": "object" },
        "spec": spec, "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    } });
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
        "subresources": { "status": {}, "scale": { "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector" } },
        "additionalPrinterColumns": [
            { "name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status" },
            { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" }],
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "gadgets.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "versions": [version],
            "names": { "plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"] },
        },
    })
}

pub fn gadget(name: &str) -> Value {
    json!({ "apiVersion": "example.com/v1", "kind": "Gadget", "metadata": { "name": name }, "spec": { "size": 1 } })
}

pub fn config_map(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "data": { "key": "value" } })
}

pub fn pod(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "main", "image": "app:1" }] } })
}

/// `object` with an owner reference to `owner`.
pub fn owned_by(mut object: Value, owner: &Value, block: bool) -> Value {
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": block,
    }]);
    object
}

pub async fn open(dir: &std::path::Path) -> ApiServer {
    open_with(dir, vec![gadgets()]).await
}

async fn open_with(dir: &std::path::Path, crds: Vec<Value>) -> ApiServer {
    let config = Config { data_dir: dir.to_owned(), crds, node_name: None };
    ApiServer::open(config).await.expect("the server opens")
}

async fn open_on(dir: &std::path::Path, node: &str) -> ApiServer {
    let config = Config { data_dir: dir.to_owned(), crds: vec![], node_name: Some(node.to_owned()) };
    ApiServer::open(config).await.expect("the server opens")
}

impl World {
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { server: open(dir.path()).await, dir }
    }

    /// With our own four kinds, in both versions.
    pub async fn with_our_kinds() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { server: open_with(dir.path(), asb_types::crd::all()).await, dir }
    }

    /// Where Pods are bound to a node of this name, once it is there.
    pub async fn with_node(name: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { server: open_on(dir.path(), name).await, dir }
    }

    pub async fn reopen_with_node(self, name: &str) -> Self {
        self.server.shutdown().await;
        Self { server: open_on(self.dir.path(), name).await, dir: self.dir }
    }

    pub async fn with_everything() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let crds = asb_types::crd::all().into_iter().chain([gadgets()]).collect();
        Self { server: open_with(dir.path(), crds).await, dir }
    }

    /// Stops the server and opens it again on the same data.
    pub async fn reopen(self) -> Self {
        self.server.shutdown().await;
        Self { server: open(self.dir.path()).await, dir: self.dir }
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        media_type: &str,
        body: Vec<u8>,
        accept: &str,
    ) -> Answer {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media_type)
            .header("accept", accept)
            .body(Body::from(body))
            .expect("a valid request");
        let response = self.server.router().oneshot(request).await.expect("the router does not fail");
        let (code, headers) = (response.status().as_u16(), response.headers().clone());
        let raw = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("a body");
        Answer { code, body: serde_json::from_slice(&raw).unwrap_or(Value::Null), headers }
    }

    pub async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        let raw = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.send(method, path, JSON, raw, JSON).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, Value::Null).await
    }

    /// Creates and returns the object; anything but 201 fails the test.
    pub async fn create(&self, path: &str, object: Value) -> Value {
        let answer = self.call("POST", path, object).await;
        assert_eq!(answer.code, 201, "{}", answer.body);
        answer.body
    }

    pub async fn patch(&self, path: &str, media_type: &str, patch: Value) -> Answer {
        self.send("PATCH", path, media_type, patch.to_string().into_bytes(), JSON).await
    }

    pub async fn delete(&self, path: &str, options: Value) -> Answer {
        self.call("DELETE", path, options).await
    }

    pub async fn watch(&self, path: &str) -> Events {
        let request = http::Request::get(path).body(Body::empty()).expect("a valid request");
        let response = self.server.router().oneshot(request).await.expect("the router does not fail");
        assert_eq!(response.status(), 200);
        Events { body: response.into_body().into_data_stream(), buffer: Vec::new() }
    }

    /// Waits until `path` answers with `code`.
    pub async fn eventually(&self, path: &str, code: u16) {
        self.until(path, |answer| answer.code == code).await;
    }

    /// Waits until the object at `path` is as wanted.
    pub async fn eventually_that(&self, path: &str, wanted: impl Fn(&Value) -> bool) {
        self.until(path, |answer| answer.code == 200 && wanted(&answer.body)).await;
    }

    async fn until(&self, path: &str, wanted: impl Fn(&Answer) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let answer = self.get(path).await;
            if wanted(&answer) {
                return;
            }
            let (code, body) = (answer.code, answer.body);
            assert!(tokio::time::Instant::now() < deadline, "{path} is still {code}: {body}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Events {
    /// The next event, or none when the server ends the watch.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("an event per line"));
            }
            let chunk = tokio::time::timeout(Duration::from_secs(10), self.body.next());
            match chunk.await.expect("an event within ten seconds") {
                Some(chunk) => self.buffer.extend_from_slice(&chunk.expect("a healthy stream")),
                None => return None,
            }
        }
    }

    /// The next event as `TYPE name`.
    pub async fn line(&mut self) -> String {
        let event = self.next().await.expect("the watch goes on");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or("-");
        format!("{} {name}", event["type"].as_str().unwrap_or_default())
    }
}

pub fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("a resourceVersion")
}
