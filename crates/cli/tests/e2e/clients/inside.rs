//! In-cluster modes: the client runs in a Pod of the same engine and connects to the addresses of other Pods.
//!
//! No sandbox reaches the API of `asb up` by default. Here the API listens on an address of the machine, and a
//! NetworkPolicy names exactly that address; another one lets the client's Pod reach the ports of sandboxd.

use std::path::Path;

use asb_network::testing::{MACHINE, on_a_machine};
use asb_testing::clients::{Mounts, NEWEST, Place, Play, VERSIONS, interpreter, script};
use serde_json::{Value, json};

use super::{delete_pool, pool};
use crate::engine::{Engine, stdout};

const PORTS: [u16; 3] = [8888, 8080, 9090];

fn policies() -> [Value; 2] {
    let ports = PORTS.map(|port| json!({"port": port, "protocol": "TCP"}));
    let policy = |name: &str, spec: Value| json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec});
    let client = json!({"matchLabels": {"app": "client"}});
    let resolver = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    });
    [
        policy(
            "client-out",
            json!({
                "podSelector": client, "policyTypes": ["Egress"],
                "egress": [
                    {"to": [{"ipBlock": {"cidr": format!("{MACHINE}/32")}}]},
                    {"to": [resolver]},
                    {"to": [{"podSelector": {}}], "ports": ports},
                ],
            }),
        ),
        policy(
            "client-in",
            json!({
                "podSelector": {}, "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": client}], "ports": ports}],
            }),
        ),
    ]
}

fn client_pod(mounts: &Mounts, handed: &Path) -> Value {
    let env = [
        json!({"name": "KUBECONFIG", "value": handed.join("kubeconfig")}),
        json!({"name": "NO_PROXY", "value": "*"}),
        json!({"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}),
    ];
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client", "labels": {"app": "client"}},
        "spec": {
            "terminationGracePeriodSeconds": 0, "volumes": mounts.volumes(),
            "containers": [{
                "name": "main", "image": "host", "command": ["sleep", "1000"], "env": env, "volumeMounts": mounts.mounts(),
            }],
        },
    })
}

fn play(engine: &Engine, handed: &Path, play: &Play<'_>) {
    let python = interpreter(play.version);
    let script = handed.join("client.py");
    let settings = play.settings();
    let command = ["exec", "client", "--", python.to_str().unwrap(), script.to_str().unwrap(), &settings];
    play.judge(&engine.kubectl(&command), Place::Engine);
}

#[test]
fn clients_inside_reach_sandboxes_by_address_and_by_name() {
    on_a_machine(|_| {
        let handed = tempfile::tempdir().unwrap();
        let mounts = Mounts::new(handed.path());
        let paths = mounts.paths().iter().map(|path| format!("--allow-host-path={}", path.display()));
        let options: Vec<_> = std::iter::once(format!("--api={MACHINE}:0")).chain(paths).collect();
        let engine = Engine::start_with(&options.iter().map(String::as_str).collect::<Vec<_>>());
        std::fs::copy(engine.kubeconfig(), handed.path().join("kubeconfig")).unwrap();
        std::fs::copy(script(), handed.path().join("client.py")).unwrap();
        for policy in policies() {
            stdout(&engine.kubectl_apply(&policy.to_string()));
        }
        let listens = json!({"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1});
        let container = json!({"name": "main", "image": "host", "command": ["/.asb/sandboxd"], "readinessProbe": listens});
        pool(&engine, "default", &container, &json!({"service": true}));
        stdout(&engine.kubectl_apply(&client_pod(&mounts, handed.path()).to_string()));
        stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod/client", "--timeout=30s"]));

        for version in VERSIONS {
            play(&engine, handed.path(), &Play::new(version, "in-cluster"));
        }
        for version in [NEWEST, "1.0.5.post1"] {
            for mode in ["sandboxd-pod-ip", "sandboxd-service"] {
                play(&engine, handed.path(), &Play::new(version, mode));
            }
        }
        stdout(&engine.kubectl(&["delete", "pod", "client"]));
        delete_pool(&engine, "default");
        engine.stop();
    });
}
