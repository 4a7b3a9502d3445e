//! Probes of every kind, what follows from them, and hooks at the beginning and the end of a container.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};
use crate::pod::{apply, config_map, finish, get, secret};

fn pod(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn main_container(script: &str, more: Value) -> Value {
    let mut container = json!({"name": "main", "image": "host", "command": ["sh", "-c", script]});
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"containers": [container]})
}

fn sh(engine: &Engine, name: &str, script: &str) -> String {
    stdout(&engine.kubectl(&["exec", name, "--", "sh", "-c", script]))
}

fn main_status(engine: &Engine, name: &str) -> Value {
    get(engine, name)["status"]["containerStatuses"][0].clone()
}

fn wait_ready(engine: &Engine, name: &str) {
    let pod = format!("pod/{name}");
    stdout(&engine.kubectl(&["wait", "--timeout=30s", "--for=condition=Ready", &pod]));
}

fn exec(command: &[&str]) -> Value {
    json!({"exec": {"command": command}, "periodSeconds": 1, "failureThreshold": 1})
}

fn events(engine: &Engine, reason: &str) -> String {
    let selector = format!("--field-selector=reason={reason}");
    text(&engine.kubectl(&["get", "events", &selector, "-o", "jsonpath={.items[*].message}"]))
}

#[test]
fn every_kind_of_probe_says_whether_a_container_is_ready() {
    let engine = Engine::start();
    let server = include_str!("probe_server.py");
    apply(&engine, &config_map("server", &json!({"server.py": server})));
    let made = rcgen::generate_simple_self_signed(["elsewhere.test".to_owned()]).unwrap();
    let (crt, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    apply(&engine, &secret("tls", &json!({"crt": crt, "key": key})));
    let get = |port: u16, scheme: &str| {
        let headers = json!([{"name": "X-Token", "value": "hunter2"}, {"name": "Host", "value": "box.test"}]);
        json!({"httpGet": {"port": port, "scheme": scheme, "path": "/up?now=1", "httpHeaders": headers}})
    };
    let probes = [
        ("http", get(8001, "HTTP")),
        ("https", get(8002, "HTTPS")),
        ("grpc", json!({"grpc": {"port": 8003, "service": "box"}})),
        ("tcp", json!({"tcpSocket": {"port": "web"}})),
        ("exec", json!({"exec": {"command": ["test", "!", "-e", "/tmp/sick"]}})),
    ];
    for (name, mut probe) in probes.clone() {
        probe["periodSeconds"] = json!(1);
        probe["timeoutSeconds"] = json!(5);
        probe["failureThreshold"] = json!(1);
        let spec = json!({
            "volumes": [
                {"name": "server", "configMap": {"name": "server"}}, {"name": "tls", "secret": {"secretName": "tls"}},
            ],
            "containers": [{
                "name": "main", "image": "host", "command": ["python3", "/server/server.py"],
                "ports": [{"name": "web", "containerPort": 8001}], "readinessProbe": probe,
                "volumeMounts": [{"name": "server", "mountPath": "/server"}, {"name": "tls", "mountPath": "/tls"}],
            }],
        });
        apply(&engine, &pod(name, &spec));
    }
    for (name, _) in &probes {
        wait_ready(&engine, name);
    }
    for name in ["http", "https", "grpc", "exec"] {
        sh(&engine, name, "touch /tmp/sick");
    }
    for name in ["http", "https", "grpc", "exec"] {
        eventually(&format!("{name} is not ready"), || main_status(&engine, name)["ready"] == false);
        sh(&engine, name, "rm /tmp/sick");
        wait_ready(&engine, name);
        assert_eq!(main_status(&engine, name)["restartCount"], 0, "{name} was not restarted");
    }
    for told in [
        "Readiness probe failed: HTTP probe failed with statuscode: 503: feeling sick",
        "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")",
    ] {
        eventually(told, || events(&engine, "Unhealthy").contains(told));
    }
    finish(engine);
}

#[test]
fn container_that_is_not_alive_is_started_again() {
    let engine = Engine::start();
    let more = json!({"livenessProbe": exec(&["sh", "-c", "[ ! -e /tmp/sick ] || { echo sick; exit 1; }"])});
    let script = "trap 'echo told to end; exit 7' TERM; while :; do sleep 0.05; done";
    apply(&engine, &pod("alive", &main_container(script, more)));
    wait_ready(&engine, "alive");
    let address = get(&engine, "alive")["status"]["podIP"].clone();
    sh(&engine, "alive", "touch /tmp/sick");
    eventually("it is started again", || main_status(&engine, "alive")["restartCount"] == 1);
    wait_ready(&engine, "alive");
    assert_eq!(main_status(&engine, "alive")["lastState"]["terminated"]["exitCode"], 7);
    assert_eq!(get(&engine, "alive")["status"]["podIP"], address);
    eventually("the failures of the probe are told", || {
        let unhealthy = events(&engine, "Unhealthy");
        unhealthy.contains("Liveness probe failed: ") && unhealthy.contains("sick")
    });
    eventually("so is what follows", || events(&engine, "Killing").contains("main"));
    assert_eq!(text(&engine.kubectl(&["logs", "alive", "--previous"])), "told to end\n");
    finish(engine);
}

#[test]
fn container_that_a_probe_has_killed_starts_again_though_it_ended_well() {
    let mut engine = Engine::start();
    let more = json!({"livenessProbe": exec(&["test", "!", "-e", "/tmp/sick"])});
    let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let mut spec = main_container(script, more);
    spec["restartPolicy"] = json!("OnFailure");
    apply(&engine, &pod("alive", &spec));
    wait_ready(&engine, "alive");
    sh(&engine, "alive", "touch /tmp/sick");
    eventually("it is started again", || main_status(&engine, "alive")["restartCount"] == 1);
    wait_ready(&engine, "alive");
    let last = main_status(&engine, "alive")["lastState"]["terminated"].clone();
    assert_eq!((&last["exitCode"], &last["reason"]), (&json!(0), &json!("Completed")));
    let killing = "Container main failed liveness probe, will be restarted";
    eventually("the event says so", || events(&engine, "Killing").contains(killing));

    // The engine is killed after it has told the container to end, and before the container has.
    let mut spec = main_container(
        "trap 'touch /tmp/told; until [ -e /tmp/go ]; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done",
        json!({"livenessProbe": exec(&["test", "!", "-e", "/tmp/sick"])}),
    );
    spec["restartPolicy"] = json!("OnFailure");
    apply(&engine, &pod("slow", &spec));
    wait_ready(&engine, "slow");
    sh(&engine, "slow", "touch /tmp/sick");
    eventually("it was told to end", || sh(&engine, "slow", "ls /tmp").contains("told"));
    engine.kill();
    engine.restart();
    sh(&engine, "slow", "rm /tmp/sick; touch /tmp/go");
    eventually("the next engine starts it again", || main_status(&engine, "slow")["restartCount"] == 1);
    finish(engine);
}

#[test]
fn probe_that_takes_too_long_has_failed_and_its_own_grace_period_counts() {
    let engine = Engine::start();
    let mut probe = exec(&["sleep", "1000"]);
    probe["terminationGracePeriodSeconds"] = json!(1);
    let mut spec =
        main_container("trap '' TERM; while :; do sleep 0.05; done", json!({"livenessProbe": probe}));
    (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) = (json!("Never"), json!(600));
    apply(&engine, &pod("slow", &spec));
    stdout(&engine.kubectl(&["wait", "--timeout=30s", "--for=jsonpath={.status.phase}=Failed", "pod/slow"]));
    assert_eq!(main_status(&engine, "slow")["state"]["terminated"]["exitCode"], 137);
    eventually("the timeout is told", || events(&engine, "Unhealthy").contains("no answer within 1s"));
    finish(engine);
}

#[test]
fn startup_probe_holds_the_other_probes_back() {
    let engine = Engine::start();
    let mut startup = exec(&["test", "-e", "/tmp/up"]);
    startup["failureThreshold"] = json!(1000);
    let alive = exec(&["test", "-e", "/tmp/up"]);
    let more = json!({"startupProbe": startup, "livenessProbe": alive});
    apply(&engine, &pod("starts", &main_container("echo begun; exec sleep 1000", more)));
    eventually("its startup probe has failed", || events(&engine, "Unhealthy").contains("Startup probe"));
    let status = main_status(&engine, "starts");
    assert_eq!((&status["started"], &status["ready"]), (&json!(false), &json!(false)));
    sh(&engine, "starts", "touch /tmp/up");
    wait_ready(&engine, "starts");
    assert_eq!(main_status(&engine, "starts")["restartCount"], 0, "the liveness probe waited");
    assert!(!events(&engine, "Unhealthy").contains("Liveness"));
    finish(engine);
}

#[test]
fn hooks_run_at_the_beginning_and_within_the_grace_period_at_the_end() {
    let engine = Engine::start();
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    apply(&engine, &claim);
    let hook = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}});
    let lifecycle = json!({"postStart": hook("sleep 1000 & echo post >> /d/order"), "preStop": hook("echo pre >> /d/order; exec sleep 1000")});
    let more = json!({"lifecycle": lifecycle, "volumeMounts": [{"name": "data", "mountPath": "/d"}]});
    let script = "trap 'echo term >> /d/order; exit 0' TERM; while :; do sleep 0.05; done";
    let mut spec = main_container(script, more);
    spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    apply(&engine, &pod("hooks", &spec));
    wait_ready(&engine, "hooks");
    assert_eq!(sh(&engine, "hooks", "cat /d/order"), "post\n");
    let begun = Instant::now();
    stdout(&engine.kubectl(&["delete", "pod", "hooks", "--grace-period=2"]));
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(20), "it took {took:?}");
    let volumes = engine.data_dir.path().join("volumes");
    let volume = std::fs::read_dir(volumes).unwrap().next().unwrap().unwrap().path();
    assert_eq!(std::fs::read_to_string(volume.join("order")).unwrap(), "post\npre\nterm\n");
    eventually("the hook that took too long is told", || events(&engine, "FailedPreStopHook").contains("2s"));
    stdout(&engine.kubectl(&["delete", "pvc", "data"]));
    finish(engine);
}

#[test]
fn container_whose_first_hook_fails_is_stopped() {
    let engine = Engine::start();
    let lifecycle = json!({"postStart": {"exec": {"command": ["sh", "-c", "echo not today; exit 1"]}}});
    let mut spec = main_container("exec sleep 1000", json!({"lifecycle": lifecycle}));
    (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) = (json!("Never"), json!(1));
    apply(&engine, &pod("greets", &spec));
    stdout(&engine.kubectl(&[
        "wait",
        "--timeout=30s",
        "--for=jsonpath={.status.phase}=Failed",
        "pod/greets",
    ]));
    eventually("the failure is told", || events(&engine, "FailedPostStartHook").contains("not today"));
    let refused = json!({"postStart": {"tcpSocket": {"port": 80}}});
    apply(&engine, &pod("refused", &main_container("true", json!({"lifecycle": refused}))));
    eventually("a hook that cannot be is refused by its field", || {
        get(&engine, "refused")["status"]["message"]
            .as_str()
            .is_some_and(|it| it.starts_with("spec.containers[0].lifecycle.postStart.tcpSocket: "))
    });
    finish(engine);
}

#[test]
fn readiness_gate_waits_for_a_condition_that_somebody_else_sets() {
    let engine = Engine::start();
    let mut spec = main_container("exec sleep 1000", json!({}));
    spec["readinessGates"] = json!([{"conditionType": "x.test/up"}]);
    apply(&engine, &pod("gate", &spec));
    let condition = |kind: &str| {
        let path = format!("jsonpath={{.status.conditions[?(@.type==\"{kind}\")].status}}");
        text(&engine.kubectl(&["get", "pod", "gate", "-o", &path]))
    };
    eventually("the containers are ready", || condition("ContainersReady") == "True");
    assert_eq!(condition("Ready"), "False");
    let patch = r#"{"status":{"conditions":[{"type":"x.test/up","status":"True"}]}}"#;
    stdout(&engine.kubectl(&["patch", "pod", "gate", "--subresource=status", "-p", patch]));
    wait_ready(&engine, "gate");
    assert_eq!(condition("x.test/up"), "True");
    finish(engine);
}
