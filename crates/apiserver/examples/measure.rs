//! Measures the server in process: start, get, durable creates with 64 writers, watch latency, memory.
//!
//! `cargo run -p asb-apiserver --profile fast --example measure`

use std::time::{Duration, Instant};

use asb_apiserver::{ApiServer, Config};
use axum::body::Body;
use futures::StreamExt as _;
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// As in `asb`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PODS: &str = "/api/v1/namespaces/default/pods";
const WRITERS: usize = 64;
const CREATES: usize = 20_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data_dir = std::env::temp_dir().join(format!("asb-measure-{}", std::process::id()));
    let started = Instant::now();
    let server =
        ApiServer::open(Config { data_dir: data_dir.clone(), crds: Vec::new(), node_name: None }).await?;
    println!("start, empty store       {:>10.1?}   rss {} MB", started.elapsed(), rss());
    let router = server.router();

    call(&router, "POST", PODS, &pod("first")).await;
    let path = format!("{PODS}/first");
    let get = median(2_000, async || drop(call(&router, "GET", &path, &Value::Null).await)).await;
    println!("get                      {get:>10.1?}");

    let mut events = watch(&router).await;
    let mut latencies = Vec::new();
    for round in 0..50 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begun = Instant::now();
        call(&router, "POST", PODS, &pod(&format!("spaced-{round}"))).await;
        let created = begun.elapsed();
        events.next().await;
        latencies.push((created, begun.elapsed()));
    }
    latencies.sort();
    let (created, seen) = latencies[latencies.len() / 2];
    println!("durable create, spaced   {created:>10.1?}   seen by a watcher after {seen:.1?}");

    let begun = Instant::now();
    let writers = (0..WRITERS).map(|writer| {
        let router = router.clone();
        tokio::spawn(async move {
            for round in 0..CREATES / WRITERS {
                call(&router, "POST", PODS, &pod(&format!("p-{writer}-{round}"))).await;
            }
        })
    });
    futures::future::join_all(writers).await;
    let rate = (CREATES / WRITERS * WRITERS) as f64 / begun.elapsed().as_secs_f64();
    println!("durable creates, {WRITERS} writers {rate:>8.0}/s   rss {} MB", rss());

    let begun = Instant::now();
    let list = call(&router, "GET", PODS, &Value::Null).await;
    println!("list {CREATES} pods          {:>10.1?}   {} MB", begun.elapsed(), list.len() >> 20);

    server.shutdown().await;
    let begun = Instant::now();
    let server =
        ApiServer::open(Config { data_dir: data_dir.clone(), crds: Vec::new(), node_name: None }).await?;
    println!("start, {CREATES} pods        {:>10.1?}", begun.elapsed());
    server.shutdown().await;
    std::fs::remove_dir_all(data_dir)?;
    Ok(())
}

fn pod(name: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "app": "x" } }, "spec": { "containers": [{
        "name": "main", "image": "app:1", "command": ["sh", "-c", "sleep 1"], "env": [{ "name": "A", "value": "b" }],
        "resources": { "limits": { "memory": "64Mi" } }, "ports": [{ "containerPort": 8080 }] }] } })
}

async fn call(router: &axum::Router, method: &str, path: &str, body: &Value) -> bytes::Bytes {
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let request = Request::builder().method(method).uri(path).body(body).expect("a valid request");
    let response = router.clone().oneshot(request).await.expect("the router does not fail");
    assert!(response.status().is_success(), "{method} {path}: {}", response.status());
    axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("a body")
}

async fn watch(router: &axum::Router) -> axum::body::BodyDataStream {
    let list: Value = serde_json::from_slice(&call(router, "GET", PODS, &Value::Null).await).expect("JSON");
    let revision = list["metadata"]["resourceVersion"].as_str().expect("a revision");
    let request = Request::get(format!("{PODS}?watch=true&resourceVersion={revision}")).body(Body::empty());
    let response = router.clone().oneshot(request.expect("valid")).await.expect("the router does not fail");
    response.into_body().into_data_stream()
}

async fn median(rounds: usize, work: impl AsyncFn()) -> Duration {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        work().await;
        times.push(begun.elapsed());
    }
    times.sort();
    times[rounds / 2]
}

/// Resident memory in megabytes.
fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kilobytes| kilobytes.parse::<u64>().ok()).unwrap_or(0) / 1024
}
