//! The server alone: what it answers, and that it follows its certificate files.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use asb_webhook::certificate::{self, LIFE, Pair};
use asb_webhook::{Certificates, Settings, Tls};
use jiff::Timestamp;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

struct Webhook {
    address: SocketAddr,
    pair: Pair,
    running: tokio::task::JoinHandle<()>,
}

impl Webhook {
    async fn start(dir: &Path) -> Self {
        Self::speaking(dir, Tls::default()).await
    }

    async fn speaking(dir: &Path, tls: Tls) -> Self {
        let pair = issue();
        write(dir, &pair);
        let files =
            Certificates::Files { dir: dir.into(), certificate: "tls.crt".into(), key: "tls.key".into() };
        let bind = ([127, 0, 0, 1], 0).into();
        let settings = Settings { bind, extensions: true, certificates: files, tls };
        let (ready, address) = tokio::sync::oneshot::channel();
        // Files are read without any API server.
        let nowhere = kube::Config::new("http://127.0.0.1:9".parse().expect("a URL"));
        let client = kube::Client::try_from(nowhere).expect("a client");
        let running = tokio::spawn(async move {
            let stopped =
                asb_webhook::run(client, settings, |address| ready.send(address).expect("somebody waits"));
            panic!("the webhook stopped: {:?}", stopped.await);
        });
        Self { address: address.await.expect("the webhook serves"), pair, running }
    }

    async fn connect(&self, authorities: &str) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_by(authorities, rustls::DEFAULT_VERSIONS).await
    }

    async fn connect_by(
        &self,
        authorities: &str,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
            roots.add(authority.expect("a certificate")).expect("an authority");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("svc.ns.svc").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Status and body of one request.
    async fn send(&self, head: &str, body: &[u8]) -> (u16, String) {
        self.send_part(head, body.len(), body).await
    }

    /// Announces a body of that length, and sends this much of it.
    async fn send_part(&self, head: &str, length: usize, body: &[u8]) -> (u16, String) {
        let mut stream = self.connect(&self.pair.authorities).await.expect("a trusted connection");
        let head =
            format!("{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("the head is read");
        // A server that refuses a body may hang up before the end of it.
        let _ = stream.write_all(body).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let code = text.get(9..12).and_then(|code| code.parse().ok()).unwrap_or_default();
        (code, text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn issue() -> Pair {
    certificate::issue(&certificate::names("svc", "ns", "cluster.local"), Timestamp::now(), LIFE)
        .expect("a certificate")
}

fn write(dir: &Path, pair: &Pair) {
    for (name, text) in [("tls.crt", &pair.certificate), ("tls.key", &pair.key)] {
        std::fs::write(dir.join(name), text).expect("a file");
    }
}

#[tokio::test]
async fn only_reviews_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let webhook = Webhook::start(dir.path()).await;
    assert_eq!(webhook.send("GET /convert", b"").await.0, 405);
    assert_eq!(webhook.send("POST /other", b"{}").await.0, 404);
    assert_eq!(webhook.send("POST /convert", b"{").await.0, 400);
    assert_eq!(webhook.send("POST /convert", b"{}").await.0, 400);
    let review = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "u", "desiredAPIVersion": "agents.x-k8s.io/v1alpha1", "objects": [
            {"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "a"}, "spec": {}},
        ]},
    });
    let (code, body) = webhook.send("POST /convert", review.to_string().as_bytes()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &answer["response"]["convertedObjects"][0]["spec"]["replicas"]), (200, &json!(1)));
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_unread() {
    let dir = tempfile::tempdir().unwrap();
    let webhook = Webhook::start(dir.path()).await;
    assert_eq!(webhook.send_part("POST /convert", (64 << 20) + 1, b"").await.0, 413, "before any of it came");
    assert_eq!(webhook.send("POST /convert", b"{}").await.0, 400, "others are still served");
}

#[tokio::test]
async fn only_the_wanted_versions_of_tls_are_spoken() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls { versions: vec![&rustls::version::TLS13], ..Tls::default() };
    let webhook = Webhook::speaking(dir.path(), tls).await;
    let connect = async |version| webhook.connect_by(&webhook.pair.authorities, &[version]).await;
    connect(&rustls::version::TLS13).await.expect("TLS 1.3 is spoken");
    assert!(connect(&rustls::version::TLS12).await.is_err(), "TLS 1.2 is not");
}

#[tokio::test(start_paused = true)]
async fn files_that_change_are_served_to_new_connections() {
    let dir = tempfile::tempdir().unwrap();
    let webhook = Webhook::start(dir.path()).await;
    webhook.connect(&webhook.pair.authorities).await.expect("the first certificate");
    std::fs::write(dir.path().join("tls.key"), "half-writ").unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    webhook.connect(&webhook.pair.authorities).await.expect("what cannot be used is not served");
    let next = issue();
    write(dir.path(), &next);
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    webhook.connect(&next.authorities).await.expect("the new certificate");
    assert!(webhook.connect(&webhook.pair.authorities).await.is_err());
}
