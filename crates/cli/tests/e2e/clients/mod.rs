//! Published clients, unchanged, against an engine; [`asb_testing::clients`] has the scenes and the versions.

mod documents;
mod gateway;
mod inside;
mod others;

use asb_testing::clients::{self, MEMBERS, NEWEST, POOL, Place, Play, TEMPLATE};
use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};

/// The namespace of the router, where clients before 0.5 must have their sandboxes for a tunnel.
const SYSTEM: &str = "agent-sandbox-system";

/// A template, and a pool of sandboxes that are ready.
fn pool(engine: &Engine, namespace: &str, container: &Value, template: &Value) {
    for mut object in clients::pool(container, template) {
        object["metadata"]["namespace"] = namespace.into();
        stdout(&engine.kubectl_apply(&object.to_string()));
    }
    eventually("the pool is full", || {
        let path = "jsonpath={.status.readyReplicas}";
        let ready = text(&engine.kubectl(&["get", "swp", POOL, "--namespace", namespace, "-o", path]));
        ready == MEMBERS.to_string()
    });
}

fn plain_pool(engine: &Engine, namespace: &str) {
    pool(engine, namespace, &json!({"name": "main", "image": "host"}), &json!({}));
}

fn delete_pool(engine: &Engine, namespace: &str) {
    let objects = [format!("swp/{POOL}"), format!("sandboxtemplate/{TEMPLATE}")];
    let delete = ["delete", &objects[0], &objects[1], "--namespace", namespace, "--timeout=30s"];
    stdout(&engine.kubectl(&delete));
}

fn play(engine: &Engine, play: &Play<'_>) {
    play.run(&engine.kubeconfig(), Place::Engine);
}

/// Where the router is, and what opens it.
fn router(engine: &Engine) -> Value {
    let token = std::fs::read_to_string(engine.data_dir.path().join("router.token")).unwrap();
    json!({"url": engine.info["router"], "token": token.trim()})
}

fn tunnel_and_direct(version: &str, namespace: &str, sandboxd: bool) {
    let engine = Engine::start();
    plain_pool(&engine, namespace);
    let in_mode = |mode| Play::new(version, mode).in_namespace(namespace);
    play(&engine, &in_mode("tunnel").all_scenes());
    play(&engine, &in_mode("direct").all_scenes().with(router(&engine)));
    if sandboxd {
        play(&engine, &in_mode("sandboxd-tunnel"));
    }
    delete_pool(&engine, namespace);
    engine.stop();
}

#[test]
fn version_1_0_8_works_through_tunnels_and_directly() {
    tunnel_and_direct(NEWEST, "default", true);
}

#[test]
fn version_1_0_5_works_through_tunnels_and_directly() {
    tunnel_and_direct("1.0.5.post1", "default", true);
}

#[test]
fn version_0_5_6_works_through_tunnels_and_directly() {
    tunnel_and_direct("0.5.6", "default", false);
}

#[test]
fn version_0_4_6_works_through_tunnels_and_directly() {
    tunnel_and_direct("0.4.6", SYSTEM, false);
}
