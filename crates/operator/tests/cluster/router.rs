//! The router on a cluster: a claimed sandbox is reached through `kubectl port-forward`, as published clients do it, and
//! by a token of Kubernetes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use asb_testing::{Commands, World};
use asb_types::{Claim, WarmPool};
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE};
use crate::stories::{claim, claim_is_ready, pool_has};

pub const ROUTER: &str = "sandbox-router";
const SERVICE: &str = "svc/sandbox-router-svc";
/// The example that documents how a template brings sandboxd.
const EXAMPLE: &str = "deploy/examples/template-with-sandboxd.yaml";
const POOL: &str = "with-sandboxd";
/// The example that documents the rights of a client, and whom it gives them.
pub const RIGHTS: &str = "deploy/examples/client-rights.yaml";
const CLIENT: &str = "sandbox-client";

pub async fn claimed_sandbox_is_reached_through_a_port_forward(cluster: &Cluster, world: &World) {
    cluster.rolled_out(ROUTER).await;
    cluster.kubectl(&["apply", "--namespace", &world.namespace, "--filename", EXAMPLE]);
    world.eventually::<WarmPool>(POOL, pool_has(2)).await;
    world.create::<Claim>(claim("routed", POOL)).await;
    let bound: Claim = world.eventually("routed", claim_is_ready).await;
    let sandbox =
        bound.status.and_then(|status| status.sandbox).expect("a claim that is ready names its Sandbox");

    cluster.kubectl(&["get", SERVICE, "--namespace", NAMESPACE]);
    let forward = Forward::start(cluster);
    let answer = forward.execute(&world.namespace, &sandbox.name);
    assert_eq!((&answer["stdout"], &answer["exit_code"]), (&json!("6\n"), &json!(0)), "{answer}");
    refuses_who_shows_no_credentials(cluster, &world.namespace, &sandbox.name).await;
    lets_in_who_has_the_right(cluster, &world.namespace, &sandbox.name);
}

/// The router asks the API server who has a token, and whether that user may reach this sandbox.
fn lets_in_who_has_the_right(cluster: &Cluster, namespace: &str, sandbox: &str) {
    cluster.kubectl(&["apply", "--namespace", namespace, "--filename", RIGHTS]);
    let execute = |account| connect(cluster, namespace, account).execute(sandbox, "sh -c 'echo here'");
    let (status, answer) = execute(CLIENT);
    assert_eq!((status, &answer["stdout"]), (200, &json!("here\n")), "{answer}");
    let (status, answer) = execute("default");
    assert_eq!((status, &answer["detail"]), (403, &json!("forbidden")), "{answer}");
}

/// An open connection from the node to the router's Service, for a client with the rights that are documented.
pub fn connect_client(cluster: &Cluster, namespace: &str) -> Commands {
    connect(cluster, namespace, CLIENT)
}

fn connect(cluster: &Cluster, namespace: &str, account: &str) -> Commands {
    let token = cluster.kubectl(&["create", "token", account, "--namespace", namespace]);
    let address = ["get", SERVICE, "--namespace", NAMESPACE, "--output=jsonpath={.spec.clusterIP}:8080"];
    let address = cluster.kubectl(&address).parse().expect("the address of a Service");
    Commands::over(cluster.connect(address), token.trim(), namespace)
}

/// By the API server's proxy a request comes from the node, not from the Pod's loopback.
async fn refuses_who_shows_no_credentials(cluster: &Cluster, namespace: &str, sandbox: &str) {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/services/sandbox-router-svc:proxy/proxy/");
    let request = http::Request::get(path)
        .header("X-Sandbox-ID", sandbox)
        .header("X-Sandbox-Namespace", namespace)
        .body(kube::client::Body::empty())
        .expect("a request");
    let answer = cluster.client.send(request).await.expect("the API server answers");
    assert_eq!(answer.status(), 401);
}

/// A kubectl that forwards a local port to the Service.
struct Forward {
    kubectl: Child,
    address: String,
}

impl Forward {
    fn start(cluster: &Cluster) -> Self {
        let mut kubectl = cluster
            .command("KUBECTL")
            .args(["port-forward", "--namespace", NAMESPACE, SERVICE, ":8080", "--address", "127.0.0.1"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("kubectl can be run");
        let mut line = String::new();
        let mut lines = BufReader::new(kubectl.stdout.take().expect("stdout is a pipe"));
        lines.read_line(&mut line).expect("kubectl says where it listens");
        // It reports every connection; a pipe without a reader would end it.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let address = line.split(' ').nth(2).unwrap_or_default().to_owned();
        assert!(!address.is_empty(), "kubectl forwards nothing: {line:?}");
        Self { kubectl, address }
    }

    /// What a command in the sandbox says, asked for without any token.
    fn execute(&self, namespace: &str, sandbox: &str) -> Value {
        let output = Command::new("curl")
            .args([
                "--silent",
                "--show-error",
                "--fail-with-body",
                "--header",
                "Content-Type: application/json",
            ])
            .args(["--header", &format!("X-Sandbox-ID: {sandbox}")])
            .args(["--header", &format!("X-Sandbox-Namespace: {namespace}")])
            .args(["--data", r#"{"command": "sh -c 'echo $((2 * 3))'"}"#])
            .arg(format!("http://{}/execute", self.address))
            .output()
            .expect("curl can be run");
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
