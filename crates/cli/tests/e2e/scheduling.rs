//! Pods that do not fit wait with the scheduler's words and start when they fit: `kubectl cordon`, `drain`, `taint`, `label`.

use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};
use crate::pod::{apply, finish, get};
use crate::volume::KEEPER;

const NOT_HELPFUL: &str = "no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";

/// A Pod that idles, with more in its spec.
fn pod(name: &str, more: Value) -> Value {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "host"}],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn asking(name: &str, requests: Value) -> Value {
    let container = json!({"name": "main", "image": "host", "resources": {"requests": requests}});
    pod(name, json!({"containers": [container]}))
}

fn kubectl(engine: &Engine, args: &[&str]) -> String {
    stdout(&engine.kubectl(args))
}

fn node(engine: &Engine) -> String {
    kubectl(engine, &["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])
}

fn ready(engine: &Engine, what: &str) {
    kubectl(engine, &["wait", "--for=condition=Ready", what, "--timeout=30s"]);
}

/// Waits until the Pod is told that it waits, and why.
fn waits(engine: &Engine, name: &str, reason: &str) {
    let mut last = Value::Null;
    eventually(&format!("{name} waits: {reason}"), || {
        // A Pod that is made again is gone for a moment.
        let found = engine.kubectl(&["get", "pod", name, "-o", "json"]);
        last = serde_json::from_slice(&found.stdout).unwrap_or_default();
        let conditions = last["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let told = conditions.iter().find(|it| it["type"] == "PodScheduled").cloned().unwrap_or_default();
        told["reason"] == "Unschedulable" && told["message"].as_str().is_some_and(|it| it.contains(reason))
    });
    assert!(last["spec"]["nodeName"].is_null() && last["status"]["phase"] == "Pending", "{last}");
    assert!(kubectl(engine, &["get", "pod", name]).contains("Pending"));
}

fn events(engine: &Engine, reason: &str) -> String {
    let selector = format!("--field-selector=reason={reason}");
    text(&engine.kubectl(&[
        "get",
        "events",
        &selector,
        "-o",
        "jsonpath={range .items[*]}{.type} {.message}{\"\\n\"}{end}",
    ]))
}

#[test]
fn a_cordoned_node_takes_no_new_pods_until_it_is_uncordoned_also_across_kill_9() {
    let mut engine = Engine::start();
    let node = node(&engine);
    apply(&engine, &pod("old", json!({})));
    ready(&engine, "pod/old");
    kubectl(&engine, &["cordon", &node]);
    assert!(kubectl(&engine, &["get", "nodes"]).contains("Ready,SchedulingDisabled"));
    apply(&engine, &pod("new", json!({})));
    let why = format!("0/1 nodes are available: 1 node(s) were unschedulable. {NOT_HELPFUL}");
    waits(&engine, "new", &why);
    eventually("there is an event", || {
        events(&engine, "FailedScheduling").contains(&format!("Warning {why}"))
    });
    let described = kubectl(&engine, &["describe", "pod", "new"]);
    assert!(described.contains("FailedScheduling") && described.contains("default-scheduler"), "{described}");
    let run = engine.asb(&["run", "--", "true"]);
    assert!(!run.status.success() && text(&run).contains(&format!("cannot start: {why}")), "{}", text(&run));

    engine.kill();
    engine.restart();
    waits(&engine, "new", &why);
    ready(&engine, "pod/old");
    assert_eq!(get(&engine, "old")["status"]["containerStatuses"][0]["restartCount"], 0, "what ran goes on");

    kubectl(&engine, &["uncordon", &node]);
    ready(&engine, "pod/new");
    eventually("it is told who found a place", || {
        events(&engine, "Scheduled").contains(&format!("Normal Successfully assigned default/new to {node}"))
    });
    finish(engine);
}

#[test]
fn a_drained_sandbox_waits_and_comes_back_with_its_data() {
    let mut engine = Engine::start();
    let node = node(&engine);
    stdout(&engine.kubectl_apply(KEEPER));
    ready(&engine, "sandbox/keeper");
    kubectl(&engine, &["exec", "keeper", "--", "sh", "-c", "echo kept > /data/file"]);
    let before = get(&engine, "keeper")["metadata"]["uid"].clone();
    apply(&engine, &pod("lonely", json!({})));
    ready(&engine, "pod/lonely");

    let refused = engine.kubectl(&["drain", &node]);
    assert!(!refused.status.success());
    assert!(
        text(&refused).contains(
            "cannot delete Pods that declare no controller (use --force to override): default/lonely"
        ),
        "{}",
        text(&refused)
    );
    let drained = kubectl(&engine, &["drain", &node, "--force", "--timeout=30s"]);
    assert!(drained.contains("pod/keeper evicted") && drained.contains("pod/lonely evicted"), "{drained}");
    assert!(drained.contains(&format!("node/{node} drained")), "{drained}");
    waits(&engine, "keeper", "1 node(s) were unschedulable");
    assert_ne!(get(&engine, "keeper")["metadata"]["uid"], before);
    let message =
        ["get", "sandbox", "keeper", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].message}"];
    eventually("the Sandbox says why it is not Ready", || {
        text(&engine.kubectl(&message))
            .contains("Unschedulable: 0/1 nodes are available: 1 node(s) were unschedulable")
    });
    assert!(text(&engine.kubectl(&["get", "pod", "lonely"])).contains("NotFound"), "nobody makes it again");

    engine.kill();
    engine.restart();
    waits(&engine, "keeper", "1 node(s) were unschedulable");
    kubectl(&engine, &["uncordon", &node]);
    ready(&engine, "sandbox/keeper");
    assert_eq!(kubectl(&engine, &["exec", "keeper", "--", "cat", "/data/file"]), "kept\n");
    kubectl(&engine, &["delete", "sandbox", "keeper"]);
    finish(engine);
}

#[test]
fn taints_keep_pods_away_and_make_them_leave() {
    let engine = Engine::start();
    let node = node(&engine);
    let tolerating = |name: &str, seconds: Value| {
        let mut toleration = json!({"key": "broken", "operator": "Exists", "effect": "NoExecute"});
        if seconds.is_number() {
            toleration["tolerationSeconds"] = seconds;
        }
        pod(name, json!({"tolerations": [toleration]}))
    };
    kubectl(&engine, &["taint", "node", &node, "team=a:NoSchedule"]);
    apply(&engine, &pod("stranger", json!({})));
    waits(&engine, "stranger", "1 node(s) had untolerated taint(s)");
    let toleration = json!([{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}]);
    apply(&engine, &pod("member", json!({"tolerations": toleration})));
    ready(&engine, "pod/member");
    kubectl(&engine, &["taint", "node", &node, "team-"]);
    ready(&engine, "pod/stranger");

    apply(&engine, &tolerating("stays", Value::Null));
    apply(&engine, &tolerating("patient", json!(2)));
    apply(&engine, &tolerating("later", json!(3600)));
    for name in ["pod/stays", "pod/patient", "pod/later"] {
        ready(&engine, name);
    }
    kubectl(&engine, &["taint", "node", &node, "broken=yes:NoExecute"]);
    for name in ["stranger", "member", "patient"] {
        kubectl(&engine, &["wait", "--for=delete", &format!("pod/{name}"), "--timeout=30s"]);
    }
    let marked = "Normal Marking for deletion Pod default/stranger";
    eventually("there is an event", || events(&engine, "TaintManagerEviction").contains(marked));
    apply(&engine, &pod("next", json!({})));
    waits(&engine, "next", "1 node(s) had untolerated taint(s)");
    // Who names the node is asked by nobody but the kubelet.
    apply(&engine, &pod("bold", json!({"nodeName": node})));
    eventually("it is rejected", || get(&engine, "bold")["status"]["reason"] == "TaintToleration");
    let bold = get(&engine, "bold");
    assert_eq!(bold["status"]["phase"], "Failed");
    assert_eq!(
        bold["status"]["message"],
        "Pod was rejected: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
    );
    kubectl(&engine, &["taint", "node", &node, "broken-"]);
    ready(&engine, "pod/next");
    let spared = "Normal Cancelling deletion of Pod default/later";
    eventually("there is an event", || events(&engine, "TaintManagerEviction").contains(spared));
    ready(&engine, "pod/later");
    finish(engine);
}

#[test]
fn a_pod_waits_for_a_label_and_for_what_others_have() {
    let mut engine = Engine::start();
    let node = node(&engine);
    apply(&engine, &pod("choosy", json!({"nodeSelector": {"disk": "ssd"}})));
    let why = format!(
        "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. {NOT_HELPFUL}"
    );
    waits(&engine, "choosy", &why);
    kubectl(&engine, &["label", "node", &node, "disk=ssd"]);
    ready(&engine, "pod/choosy");

    let cpu: u32 = kubectl(&engine, &["get", "node", &node, "-o", "jsonpath={.status.allocatable.cpu}"])
        .parse()
        .unwrap();
    apply(&engine, &asking("huge", json!({"cpu": cpu + 1})));
    waits(&engine, "huge", &format!("0/1 nodes are available: 1 Insufficient cpu. {NOT_HELPFUL}"));
    apply(&engine, &asking("first", json!({"cpu": cpu})));
    ready(&engine, "pod/first");
    apply(&engine, &asking("second", json!({"cpu": "100m"})));
    waits(&engine, "second", "1 No preemption victims found for incoming pod.");
    engine.kill();
    engine.restart();
    waits(&engine, "second", "0/1 nodes are available: 1 Insufficient cpu.");
    let mut rejected = asking("rejected", json!({"cpu": "100m"}));
    rejected["spec"]["nodeName"] = json!(node);
    apply(&engine, &rejected);
    eventually("it is rejected", || get(&engine, "rejected")["status"]["reason"] == "OutOfcpu");
    kubectl(&engine, &["delete", "pod", "first", "rejected"]);
    ready(&engine, "pod/second");
    waits(&engine, "huge", "1 Insufficient cpu");
    finish(engine);
}

const POOL: &str = r#"
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: picky}
spec:
  podTemplate:
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {disk: ssd}
      containers: [{name: main, image: host}]
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: warm}
spec: {replicas: 2, sandboxTemplateRef: {name: picky}}
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxClaim
metadata: {name: mine}
spec: {warmPoolRef: {name: warm}}
"#;

#[test]
fn a_pool_and_a_claim_wait_for_a_place_and_say_so() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(POOL));
    let path =
        |what: &str, path: &str| text(&engine.kubectl(&["get", what, "-o", &format!("jsonpath={path}")]));
    let why = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
    eventually("the claim says why it waits", || {
        path("sandboxclaim/mine", "{.status.conditions[?(@.type=='Ready')].message}").contains(why)
    });
    eventually("the pool has made its members", || path("swp/warm", "{.status.replicas}") == "2");
    assert!(matches!(&*path("swp/warm", "{.status.readyReplicas}"), "" | "0"), "none of them is ready");
    kubectl(&engine, &["label", "node", &node(&engine), "disk=ssd"]);
    ready(&engine, "sandboxclaim/mine");
    eventually("the pool is ready", || path("swp/warm", "{.status.readyReplicas}") == "2");
    kubectl(&engine, &["delete", "sandboxclaim/mine", "swp/warm", "sandboxtemplate/picky"]);
    finish(engine);
}
