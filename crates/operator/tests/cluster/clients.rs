//! Published clients, unchanged, against our installation: from this machine through kubectl, and from a Pod in every
//! other mode that they have.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use asb_testing::clients::{self, GATEWAYS, Mounts, NEWEST, POOL, Place, Play, TEMPLATE, VERSIONS};
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE};
use crate::router::{RIGHTS, ROUTER};

/// Where clients and sandboxes are.
const USERS: &str = "default";
const CLIENT: &str = "client";
const VALUES: &str = "deploy/examples/values-shared-token.yaml";
const ADDRESS: &str = "http://sandbox-router-svc.agent-sandbox-system.svc.cluster.local:8080";
/// The Service in front of the router on port 80, which clients in gateway mode expect.
const FRONT: &str = "front";
/// Versions whose users have more in these modes than the legacy API.
const WITH_SANDBOXD: [&str; 2] = [NEWEST, "1.0.5.post1"];
/// What the router may still refuse or break after one of its two processes was killed, and for how long.
const KILLED_SECONDS: f64 = 5.0;

/// Installs the chart, for clients with a token of Kubernetes and for those with the router's own.
pub fn install(cluster: &Cluster, token: &str) {
    cluster.kubectl(&["create", "namespace", NAMESPACE]);
    let secret = ["create", "secret", "generic", "sandbox-router-token", "--namespace", NAMESPACE];
    cluster.kubectl(&[&secret[..], &[&format!("--from-literal=token={token}")]].concat());
    helm(cluster, "install", &["--set", "namespace.create=false", "--values", VALUES]);
}

fn helm(cluster: &Cluster, task: &str, more: &[&str]) {
    let chart = [task, "agent-sandbox", "deploy/helm/agent-sandbox", "--namespace", "default", "--wait"];
    cluster.helm(&[&chart[..], more].concat());
}

pub async fn published_clients_work(cluster: &Cluster, token: &str) {
    let handed = tempfile::tempdir().expect("a temporary directory");
    for (name, script) in [("scenes.py", clients::script()), ("steady.py", steady_caller())] {
        std::fs::copy(script, handed.path().join(name)).expect("the script can be copied");
    }
    storage(cluster);
    make_pool(cluster, USERS);
    start_client(cluster, handed.path());

    from_this_machine(cluster);
    let inside = Inside { cluster, handed: handed.path() };
    let shared = json!({"url": ADDRESS, "token": token});
    let own = cluster.kubectl(&["create", "token", "sandbox-client", "--namespace", USERS]);
    let own = json!({"url": ADDRESS, "token": own.trim()});
    inside.play(&Play::new(NEWEST, "direct").with(own));
    for version in &VERSIONS[1..] {
        // They can send a password in the URL only, and that is never shown to the API server.
        inside.play(&Play::new(version, "direct").with(shared.clone()));
    }
    for version in VERSIONS {
        inside.play(&Play::new(version, "in-cluster").cheap_scenes());
    }
    for version in WITH_SANDBOXD {
        // gRPC asks for the address behind a name every 30 s at most, so a resumed sandbox is out of its reach as long.
        for mode in ["sandboxd-pod-ip", "sandboxd-service"] {
            inside.play(&Play::new(version, mode).cheap_scenes());
        }
    }
    a_killed_router_is_back_soon(&inside, token).await;
    gateway(&inside, token);
    cluster.kubectl(&["delete", "pod", CLIENT, "--namespace", USERS, "--grace-period=0", "--force"]);
}

/// Tunnels, which clients make with kubectl.
fn from_this_machine(cluster: &Cluster) {
    let kubeconfig = cluster.kubeconfig();
    for version in VERSIONS {
        // Before 0.5, clients look for the router in the namespace of the sandbox.
        let namespace = if version.starts_with("0.4.") { NAMESPACE } else { USERS };
        if namespace != USERS {
            make_pool(cluster, namespace);
        }
        Play::new(version, "tunnel").in_namespace(namespace).run(kubeconfig, Place::Cluster);
        if namespace != USERS {
            clients::run_code_executor(kubeconfig, namespace);
            let objects = [format!("sandboxwarmpool/{POOL}"), format!("sandboxtemplate/{TEMPLATE}")];
            cluster.kubectl(&["delete", &objects[0], &objects[1], "--namespace", namespace]);
        }
    }
    for version in WITH_SANDBOXD {
        Play::new(version, "sandboxd-tunnel").cheap_scenes().run(kubeconfig, Place::Cluster);
    }
}

/// Gateway mode, for which the router has to let everybody in. The upgrade that does it loses no request.
fn gateway(inside: &Inside<'_>, token: &str) {
    let cluster = inside.cluster;
    let sandbox = claim(cluster, "steady");
    let caller = inside.steady(&sandbox, token, "upgraded");
    let open = ["router.authz.mode=allow-all,router.extraArgs=null", "namespace.create=false"];
    helm(cluster, "upgrade", &["--values", VALUES, "--set", open[0], "--set", open[1]]);
    let report = caller.stop(inside);
    release(cluster, "steady");
    assert_eq!(report["failed"], json!(0), "an upgrade loses no request: {report}");
    println!("requests while the router was upgraded: {report}");

    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": FRONT},
        "spec": {"selector": {"app": "sandbox-router"}, "ports": [{"port": 80, "targetPort": "proxy"}]},
    });
    cluster.kubectl_apply(NAMESPACE, &service);
    let address = ["get", "service", FRONT, "--namespace", NAMESPACE, "--output=jsonpath={.spec.clusterIP}"];
    let (object, status) = clients::gateway(FRONT, &cluster.kubectl(&address));
    cluster.kubectl_apply_text(GATEWAYS);
    let definition = "customresourcedefinition/gateways.gateway.networking.k8s.io";
    cluster.kubectl(&["wait", "--for=condition=Established", definition, "--timeout=30s"]);
    cluster.kubectl_apply(USERS, &object);
    let status = status.to_string();
    let patch =
        ["patch", "gateway", FRONT, "--namespace", USERS, "--subresource=status", "--type=merge", "-p"];
    cluster.kubectl(&[&patch[..], &[&status]].concat());
    for version in VERSIONS {
        inside.play(&Play::new(version, "gateway").cheap_scenes().with(json!({"gateway": FRONT})));
    }
    cluster.kubectl(&["delete", definition]);
}

/// kill -9 of one of the two: callers lose what was in flight there, and what comes until the Service forgets it.
async fn a_killed_router_is_back_soon(inside: &Inside<'_>, token: &str) {
    let sandbox = claim(inside.cluster, "killed");
    let caller = inside.steady(&sandbox, token, "killed");
    inside.cluster.kill_one(ROUTER);
    inside.cluster.rolled_out(ROUTER).await;
    let report = caller.stop(inside);
    release(inside.cluster, "killed");
    let answered = report["answered"].as_u64().unwrap_or_default();
    let outage = report["outage"].as_f64().unwrap_or(f64::INFINITY);
    println!("requests while one of two routers was killed: {report}");
    assert!(answered > 0 && outage < KILLED_SECONDS, "{report}");
}

/// A claim on the pool; its Sandbox.
fn claim(cluster: &Cluster, name: &str) -> String {
    cluster.kubectl_apply(USERS, &crate::stories::claim(name, POOL));
    let object = format!("sandboxclaim/{name}");
    let about = ["--namespace", USERS, &object];
    cluster.kubectl(&[&["wait", "--for=condition=Ready", "--timeout=60s"], &about[..]].concat());
    cluster.kubectl(&[&["get", "--output=jsonpath={.status.sandbox.name}"], &about[..]].concat())
}

/// Scenes count the claims that are there.
fn release(cluster: &Cluster, claim: &str) {
    cluster.kubectl(&["delete", "sandboxclaim", claim, "--namespace", USERS, "--timeout=60s"]);
}

/// Volumes for the scene that asks for one: this cluster has no provisioner.
fn storage(cluster: &Cluster) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "kubernetes.io/no-provisioner",
        "metadata": {"name": "node", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    });
    cluster.kubectl_apply(USERS, &class);
    for number in 0..12 {
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("clients-{number}")},
            "spec": {
                "capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "node",
                "hostPath": {"path": format!("/var/lib/volumes/clients-{number}"), "type": "DirectoryOrCreate"},
            },
        });
        cluster.kubectl_apply(USERS, &volume);
    }
}

/// Sandboxes of the runtime image, which brings sandboxd.
fn make_pool(cluster: &Cluster, namespace: &str) {
    let container = json!({
        "name": "runtime", "image": format!("sandbox-runtime:{}", env!("CARGO_PKG_VERSION")),
        "readinessProbe": {"httpGet": {"path": "/v1/health", "port": 8080}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    });
    for object in clients::pool(&container, &json!({"service": true})) {
        cluster.kubectl_apply(namespace, &object);
    }
    let full = format!("--for=jsonpath={{.status.readyReplicas}}={}", clients::MEMBERS);
    let pool = format!("sandboxwarmpool/{POOL}");
    cluster.kubectl(&["wait", &full, &pool, "--namespace", namespace, "--timeout=120s"]);
}

/// A Pod with every version of the client, and with the rights that a client needs.
fn start_client(cluster: &Cluster, handed: &Path) {
    cluster.kubectl(&["apply", "--namespace", USERS, "--filename", RIGHTS]);
    // What the scenes look at beside.
    let more = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "scenes"},
        "rules": [
            {"apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["pods", "persistentvolumeclaims"], "verbs": ["get", "list"]},
            {"apiGroups": ["gateway.networking.k8s.io"], "resources": ["gateways"], "verbs": ["get", "list", "watch"]},
        ],
    });
    cluster.kubectl_apply(USERS, &more);
    let binding = ["create", "rolebinding", "scenes", "--role=scenes"];
    let subject = format!("--serviceaccount={USERS}:sandbox-client");
    cluster.kubectl(&[&binding[..], &[&subject, "--namespace", USERS]].concat());
    let mounts = Mounts::new(handed);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": CLIENT},
        "spec": {
            "serviceAccountName": "sandbox-client", "terminationGracePeriodSeconds": 0, "volumes": mounts.volumes(),
            "containers": [{
                "name": "main", "image": format!("sandbox-runtime:{}", env!("CARGO_PKG_VERSION")),
                "command": ["sleep", "infinity"], "volumeMounts": mounts.mounts(),
                "securityContext": {"runAsUser": 0},
                "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
            }],
        },
    });
    cluster.kubectl_apply(USERS, &pod);
    let pod = format!("pod/{CLIENT}");
    cluster.kubectl(&["wait", "--for=condition=Ready", &pod, "--namespace", USERS, "--timeout=60s"]);
}

/// The script of a caller that never stops to call.
fn steady_caller() -> std::path::PathBuf {
    asb_testing::root().join("crates/operator/tests/cluster/steady.py")
}

/// The Pod with the clients.
struct Inside<'a> {
    cluster: &'a Cluster,
    handed: &'a Path,
}

impl Inside<'_> {
    fn play(&self, play: &Play<'_>) {
        let (python, script) = (clients::interpreter(play.version), self.handed.join("scenes.py"));
        let output = self
            .exec(&[&python.to_string_lossy(), &script.to_string_lossy(), &play.settings()])
            .output()
            .expect("kubectl can be run");
        play.judge(&output, Place::Cluster);
    }

    fn exec(&self, command: &[&str]) -> Command {
        let mut kubectl = self.cluster.command("KUBECTL");
        kubectl.args(["exec", CLIENT, "--namespace", USERS, "--"]).args(command);
        kubectl
    }

    /// Starts to send requests to a sandbox through the router; returns when the first ones were answered.
    fn steady(&self, sandbox: &str, token: &str, name: &str) -> Steady {
        let script = self.handed.join("steady.py");
        let stop = format!("/tmp/{name}");
        let arguments = ["python3", &script.to_string_lossy(), ADDRESS, USERS, sandbox, token, &stop];
        let mut kubectl = self.exec(&arguments).stdout(Stdio::piped()).spawn().expect("kubectl can be run");
        let mut first = [0; 8];
        let stdout = kubectl.stdout.as_mut().expect("stdout is a pipe");
        std::io::Read::read_exact(stdout, &mut first).expect("the caller reports its first answers");
        assert_eq!(&first, b"calling\n");
        Steady { kubectl, stop }
    }
}

struct Steady {
    kubectl: Child,
    /// A file in the Pod that ends the caller.
    stop: String,
}

impl Steady {
    /// How many requests were answered and how many failed, and the longest time without an answer.
    fn stop(self, inside: &Inside<'_>) -> Value {
        let touched = inside.exec(&["touch", &self.stop]).status().expect("kubectl can be run");
        assert!(touched.success());
        let Output { stdout, .. } = self.kubectl.wait_with_output().expect("the caller ends");
        let text = String::from_utf8_lossy(&stdout);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }
}
