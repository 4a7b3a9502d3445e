//! The program itself, as a cluster starts it, against a real kube-apiserver.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use asb_operator::election::LEASE;
use asb_testing::{Kubernetes, World};
use asb_types::{Sandbox, condition, key};
use k8s_openapi::api::coordination::v1::Lease;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent-sandbox-controller"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // What surrounds the test must not lead it to another cluster.
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent");
    command
}

fn say(flags: &[&str]) -> (Output, String) {
    let output = program().args(flags).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// The program at work; killed with the test.
struct Running(Child);

impl Running {
    /// Starts it for one namespace, and waits until it leads.
    fn start(world: &World, kubeconfig: PathBuf, flags: &[&str], collector: Option<&str>) -> Self {
        let namespace = world.namespace.as_str();
        let mut command = program();
        command.arg("--kubeconfig").arg(kubeconfig).args(flags).args([
            &format!("--watch-namespaces={namespace}"),
            &format!("-leader-election-namespace={namespace}"),
            "--enable-webhook=false",
            "--metrics-bind-address=0",
            "--health-probe-bind-address=0",
        ]);
        if let Some(collector) = collector {
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector);
        }
        let mut child = command.spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
        let mut line = String::new();
        while !line.contains("this process leads") {
            line.clear();
            assert_ne!(lines.read_line(&mut line).expect("its log can be read"), 0, "it ended early");
            serde_json::from_str::<serde_json::Value>(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        }
        // Somebody must go on reading, or it would block.
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
        Self(child)
    }

    /// Asks it to end, as a kubelet does.
    fn terminate(mut self) -> (ExitStatus, Duration) {
        let asked = Instant::now();
        let killed = Command::new("kill").arg(self.0.id().to_string()).status();
        assert!(killed.expect("kill exists").success());
        (self.0.wait().expect("it ends"), asked.elapsed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn world() -> (World, PathBuf) {
    let world = World::kubernetes().await.without_controllers().await;
    (world, Kubernetes::shared().kubeconfig.clone())
}

fn is_ready(sandbox: &Sandbox) -> bool {
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice());
    condition::get(conditions.unwrap_or_default(), condition::READY)
        .is_some_and(|ready| ready.status == "True")
}

#[test]
fn version_is_told_and_nothing_is_started() {
    let (output, _) = say(&["--version"]);
    assert!(output.status.success());
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("agent-sandbox-controller") && told.contains(env!("CARGO_PKG_VERSION")), "{told}");
}

#[test]
fn bad_flags_end_with_one_and_the_name_of_the_flag() {
    for (flag, reason) in [
        ("--kube-api-burst=0", "invalid value for --kube-api-burst: must be greater than 0"),
        ("--leader-elect=maybe", "--leader-elect"),
        ("-sandbox-concurrent-workers=0", "--sandbox-concurrent-workers"),
        ("--no-such-flag", "--no-such-flag"),
        ("--kubeconfig=/nonexistent", "--kubeconfig /nonexistent"),
        ("--metrics-secure-serving", "no cluster"),
    ] {
        let (output, said) = say(&[flag]);
        assert_eq!(output.status.code(), Some(1), "{flag}: {said}");
        assert!(said.contains(reason), "{flag}: {said}");
    }
}

/// MG-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_leader_gives_the_lease_back() {
    let (world, kubeconfig) = world().await;
    let running = Running::start(&world, kubeconfig, &["--extensions", "-zap-log-level=debug"], None);
    let sandbox = json!({"metadata": {"name": "box"}, "spec": {"podTemplate": {"spec": {"containers": [
        {"name": "main", "image": "image"}]}}}});
    world.create::<Sandbox>(sandbox).await;
    world.eventually::<Sandbox>("box", is_ready).await;
    let (status, took) = running.terminate();
    println!("SIGTERM to exit: {took:?}");
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(2), "{took:?}");
    let lease: Lease = world.get(LEASE).await.expect("the Lease stays");
    assert_eq!(lease.spec.and_then(|spec| spec.holder_identity).as_deref(), Some(""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_of_a_pass_join_the_trace_of_whoever_asked() {
    let (world, kubeconfig) = world().await;
    let (collector, mut spans) = collector().await;
    let running = Running::start(&world, kubeconfig, &["--enable-tracing"], Some(&collector));
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let asked = json!({"traceparent": format!("00-{trace}-00f067aa0ba902b7-01")}).to_string();
    for (name, context) in [("asked", Some(asked.as_str())), ("broken", Some("{half")), ("plain", None)] {
        let notes = context.map(|context| json!({key::TRACE_CONTEXT: context}));
        let labels = json!({key::CREATED_BY: "go-client"});
        let sandbox = json!({"metadata": {"name": name, "annotations": notes, "labels": labels},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "image"}]}}}});
        world.create::<Sandbox>(sandbox).await;
        world.eventually::<Sandbox>(name, is_ready).await;
    }
    let plain: Sandbox = world.get("plain").await.expect("it is there");
    let context = plain.metadata.annotations.unwrap_or_default().remove(key::TRACE_CONTEXT);
    assert!(
        context.is_some_and(|context| context.contains("traceparent")),
        "others can go on with the trace"
    );
    let (status, _) = running.terminate();
    assert_eq!(status.code(), Some(0));

    // All were sent before the program ended.
    let mut seen = Vec::new();
    while let Ok(Some(span)) = tokio::time::timeout(Duration::from_secs(1), spans.recv()).await {
        seen.push(span);
    }
    let of = |name: &str, sandbox: &str| -> Vec<&Span> {
        let about =
            |span: &&Span| span.name == name && attribute(span, "sandbox.name").as_deref() == Some(sandbox);
        seen.iter().filter(about).collect()
    };
    let asked = of("ReconcileSandbox", "asked");
    assert!(!asked.is_empty() && asked.iter().all(|span| hex(&span.trace_id) == trace), "{asked:#?}");
    assert_eq!(attribute(asked[0], "sandbox.namespace").as_deref(), Some(world.namespace.as_str()));
    assert_eq!(attribute(asked[0], key::CREATED_BY).as_deref(), Some("go-client"));
    for name in ["broken", "plain"] {
        let others = of("ReconcileSandbox", name);
        assert!(!others.is_empty() && others.iter().all(|span| hex(&span.trace_id) != trace), "{name}");
    }
    let child = seen.iter().find(|span| span.name == "reconcilePod" && hex(&span.trace_id) == trace);
    let child = child.expect("the step that made the Pod has a span");
    assert!(asked.iter().any(|span| span.span_id == child.parent_span_id));
    assert!(child.events.iter().any(|event| event.name == "NewPodStatusObserved"), "{:?}", child.events);
    assert!(
        asked.iter().flat_map(|span| &span.events).any(|event| event.name == "ExistingPodStatusObserved")
    );
}

/// A collector of spans, and what it gets.
async fn collector() -> (String, mpsc::UnboundedReceiver<Span>) {
    struct Collector(mpsc::UnboundedSender<Span>);

    #[tonic::async_trait]
    impl TraceService for Collector {
        async fn export(
            &self,
            request: Request<ExportTraceServiceRequest>,
        ) -> Result<Response<ExportTraceServiceResponse>, Status> {
            for resource in request.into_inner().resource_spans {
                let service = resource.resource.iter().flat_map(|resource| &resource.attributes);
                let service = service.filter(|attribute| attribute.key == "service.name");
                assert!(format!("{:?}", service.collect::<Vec<_>>()).contains("agent-sandbox-controller"));
                let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                spans.for_each(|span| drop(self.0.send(span)));
            }
            Ok(Response::new(ExportTraceServiceResponse::default()))
        }
    }

    let (sender, spans) = mpsc::unbounded_channel();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it has an address");
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(Collector(sender)));
    tokio::spawn(server.serve_with_incoming(incoming));
    (format!("http://{address}"), spans)
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        other => Some(format!("{other:?}")),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
