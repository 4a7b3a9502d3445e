//! A template, a pool and a claim, on one machine.

use crate::engine::{Engine, assert_nothing_left, eventually, stdout, text};

const MANIFEST: &str = r#"
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: plain}
spec:
  podTemplate:
    spec:
      containers: [{name: main, image: host}]
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: warm}
spec: {replicas: 2, sandboxTemplateRef: {name: plain}}
"#;

fn wait_ready(engine: &Engine, count: &str) {
    eventually("the pool is full", || {
        let path = "jsonpath={.status.replicas} {.status.readyReplicas}";
        text(&engine.kubectl(&["get", "swp", "warm", "-o", path])) == format!("{count} {count}")
    });
}

#[test]
fn pool_keeps_real_sandboxes_ready_and_leaves_none() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(MANIFEST));
    wait_ready(&engine, "2");
    let names = stdout(&engine.kubectl(&["get", "sandboxes", "-o", "jsonpath={.items[*].metadata.name}"]));
    let first = names.split(' ').next().expect("there are members").to_owned();
    let resolver = stdout(&engine.asb(&["exec", &first, "--", "cat", "/etc/resolv.conf"]));
    assert_eq!(resolver, "nameserver 8.8.8.8\nnameserver 1.1.1.1\n", "the template's secure default");
    assert!(stdout(&engine.kubectl(&["get", "networkpolicy"])).contains("plain-network-policy"));

    stdout(&engine.kubectl(&["scale", "swp", "warm", "--replicas=3"]));
    wait_ready(&engine, "3");
    stdout(&engine.asb(&["rm", &first]));
    wait_ready(&engine, "3");
    assert!(!text(&engine.asb(&["ps"])).contains(&first), "another one took its place");

    stdout(&engine.kubectl(&["delete", "swp/warm", "sandboxtemplate/plain"]));
    assert_nothing_left(engine.data_dir.path());
    engine.stop();
}

const CLAIM: &str = r#"
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxClaim
metadata: {name: mine}
spec: {warmPoolRef: {name: warm}}
"#;

#[test]
fn claim_gets_a_sandbox_that_is_running_already() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(MANIFEST));
    wait_ready(&engine, "2");
    let members = stdout(&engine.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].metadata.name}"]));
    stdout(&engine.kubectl_apply(CLAIM));
    stdout(&engine.kubectl(&["wait", "sandboxclaim/mine", "--for=condition=Ready", "--timeout=30s"]));
    let sandbox =
        stdout(&engine.kubectl(&["get", "sandboxclaim", "mine", "-o", "jsonpath={.status.sandbox.name}"]));
    assert!(members.split(' ').any(|member| member == sandbox), "{sandbox} is one of {members}");
    assert_eq!(stdout(&engine.asb(&["exec", &sandbox, "--", "echo", "hello"])), "hello\n");
    wait_ready(&engine, "2");

    stdout(&engine.kubectl(&["delete", "sandboxclaim/mine", "swp/warm", "sandboxtemplate/plain"]));
    assert_nothing_left(engine.data_dir.path());
    engine.stop();
}
