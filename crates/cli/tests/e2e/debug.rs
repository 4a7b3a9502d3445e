//! `kubectl debug`: containers added to a Pod that runs.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};

fn start(engine: &Engine, more: &[&str]) {
    let extra = more.iter().map(|name| json!({"name": name, "image": "host", "command": ["sleep", "1000"]}));
    let containers: Vec<_> = [json!({
        "name": "main", "image": "host",
        "command": ["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1", "--directory", "/data"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    })]
    .into_iter()
    .chain(extra)
    .collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers, "volumes": [{"name": "data", "emptyDir": {}}]},
    });
    stdout(&engine.kubectl_apply(&pod.to_string()));
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod", "web", "--timeout=30s"]));
}

fn pod(engine: &Engine) -> Value {
    serde_json::from_str(&stdout(&engine.kubectl(&["get", "pod", "web", "-o", "json"]))).unwrap()
}

/// The state of an ephemeral container, by its word.
fn state(engine: &Engine, name: &str) -> Option<(String, Value)> {
    let pod = pod(engine);
    let all = pod["status"]["ephemeralContainerStatuses"].as_array()?;
    let state = all.iter().find(|it| it["name"] == name)?["state"].as_object()?.clone();
    state.into_iter().next()
}

fn is(engine: &Engine, name: &str, word: &str) -> bool {
    state(engine, name).is_some_and(|(state, _)| state == word)
}

#[test]
fn kubectl_debug_looks_into_a_pod_that_runs() {
    let mut engine = Engine::start();
    start(&engine, &[]);
    let before = pod(&engine)["status"]["containerStatuses"].clone();

    // In the Pod's network, and attached until it ends.
    let look = "until curl -sf http://127.0.0.1:8000/ >/dev/null; do sleep 0.1; done; read line; echo \"heard $line\"; exit 3";
    let args =
        ["debug", "web", "-i", "--image=host", "--container=look", "--target=main", "--", "sh", "-c", look];
    let mut kubectl = engine.kubectl_command(&args).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(kubectl.stdin.as_mut().unwrap(), b"me\n").unwrap();
    let said = kubectl.wait_with_output().unwrap();
    assert!(text(&said).contains("heard me"), "{}", text(&said));
    eventually("it has ended", || is(&engine, "look", "terminated"));
    assert_eq!(state(&engine, "look").unwrap().1["exitCode"], 3);
    assert!(stdout(&engine.kubectl(&["logs", "web", "-c", "look"])).contains("heard me"));
    let shown = stdout(&engine.kubectl(&["describe", "pod", "web"]));
    assert!(shown.contains("Ephemeral Containers:") && shown.contains("Exit Code:    3"), "{shown}");

    // One that stays, with the Pod's volume; both outlive the engine, and what has ended is not started again.
    let stay = json!({"spec": {"ephemeralContainers": [{
        "name": "stay", "image": "host", "command": ["sleep", "1000"],
        "volumeMounts": [{"name": "data", "mountPath": "/there"}],
    }]}});
    let path = ["patch", "pod", "web", "--subresource=ephemeralcontainers", "-p"];
    stdout(&engine.kubectl(&[&path[..], &[&stay.to_string()]].concat()));
    eventually("it runs", || is(&engine, "stay", "running"));
    stdout(&engine.kubectl(&["exec", "web", "-c", "stay", "--", "sh", "-c", "echo seen > /there/note"]));
    assert_eq!(stdout(&engine.kubectl(&["exec", "web", "-c", "main", "--", "cat", "/data/note"])), "seen\n");
    engine.kill();
    engine.restart();
    stdout(&engine.kubectl(&["exec", "web", "-c", "stay", "--", "test", "-e", "/there/note"]));
    assert!(is(&engine, "stay", "running") && is(&engine, "look", "terminated"));
    let after = pod(&engine);
    assert_eq!(after["status"]["containerStatuses"], before, "the Pod's own containers notice nothing");
    assert_eq!(after["status"]["phase"], "Running");

    // What cannot be done is told of that container, and does not touch the Pod.
    let wrong = json!({"spec": {"ephemeralContainers": [{
        "name": "wrong", "image": "host", "securityContext": {"privileged": true},
    }]}});
    stdout(&engine.kubectl(&[&path[..], &[&wrong.to_string()]].concat()));
    eventually("it says why", || {
        state(&engine, "wrong")
            .is_some_and(|(_, it)| it["message"].to_string().contains("spec.ephemeralContainers[2]"))
    });
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod", "web", "--timeout=30s"]));
    let unknown = text(&engine.kubectl(&["logs", "web", "-c", "none"]));
    assert!(unknown.contains("container none is not valid for pod web"), "{unknown}");
    stdout(&engine.kubectl(&["delete", "pod", "web", "--now"]));
    engine.stop();
}

/// Runs its arguments in a terminal of 33 rows and 99 columns.
const TERMINAL: &str =
    "import pty, sys; pty.spawn(['sh', '-c', 'stty rows 33 cols 99; exec \"$@\"', 'sh'] + sys.argv[1:])";

#[test]
fn kubectl_debug_gives_a_terminal() {
    let engine = Engine::start();
    start(&engine, &[]);
    let look = "until test \"$(stty size)\" = '33 99'; do sleep 0.1; done; echo sized; tty; read line; echo \"heard $line\"";
    let args = ["debug", "web", "-it", "--image=host", "--container=look", "--", "sh", "-c", look];
    let kubectl = engine.kubectl_command(&args);
    let mut terminal = Command::new("python3");
    terminal.args(["-c", TERMINAL]).arg(kubectl.get_program()).args(kubectl.get_args());
    terminal.envs(kubectl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running =
        terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(running.stdin.as_mut().unwrap(), b"me\n").unwrap();
    let said = text(&running.wait_with_output().unwrap());
    for wanted in ["/dev/pts/", "sized\r\n", "heard me\r\n"] {
        assert!(said.contains(wanted), "{wanted:?} is not in {said:?}");
    }
    eventually("it has ended", || is(&engine, "look", "terminated"));
    let added = &pod(&engine)["spec"]["ephemeralContainers"][0];
    assert_eq!((&added["tty"], &added["stdin"]), (&json!(true), &json!(true)));
    stdout(&engine.kubectl(&["delete", "pod", "web", "--now"]));
    engine.stop();
}

#[test]
fn an_added_container_shares_what_the_containers_of_a_pod_share() {
    let mut engine = Engine::start();
    start(&engine, &["other"]);
    let args = ["debug", "web", "--image=host", "--container=look", "--", "sleep", "1000"];
    stdout(&engine.kubectl(&args));
    eventually("it runs", || is(&engine, "look", "running"));
    stdout(&engine.kubectl(&["exec", "web", "-c", "look", "--", "sh", "-c", "echo shared > /dev/shm/note"]));
    assert_eq!(
        stdout(&engine.kubectl(&["exec", "web", "-c", "other", "--", "cat", "/dev/shm/note"])),
        "shared\n"
    );
    engine.kill();
    engine.restart();
    assert_eq!(
        stdout(&engine.kubectl(&["exec", "web", "-c", "look", "--", "cat", "/dev/shm/note"])),
        "shared\n"
    );
    assert_eq!(pod(&engine)["status"]["containerStatuses"][0]["restartCount"], 0);
    stdout(&engine.kubectl(&["delete", "pod", "web", "--now"]));
    engine.stop();
}
