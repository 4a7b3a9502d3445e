//! What the process reports of each request: metrics, a line in the access log, a span.

use std::sync::Arc;
use std::time::Duration;

use asb_router::{Finished, Observer, UpstreamError};
use http::{HeaderMap, Method};
use tracing::Span;

use crate::metrics::Metrics;
use crate::telemetry::Traces;

/// The logger of the access log, as filters and readers know it.
pub const ACCESS_LOG: &str = "sandbox-router.access";
/// Paths of probes, also when a sandbox is asked for them.
const SKIPPED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// Longer texts of callers are cut.
const LONGEST: usize = 1024;

pub struct Report {
    pub metrics: Arc<Metrics>,
    pub access_log: bool,
    /// `None`: nothing is traced.
    pub traces: Option<Traces>,
}

impl Observer for Report {
    fn started(&self) {
        self.metrics.started();
    }

    fn span(&self, method: &Method, path: &str, headers: &HeaderMap) -> Span {
        self.traces.as_ref().map_or_else(Span::none, |traces| traces.span(method, path, headers))
    }

    fn propagate(&self, span: &Span, headers: &mut HeaderMap) {
        if let Some(traces) = &self.traces {
            traces.propagate(span, headers);
        }
    }

    fn finished(&self, request: &Finished<'_>) {
        self.metrics.finished(request);
        if let Some(traces) = &self.traces {
            traces.finish(request);
        }
        if self.access_log && !SKIPPED.contains(&request.path) {
            self.log(request);
        }
    }

    fn upstream_error(&self, namespace: &str, reason: UpstreamError) {
        self.metrics.upstream_error(namespace, reason);
    }

    fn upstream_retry(&self, namespace: &str) {
        self.metrics.upstream_retry(namespace);
    }

    fn target_lost(&self, namespace: &str) {
        self.metrics.target_lost(namespace);
    }

    fn held(&self, namespace: Option<&str>, waited: Duration) {
        self.metrics.held(namespace, waited);
    }

    fn limited(&self, limit: &'static str) {
        self.metrics.limited(limit);
    }

    fn tunnel_opened(&self) {
        self.metrics.tunnel_opened();
    }

    fn tunnel_closed(&self) {
        self.metrics.tunnel_closed();
    }

    fn authorized(&self, namespace: Option<&str>, allowed: bool) {
        self.metrics.decision(namespace, allowed);
    }
}

impl Report {
    fn log(&self, request: &Finished<'_>) {
        let (namespace, sandbox) = request.named.unwrap_or_default();
        let ids = self.traces.as_ref().and_then(|traces| traces.ids(request.span));
        let (trace_id, span_id) = ids.unzip();
        let caller = request.caller.map(ToString::to_string);
        let caller = caller.as_deref().map(cut);
        tracing::info!(
            target: ACCESS_LOG,
            method = request.method.as_str(),
            path = cut(request.path),
            status = request.status.as_u16(),
            duration_ms = request.duration.as_secs_f64() * 1000.0,
            client_ip = %request.peer,
            sandbox_id = sandbox,
            sandbox_namespace = namespace,
            bytes_out = request.bytes_out,
            user_agent = request.user_agent.map(cut).unwrap_or_default(),
            caller,
            trace_id,
            span_id,
            "request"
        );
    }
}

fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LONGEST)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = format!("{}é{}", "a".repeat(LONGEST - 1), "b".repeat(5));
        assert_eq!(cut(&long), "a".repeat(LONGEST - 1));
    }
}
