//! Logs, and traces if they are asked for.

use std::sync::Arc;

use asb_controllers::trace::Traces;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::settings::Log;

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// What must be told before the process ends; see [`Telemetry::flush`].
pub struct Telemetry {
    exporter: Option<otlp::Exporter>,
}

/// Installs the logger, and the exporter of traces.
pub fn install(log: &Log, traces: bool) -> anyhow::Result<Telemetry> {
    let filter = LevelFilter::from_level(log.level);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines: BoxedLayer = match log.json {
        true => lines.json().flatten_event(true).with_filter(filter).boxed(),
        false => lines.with_ansi(false).with_filter(filter).boxed(),
    };
    let (exporter, spans) = match traces {
        true => otlp::exporter().map(|(exporter, spans)| (Some(exporter), Some(spans)))?,
        false => (None, None),
    };
    // Only what controllers tell: the spans of libraries would drown it.
    let ours = Targets::new().with_target("asb_controllers", tracing::Level::DEBUG);
    let spans: Option<BoxedLayer> = spans.map(|spans| spans.with_filter(ours).boxed());
    tracing_subscriber::registry().with(spans.into_iter().chain([lines]).collect::<Vec<_>>()).init();
    Ok(Telemetry { exporter })
}

impl Telemetry {
    /// What connects the spans of this process with those of others.
    pub fn traces(&self) -> Option<Arc<dyn Traces>> {
        self.exporter.as_ref().map(|_| Arc::new(otlp::W3c) as Arc<dyn Traces>)
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
    use std::collections::HashMap;
    use std::time::Duration;

    use anyhow::Context;
    use asb_controllers::trace::Traces;
    use opentelemetry::propagation::TextMapPropagator as _;
    use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;
    use tracing_subscriber::Layer as _;

    use super::BoxedLayer;

    const SERVICE: &str = "agent-sandbox-controller";
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

    /// W3C trace context, and no baggage.
    #[derive(Debug)]
    pub struct W3c;

    impl Traces for W3c {
        fn join(&self, span: &Span, headers: &HashMap<String, String>) {
            let parent = TraceContextPropagator::new().extract(headers);
            // A span that is not exported has no parent either.
            let _ = span.set_parent(parent);
        }

        fn headers(&self, span: &Span) -> HashMap<String, String> {
            let context = span.context();
            let mut headers = HashMap::new();
            if context.span().span_context().is_valid() {
                TraceContextPropagator::new().inject_context(&context, &mut headers);
                headers.retain(|_, value: &mut String| !value.is_empty());
            }
            headers
        }
    }
}

#[cfg(not(feature = "otlp"))]
mod otlp {
    use std::collections::HashMap;

    use asb_controllers::trace::Traces;
    use tracing::Span;

    use super::BoxedLayer;

    /// There is none in this build.
    pub enum Exporter {}

    pub fn exporter() -> anyhow::Result<(Exporter, BoxedLayer)> {
        anyhow::bail!("--enable-tracing: this program cannot export traces; agent-sandbox-controller can")
    }

    impl Exporter {
        pub async fn flush(self) {
            match self {}
        }
    }

    #[derive(Debug)]
    pub struct W3c;

    impl Traces for W3c {
        fn join(&self, _: &Span, _: &HashMap<String, String>) {}

        fn headers(&self, _: &Span) -> HashMap<String, String> {
            HashMap::new()
        }
    }
}
