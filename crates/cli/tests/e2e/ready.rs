//! What else must hold the moment the API reports a sandbox Ready, through all the parts behind it: exec, names, network
//! policies, and the router after a sandbox of the same name was replaced.
//!
//! Each of these crosses parts that learn of a change by watches of their own. A test acts within microseconds of the
//! report, where a race between these parts becomes visible.

use asb_network::testing::PUBLIC;
use asb_types::Sandbox;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::engine::{Engine, eventually, stdout, text};
use crate::first_command::{open, ready};
use crate::network::{PROBE, with_engine};

fn sandbox(name: &str, container: &Value) -> Sandbox {
    let mut main = json!({"name": "main", "image": "host"});
    main.as_object_mut().unwrap().extend(container.as_object().cloned().unwrap_or_default());
    serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0, "containers": [main]}}},
    }))
    .unwrap()
}

/// Creates a Sandbox and returns with the event that reports it Ready.
async fn create(client: &Client, name: &str) {
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), "default");
    let created = sandboxes.create(&PostParams::default(), &sandbox(name, &json!({}))).await.unwrap();
    ready(client, name, &created.metadata.resource_version.unwrap()).await;
}

/// What a command in a Pod prints.
async fn exec(client: &Client, pod: &str, command: &[&str]) -> String {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let params = AttachParams::default().stdin(false).stdout(true).stderr(false);
    let mut process = pods.exec(pod, command.iter().copied(), &params).await.unwrap();
    let mut printed = String::new();
    process.stdout().unwrap().read_to_string(&mut printed).await.unwrap();
    process.join().await.unwrap();
    printed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_by_the_api_runs_as_soon_as_its_sandbox_is_ready() {
    let engine = Engine::start();
    let client = engine.client().await;
    for round in 0..5 {
        let name = format!("box-{round}");
        create(&client, &name).await;
        assert_eq!(exec(&client, &name, &["echo", "hello"]).await, "hello\n", "{name}");
    }
    engine.stop();
}

#[test]
fn the_name_of_a_sandbox_leads_to_it_as_soon_as_it_is_ready() {
    with_engine(|engine, _| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let client = engine.client().await;
            create(&client, "asking").await;
            for round in 0..5 {
                let name = format!("box-{round}");
                create(&client, &name).await;
                let found = exec(&client, "asking", &["getent", "hosts", &name]).await;
                assert!(found.contains(&name), "round {round}: {name} is not known: {found:?}");
            }
        });
    });
}

/// The main process connects with its first instruction; a policy that comes later would let it out.
#[test]
fn the_policy_of_a_template_is_in_force_before_the_first_packet() {
    with_engine(|engine, outside| {
        let _public = outside.serve(PUBLIC, 80);
        let target = format!("{PUBLIC}:80");
        let script = format!("{PROBE}\nimport time\nsys.stdout.flush(); time.sleep(1000)");
        let container =
            json!({"name": "main", "image": "host", "command": ["python3", "-c", script, target]});
        for round in 0..5 {
            let name = format!("closed-{round}");
            let extensions = "extensions.agents.x-k8s.io/v1beta1";
            let pod = json!({"terminationGracePeriodSeconds": 0, "containers": [container]});
            let template = json!({
                "apiVersion": extensions, "kind": "SandboxTemplate", "metadata": {"name": name},
                "spec": {"networkPolicy": {"egress": []}, "podTemplate": {"spec": pod}},
            });
            let pool = json!({
                "apiVersion": extensions, "kind": "SandboxWarmPool", "metadata": {"name": name},
                "spec": {"replicas": 2, "sandboxTemplateRef": {"name": name}},
            });
            // In one request after the other: the controllers see both at about the same time.
            stdout(&engine.kubectl_apply(&format!("{template}\n---\n{pool}\n")));
            let selector = "--selector=agents.x-k8s.io/warm-pool-sandbox";
            // A member that is still waiting to start is an error for kubectl.
            let logs = || text(&engine.kubectl(&["logs", selector, "--tail=-1", "--prefix"]));
            eventually("both have tried to connect", || logs().matches(&target).count() == 2);
            assert!(!logs().contains("answered"), "round {round}: {}", logs());
            stdout(&engine.kubectl(&["delete", "swp", &name, "--timeout=30s"]));
            eventually("its members are gone", || {
                text(&engine.kubectl(&["get", "pods", selector, "-o", "name"])).is_empty()
            });
            stdout(&engine.kubectl(&["delete", "sandboxtemplate", &name]));
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_sandbox_of_an_old_name_is_the_one_that_answers() {
    let engine = Engine::start();
    let client = engine.client().await;
    let mut connection = open(&engine);
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), "default");
    let mut before = String::new();
    for round in 0..4 {
        create(&client, "again").await;
        let (status, answer) =
            connection.execute("again", "sh -c 'test -e /tmp/mark && echo old; echo > /tmp/mark'");
        assert_eq!((status, &answer["stdout"]), (200, &json!("")), "round {round}: the one before answered");
        let uid = sandboxes.get("again").await.unwrap().metadata.uid.unwrap();
        assert_ne!(std::mem::replace(&mut before, uid.clone()), uid);
        sandboxes.delete("again", &DeleteParams::default()).await.unwrap();
        eventually("the name is free", || {
            text(&engine.kubectl(&["get", "sandbox/again", "pod/again"])).matches("NotFound").count() == 2
        });
    }
    engine.stop();
}
