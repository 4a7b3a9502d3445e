//! The TLS listener, as kubectl and other programs meet it.

mod common;
use common::served::Served;
use common::*;

use std::os::unix::fs::PermissionsExt as _;

use axum::extract::Request;
use axum::response::IntoResponse as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test(flavor = "multi_thread")]
async fn only_the_token_opens_the_door() {
    let served = Served::new().await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Namespace"));
    let namespaces = |client| Api::<DynamicObject>::all_with(client, &kind);
    let list =
        namespaces(served.client(None).await).list(&ListParams::default()).await.expect("the token is good");
    assert_eq!(list.items.len(), 3);
    for wrong in ["", "wrong", &"A".repeat(43)] {
        let error = namespaces(served.client(Some(wrong)).await)
            .list(&ListParams::default())
            .await
            .expect_err("refused");
        assert!(
            matches!(&error, kube::Error::Api(status) if status.code == 401 && status.reason == "Unauthorized"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_readable_by_their_owner_only() {
    let served = Served::new().await;
    for file in ["kubeconfig", "token", "pki/ca.key", "pki/server.key"] {
        let mode = std::fs::metadata(served.world.dir.path().join(file)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_is_free_again_when_serving_is_dropped() {
    let served = Served::new().await;
    let (address, token) = (served.serving.address, served.kubeconfig()["users"][0]["user"]["token"].clone());
    drop(served.serving);
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let again = served.world.server.serve(address).await.expect("it listens again");
    let config: Value =
        serde_json::from_slice(&std::fs::read(&again.kubeconfig).expect("there")).expect("JSON");
    assert_eq!(config["users"][0]["user"]["token"], token, "the token is kept");
}

/// A kubelet that answers logs with the path and upgrades exec to an echo.
fn echo_kubelet() -> axum::Router {
    axum::Router::new().fallback(|mut request: Request| async move {
        if !request.headers().contains_key("upgrade") {
            return request.uri().to_string().into_response();
        }
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = hyper_util::rt::TokioIo::new(upgrade.await.expect("upgraded"));
            let mut word = [0; 5];
            stream.read_exact(&mut word).await.expect("five bytes");
            stream.write_all(&word).await.expect("echoed");
            stream.shutdown().await.expect("closed");
        });
        let headers = [("connection", "upgrade"), ("upgrade", "echo")];
        (http::StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn node_requests_reach_the_kubelet_with_upgrades() {
    let served = Served::new().await;
    let world = &served.world;
    let log = format!("{PODS}/p/log?container=main&follow=true");
    assert_eq!(world.get(&log).await.code, 404, "no such Pod");
    world.create(PODS, pod("p")).await;
    assert_eq!(world.get(&log).await.code, 503, "no kubelet yet");
    world.server.set_kubelet(echo_kubelet());
    for client in [served.client(None).await, world.server.client("default")] {
        let request = http::Request::get(&log).body(Vec::new()).expect("valid");
        assert_eq!(client.request_text(request).await.expect("an answer"), log);
        let request = http::Request::post(format!("{PODS}/p/exec?command=sh"))
            .header("connection", "upgrade")
            .header("upgrade", "echo")
            .body(kube::client::Body::empty())
            .expect("valid");
        let response = client.send(request).await.expect("an answer");
        assert_eq!(response.status(), 101);
        let mut stream = hyper_util::rt::TokioIo::new(hyper::upgrade::on(response).await.expect("upgraded"));
        stream.write_all(b"hello").await.expect("sent");
        let mut echo = String::new();
        stream.read_to_string(&mut echo).await.expect("received");
        assert_eq!(echo, "hello");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_and_shows_custom_resources() {
    let served = Served::new().await;
    let mut object = gadget("web");
    let file = served.write("gadget.json", &object);
    assert_eq!(served.kubectl(&["apply", "-f", &file]).trim(), "gadget.example.com/web created");
    assert_eq!(served.kubectl(&["apply", "-f", &file]).trim(), "gadget.example.com/web unchanged");
    object["spec"]["size"] = 2.into();
    served.write("gadget.json", &object);
    assert_eq!(served.kubectl(&["apply", "-f", &file]).trim(), "gadget.example.com/web configured");
    assert_eq!(
        served.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &file]).trim(),
        "gadget.example.com/web serverside-applied"
    );
    let patch = r#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#;
    served.kubectl(&["patch", "gd", "web", "--subresource=status", "--type=merge", "-p", patch]);
    let shown = served.kubectl(&["get", "gd"]);
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "READY", "AGE"]);
    assert_eq!(rows[1][..2], ["web", "True"]);
    served.kubectl(&["scale", "gd", "web", "--replicas=3"]);
    assert_eq!(served.kubectl(&["get", "gd", "web", "-o", "jsonpath={.spec.replicas}"]), "3");
    served.kubectl(&["label", "gd", "web", "a=b"]);
    served.kubectl(&["wait", "gd", "web", "--for=condition=Ready", "--timeout=5s"]);
    assert!(served.kubectl(&["explain", "gadget.spec"]).contains("size"));
    assert!(served.kubectl(&["delete", "gd", "-l", "a=b"]).contains("\"web\" deleted"));
    object["spec"]["sizze"] = 3.into();
    served.write("gadget.json", &object);
    let refused = served.try_kubectl(&["apply", "-f", &file]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unknown field \"spec.sizze\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_manages_built_in_kinds() {
    let served = Served::new().await;
    served.kubectl(&["create", "namespace", "team"]);
    served.kubectl(&["-n", "team", "create", "configmap", "c", "--from-literal=a=b"]);
    served.kubectl(&["-n", "team", "create", "secret", "generic", "s", "--from-literal=a=b"]);
    assert_eq!(served.kubectl(&["-n", "team", "get", "secret", "s", "-o", "jsonpath={.data.a}"]), "Yg==");
    served.kubectl(&["-n", "team", "create", "service", "clusterip", "s", "--tcp=80:8080"]);
    assert_eq!(
        served.kubectl(&["-n", "team", "get", "svc", "s", "-o", "jsonpath={.spec.ports[0].targetPort}"]),
        "8080"
    );
    served.kubectl(&["-n", "team", "run", "p", "--image=app:1"]);
    assert!(served.kubectl(&["-n", "team", "get", "pods", "-o", "wide"]).contains("Pending"));
    assert!(served.kubectl(&["-n", "team", "describe", "pod", "p"]).contains("app:1"));
    served.kubectl(&["-n", "team", "set", "image", "pod/p", "p=app:2"]);
    assert!(served.kubectl(&["api-resources"]).contains("gadgets"));
    assert_eq!(served.kubectl(&["auth", "can-i", "create", "pods"]).trim(), "yes");
    served.kubectl(&["delete", "namespace", "team", "--timeout=10s"]);
    let gone = served.try_kubectl(&["get", "namespace", "team"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("not found"));
    let created = served.write("map.json", &json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" }, "data": { "a": "1" } }));
    served.kubectl(&["create", "-f", &created]);
    served.kubectl(&["apply", "-f", &created]);
    served.kubectl(&["replace", "-f", &created]);
    served.kubectl(&["annotate", "configmap", "m", "x=y"]);
}

/// A kubelet that has measured two Pods and a Node.
fn measuring_kubelet() -> axum::Router {
    let pod = |namespace: &str, name: &str, containers: Value| {
        json!({
            "kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1", "timestamp": "2026-01-01T00:00:00Z", "window": "2s",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}}, "containers": containers,
        })
    };
    let one = json!([{"name": "main", "usage": {"cpu": "5000000n", "memory": "2048Ki"}}]);
    let two = json!([
        {"name": "a", "usage": {"cpu": "1000000n", "memory": "1024Ki"}},
        {"name": "b", "usage": {"cpu": "2000000n", "memory": "1024Ki"}},
    ]);
    let pods = json!({"items": [pod("other", "two", two), pod("default", "one", one)]});
    let nodes = json!({"items": [{
        "kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1", "timestamp": "2026-01-01T00:00:00Z", "window": "2s",
        "metadata": {"name": "n"}, "usage": {"cpu": "500000000n", "memory": "1048576Ki"},
    }]});
    axum::Router::new()
        .route("/apis/metrics.k8s.io/v1beta1/pods", axum::routing::get(async || axum::Json(pods)))
        .route("/apis/metrics.k8s.io/v1beta1/nodes", axum::routing::get(async || axum::Json(nodes)))
}

#[tokio::test(flavor = "multi_thread")]
async fn measurements_are_narrowed_down_and_shown_like_any_kind() {
    let served = Served::new().await;
    let metrics = "/apis/metrics.k8s.io/v1beta1";
    assert_eq!(served.world.get(&format!("{metrics}/pods")).await.code, 503, "no kubelet yet");
    served.world.server.set_kubelet(measuring_kubelet());
    let names = async |path: &str| {
        let answer = served.world.get(&format!("{metrics}/{path}")).await;
        let items = answer.body["items"].as_array().expect("a list").clone();
        items
            .iter()
            .map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("pods").await, ["one", "two"]);
    assert_eq!(names("namespaces/other/pods").await, ["two"]);
    assert_eq!(names("pods?labelSelector=app%3Done").await, ["one"]);
    assert_eq!(names("pods?fieldSelector=metadata.name%3Dtwo").await, ["two"]);
    let one = served.world.get(&format!("{metrics}/namespaces/default/pods/one")).await;
    assert_eq!(one.body["containers"][0]["usage"]["cpu"], "5000000n");
    assert_eq!(served.world.get(&format!("{metrics}/namespaces/default/pods/two")).await.code, 404);
    let write = served.world.call("POST", &format!("{metrics}/namespaces/default/pods"), json!({})).await;
    assert_eq!(write.code, 405, "nobody writes measurements");
    let table = served.kubectl(&["get", "pods.metrics.k8s.io", "-A"]);
    assert!(table.contains("3000000n") && table.contains("2048Ki"), "{table}");
    let top = served.kubectl(&["top", "pods", "-A", "--sum"]);
    assert!(top.contains("5m") && top.contains("8m"), "{top}");
}
