//! Logs, and traces if they are asked for.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::report::ACCESS_LOG;
use crate::settings::Settings;

pub use otlp::Traces;

/// The name of this program in traces and metrics.
#[cfg(feature = "otlp")]
pub const SERVICE: &str = "sandbox-router";

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// What must be sent before the process ends; see [`Telemetry::flush`].
pub struct Telemetry {
    exporter: Option<otlp::Exporter>,
}

/// Installs the logger, and the exporter of traces.
pub fn install(settings: &Settings) -> anyhow::Result<Telemetry> {
    let lines = fmt::layer().with_writer(std::io::stderr);
    // The access log is not less important because other messages are.
    let access = if settings.access_log { LevelFilter::INFO } else { LevelFilter::OFF };
    let filter = Targets::new().with_default(settings.log.level).with_target(ACCESS_LOG, access);
    let lines: BoxedLayer = match settings.log.json {
        true => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_filter(filter)
            .boxed(),
        false => lines.with_ansi(false).with_filter(filter).boxed(),
    };
    let (exporter, spans) = match settings.tracing {
        true => otlp::exporter().map(|(exporter, spans)| (Some(exporter), Some(spans)))?,
        false => (None, None),
    };
    // Only the spans of requests: those of libraries would drown them.
    let ours = Targets::new().with_target(otlp::SPANS, tracing::Level::INFO);
    let spans: Option<BoxedLayer> = spans.map(|spans| spans.with_filter(ours).boxed());
    tracing_subscriber::registry().with(spans.into_iter().chain([lines]).collect::<Vec<_>>()).init();
    Ok(Telemetry { exporter })
}

impl Telemetry {
    pub fn traces(&self) -> Option<Traces> {
        self.exporter.as_ref().map(|_| Traces::default())
    }

    /// Sends what was not sent yet.
    pub async fn flush(self) {
        if let Some(exporter) = self.exporter {
            exporter.flush().await;
        }
    }
}

#[cfg(feature = "otlp")]
mod otlp {
    use std::time::Duration;

    use anyhow::Context;
    use asb_router::Finished;
    use http::{HeaderMap, HeaderName, HeaderValue, Method};
    use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator as _};
    use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;
    use tracing_subscriber::Layer as _;

    use super::{BoxedLayer, SERVICE};

    /// The target of the spans that are exported.
    pub const SPANS: &str = "sandbox-router.request";
    /// For the last spans, when the process ends.
    const FLUSH: Duration = Duration::from_secs(5);

    pub struct Exporter(SdkTracerProvider);

    /// OTLP over gRPC to where the OTEL_EXPORTER_OTLP_* variables say. It connects later: nothing waits here.
    pub fn exporter() -> anyhow::Result<(Exporter, BoxedLayer)> {
        let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().build();
        let exporter =
            exporter.context("--enable-tracing: the OTEL_EXPORTER_OTLP_* variables cannot be used")?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(Resource::builder().with_service_name(SERVICE).build())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer(SERVICE)).boxed();
        Ok((Exporter(provider), layer))
    }

    impl Exporter {
        pub async fn flush(self) {
            // It blocks, and what it waits for runs on this runtime.
            let flushed = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(FLUSH)).await;
            if let Ok(Err(error)) = flushed {
                tracing::warn!(%error, "the last spans were not sent");
            }
        }
    }

    /// Spans of requests, with W3C trace context and no baggage.
    #[derive(Debug, Default)]
    pub struct Traces {
        propagator: TraceContextPropagator,
    }

    impl Traces {
        pub fn span(&self, method: &Method, path: &str, headers: &HeaderMap) -> Span {
            let span = tracing::info_span!(
                target: SPANS,
                "request",
                otel.name = format!("HTTP {method}"),
                otel.kind = "server",
                http.method = method.as_str(),
                http.target = path,
                http.status_code = tracing::field::Empty,
                sandbox.id = tracing::field::Empty,
                sandbox.namespace = tracing::field::Empty,
            );
            // A span that is not exported has no parent either.
            let _ = span.set_parent(self.propagator.extract(&Read(headers)));
            span
        }

        pub fn propagate(&self, span: &Span, headers: &mut HeaderMap) {
            let context = span.context();
            if context.span().span_context().is_valid() {
                self.propagator.inject_context(&context, &mut Write(headers));
            }
        }

        pub fn finish(&self, request: &Finished<'_>) {
            request.span.record("http.status_code", request.status.as_u16());
            if let Some((namespace, name)) = request.named {
                request.span.record("sandbox.id", name);
                request.span.record("sandbox.namespace", namespace);
            }
        }

        /// The trace and the span, as the access log shows them.
        pub fn ids(&self, span: &Span) -> Option<(String, String)> {
            let context = span.context();
            let span = context.span();
            let ids = span.span_context();
            ids.is_valid().then(|| (ids.trace_id().to_string(), ids.span_id().to_string()))
        }
    }

    struct Read<'a>(&'a HeaderMap);

    impl Extractor for Read<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            self.0.get(key)?.to_str().ok()
        }

        fn keys(&self) -> Vec<&str> {
            self.0.keys().map(HeaderName::as_str).collect()
        }
    }

    struct Write<'a>(&'a mut HeaderMap);

    impl Injector for Write<'_> {
        fn set(&mut self, key: &str, value: String) {
            if let (Ok(name), Ok(value)) = (key.parse::<HeaderName>(), HeaderValue::try_from(value))
                && !value.is_empty()
            {
                self.0.insert(name, value);
            }
        }
    }
}

#[cfg(not(feature = "otlp"))]
mod otlp {
    use asb_router::Finished;
    use http::{HeaderMap, Method};
    use tracing::Span;

    use super::BoxedLayer;

    pub const SPANS: &str = "sandbox-router.request";

    /// There is none in this build.
    pub enum Exporter {}

    pub fn exporter() -> anyhow::Result<(Exporter, BoxedLayer)> {
        anyhow::bail!("--enable-tracing: this program cannot export traces; sandbox-router can")
    }

    impl Exporter {
        pub async fn flush(self) {
            match self {}
        }
    }

    #[derive(Debug, Default)]
    pub struct Traces {}

    impl Traces {
        pub fn span(&self, _: &Method, _: &str, _: &HeaderMap) -> Span {
            Span::none()
        }

        pub fn propagate(&self, _: &Span, _: &mut HeaderMap) {}

        pub fn finish(&self, _: &Finished<'_>) {}

        pub fn ids(&self, _: &Span) -> Option<(String, String)> {
            None
        }
    }
}
