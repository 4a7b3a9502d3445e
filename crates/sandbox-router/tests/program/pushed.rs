//! Metrics, sent to a collector by OTLP.

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use crate::world::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_series_of_the_page_are_sent_to_a_collector_too() {
    let cluster = Cluster::start().await;
    let (collector, mut metrics) = collector().await;
    let variable = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", collector.as_str());
    let program = cluster.program_with(&["--authz-mode=allow-all"], &[variable]);
    assert_eq!(program.send("http", &cluster.request("GET", "/run?token=s3cret")).status, 200);
    let page = program.get("metrics", "/metrics").body;
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));

    // They were sent before the program ended.
    let mut sent = Vec::new();
    while let Ok(metric) = metrics.try_recv() {
        sent.push(metric);
    }
    for name in [
        "requests_total",
        "request_duration_seconds",
        "inflight_requests",
        "authz_decisions_total",
        "build_info",
    ] {
        let name = format!("sandbox_router_{name}");
        assert!(page.contains(&name), "{name}");
        let metric =
            sent.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name} in {sent:?}"));
        if name.ends_with("requests_total") {
            let text = format!("{metric:?}");
            assert!(["GET", "200", "default"].iter().all(|label| text.contains(label)), "{text}");
        }
    }
    assert!(!format!("{sent:?}").contains("s3cret"));
}

/// A collector of metrics, and what it gets.
async fn collector() -> (String, mpsc::UnboundedReceiver<Metric>) {
    struct Collector(mpsc::UnboundedSender<Metric>);

    #[tonic::async_trait]
    impl MetricsService for Collector {
        async fn export(
            &self,
            request: Request<ExportMetricsServiceRequest>,
        ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
            for resource in request.into_inner().resource_metrics {
                assert!(format!("{:?}", resource.resource).contains("sandbox-router"));
                let metrics = resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
                metrics.for_each(|metric| drop(self.0.send(metric)));
            }
            Ok(Response::new(ExportMetricsServiceResponse::default()))
        }
    }

    let (sender, metrics) = mpsc::unbounded_channel();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server =
        tonic::transport::Server::builder().add_service(MetricsServiceServer::new(Collector(sender)));
    tokio::spawn(server.serve_with_incoming(incoming));
    (format!("http://{address}"), metrics)
}
