//! The metrics by OTLP, for `--enable-otel-metrics`: the same series as at /metrics, sent to a collector.

use std::time::Duration;

use anyhow::Context;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, MeterProvider as _, UpDownCounter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;

use crate::metrics::SECONDS;
use crate::telemetry::SERVICE;
use crate::version::Version;

/// For the last values, when the process ends.
const FLUSH: Duration = Duration::from_secs(5);

/// The instruments, under the names that Prometheus sees.
pub struct Push {
    provider: SdkMeterProvider,
    requests: Counter<u64>,
    durations: Histogram<f64>,
    inflight: UpDownCounter<i64>,
    upstream_errors: Counter<u64>,
    upstream_retries: Counter<u64>,
    cache_invalidations: Counter<u64>,
    decisions: Counter<u64>,
    reloads: Counter<u64>,
    holds: Histogram<f64>,
    limited: Counter<u64>,
    tunnels: UpDownCounter<i64>,
}

type Label<'a> = (&'static str, &'a str);

impl Push {
    /// OTLP over gRPC to where the OTEL_EXPORTER_OTLP_* variables say, as often as OTEL_METRIC_EXPORT_INTERVAL says. It
    /// connects later: nothing waits here.
    pub fn start() -> anyhow::Result<Self> {
        let exporter = opentelemetry_otlp::MetricExporter::builder().with_tonic().build();
        let exporter =
            exporter.context("--enable-otel-metrics: the OTEL_EXPORTER_OTLP_* variables cannot be used")?;
        let provider = SdkMeterProvider::builder()
            .with_periodic_exporter(exporter)
            .with_resource(Resource::builder().with_service_name(SERVICE).build())
            .build();
        let meter = provider.meter(SERVICE);
        let counter = |name: &'static str| meter.u64_counter(name).build();
        let seconds =
            |name: &'static str| meter.f64_histogram(name).with_boundaries(SECONDS.to_vec()).build();
        let Version { git_version, git_commit, build_date, compiler, platform } = Version::here();
        meter.u64_gauge("sandbox_router_build_info").build().record(
            1,
            &labels(&[
                ("git_version", git_version),
                ("git_commit", git_commit),
                ("build_date", build_date),
                ("go_version", "none"),
                ("compiler", compiler),
                ("platform", &platform),
            ]),
        );
        Ok(Self {
            requests: counter("sandbox_router_requests_total"),
            durations: seconds("sandbox_router_request_duration_seconds"),
            inflight: meter.i64_up_down_counter("sandbox_router_inflight_requests").build(),
            upstream_errors: counter("sandbox_router_upstream_errors_total"),
            upstream_retries: counter("sandbox_router_upstream_retries_total"),
            cache_invalidations: counter("sandbox_router_cache_invalidations_total"),
            decisions: counter("sandbox_router_authz_decisions_total"),
            reloads: counter("sandbox_router_cert_reloads_total"),
            holds: seconds("sandbox_router_hold_duration_seconds"),
            limited: counter("sandbox_router_limited_requests_total"),
            tunnels: meter.i64_up_down_counter("sandbox_router_open_tunnels").build(),
            provider,
        })
    }

    pub fn started(&self) {
        self.inflight.add(1, &[]);
    }

    pub fn finished(&self, all: &[Label<'_>], duration: Duration) {
        self.inflight.add(-1, &[]);
        let all = labels(all);
        self.requests.add(1, &all);
        self.durations.record(duration.as_secs_f64(), &all);
    }

    pub fn upstream_error(&self, all: &[Label<'_>]) {
        self.upstream_errors.add(1, &labels(all));
    }

    pub fn upstream_retry(&self, all: &[Label<'_>]) {
        self.upstream_retries.add(1, &labels(all));
    }

    pub fn cache_invalidation(&self, all: &[Label<'_>]) {
        self.cache_invalidations.add(1, &labels(all));
    }

    pub fn decision(&self, all: &[Label<'_>]) {
        self.decisions.add(1, &labels(all));
    }

    pub fn reload(&self, all: &[Label<'_>]) {
        self.reloads.add(1, &labels(all));
    }

    pub fn held(&self, all: &[Label<'_>], waited: Duration) {
        self.holds.record(waited.as_secs_f64(), &labels(all));
    }

    pub fn limited(&self, all: &[Label<'_>]) {
        self.limited.add(1, &labels(all));
    }

    pub fn tunnels(&self, change: i64) {
        self.tunnels.add(change, &[]);
    }

    /// Sends what was not sent yet.
    pub async fn flush(&self) {
        let provider = self.provider.clone();
        // It blocks, and what it waits for runs on this runtime.
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH)).await;
        if let Ok(Err(error)) = flushed {
            tracing::warn!(%error, "failed to send the last metrics");
        }
    }
}

fn labels(all: &[Label<'_>]) -> Vec<KeyValue> {
    all.iter().map(|&(name, value)| KeyValue::new(name, value.to_owned())).collect()
}
