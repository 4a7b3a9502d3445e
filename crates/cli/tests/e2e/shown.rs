//! What people look at: rows of Pods, events and the Node, as kubectl shows them of a cluster.

use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};
use crate::pod::{apply, finish, get};

fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": "host", "command": ["sh", "-c", script]})
}

/// The columns `READY`, `STATUS` and `RESTARTS`.
fn row(engine: &Engine, name: &str) -> String {
    let line = stdout(&engine.kubectl(&["get", "pod", name, "--no-headers"]));
    line.split_whitespace().skip(1).take(3).collect::<Vec<_>>().join(" ")
}

/// Events about an object: its container, source, reason and message, each with how often it came.
fn events(engine: &Engine, about: &str) -> Vec<(String, i64)> {
    let selector = format!("--field-selector=involvedObject.name={about}");
    let list: Value =
        serde_json::from_str(&stdout(&engine.kubectl(&["get", "events", &selector, "-o", "json"]))).unwrap();
    let all = list["items"].as_array().unwrap().iter();
    let words = |event: &Value| {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let source = word(&event["source"]["component"]);
        let path = word(&event["involvedObject"]["fieldPath"]);
        let container = path.split_once('{').map_or(String::new(), |(_, name)| name.replace('}', " "));
        format!("{container}{source} {}: {}", word(&event["reason"]), word(&event["message"]))
    };
    all.map(|event| (words(event), event["count"].as_i64().unwrap_or(0))).collect()
}

#[test]
fn rows_and_events_of_a_pod_tell_its_story_in_the_kubelets_words() {
    let engine = Engine::start();
    let mut sidecar = container("side", "exec sleep 1000");
    sidecar["restartPolicy"] = json!("Always");
    let first = container("first", "until test -e /d/go; do sleep 0.05; done");
    let mounted = |mut container: Value| {
        container["volumeMounts"] = json!([{"name": "d", "mountPath": "/d"}]);
        container
    };
    let spec = json!({
        "terminationGracePeriodSeconds": 0, "volumes": [{"name": "d", "emptyDir": {}}],
        "initContainers": [mounted(first), mounted(sidecar)],
        "containers": [container("main", "exec sleep 1000")],
    });
    apply(&engine, &pod("story", spec));
    eventually("its first init container runs", || row(&engine, "story") == "0/2 Init:0/2 0");
    eventually("it can go on", || {
        engine.kubectl(&["exec", "story", "-c", "first", "--", "touch", "/d/go"]).status.success()
    });
    eventually("all run, the sidecar is counted", || row(&engine, "story") == "2/2 Running 0");
    let node = stdout(&engine.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]));
    let told = |engine: &Engine, about: &str, words: &str, count: i64| {
        let found = || events(engine, about).into_iter().any(|(it, times)| it == words && times >= count);
        eventually(&format!("{about} has {words:?}"), found);
    };
    told(
        &engine,
        "story",
        &format!("default-scheduler Scheduled: Successfully assigned default/story to {node}"),
        1,
    );
    for name in ["first", "side", "main"] {
        told(&engine, "story", &format!("{name} kubelet Created: Container created"), 1);
        told(&engine, "story", &format!("{name} kubelet Started: Container started"), 1);
    }
    stdout(&engine.kubectl(&["delete", "pod", "story"]));
    told(&engine, "story", "main kubelet Killing: Stopping container main", 1);

    apply(&engine, &pod("crashes", json!({"containers": [container("main", "exit 3")]})));
    eventually("it waits", || row(&engine, "crashes").starts_with("0/1 CrashLoopBackOff 1"));
    told(&engine, "crashes", "main kubelet Started: Container started", 2);
    let uid = get(&engine, "crashes")["metadata"]["uid"].as_str().unwrap().to_owned();
    let back_off = format!(
        "main kubelet BackOff: Back-off restarting failed container main in pod crashes_default({uid})"
    );
    told(&engine, "crashes", &back_off, 1);
    let starts = events(&engine, "crashes").iter().filter(|(it, _)| it.contains("Started")).count();
    assert_eq!(starts, 1, "one object counts them");
    let waiting = &get(&engine, "crashes")["status"]["containerStatuses"][0]["state"]["waiting"];
    let message = format!("back-off 10s restarting failed container=main pod=crashes_default({uid})");
    assert_eq!(waiting["message"], message);
    let described = text(&engine.kubectl(&["describe", "pod", "crashes"]));
    assert!(described.contains("default-scheduler  Successfully assigned"), "{described}");
    finish(engine);
}

#[test]
fn claims_tell_what_became_of_them() {
    let engine = Engine::start();
    let claim = |name: &str, class: Option<&str>| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": class,
            },
        })
    };
    for (name, class) in [("fine", None), ("odd", Some("gold"))] {
        apply(&engine, &claim(name, class));
        let mut main = container("main", "exec sleep 1000");
        main["volumeMounts"] = json!([{"name": "d", "mountPath": "/d"}]);
        let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": name}}]);
        apply(&engine, &pod(&format!("{name}-pod"), json!({"containers": [main], "volumes": volumes})));
    }
    let told = |about: &str, words: &str| {
        eventually(words, || events(&engine, about).iter().any(|(it, _)| it.contains(words)));
    };
    told("fine", "ProvisioningSucceeded: Successfully provisioned volume pvc-");
    told("odd", "ProvisioningFailed: ");
    told("odd-pod", "FailedMount: ");
    stdout(&engine.kubectl(&["delete", "pod", "--all", "--grace-period=0", "--force"]));
    stdout(&engine.kubectl(&["delete", "pvc", "--all"]));
    finish(engine);
}

#[test]
fn node_shows_what_it_is_and_that_it_lives() {
    let mut engine = Engine::start();
    let node = |engine: &Engine| -> Value {
        let list: Value =
            serde_json::from_str(&stdout(&engine.kubectl(&["get", "nodes", "-o", "json"]))).unwrap();
        list["items"][0].clone()
    };
    let ready = |node: &Value| {
        let all = node["status"]["conditions"].as_array().unwrap();
        all.iter().find(|it| it["type"] == "Ready").unwrap().clone()
    };
    let name = node(&engine)["metadata"]["name"].as_str().unwrap().to_owned();
    let lease = || text(&engine.kubectl(&["get", "lease", "-n", "kube-node-lease", &name, "-o", "json"]));
    eventually("it has a Lease", || lease().contains("\"leaseDurationSeconds\": 900"));
    let described = stdout(&engine.kubectl(&["describe", "node", &name]));
    for words in ["kubernetes.io/arch=", "HolderIdentity:", "KubeletReady", "MemoryPressure", "asb://"] {
        assert!(described.contains(words), "{words}: {described}");
    }
    let before = node(&engine);
    assert_eq!(before["status"]["nodeInfo"]["operatingSystem"], "linux");
    engine.kill();
    // A label of the user's, and the time since when the Node is Ready, outlive the engine.
    engine.restart();
    stdout(&engine.kubectl(&["label", "node", &name, "kind=mine"]));
    engine.kill();
    engine.restart();
    let after = node(&engine);
    assert_eq!(after["metadata"]["labels"]["kind"], "mine");
    assert_eq!(ready(&after)["lastTransitionTime"], ready(&before)["lastTransitionTime"]);
    let beat = |node: &Value| ready(node)["lastHeartbeatTime"].as_str().unwrap().to_owned();
    eventually("its heart beats again", || beat(&node(&engine)) > beat(&before));
    engine.stop();
}
