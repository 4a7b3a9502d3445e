//! Whole replicas on both API servers: probes, metrics, and a hand-over under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use asb_operator::election::LEASE;
use asb_operator::{Operator, Options, Settings};
use asb_testing::World;
use asb_types::{Sandbox, condition};
use clap::Parser;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::client::Body;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

asb_testing::both_servers! {
    replica_is_ready_only_when_its_caches_are_complete,
    metrics_tell_what_happened,
    strangers_are_noticed_although_only_labelled_objects_are_watched,
    second_replica_takes_over_within_two_seconds_while_sandboxes_are_made,
}

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Parser)]
#[command(disable_version_flag = true)]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// Settings for one namespace, with endpoints on free ports of the loopback.
fn settings(world: &World, flags: &[&str]) -> Settings {
    let namespace = world.namespace.as_str();
    let own = [
        "controller".to_owned(),
        format!("--watch-namespaces={namespace}"),
        format!("--leader-election-namespace={namespace}"),
        "--enable-webhook=false".to_owned(),
        "--metrics-bind-address=127.0.0.1:0".to_owned(),
        "--health-probe-bind-address=127.0.0.1:0".to_owned(),
    ];
    let args = Args::try_parse_from(own.into_iter().chain(flags.iter().map(|&flag| flag.to_owned())));
    args.unwrap_or_else(|error| panic!("{error}")).options.settings().expect("the settings are valid")
}

/// A replica that runs until it is stopped.
struct Replica {
    metrics: std::net::SocketAddr,
    probes: std::net::SocketAddr,
    stop: CancellationToken,
    running: JoinHandle<anyhow::Result<()>>,
}

impl Replica {
    async fn start(client: Client, settings: &Settings) -> Self {
        let operator = Operator::open(client, settings, None).await.expect("the settings work");
        let metrics = operator.metrics_address().expect("metrics are served");
        let probes = operator.probes_address().expect("probes are served");
        let stop = CancellationToken::new();
        let running = tokio::spawn(operator.run(stop.clone()));
        Self { metrics, probes, stop, running }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.running.await.expect("it does not panic").expect("it stops without an error");
    }

    async fn becomes_ready(&self) {
        let until = Instant::now() + PATIENCE;
        while get(self.probes, "/readyz").await.0 != 200 {
            assert!(Instant::now() < until, "never ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the page of metrics has this line.
    async fn eventually(&self, line: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let (_, page) = get(self.metrics, "/metrics").await;
            if page.lines().any(|found| found == line) {
                return;
            }
            assert!(Instant::now() < until, "no line {line:?} in:\n{page}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn get(address: std::net::SocketAddr, path: &str) -> (u16, String) {
    ask(TcpStream::connect(address).await.expect("somebody listens"), path).await
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("a request can be sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer comes");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, body.to_owned())
}

fn sandbox(name: &str) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "image"}]}}},
    })
}

fn is_ready(sandbox: &Sandbox) -> bool {
    is(sandbox, condition::READY)
}

fn says(sandbox: &Sandbox, reason: &str) -> bool {
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice());
    let ready = condition::get(conditions.unwrap_or_default(), condition::READY);
    ready.is_some_and(|ready| ready.reason == reason)
}

fn is(sandbox: &Sandbox, kind: &str) -> bool {
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice());
    condition::get(conditions.unwrap_or_default(), kind).is_some_and(|found| found.status == "True")
}

async fn replica_is_ready_only_when_its_caches_are_complete(world: World) {
    let world = world.without_controllers().await;
    let gate = Gate::default();
    let client = gate.before(world.client.clone());
    let replica = Replica::start(client, &settings(&world, &[])).await;
    assert_eq!(get(replica.probes, "/readyz").await, (503, "not yet: caches".to_owned()));
    assert_eq!(get(replica.probes, "/healthz").await, (200, "ok".to_owned()), "it lives all the same");
    gate.open();
    replica.becomes_ready().await;
    replica.stop().await;
}

async fn metrics_tell_what_happened(world: World) {
    let world = world.without_controllers().await;
    let replica = Replica::start(world.client.clone(), &settings(&world, &["--extensions"])).await;
    for name in ["a", "b", "c"] {
        world.create::<Sandbox>(sandbox(name)).await;
        world.eventually::<Sandbox>(name, is_ready).await;
    }
    let namespace = world.namespace.clone();
    let fleet = |ready: bool, count: u32| {
        format!(
            "agent_sandboxes{{namespace=\"{namespace}\",ready_condition=\"{ready}\",expired=\"false\",\
             launch_type=\"cold\",sandbox_template=\"unknown\",owned_by=\"None\",created_by=\"unknown\"}} {count}"
        )
    };
    replica.eventually(&fleet(true, 3)).await;
    replica.eventually(&format!("leader_election_master_status{{name=\"{LEASE}\"}} 1")).await;

    world.merge::<Sandbox>("a", json!({"spec": {"operatingMode": "Suspended"}})).await;
    world.eventually::<Sandbox>("a", |sandbox| is(sandbox, condition::SUSPENDED)).await;
    world.merge::<Sandbox>("a", json!({"spec": {"operatingMode": "Running"}})).await;
    world.eventually::<Sandbox>("a", is_ready).await;
    world.merge::<Sandbox>("b", json!({"spec": {"shutdownTime": "2026-01-01T00:00:00Z"}})).await;
    for name in [
        "suspend_total",
        "resume_total",
        "expired_total",
        "suspend_latency_ms_count",
        "resume_latency_ms_count",
    ] {
        replica.eventually(&format!("agent_sandbox_{name}{{namespace=\"{namespace}\"}} 1")).await;
    }
    replica.eventually("workqueue_depth{name=\"sandbox\"} 0").await;
    let (_, page) = get(replica.metrics, "/metrics").await;
    for name in [
        "agent_sandbox_build_info{",
        "controller_runtime_reconcile_total{controller=\"sandbox\",result=\"success\"}",
        "controller_runtime_reconcile_time_seconds_count{controller=\"sandbox\"}",
        "controller_runtime_reconcile_errors_total{controller=\"sandbox\"}",
        "controller_runtime_max_concurrent_reconciles{controller=\"sandbox\"} 100",
        "controller_runtime_active_workers{controller=\"sandboxclaim\"} 0",
        "workqueue_unfinished_work_seconds{name=\"sandboxwarmpool\"} 0.0",
        "workqueue_longest_running_processor_seconds{name=\"sandboxtemplate\"} 0.0",
        "workqueue_queue_duration_seconds_bucket{",
        "process_cpu_seconds_total ",
        "process_open_fds ",
    ] {
        assert!(page.contains(name), "no {name} in:\n{page}");
    }
    replica.stop().await;
}

/// MG-04: what is not watched is looked at when it stands in the way
async fn strangers_are_noticed_although_only_labelled_objects_are_watched(world: World) {
    let world = world.without_controllers().await;
    let container = json!({"containers": [{"name": "theirs", "image": "image"}]});
    let adoptable = json!({"agents.x-k8s.io/adoptable": "true"});
    let storage = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let pod =
        |name: &str, labels: &Value| json!({"metadata": {"name": name, "labels": labels}, "spec": container});
    world.create::<Pod>(pod("taken", &json!({}))).await;
    let prepared: Pod = world.create(pod("prepared", &adoptable)).await;
    let metadata = json!({"name": "data-prepared", "labels": adoptable});
    world.create::<PersistentVolumeClaim>(json!({"metadata": metadata, "spec": storage})).await;
    // With its selector: one without cannot get any on a cluster of one family of addresses.
    let selector = json!({"agents.x-k8s.io/sandbox-name-hash": asb_types::name::name_hash("prepared")});
    let metadata = json!({"name": "prepared", "labels": adoptable});
    let headless = json!({"metadata": metadata, "spec": {"clusterIP": "None", "selector": selector}});
    world.create::<Service>(headless).await;

    let replica = Replica::start(world.client.clone(), &settings(&world, &["--cache-label-selectors"])).await;
    world.create::<Sandbox>(sandbox("taken")).await;
    let told = world.eventually::<Sandbox>("taken", |sandbox| says(sandbox, "ReconcilerError")).await;
    let conditions = told.status.expect("it has a status").conditions;
    let message = &condition::get(&conditions, condition::READY).expect("it says so").message;
    assert!(message.contains("agents.x-k8s.io/adoptable=true"), "{message}");

    let mut wanted = sandbox("prepared");
    wanted["spec"]["service"] = json!(true);
    wanted["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": storage}]);
    let wanted: Sandbox = world.create(wanted).await;
    world.eventually::<Sandbox>("prepared", is_ready).await;
    let adopted: Pod = world.get("prepared").await.expect("the Pod is there");
    assert_eq!(adopted.metadata.uid, prepared.metadata.uid, "the Pod itself, not one in its place");
    let claim: PersistentVolumeClaim = world.get("data-prepared").await.expect("the claim is there");
    let service: Service = world.get("prepared").await.expect("the Service is there");
    for owners in [adopted.owner_references(), claim.owner_references(), service.owner_references()] {
        assert_eq!(Some(&owners[0].uid), wanted.metadata.uid.as_ref());
    }
    replica.stop().await;
}

/// MG-01
async fn second_replica_takes_over_within_two_seconds_while_sandboxes_are_made(world: World) {
    let world = world.without_controllers().await;
    let settings = settings(&world, &[]);
    let first = Replica::start(world.client.clone(), &settings).await;
    first.eventually(&format!("leader_election_master_status{{name=\"{LEASE}\"}} 1")).await;
    let second = Replica::start(world.client.clone(), &settings).await;
    second.eventually(&format!("leader_election_master_status{{name=\"{LEASE}\"}} 0")).await;

    let making = async {
        for number in 0..40 {
            world.create::<Sandbox>(sandbox(&format!("s{number}"))).await;
            tokio::task::yield_now().await;
        }
    };
    let changing = async {
        world.eventually::<Sandbox>("s5", is_ready).await;
        let before: Lease = world.get(LEASE).await.expect("there is a leader");
        let asked = Instant::now();
        first.stop().await;
        let changed = |lease: &Lease| {
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
            let was = before.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
            holder.is_some_and(|holder| !holder.is_empty()) && holder != was
        };
        world.eventually::<Lease>(LEASE, changed).await;
        asked.elapsed()
    };
    let ((), took) = tokio::join!(making, changing);
    println!("from SIGTERM to the next leader: {took:?}");
    assert!(took < Duration::from_secs(2), "hand-over took {took:?}");
    for number in 0..40 {
        world.eventually::<Sandbox>(&format!("s{number}"), is_ready).await;
    }
    second.stop().await;
    let lease: Lease = world.get(LEASE).await.expect("the Lease stays");
    assert_eq!(lease.spec.and_then(|spec| spec.holder_identity).as_deref(), Some(""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_served_over_tls_of_the_wanted_version_only() {
    let world = World::embedded().await.without_controllers().await;
    let dir = tempfile::tempdir().expect("a directory");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    std::fs::write(dir.path().join("tls.crt"), made.cert.pem()).expect("a file");
    std::fs::write(dir.path().join("tls.key"), made.signing_key.serialize_pem()).expect("a file");
    let certificates = format!("--metrics-cert-dir={}", dir.path().display());
    let flags = ["--metrics-secure-serving", "--tls-min-version=VersionTLS13", &certificates];
    let replica = Replica::start(world.client.clone(), &settings(&world, &flags)).await;

    let connect = async |version: &'static rustls::SupportedProtocolVersion| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[version]).expect("a version");
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(replica.metrics).await.expect("somebody listens");
        let name = "localhost".try_into().expect("a name");
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    let stream = connect(&rustls::version::TLS13).await.expect("TLS 1.3 is spoken");
    let (status, page) = ask(stream, "/metrics").await;
    assert_eq!(status, 200);
    assert!(page.contains("agent_sandbox_build_info"));
    assert!(connect(&rustls::version::TLS12).await.is_err(), "TLS 1.2 is not");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_with_a_webhook_is_ready_when_it_converts_and_ends_when_it_cannot() {
    let world = World::embedded().await.without_controllers().await;
    let dir = tempfile::tempdir().expect("a directory");
    let certificates = format!("--webhook-cert-dir={}", dir.path().display());
    let flags = ["--enable-webhook=true", "--manage-webhook-certs=false", "--webhook-port=0", &certificates];
    let settings = settings(&world, &flags);
    let replica = Replica::start(world.client.clone(), &settings).await;
    let error = replica.running.await.expect("it does not panic").expect_err("there is no certificate");
    assert!(format!("{error:#}").contains("certificate"), "{error:#}");

    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    std::fs::write(dir.path().join("tls.crt"), made.cert.pem()).expect("a file");
    std::fs::write(dir.path().join("tls.key"), made.signing_key.serialize_pem()).expect("a file");
    let replica = Replica::start(world.client.clone(), &settings).await;
    replica.becomes_ready().await;
    replica.eventually(&format!("leader_election_master_status{{name=\"{LEASE}\"}} 1")).await;
    replica.stop().await;
}

/// Holds back every request until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(AtomicBool, Notify)>);

impl Gate {
    fn open(&self) {
        self.0.0.store(true, Ordering::SeqCst);
        self.0.1.notify_waiters();
    }

    fn before(&self, client: Client) -> Client {
        let gate = self.0.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (client, gate) = (client.clone(), gate.clone());
            async move {
                let opened = gate.1.notified();
                if !gate.0.load(Ordering::SeqCst) {
                    opened.await;
                }
                client.send(request).await
            }
        });
        Client::new(service, "default")
    }
}
