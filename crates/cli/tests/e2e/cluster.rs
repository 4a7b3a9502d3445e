//! The same manifest and the same controllers on a real kube-apiserver: same conditions, same children.

use std::process::{Child, Command, Stdio};

use asb_testing::{Kubernetes, node};
use serde_json::{Value, json};

use crate::engine::{ASB, Engine, kubectl, stdout};
use crate::manifest::MANIFEST;

/// `asb controller`, as it runs on a cluster.
struct Controller(Child);

impl Controller {
    fn start(kubeconfig: &std::path::Path) -> Self {
        let mut command = Command::new(ASB);
        command.args(["controller", "--kubeconfig"]).arg(kubeconfig).args([
            "--watch-namespaces",
            "default",
            "--leader-elect=false",
            "--enable-webhook=false",
            "--metrics-bind-address=0",
            "--health-probe-bind-address=0",
        ]);
        Self(command.stdin(Stdio::null()).spawn().expect("asb can be started"))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifest_gets_the_same_conditions_and_children_on_both_api_servers() {
    let kubernetes = tokio::task::spawn_blocking(Kubernetes::shared).await.unwrap();
    let node = tokio::spawn(node::run(kubernetes.client().await, "default".to_owned()));
    let _controller = Controller::start(&kubernetes.kubeconfig);
    let engine = Engine::start();
    let [on_cluster, on_machine] =
        [&kubernetes.kubeconfig, &engine.kubeconfig()].map(|kubeconfig| observe(kubeconfig));
    assert_eq!(on_cluster, on_machine);
    kubectl(&kubernetes.kubeconfig, &["delete", "sandbox", "my-sandbox"], "");
    node.abort();
    engine.stop();
}

/// Applies the manifest, waits for Ready, and reads everything that must not depend on the server.
fn observe(kubeconfig: &std::path::Path) -> Value {
    let kubectl = |args: &[&str], input: &str| stdout(&kubectl(kubeconfig, args, input));
    kubectl(&["apply", "-f", "-"], MANIFEST);
    kubectl(&["wait", "--for=condition=Ready", "sandbox/my-sandbox", "--timeout=60s"], "");
    let get = |kind: &str, name: &str| -> Value {
        serde_json::from_str(&kubectl(&["get", kind, name, "-o", "json"], "")).unwrap()
    };
    let sandbox = get("sandbox", "my-sandbox");
    let conditions: Vec<_> = sandbox["status"]["conditions"].as_array().unwrap().iter().map(said).collect();
    let children: Vec<_> = [("pod", "my-sandbox"), ("service", "my-sandbox"), ("pvc", "work-my-sandbox")]
        .map(|(kind, name)| child(&get(kind, name), &sandbox["metadata"]["uid"]))
        .into();
    let status = &sandbox["status"];
    json!({
        "conditions": conditions, "children": children, "service": status["service"],
        "fqdn": status["serviceFQDN"], "selector": status["selector"], "spec": sandbox["spec"],
    })
}

fn said(condition: &Value) -> Value {
    let fields = ["type", "status", "reason", "message", "observedGeneration"];
    fields.iter().map(|field| condition[field].clone()).collect()
}

fn child(object: &Value, owner: &Value) -> Value {
    let meta = &object["metadata"];
    assert_eq!(&meta["ownerReferences"][0]["uid"], owner, "{} is owned by the Sandbox", meta["name"]);
    let mut owner = meta["ownerReferences"][0].clone();
    owner["uid"] = Value::Null;
    let volumes: Vec<_> = object["spec"]["volumes"].as_array().into_iter().flatten().cloned().collect();
    json!({
        "name": meta["name"], "labels": meta["labels"], "owner": owner, "volumes": volumes,
        "selector": object["spec"]["selector"], "clusterIP": object["spec"]["clusterIP"],
    })
}
