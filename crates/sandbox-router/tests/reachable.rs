//! Reachable the moment it is Ready: controllers, API server and router together, on both API servers.
//!
//! Each of the three passes its own tests; the router once refused the first request after every claim all the same,
//! because it relied on a label that the controllers write a moment after they report the claim Ready.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use asb_router::{Authorization, Config, Dial, Stream, Target};
use asb_testing::{World, both_servers};
use asb_types::{Claim, Sandbox, Template, WarmPool};
use futures::StreamExt;
use futures::future::BoxFuture;
use kube::api::{WatchEvent, WatchParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

both_servers!(
    the_first_request_after_a_claim_is_ready_reaches_its_sandbox,
    the_first_request_after_a_resume_reaches_the_sandbox,
);

/// Reports which Pod would have been dialled.
struct Backend(SocketAddr);

impl Dial for Backend {
    fn dial<'a>(&'a self, _: &'a Target, _: u16) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async { Ok(Box::new(TcpStream::connect(self.0).await?) as Box<dyn Stream>) })
    }
}

/// The router, and a backend that answers every request with 204.
async fn router(world: &World) -> asb_router::Serving {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = Backend(listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
                }
            });
        }
    });
    let config = Config { authorization: Authorization::allow_all(), ..Config::default() };
    let any = "127.0.0.1:0".parse().unwrap();
    asb_router::serve(any, world.client.clone(), Arc::new(backend), config).await.unwrap()
}

/// The status of one request on an open connection.
async fn ask(connection: &mut TcpStream, namespace: &str, sandbox: &str) -> u16 {
    let request = format!(
        "GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: {sandbox}\r\nX-Sandbox-Namespace: {namespace}\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = connection.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[9..12.min(read)]).parse().expect("an answer has a status")
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

/// Waits for the event that reports the object Ready, and for nothing else.
async fn ready<K: asb_testing::Kind>(world: &World, name: &str, from: &str) -> Value {
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = world.api::<K>().watch(&only, from).await.unwrap().boxed();
    while let Some(event) = events.next().await {
        if let Ok(WatchEvent::Modified(object) | WatchEvent::Added(object)) = event {
            let object = serde_json::to_value(object).unwrap();
            if is_ready(&object) {
                return object;
            }
        }
    }
    panic!("the watch of {name} ended");
}

async fn the_first_request_after_a_claim_is_ready_reaches_its_sandbox(world: World) {
    let router = router(&world).await;
    let mut connection = TcpStream::connect(router.address).await.unwrap();
    let container = json!({"containers": [{"name": "main", "image": "x"}]});
    world
        .create::<Template>(json!({"metadata": {"name": "t"}, "spec": {"podTemplate": {"spec": container}}}))
        .await;
    let pool =
        json!({"metadata": {"name": "p"}, "spec": {"replicas": 4, "sandboxTemplateRef": {"name": "t"}}});
    world.create::<WarmPool>(pool).await;
    world
        .eventually::<WarmPool>("p", |pool| {
            serde_json::to_value(pool).unwrap()["status"]["readyReplicas"] == 4
        })
        .await;
    for round in 0..12 {
        let name = format!("claim-{round}");
        let claim = json!({"metadata": {"name": name}, "spec": {"warmPoolRef": {"name": "p"}}});
        let created = world.create::<Claim>(claim).await;
        let claim = ready::<Claim>(&world, &name, &created.metadata.resource_version.unwrap()).await;
        let sandbox = claim["status"]["sandbox"]["name"].as_str().unwrap();
        assert_eq!(ask(&mut connection, &world.namespace, sandbox).await, 204, "claim {round}: {claim}");
    }
    world.remove().await;
}

async fn the_first_request_after_a_resume_reaches_the_sandbox(world: World) {
    let router = router(&world).await;
    let mut connection = TcpStream::connect(router.address).await.unwrap();
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "x"}]}}});
    let created = world.create::<Sandbox>(json!({"metadata": {"name": "box"}, "spec": spec})).await;
    ready::<Sandbox>(&world, "box", &created.metadata.resource_version.unwrap()).await;
    assert_eq!(ask(&mut connection, &world.namespace, "box").await, 204, "just created");
    for round in 0..3 {
        world.merge::<Sandbox>("box", json!({"spec": {"operatingMode": "Suspended"}})).await;
        world
            .eventually::<Sandbox>("box", |sandbox| !is_ready(&serde_json::to_value(sandbox).unwrap()))
            .await;
        let resumed = world.merge::<Sandbox>("box", json!({"spec": {"operatingMode": "Running"}})).await;
        ready::<Sandbox>(&world, "box", &resumed.metadata.resource_version.unwrap()).await;
        assert_eq!(ask(&mut connection, &world.namespace, "box").await, 204, "resumed {round}");
    }
    world.remove().await;
}
