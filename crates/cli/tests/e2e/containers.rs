//! Pods of several containers: they share network and volumes, begin and end in order, and outlive the engine.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};
use crate::pod::{apply, config_map, finish, get};

/// A container that runs a script, with the volume `shared` at `/s`.
pub fn container(name: &str, script: &str, more: Value) -> Value {
    let mut container = json!({
        "name": name, "image": "host", "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "shared", "mountPath": "/s"}],
    });
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    container
}

pub fn plain(name: &str, script: &str) -> Value {
    container(name, script, json!({}))
}

pub fn sidecar(name: &str, script: &str, more: Value) -> Value {
    let mut sidecar = container(name, script, more);
    sidecar["restartPolicy"] = json!("Always");
    sidecar
}

pub fn pod(name: &str, mut spec: Value) -> Value {
    if spec["volumes"].is_null() {
        spec["volumes"] = json!([{"name": "shared", "emptyDir": {}}]);
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

pub fn wait_for(engine: &Engine, name: &str, what: &str) {
    stdout(&engine.kubectl(&["wait", "--timeout=90s", &format!("--for={what}"), &format!("pod/{name}")]));
}

pub fn log(engine: &Engine, name: &str, container: &str) -> String {
    text(&engine.kubectl(&["logs", name, "-c", container]))
}

pub fn sh(engine: &Engine, name: &str, container: &str, script: &str) -> String {
    stdout(&engine.kubectl(&["exec", name, "-c", container, "--", "sh", "-c", script]))
}

fn condition(pod: &Value, kind: &str) -> (String, String) {
    let all = pod["status"]["conditions"].as_array().unwrap();
    let it = all.iter().find(|it| it["type"] == kind).unwrap_or(&Value::Null);
    let text = |field: &str| it[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

/// The directory of the only PersistentVolume.
fn claimed(engine: &Engine) -> PathBuf {
    let volumes = engine.data_dir.path().join("volumes");
    std::fs::read_dir(volumes).unwrap().next().unwrap().unwrap().path()
}

fn claim() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn of_claim() -> Value {
    json!([{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}])
}

const ASK: &str = "until python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:8000/hello\").read().decode(), end=\"\", flush=True)' 2>/dev/null; do sleep 0.1; done; exec sleep 1000";

#[test]
fn two_containers_talk_over_localhost_and_share_a_volume() {
    let engine = Engine::start();
    let serve = "cd /s && exec python3 -m http.server 8000 --bind 127.0.0.1";
    let ask = format!("echo from b > /s/hello; {ASK}");
    let spec = json!({"containers": [plain("a", serve), plain("b", &ask)]});
    apply(&engine, &pod("two", spec));
    wait_for(&engine, "two", "condition=Ready");
    eventually("b hears from a", || log(&engine, "two", "b") == "from b\n");
    assert_eq!(sh(&engine, "two", "a", "cat /s/hello; hostname"), "from b\ntwo\n");
    let others = sh(&engine, "two", "a", "cat /proc/*/cmdline | tr '\\0' ' '");
    assert!(
        others.contains("http.server") && !others.contains("urllib"),
        "each sees its own processes: {others}"
    );
    let status = get(&engine, "two")["status"].clone();
    let names: Vec<_> = status["containerStatuses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!((status["phase"].as_str(), names), (Some("Running"), vec!["a", "b"]));
    let address = status["podIP"].as_str().unwrap();
    assert_eq!(sh(&engine, "two", "a", "hostname -i"), sh(&engine, "two", "b", "hostname -i"));
    let own = sh(&engine, "two", "b", "hostname -i");
    assert!(own.split_whitespace().any(|it| it == address), "{own}");

    assert_eq!(stdout(&engine.asb(&["exec", "two", "--", "cat", "/s/hello"])), "from b\n");
    assert_eq!(stdout(&engine.asb(&["logs", "two", "-c", "b"])), "from b\n");
    let first = stdout(&engine.asb(&["logs", "two"]));
    assert!(first.contains("GET /hello"), "the first is meant when nobody says which: {first}");
    let raw = text(&engine.kubectl(&["get", "--raw", "/api/v1/namespaces/default/pods/two/log"]));
    assert!(raw.contains("[a b]"), "without a name the choices are told: {raw}");
    let wrong = text(&engine.kubectl(&["logs", "two", "-c", "c"]));
    assert!(wrong.contains("container c is not valid for pod two"), "{wrong}");
    finish(engine);
}

#[test]
fn init_containers_run_in_order_and_again_until_they_succeed() {
    let engine = Engine::start();
    let second = "echo b >> /s/order; [ $(grep -c b /s/order) = 2 ]";
    let spec = json!({
        "initContainers": [plain("a", "echo a >> /s/order"), plain("b", second)],
        "containers": [plain("main", "cat /s/order; exec sleep 1000")],
    });
    apply(&engine, &pod("init", spec));
    wait_for(&engine, "init", "condition=Ready");
    eventually("main says who was there", || log(&engine, "init", "main") == "a\nb\nb\n");
    let pod = get(&engine, "init");
    let inits = &pod["status"]["initContainerStatuses"];
    assert_eq!((&inits[0]["restartCount"], &inits[1]["restartCount"]), (&json!(0), &json!(1)));
    assert_eq!(inits[1]["lastState"]["terminated"]["exitCode"], 1);
    assert_eq!(inits[1]["state"]["terminated"]["reason"], "Completed");
    assert_eq!(condition(&pod, "Initialized").0, "True");
    finish(engine);
}

#[test]
fn init_container_that_fails_fails_a_pod_that_never_restarts() {
    let engine = Engine::start();
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [plain("a", "echo no; exit 4")], "containers": [plain("main", "echo never")],
    });
    apply(&engine, &pod("fails", spec));
    wait_for(&engine, "fails", "jsonpath={.status.phase}=Failed");
    let pod = get(&engine, "fails");
    assert_eq!(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 4);
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
    assert_eq!(condition(&pod, "Initialized"), ("False".into(), "ContainersNotInitialized".into()));
    assert_eq!(log(&engine, "fails", "a"), "no\n");
    assert!(log(&engine, "fails", "main").contains("waiting to start"));
    finish(engine);
}

/// Says that it begins; ends, when asked to, with a word in the file that all share.
fn stays(name: &str) -> String {
    format!(
        "trap 'echo {name}-end >> /s/order; cat /s/order; exit 0' TERM; echo {name} >> /s/order; touch /s/{name}-up; \
         while :; do sleep 0.05; done"
    )
}

/// A sidecar counts as started when its process is, which may not have had its turn yet.
fn after(name: &str, script: &str) -> String {
    format!("until [ -e /s/{name}-up ]; do sleep 0.05; done; {script}")
}

#[test]
fn sidecars_begin_first_outlive_the_main_container_and_end_in_reverse() {
    let engine = Engine::start();
    let started = json!({"startupProbe": {"exec": {"command": ["test", "-e", "/s/one-up"]}, "periodSeconds": 1, "timeoutSeconds": 30}});
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [
            sidecar("one", &format!("sleep 0.3; {}", stays("one")), started),
            plain("init", "test -e /s/one-up && echo init >> /s/order"), sidecar("two", &stays("two"), json!({})),
        ],
        "containers": [plain("main", &after("two", "echo main >> /s/order; until [ -e /s/end ]; do sleep 0.05; done"))],
    });
    apply(&engine, &pod("side", spec));
    wait_for(&engine, "side", "condition=Ready");
    let pod = get(&engine, "side");
    assert_eq!(pod["status"]["initContainerStatuses"][0]["started"], true);
    sh(&engine, "side", "one", "touch /s/end");
    wait_for(&engine, "side", "jsonpath={.status.phase}=Succeeded");
    assert_eq!(log(&engine, "side", "one"), "one\ninit\ntwo\nmain\ntwo-end\none-end\n");
    assert_eq!(condition(&get(&engine, "side"), "Ready"), ("False".into(), "PodCompleted".into()));
    finish(engine);
}

#[test]
fn deleted_pod_ends_its_main_containers_before_its_sidecars() {
    let engine = Engine::start();
    apply(&engine, &claim());
    let spec = json!({
        "volumes": of_claim(),
        "initContainers": [
            sidecar("one", &stays("one"), json!({})), sidecar("two", &after("one", &stays("two")), json!({})),
        ],
        "containers": [plain("main", &after("two", &stays("main")))],
    });
    apply(&engine, &pod("order", spec));
    wait_for(&engine, "order", "condition=Ready");
    eventually("main is up", || claimed(&engine).join("main-up").exists());
    stdout(&engine.kubectl(&["delete", "pod", "order", "--grace-period=20"]));
    let order = std::fs::read_to_string(claimed(&engine).join("order")).unwrap();
    assert_eq!(order, "one\ntwo\nmain\nmain-end\ntwo-end\none-end\n");
    stdout(&engine.kubectl(&["delete", "pvc", "shared"]));
    finish(engine);
}

#[test]
fn pod_that_is_deleted_again_without_grace_goes_at_once() {
    let engine = Engine::start();
    let script = "trap '' TERM; while :; do sleep 0.05; done";
    apply(&engine, &pod("deaf", json!({"containers": [plain("a", script), plain("b", script)]})));
    wait_for(&engine, "deaf", "condition=Ready");
    stdout(&engine.kubectl(&["delete", "pod", "deaf", "--grace-period=600", "--wait=false"]));
    stdout(&engine.kubectl(&["delete", "pod", "deaf", "--grace-period=0", "--force"]));
    finish(engine);
}

#[test]
fn pod_goes_on_where_it_was_when_the_engine_is_killed() {
    let mut engine = Engine::start();
    let until = |file: &str| format!("until [ -e /s/{file} ]; do sleep 0.05; done; rm /s/{file}");
    let main = format!("echo begun; {}; echo dying; exit 3", until("die"));
    let spec = json!({
        "initContainers": [
            plain("a", "echo a >> /s/count"), sidecar("side", "exec sleep 1000", json!({})), plain("b", &until("go")),
        ],
        "containers": [plain("main", &main), plain("other", "exec sleep 1000")],
    });
    apply(&engine, &pod("kept", spec));
    let init =
        |engine: &Engine, at: usize| get(engine, "kept")["status"]["initContainerStatuses"][at].clone();
    eventually("the second init container runs", || init(&engine, 2)["state"]["running"].is_object());
    let address = get(&engine, "kept")["status"]["podIP"].clone();
    engine.kill();
    engine.restart();
    sh(&engine, "kept", "side", "touch /s/go");
    wait_for(&engine, "kept", "condition=Ready");
    assert_eq!(sh(&engine, "kept", "main", "cat /s/count"), "a\n", "what was through is not done again");
    assert_eq!(
        (&init(&engine, 0)["restartCount"], &init(&engine, 2)["restartCount"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(get(&engine, "kept")["status"]["podIP"], address);

    sh(&engine, "kept", "other", "touch /s/die");
    let main = |engine: &Engine| get(engine, "kept")["status"]["containerStatuses"][0].clone();
    eventually("main is started again", || {
        main(&engine)["restartCount"] == 1 && main(&engine)["state"]["running"].is_object()
    });
    assert_eq!(get(&engine, "kept")["status"]["podIP"], address, "the Pod keeps its address");
    assert_eq!(get(&engine, "kept")["status"]["containerStatuses"][1]["restartCount"], 0);
    let previous = |engine: &Engine| text(&engine.kubectl(&["logs", "kept", "-c", "main", "--previous"]));
    let none = text(&engine.kubectl(&["logs", "kept", "-c", "other", "--previous"]));
    assert!(none.contains("previous terminated container \"other\" in pod \"kept\" not found"), "{none}");
    for _ in 0..2 {
        assert_eq!(previous(&engine), "begun\ndying\n");
        assert_eq!(log(&engine, "kept", "main"), "begun\n");
        let main = main(&engine);
        assert_eq!((&main["restartCount"], &main["ready"]), (&json!(1), &json!(true)));
        assert_eq!(main["lastState"]["terminated"]["exitCode"], 3);
        engine.kill();
        engine.restart();
        wait_for(&engine, "kept", "condition=Ready");
    }
    finish(engine);
}

#[test]
fn pod_that_ended_while_no_engine_ran_starts_again_with_its_past() {
    let mut engine = Engine::start();
    let main = "echo begun; until [ -e /s/die ]; do sleep 0.05; done; rm /s/die; exit 5";
    apply(&engine, &pod("alone", json!({"containers": [plain("main", main)]})));
    wait_for(&engine, "alone", "condition=Ready");
    let uid = get(&engine, "alone")["metadata"]["uid"].as_str().unwrap().to_owned();
    let shared = engine.data_dir.path().join("pods").join(uid).join("shared");
    engine.kill();
    std::fs::write(shared.join("die"), "").unwrap();
    eventually("main has ended", || !shared.join("die").exists());
    engine.restart();
    eventually("it runs again", || {
        let main = get(&engine, "alone")["status"]["containerStatuses"][0].clone();
        main["restartCount"] == 1
            && main["state"]["running"].is_object()
            && main["lastState"]["terminated"]["exitCode"] == 5
    });
    finish(engine);
}

#[test]
fn last_words_of_a_container_are_in_its_status() {
    let engine = Engine::start();
    let user = json!({"securityContext": {"runAsUser": 1000, "readOnlyRootFilesystem": true}});
    let elsewhere = json!({
        "terminationMessagePath": "/opt/words", "securityContext": {"runAsUser": 1000, "readOnlyRootFilesystem": true},
    });
    let fallback = json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    let spec = json!({"restartPolicy": "Never", "containers": [
        container("usual", "echo -n bye > /dev/termination-log; exit 1", user),
        container("elsewhere", "echo -n far > /opt/words", elsewhere),
        container("log", "echo one; echo two >&2; exit 2", fallback.clone()),
        container("well", "echo one", fallback),
        container("much", "head -c 10000 /dev/zero | tr '\\0' x > /dev/termination-log", json!({})),
    ]});
    apply(&engine, &pod("words", spec));
    wait_for(&engine, "words", "jsonpath={.status.phase}=Failed");
    let pod = get(&engine, "words");
    let said = |at: usize| pod["status"]["containerStatuses"][at]["state"]["terminated"]["message"].clone();
    assert_eq!([said(0), said(1)], [json!("bye"), json!("far")]);
    assert_eq!([said(2), said(3)], [json!("one\ntwo\n"), json!(null)]);
    assert_eq!(said(4).as_str().map(str::len), Some(4096));
    finish(engine);
}

#[test]
fn pod_is_stopped_at_its_deadline() {
    let engine = Engine::start();
    let spec = json!({
        "activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 5,
        "containers": [plain("main", "trap 'echo stopped; exit 0' TERM; while :; do sleep 0.05; done")],
    });
    apply(&engine, &pod("late", spec));
    wait_for(&engine, "late", "jsonpath={.status.phase}=Failed");
    assert_eq!(get(&engine, "late")["status"]["reason"], "DeadlineExceeded");
    assert_eq!(log(&engine, "late", "main"), "stopped\n");
    finish(engine);
}

#[test]
fn user_that_is_not_root_begins_at_home() {
    let engine = Engine::start();
    let as_user = |uid: u32| json!({"securityContext": {"runAsUser": uid}});
    let script = "pwd; echo $HOME; touch ~/x && echo mine; exec sleep 1000";
    let spec = json!({"containers": [
        container("root", script, json!({})), container("user", script, as_user(1000)),
        container("stranger", "pwd; exec sleep 1000", as_user(4321)),
    ]});
    apply(&engine, &pod("home", spec));
    wait_for(&engine, "home", "condition=Ready");
    eventually("all have spoken", || log(&engine, "home", "user").contains("mine"));
    assert_eq!(log(&engine, "home", "root"), "/root\n/root\nmine\n");
    assert_eq!(log(&engine, "home", "user"), "/home/user\n/home/user\nmine\n");
    assert_eq!(log(&engine, "home", "stranger"), "/\n");
    finish(engine);
}

#[test]
fn changes_of_a_config_map_reach_the_running_container_as_a_whole() {
    let mut engine = Engine::start();
    apply(&engine, &config_map("app", &json!({"a": "1", "b": "1"})));
    let volumes = json!([
        {"name": "shared", "emptyDir": {}}, {"name": "app", "configMap": {"name": "app"}},
        {"name": "self", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]);
    let mounts = json!({"volumeMounts": [
        {"name": "shared", "mountPath": "/s"}, {"name": "app", "mountPath": "/app"}, {"name": "self", "mountPath": "/self"},
    ]});
    let spec = json!({"volumes": volumes, "containers": [container("main", "exec sleep 1000", mounts)]});
    apply(&engine, &pod("files", spec));
    wait_for(&engine, "files", "condition=Ready");
    assert_eq!(sh(&engine, "files", "main", "cat /app/a /app/b; readlink /app/a"), "11..data/a\n");
    apply(&engine, &config_map("app", &json!({"a": "2", "c": "2"})));
    eventually("the change is there", || sh(&engine, "files", "main", "cd /app; cat a c; ls") == "22a\nc\n");
    stdout(&engine.kubectl(&["label", "pod", "files", "colour=red"]));
    eventually("the label is there", || {
        sh(&engine, "files", "main", "cat /self/labels").contains("colour=\"red\"")
    });
    engine.kill();
    engine.restart();
    apply(&engine, &config_map("app", &json!({"a": "3"})));
    eventually("the next engine goes on with it", || sh(&engine, "files", "main", "cat /app/a") == "3");
    finish(engine);
}

const PODS: usize = 6;

/// Kills the engine each time there is one sandbox more than before: in the middle of every start there is.
#[test]
fn engine_that_is_killed_at_every_start_loses_nothing_and_does_nothing_twice() {
    let mut engine = Engine::start();
    let names: Vec<_> = (0..PODS).map(|at| format!("p{at}")).collect();
    for name in &names {
        let spec = json!({
            "initContainers": [
                plain("a", "echo a >> /s/count"), sidecar("side", "exec sleep 1000", json!({})), plain("b", "echo b >> /s/count"),
            ],
            "containers": [plain("main", "echo main >> /s/count; exec sleep 1000"), plain("other", "exec sleep 1000")],
        });
        apply(&engine, &pod(name, spec));
        let sandboxes = engine.data_dir.path().join("sandboxes/sandbox");
        let count = || std::fs::read_dir(&sandboxes).map_or(0, Iterator::count);
        let known = count();
        eventually("one more starts", || count() > known || count() == PODS * 5);
        engine.kill();
        engine.restart();
    }
    for name in &names {
        wait_for(&engine, name, "condition=Ready");
        assert_eq!(sh(&engine, name, "main", "cat /s/count"), "a\nb\nmain\n", "{name}");
        let pod = get(&engine, name);
        let all = ["initContainerStatuses", "containerStatuses"].map(|kind| pod["status"][kind].clone());
        let all = all.iter().flat_map(|kind| kind.as_array().unwrap());
        assert!(all.clone().count() == 5 && all.into_iter().all(|it| it["restartCount"] == 0), "{pod}");
    }
    finish(engine);
}
