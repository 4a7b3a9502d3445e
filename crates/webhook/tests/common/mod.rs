//! A real kube-apiserver of our own, with both versions of our kinds and the webhook that converts between them.
#![allow(dead_code)] // each test file uses its part

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use asb_testing::Kubernetes;
use asb_types::crd;
use asb_webhook::{Certificates, Identity, Settings, Tls};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::AbortHandle;

pub const ALPHA: &str = "/apis/agents.x-k8s.io/v1alpha1/namespaces/default/sandboxes";
pub const BETA: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";

/// The longest that a state may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Cluster {
    pub client: Client,
    pub kubernetes: Kubernetes,
    port: u16,
}

pub fn sandbox(version: &str, name: &str) -> Value {
    json!({
        "apiVersion": format!("agents.x-k8s.io/{version}"), "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main"}]}}},
    })
}

pub fn identity() -> Identity {
    Identity {
        check_every: Duration::from_millis(200),
        overlap: Duration::from_secs(2),
        ..Identity::default()
    }
}

impl Cluster {
    /// With CRDs that lead to a webhook that does not run yet.
    pub async fn start() -> Self {
        let kubernetes = tokio::task::spawn_blocking(Kubernetes::start).await.expect("Kubernetes starts");
        let client = kubernetes.client().await;
        let port = free_port();
        let cluster = Self { client, kubernetes, port };
        let namespace: Namespace = from(json!({"metadata": {"name": crd::WEBHOOK_NAMESPACE}}));
        cluster.create(Api::all(cluster.client.clone()), namespace).await;
        // The API server follows this name instead of a cluster network, and insists on the Service's own name in TLS.
        let service: Service = from(json!({
            "metadata": {"name": crd::WEBHOOK_SERVICE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }));
        cluster.create(Api::namespaced(cluster.client.clone(), crd::WEBHOOK_NAMESPACE), service).await;
        let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
        for mut definition in crd::all() {
            definition["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] = port.into();
            let apply = PatchParams::apply("test").force();
            definitions
                .patch(crd::name(&definition), &apply, &Patch::Apply(&definition))
                .await
                .expect("CRDs are valid");
        }
        cluster
    }

    async fn create<K>(&self, api: Api<K>, object: K)
    where
        K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
    {
        api.create(&PostParams::default(), &object).await.expect("the object is accepted");
    }

    /// Runs the webhook that the CRDs lead to, until aborted, and waits until it serves.
    pub async fn webhook(&self, identity: Identity) -> AbortHandle {
        self.replica(identity, SocketAddr::from(([127, 0, 0, 1], self.port))).await
    }

    /// Runs a webhook anywhere.
    pub async fn replica(&self, identity: Identity, bind: SocketAddr) -> AbortHandle {
        let settings = Settings {
            bind,
            extensions: true,
            certificates: Certificates::Managed(identity),
            tls: Tls::default(),
        };
        let (ready, served) = tokio::sync::oneshot::channel();
        let client = self.client.clone();
        let running = tokio::spawn(async move {
            let stopped =
                asb_webhook::run(client, settings, |_| ready.send(()).expect("somebody waits")).await;
            panic!("the webhook stopped: {stopped:?}");
        });
        served.await.expect("the webhook serves");
        running.abort_handle()
    }

    /// Waits until v1alpha1 is served: new versions take the API server a moment.
    pub async fn v1alpha1_is_served(&self) {
        self.eventually("v1alpha1 is served", async || self.get(ALPHA).await.is_ok()).await;
    }

    pub async fn call(
        &self,
        method: &str,
        path: &str,
        media_type: &str,
        body: &Value,
    ) -> Result<Value, kube::Error> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path).header("content-type", media_type);
        self.client.request(request.body(body).expect("a valid request")).await
    }

    pub async fn get(&self, path: &str) -> Result<Value, kube::Error> {
        self.call("GET", path, "application/json", &Value::Null).await
    }

    pub async fn post(&self, path: &str, object: &Value) -> Result<Value, kube::Error> {
        self.call("POST", path, "application/json", object).await
    }

    pub async fn merge(&self, path: &str, patch: Value) -> Result<Value, kube::Error> {
        self.call("PATCH", path, "application/merge-patch+json", &patch).await
    }

    pub async fn eventually(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        let wait = async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .unwrap_or_else(|_| panic!("not so after a minute: {what}"));
    }
}

fn from<K: serde::de::DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).expect("an object of that kind")
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

pub fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> String {
    let program = std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into());
    let output = Command::new(program).arg("--kubeconfig").arg(kubeconfig).args(arguments).output();
    let output = output.expect("kubectl is on PATH or in KUBECTL");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}
