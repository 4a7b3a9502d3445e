//! What a page in a browser can do through `kubectl proxy`, which adds the user's rights to each of its requests.

mod common;
use common::*;

use axum::body::Body;
use axum::response::IntoResponse as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// Pages that are not the API's own: in an opaque origin, of another site, of another port of this machine.
const FOREIGN: [&str; 4] =
    ["null", "https://evil.example", "http://127.0.0.1:8001", "http://8000-web.default.localhost:8080"];
const HOST: &str = "127.0.0.1:6443";

/// Sends a request as a browser does for a page, and returns the code and the message.
async fn from_page(
    world: &World,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> (u16, String) {
    let mut request = http::Request::builder().method(method).uri(path).header("host", HOST);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let request = request.body(body).expect("a valid request");
    let response = world.server.router().oneshot(request).await.expect("the router does not fail");
    let code = response.status().as_u16();
    let raw = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("a body");
    let body: Value = serde_json::from_slice(&raw).unwrap_or_default();
    (code, body["message"].as_str().unwrap_or_default().to_owned())
}

/// A world with an ordinary Pod, and one that stands for the router.
async fn world() -> World {
    let world = World::new().await;
    world.server.set_kubelet(axum::Router::new().fallback(async || http::StatusCode::OK.into_response()));
    world.create(PODS, pod("web")).await;
    let mut router = pod("router");
    router["metadata"]["labels"] = json!({ "app": "router" });
    router["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "asb-router" });
    world.create(PODS, router).await;
    for (name, ready) in [("web", "10.88.0.9"), ("router", "10.88.0.10")] {
        let status =
            json!({ "status": { "podIP": ready, "conditions": [{ "type": "Ready", "status": "True" }] } });
        assert_eq!(world.patch(&format!("{PODS}/{name}/status"), MERGE, status).await.code, 200);
    }
    let service = json!({ "metadata": { "name": "router" },
        "spec": { "selector": { "app": "router" }, "ports": [{ "port": 8080 }] } });
    world.create("/api/v1/namespaces/default/services", service).await;
    world
}

#[tokio::test]
async fn a_page_writes_nothing() {
    let world = world().await;
    for origin in FOREIGN {
        // Without a content type: what a page sends without asking first (`no-cors`).
        for (method, path, body) in [
            ("POST", MAPS.to_owned(), config_map("m")),
            ("PUT", format!("{PODS}/web"), pod("web")),
            ("PATCH", format!("{PODS}/web"), json!({ "metadata": { "labels": { "a": "b" } } })),
            ("DELETE", format!("{PODS}/web"), Value::Null),
            ("DELETE", PODS.to_owned(), Value::Null),
            ("POST", format!("{PODS}/web/eviction"), json!({ "metadata": { "name": "web" } })),
            ("POST", format!("{PODS}/web/exec?command=id"), Value::Null),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned(), json!({})),
            ("POST", "/api/v1/nodes/n/proxy/run".to_owned(), Value::Null),
        ] {
            let (code, said) = from_page(&world, method, &path, &[("origin", origin)], body).await;
            assert_eq!(code, 403, "{origin}: {method} {path}");
            assert!(said.contains("asb link"), "{said}");
        }
    }
    assert_eq!(world.get(&format!("{MAPS}/m")).await.code, 404);
    assert_eq!(world.get(&format!("{PODS}/web")).await.code, 200);
    let (code, _) = from_page(&world, "POST", MAPS, &[], config_map("m")).await;
    assert_eq!(code, 201, "a program sends no Origin");
    let own = format!("https://{HOST}");
    let (code, _) = from_page(&world, "POST", MAPS, &[("origin", &own)], config_map("n")).await;
    assert_eq!(code, 201, "the API's own origin");
}

#[tokio::test]
async fn a_page_opens_no_stream() {
    let world = world().await;
    for origin in FOREIGN {
        for subresource in ["portforward?ports=8080", "exec?command=sh", "attach", "log?follow=true"] {
            for path in [format!("{PODS}/router/{subresource}"), format!("{PODS}/web/{subresource}")] {
                let upgrade = [("origin", origin), ("connection", "upgrade"), ("upgrade", "websocket")];
                let (code, said) = from_page(&world, "GET", &path, &upgrade, Value::Null).await;
                assert_eq!((code, said.contains("asb link")), (403, true), "{origin}: {path}");
            }
        }
    }
    let second = [("origin", "null"), ("sec-websocket-key", "eA==")];
    assert_eq!(from_page(&world, "GET", &format!("{PODS}/web/attach"), &second, Value::Null).await.0, 403);
    let path = format!("{PODS}/web/portforward?ports=1");
    let (code, _) = from_page(&world, "GET", &path, &[("upgrade", "websocket")], Value::Null).await;
    assert_eq!(code, 200, "a program sends no Origin");
    // The WebSocket library of the Python client names the address that it has dialled.
    let own = format!("https://{HOST}");
    let python = [("upgrade", "websocket"), ("origin", own.as_str())];
    assert_eq!(from_page(&world, "GET", &path, &python, Value::Null).await.0, 200, "the API's own origin");
}

#[tokio::test]
async fn a_page_talks_to_programs_in_pods_but_not_to_the_router() {
    let world = world().await;
    for origin in FOREIGN {
        for method in ["GET", "POST"] {
            let path = format!("{PODS}/web:80/proxy/api");
            let (code, _) = from_page(&world, method, &path, &[("origin", origin)], Value::Null).await;
            assert_eq!(code, 200, "a page from a sandbox speaks to its own program: {origin}");
            for path in [
                format!("{PODS}/router:8080/proxy/execute"),
                "/api/v1/namespaces/default/services/router:8080/proxy/execute".to_owned(),
            ] {
                let (code, said) = from_page(&world, method, &path, &[("origin", origin)], Value::Null).await;
                assert_eq!((code, said.contains("router")), (403, true), "{origin}: {path}: {said}");
            }
        }
    }
    let path = format!("{PODS}/router:8080/proxy/execute");
    let image = [("sec-fetch-site", "cross-site")];
    assert_eq!(from_page(&world, "GET", &path, &image, Value::Null).await.0, 403, "no Origin, but a page");
    assert_eq!(from_page(&world, "POST", &path, &[], Value::Null).await.0, 200, "a program");
}
