//! What a start finds, makes or refuses, on the embedded API server.

use std::time::Duration;

use asb_types::crd;
use asb_webhook::certificate::{self, LIFE, Pair, Verdict};
use asb_webhook::{Certificates, Identity, SECRET_NAME, Settings, Tls};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

struct World {
    client: Client,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let config =
            asb_apiserver::Config { data_dir: dir.path().to_owned(), crds: crd::all(), node_name: None };
        let server = asb_apiserver::ApiServer::open(config).await.expect("a server");
        Self { client: server.client("default"), _dir: dir }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), crd::WEBHOOK_NAMESPACE)
    }

    async fn keep(&self, pair: &Pair) {
        let secret = json!({"metadata": {"name": SECRET_NAME}, "stringData": {
            "ca.crt": pair.authorities, "tls.crt": pair.certificate, "tls.key": pair.key,
        }});
        let secret = serde_json::from_value(secret).expect("a Secret");
        self.secrets().create(&PostParams::default(), &secret).await.expect("the Secret is accepted");
    }

    async fn kept(&self) -> Pair {
        let data = self.secrets().get(SECRET_NAME).await.expect("a Secret").data.expect("its data");
        let field = |name: &str| String::from_utf8(data[name].0.clone()).expect("text");
        Pair { authorities: field("ca.crt"), certificate: field("tls.crt"), key: field("tls.key") }
    }

    /// Starts a webhook and stops it when it is ready.
    async fn start(&self) -> Result<(), asb_webhook::Error> {
        let (ready, served) = tokio::sync::oneshot::channel();
        let certificates = Certificates::Managed(identity());
        let settings = Settings {
            bind: ([127, 0, 0, 1], 0).into(),
            extensions: true,
            certificates,
            tls: Tls::default(),
        };
        let running =
            asb_webhook::run(self.client.clone(), settings, |_| ready.send(()).expect("somebody waits"));
        tokio::select! {
            stopped = running => stopped,
            ready = served => { ready.expect("ready or an error"); Ok(()) }
        }
    }

    async fn definition(&self) -> Value {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sandboxes.agents.x-k8s.io";
        self.client
            .request(http::Request::get(path).body(Vec::new()).expect("a request"))
            .await
            .expect("a CRD")
    }
}

fn identity() -> Identity {
    Identity { service: "svc".into(), check_every: Duration::from_secs(3600), ..Identity::default() }
}

fn names() -> [String; 4] {
    certificate::names("svc", crd::WEBHOOK_NAMESPACE, "cluster.local")
}

/// MG-20, MG-22
#[tokio::test]
async fn a_first_start_makes_a_certificate_and_leads_the_api_server_to_it() {
    let world = World::new().await;
    world.start().await.unwrap();
    let pair = world.kept().await;
    assert_eq!(certificate::judge(&pair, &names(), Timestamp::now()).unwrap(), Verdict::Keep);
    let config = world.definition().await["spec"]["conversion"]["webhook"]["clientConfig"].clone();
    assert_eq!(
        config["service"],
        json!({"name": "svc", "namespace": crd::WEBHOOK_NAMESPACE, "path": "/convert"})
    );
    use base64::Engine as _;
    let bundle =
        base64::engine::general_purpose::STANDARD.decode(config["caBundle"].as_str().unwrap()).unwrap();
    assert_eq!(bundle, pair.authorities.as_bytes());
}

/// MG-21
#[tokio::test]
async fn a_good_secret_is_used_as_it_is() {
    let world = World::new().await;
    let pair = certificate::issue(&names(), Timestamp::now(), LIFE).unwrap();
    world.keep(&pair).await;
    world.start().await.unwrap();
    assert_eq!(world.kept().await, pair);
}

#[tokio::test]
async fn an_expired_secret_or_one_for_another_name_is_replaced() {
    let other = certificate::names("other", crd::WEBHOOK_NAMESPACE, "cluster.local");
    for pair in [
        certificate::issue(&names(), Timestamp::now() - LIFE * 2, LIFE).unwrap(),
        certificate::issue(&other, Timestamp::now(), LIFE).unwrap(),
    ] {
        let world = World::new().await;
        world.keep(&pair).await;
        world.start().await.unwrap();
        let kept = world.kept().await;
        assert_ne!(kept, pair);
        assert_eq!(certificate::judge(&kept, &names(), Timestamp::now()).unwrap(), Verdict::Keep);
    }
}

/// MG-21
#[tokio::test]
async fn a_secret_that_holds_no_certificate_stops_the_start() {
    let world = World::new().await;
    world.keep(&Pair { authorities: "x".into(), certificate: "x".into(), key: "x".into() }).await;
    let refused = world.start().await.unwrap_err();
    assert!(refused.to_string().contains(SECRET_NAME));
    let source = std::error::Error::source(&refused).unwrap().to_string();
    assert!(source.contains("invalid certificate data"), "{source}");
}

#[tokio::test]
async fn replicas_that_start_together_agree_on_one_certificate() {
    let world = World::new().await;
    let (a, b, c) = tokio::join!(world.start(), world.start(), world.start());
    a.and(b).and(c).unwrap();
    let pair = world.kept().await;
    assert_eq!(certificate::judge(&pair, &names(), Timestamp::now()).unwrap(), Verdict::Keep);
}

#[tokio::test]
async fn objects_left_at_an_old_version_are_explained() {
    let world = World::new().await;
    asb_webhook::check_stored_versions(world.client.clone()).await.unwrap();
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sandboxes.agents.x-k8s.io/status";
    let patch = json!({"status": {"storedVersions": ["v1alpha1", "v1beta1"]}}).to_string().into_bytes();
    let request =
        http::Request::patch(path).header("content-type", "application/merge-patch+json").body(patch);
    world.client.request::<Value>(request.unwrap()).await.unwrap();
    let refused = asb_webhook::check_stored_versions(world.client.clone()).await.unwrap_err().to_string();
    assert!(refused.contains("sandboxes.agents.x-k8s.io") && refused.contains("storedVersions"), "{refused}");
}
