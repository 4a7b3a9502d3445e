//! Spans of requests, sent to a collector by OTLP.

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use crate::world::{Cluster, eventually};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_continues_the_trace_of_its_caller_into_the_sandbox() {
    let cluster = Cluster::start().await;
    let (collector, mut spans) = collector().await;
    let program =
        cluster.program_with(&["--authz-mode=allow-all"], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector)]);
    let request = cluster.request("GET", "/run?token=s3cret");
    let answer = program.send("http", &format!("{request}traceparent: 00-{TRACE}-{CALLER}-01\r\n"));
    let passed_on = format!("traceparent: 00-{TRACE}-");
    assert!(answer.body.contains(&passed_on) && !answer.body.contains(CALLER), "{}", answer.body);
    eventually("the request is logged with its trace", || {
        program.log().iter().any(|line| line["message"] == "request" && line["trace_id"] == TRACE)
    });
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));

    // It was sent before the program ended.
    let span = spans.recv().await.expect("a span came");
    assert_eq!((span.name.as_str(), hex(&span.trace_id).as_str()), ("HTTP GET", TRACE));
    assert_eq!(hex(&span.parent_span_id), CALLER);
    for (key, value) in [
        ("http.method", "GET"),
        ("http.target", "/run"),
        ("http.status_code", "200"),
        ("sandbox.id", "web"),
        ("sandbox.namespace", "default"),
    ] {
        let found = span.attributes.iter().find(|attribute| attribute.key == key);
        assert!(format!("{found:?}").contains(value), "{key}: {found:?}");
    }
    assert!(!format!("{span:?}").contains("s3cret"));
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
                assert!(format!("{:?}", resource.resource).contains("sandbox-router"));
                let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                spans.for_each(|span| drop(self.0.send(span)));
            }
            Ok(Response::new(ExportTraceServiceResponse::default()))
        }
    }

    let (sender, spans) = mpsc::unbounded_channel();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(Collector(sender)));
    tokio::spawn(server.serve_with_incoming(incoming));
    (format!("http://{address}"), spans)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
