//! The whole way of a user: a sandbox is reported Ready, and the first command on it answers.
//!
//! The command is sent on a connection that is open already, within microseconds of the API's report: this is where
//! parts that rely on each other's timing fail.

use std::io::Write;
use std::net::TcpStream;

use asb_testing::Commands;
use asb_types::{Claim, Sandbox};
use futures::StreamExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};

const MANIFEST: &str = r#"
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: plain}
spec: {podTemplate: {spec: {containers: [{name: main, image: host}]}}}
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: warm}
spec: {replicas: 4, sandboxTemplateRef: {name: plain}}
"#;

/// A connection to the engine's router that stays open.
pub fn open(engine: &Engine) -> Commands {
    let token = std::fs::read_to_string(engine.data_dir.path().join("router.token")).unwrap();
    let address = engine.info["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
    Commands::over(TcpStream::connect(address).unwrap(), token.trim(), "default")
}

/// Fails unless the first try answers.
fn expect_first_output(connection: &mut Commands, sandbox: &str, why: &str) {
    let (status, answer) = connection.execute(sandbox, "echo hello");
    assert_eq!((status, &answer["stdout"]), (200, &json!("hello\n")), "{why}: {answer}");
}

/// Creates a claim and returns the name of its Sandbox with the event that reports it Ready.
async fn claim(client: &Client, name: &str) -> String {
    let claims: Api<Claim> = Api::namespaced(client.clone(), "default");
    let claim = serde_json::from_value(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {"name": name}, "spec": {"warmPoolRef": {"name": "warm"}},
    }));
    let created = claims.create(&PostParams::default(), &claim.unwrap()).await.unwrap();
    let from = created.metadata.resource_version.unwrap();
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = claims.watch(&only, &from).await.unwrap().boxed();
    loop {
        let Some(Ok(WatchEvent::Modified(claim))) = events.next().await else { continue };
        let claim = serde_json::to_value(claim).unwrap();
        if is_ready(&claim) {
            return claim["status"]["sandbox"]["name"].as_str().unwrap().to_owned();
        }
    }
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

/// Waits for the event that reports the Sandbox Ready, from this version of it on.
pub async fn ready(client: &Client, name: &str, from: &str) {
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), "default");
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = sandboxes.watch(&only, from).await.unwrap().boxed();
    while let Some(event) = events.next().await {
        if let Ok(WatchEvent::Modified(sandbox)) = event
            && is_ready(&serde_json::to_value(sandbox).unwrap())
        {
            return;
        }
    }
    panic!("the watch of {name} ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_command_after_a_claim_is_ready_answers() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(MANIFEST));
    eventually("the pool is full", || {
        text(&engine.kubectl(&["get", "swp", "warm", "-o", "jsonpath={.status.readyReplicas}"])) == "4"
    });
    let client = engine.client().await;
    let mut connection = open(&engine);
    // More than the pool has: the last ones get a Sandbox that has just been made.
    for round in 0..12 {
        let sandbox = claim(&client, &format!("claim-{round}")).await;
        expect_first_output(&mut connection, &sandbox, &format!("claim {round}"));
    }
    let claims: Api<Claim> = Api::namespaced(client, "default");
    claims.delete_collection(&DeleteParams::default(), &Default::default()).await.unwrap();
    stdout(&engine.kubectl(&["delete", "swp/warm", "sandboxtemplate/plain"]));
    engine.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_command_after_a_start_and_after_every_resume_answers() {
    let engine = Engine::start();
    let client = engine.client().await;
    let mut connection = open(&engine);
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), "default");
    let sandbox = serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "box"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "host"}]}}},
    }));
    let created = sandboxes.create(&PostParams::default(), &sandbox.unwrap()).await.unwrap();
    ready(&client, "box", &created.metadata.resource_version.unwrap()).await;
    expect_first_output(&mut connection, "box", "just created");
    for round in 0..3 {
        let mode = |mode: &str| Patch::Merge(json!({"spec": {"operatingMode": mode}}));
        sandboxes.patch("box", &PatchParams::default(), &mode("Suspended")).await.unwrap();
        // Until the router's watch reports the suspension, the sandbox still answers.
        let mut last = (200, Value::Null);
        eventually("the router reports the suspension", || {
            last = connection.execute("box", "echo hello");
            last.0 != 200
        });
        let (status, answer) = last;
        assert_eq!(status, 503, "round {round}: {answer}");
        assert!(answer["detail"].as_str().unwrap().contains("is suspended"), "{answer}");
        stdout(&engine.kubectl(&["wait", "pod/box", "--for=delete", "--timeout=30s"]));
        let resumed = sandboxes.patch("box", &PatchParams::default(), &mode("Running")).await.unwrap();
        ready(&client, "box", &resumed.metadata.resource_version.unwrap()).await;
        expect_first_output(&mut connection, "box", &format!("resumed {round}"));
    }
    engine.stop();
}

#[test]
fn a_command_sent_before_the_sandbox_is_ready_waits_for_it() {
    let engine = Engine::start();
    let mut connection = open(&engine);
    let manifest = "apiVersion: agents.x-k8s.io/v1beta1\nkind: Sandbox\nmetadata: {name: early}\n\
                    spec: {podTemplate: {spec: {containers: [{name: main, image: host}]}}}\n";
    let mut apply = engine.kubectl_command(&["apply", "-f", "-"]);
    let mut apply = apply.stdin(std::process::Stdio::piped()).spawn().unwrap();
    apply.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
    assert!(apply.wait().unwrap().success());
    expect_first_output(&mut connection, "early", "created, perhaps not Ready");
    let (status, answer) = connection.execute("never", "true");
    assert_eq!((status, &answer["detail"]), (404, &json!("Sandbox \"default/never\" not found.")));
    engine.stop();
}
