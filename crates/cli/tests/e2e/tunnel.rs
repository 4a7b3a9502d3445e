//! `kubectl port-forward svc/sandbox-router-svc`, as published clients do it, leads to the engine's own router.

use std::process::Command;

use serde_json::Value;

use crate::engine::{Engine, eventually, stdout, text};
use crate::portforward::Forward;

const SYSTEM: &str = "agent-sandbox-system";
const SERVICE: &str = "svc/sandbox-router-svc";

/// `(status, body)` of a command that is run in the Sandbox `web` without any token.
fn execute(address: &str, command: &str) -> (u16, String) {
    let body = serde_json::json!({ "command": command }).to_string();
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--write-out", "\n%{http_code}", "--header", "X-Sandbox-ID: web"]);
    curl.args(["--header", "Content-Type: application/json", "--data", &body]);
    let said = stdout(&curl.arg(format!("http://{address}/execute")).output().expect("curl can be started"));
    let (body, status) = said.rsplit_once('\n').expect("curl writes the status last");
    (status.parse().unwrap(), body.to_owned())
}

/// Runs a command through a new port-forward.
fn tunnelled(engine: &Engine, websockets: bool) -> (u16, Value) {
    let forward = Forward::start_in(engine, SYSTEM, SERVICE, 8080, websockets);
    let (status, body) = execute(&forward.address, "hostname");
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{body:?}: {error}")))
}

fn system(engine: &Engine, args: &[&str]) -> std::process::Output {
    engine.kubectl(&[&["--namespace", SYSTEM], args].concat())
}

fn router_pod(engine: &Engine) -> Value {
    let list = stdout(&system(engine, &["get", "pods", "--selector", "app=sandbox-router", "-o", "json"]));
    let list: Value = serde_json::from_str(&list).unwrap();
    let [pod] = list["items"].as_array().unwrap().as_slice() else { panic!("one Pod is wanted: {list}") };
    pod.clone()
}

#[test]
fn port_forward_to_the_service_reaches_the_router_without_a_token_in_every_engine() {
    let mut engine = Engine::start();
    stdout(&engine.asb(&["run", "--detach", "--name", "web"]));
    stdout(&system(&engine, &["get", SERVICE]));
    for websockets in [true, false] {
        let (status, answer) = tunnelled(&engine, websockets);
        assert_eq!((status, &answer["stdout"]), (200, &"web\n".into()), "{answer}");
    }
    let direct = engine.info["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
    assert_eq!(execute(&direct, "hostname").0, 401, "who connects directly needs the token");

    let first = router_pod(&engine);
    assert_eq!(first["status"]["phase"], "Running");
    engine.kill();
    engine.restart();
    let second = router_pod(&engine);
    assert_eq!(second["metadata"]["uid"], first["metadata"]["uid"]);
    let ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    assert!(ready(&second) && second["status"]["phase"] == "Running", "{second}");
    assert_eq!(tunnelled(&engine, true).0, 200);
    engine.stop();
}

#[test]
fn pod_service_and_namespace_come_back_when_they_are_deleted() {
    let engine = Engine::start();
    stdout(&engine.asb(&["run", "--detach", "--name", "web"]));
    let before = router_pod(&engine)["metadata"]["uid"].clone();
    let delete = ["delete", "pods,services", "--all", "--timeout=30s"];
    stdout(&system(&engine, &delete));
    eventually("both are back", || {
        let pods = text(&system(&engine, &["get", "pods", "-o", "name"]));
        system(&engine, &["get", SERVICE]).status.success() && pods.contains("pod/sandbox-router-")
    });
    eventually("another Pod runs", || {
        let pod = router_pod(&engine);
        pod["status"]["phase"] == "Running" && pod["metadata"]["uid"] != before
    });
    assert_eq!(tunnelled(&engine, true).0, 200);

    stdout(&engine.kubectl(&["delete", "namespace", SYSTEM, "--timeout=30s"]));
    eventually("everything is back", || {
        let wait = ["wait", "--for=condition=Ready", "pod", "--selector=app=sandbox-router", "--timeout=1s"];
        system(&engine, &wait).status.success() && system(&engine, &["get", SERVICE]).status.success()
    });
    assert_eq!(tunnelled(&engine, true).0, 200);
    engine.stop();
}

#[test]
fn routers_pod_has_no_container_and_one_port() {
    let engine = Engine::start();
    let name = router_pod(&engine)["metadata"]["name"].as_str().unwrap().to_owned();
    for args in [
        &["exec", &name, "--", "true"][..],
        &["logs", &name],
        &["logs", "--previous", &name],
        &["attach", &name],
    ] {
        let said = system(&engine, args);
        assert!(!said.status.success() && text(&said).contains("is a part of the engine"), "{}", text(&said));
    }
    let forward = Forward::start_in(&engine, SYSTEM, &name, 22, true);
    drop(std::net::TcpStream::connect(&forward.address).unwrap());
    let said = forward.last_words();
    assert!(said.contains("listens on port 8080 only"), "{said}");
    let ordinary = system(&engine, &["annotate", "pod", &name, "kubernetes.io/config.mirror-"]);
    assert!(text(&ordinary).contains("mirror pod annotation"), "{}", text(&ordinary));
    assert!(!text(&engine.kubectl(&["top", "pods", "-A"])).contains("sandbox-router"));
    engine.stop();
}
