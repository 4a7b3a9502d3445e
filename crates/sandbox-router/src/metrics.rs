//! What is served at /metrics: the series of the reference router under its names, and three of ours (`hold_duration_seconds`,
//! `limited_requests`, `open_tunnels`).
//!
//! No label comes from a caller or a sandbox as it is: methods and codes are those that are known, and a namespace is
//! one in which the directory knows the sandbox.

use std::collections::HashSet;
use std::sync::atomic::AtomicI64;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use asb_router::{Finished, UpstreamError};
use http::{Method, StatusCode};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::admin::{Answer, answer, not_found};
use crate::push::Push;
use crate::version::Version;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const NAMESPACE: &str = "sandbox_namespace";
pub const SECONDS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0];

/// Namespaces that have series of their own. Nothing forgets a series, and clusters make and remove namespaces.
const MOST_NAMESPACES: usize = 1000;
/// The label of all others. No namespace can have this name.
const OTHER_NAMESPACES: &str = "_other";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    code: String,
    sandbox_namespace: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamespaceLabel {
    sandbox_namespace: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    sandbox_namespace: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    sandbox_namespace: String,
    decision: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildInfo {
    git_version: &'static str,
    git_commit: &'static str,
    build_date: &'static str,
    go_version: &'static str,
    compiler: &'static str,
    platform: String,
}

pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<RequestLabels, Histogram, fn() -> Histogram>,
    inflight: Gauge<i64, AtomicI64>,
    upstream_errors: Family<ErrorLabels, Counter>,
    upstream_retries: Family<NamespaceLabel, Counter>,
    cache_invalidations: Family<NamespaceLabel, Counter>,
    decisions: Family<DecisionLabels, Counter>,
    reloads: Family<OutcomeLabel, Counter>,
    holds: Family<NamespaceLabel, Histogram, fn() -> Histogram>,
    limited: Family<LimitLabel, Counter>,
    tunnels: Gauge<i64, AtomicI64>,
    namespaces: RwLock<HashSet<String>>,
    /// Gets the same by OTLP.
    push: Option<Push>,
}

impl Metrics {
    pub fn new(push: Option<Push>) -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(SECONDS);
        let mut metrics = Self {
            registry: Registry::with_prefix("sandbox_router"),
            requests: Family::default(),
            durations: Family::new_with_constructor(seconds),
            inflight: Gauge::default(),
            upstream_errors: Family::default(),
            upstream_retries: Family::default(),
            cache_invalidations: Family::default(),
            decisions: Family::default(),
            reloads: Family::default(),
            holds: Family::new_with_constructor(seconds),
            limited: Family::default(),
            tunnels: Gauge::default(),
            namespaces: RwLock::default(),
            push,
        };
        let info = Family::<BuildInfo, ConstGauge>::new_with_constructor(|| ConstGauge::new(1));
        drop(info.get_or_create(&build_info(Version::here())));
        let registry = &mut metrics.registry;
        registry.register("requests", "Requests answered", metrics.requests.clone());
        registry.register("request_duration_seconds", "From a request to its end", metrics.durations.clone());
        registry.register("inflight_requests", "Requests that are being served", metrics.inflight.clone());
        registry.register(
            "upstream_errors",
            "Requests that no sandbox answered",
            metrics.upstream_errors.clone(),
        );
        registry.register(
            "upstream_retries",
            "Further attempts to connect",
            metrics.upstream_retries.clone(),
        );
        registry.register(
            "cache_invalidations",
            "Addresses that had gone when they were dialled",
            metrics.cache_invalidations.clone(),
        );
        registry.register("authz_decisions", "Requests allowed and denied", metrics.decisions.clone());
        registry.register("cert_reloads", "TLS certificates read", metrics.reloads.clone());
        registry.register(
            "hold_duration_seconds",
            "Time that requests waited for a sandbox to become reachable",
            metrics.holds.clone(),
        );
        registry.register("limited_requests", "Requests that a limit refused", metrics.limited.clone());
        registry.register("open_tunnels", "WebSockets and other tunnels", metrics.tunnels.clone());
        registry.register("build_info", "Which build this is", info);
        metrics
    }

    pub fn started(&self) {
        self.inflight.inc();
        if let Some(push) = &self.push {
            push.started();
        }
    }

    pub fn finished(&self, request: &Finished<'_>) {
        self.inflight.dec();
        let labels = RequestLabels {
            method: method(request.method),
            code: code(request.status),
            sandbox_namespace: self.namespace(request.known_namespace),
        };
        self.requests.get_or_create(&labels).inc();
        self.durations.get_or_create(&labels).observe(request.duration.as_secs_f64());
        if let Some(push) = &self.push {
            let RequestLabels { method, code, sandbox_namespace } = &labels;
            let labels = [("method", *method), ("code", code), (NAMESPACE, sandbox_namespace)];
            push.finished(&labels, request.duration);
        }
    }

    pub fn upstream_error(&self, known_namespace: &str, reason: UpstreamError) {
        let sandbox_namespace = self.namespace(Some(known_namespace));
        let reason = reason.as_str();
        if let Some(push) = &self.push {
            push.upstream_error(&[(NAMESPACE, &sandbox_namespace), ("reason", reason)]);
        }
        self.upstream_errors.get_or_create(&ErrorLabels { sandbox_namespace, reason }).inc();
    }

    pub fn upstream_retry(&self, known_namespace: &str) {
        let sandbox_namespace = self.namespace(Some(known_namespace));
        if let Some(push) = &self.push {
            push.upstream_retry(&[(NAMESPACE, &sandbox_namespace)]);
        }
        self.upstream_retries.get_or_create(&NamespaceLabel { sandbox_namespace }).inc();
    }

    pub fn target_lost(&self, known_namespace: &str) {
        let sandbox_namespace = self.namespace(Some(known_namespace));
        if let Some(push) = &self.push {
            push.cache_invalidation(&[(NAMESPACE, &sandbox_namespace)]);
        }
        self.cache_invalidations.get_or_create(&NamespaceLabel { sandbox_namespace }).inc();
    }

    pub fn decision(&self, known_namespace: Option<&str>, allowed: bool) {
        let decision = if allowed { "allow" } else { "deny" };
        let sandbox_namespace = self.namespace(known_namespace);
        if let Some(push) = &self.push {
            push.decision(&[(NAMESPACE, &sandbox_namespace), ("decision", decision)]);
        }
        self.decisions.get_or_create(&DecisionLabels { sandbox_namespace, decision }).inc();
    }

    pub fn certificate_read(&self, usable: bool) {
        let outcome = if usable { "success" } else { "failure" };
        if let Some(push) = &self.push {
            push.reload(&[("outcome", outcome)]);
        }
        self.reloads.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub fn held(&self, known_namespace: Option<&str>, waited: Duration) {
        let sandbox_namespace = self.namespace(known_namespace);
        if let Some(push) = &self.push {
            push.held(&[(NAMESPACE, &sandbox_namespace)], waited);
        }
        self.holds.get_or_create(&NamespaceLabel { sandbox_namespace }).observe(waited.as_secs_f64());
    }

    pub fn limited(&self, limit: &'static str) {
        if let Some(push) = &self.push {
            push.limited(&[("limit", limit)]);
        }
        self.limited.get_or_create(&LimitLabel { limit }).inc();
    }

    pub fn tunnel_opened(&self) {
        self.tunnels.inc();
        if let Some(push) = &self.push {
            push.tunnels(1);
        }
    }

    pub fn tunnel_closed(&self) {
        self.tunnels.dec();
        if let Some(push) = &self.push {
            push.tunnels(-1);
        }
    }

    /// Sends what was not sent yet.
    pub async fn flush(&self) {
        if let Some(push) = &self.push {
            push.flush().await;
        }
    }

    fn namespace(&self, known: Option<&str>) -> String {
        let Some(known) = known else { return "-".to_owned() };
        if self.namespaces.read().unwrap_or_else(PoisonError::into_inner).contains(known) {
            return known.to_owned();
        }
        let mut namespaces = self.namespaces.write().unwrap_or_else(PoisonError::into_inner);
        if namespaces.len() < MOST_NAMESPACES {
            namespaces.insert(known.to_owned());
        }
        if namespaces.contains(known) { known } else { OTHER_NAMESPACES }.to_owned()
    }

    /// `/metrics`.
    pub fn page(&self, path: &str) -> Answer {
        if path != "/metrics" {
            return not_found();
        }
        let mut page = String::new();
        match text::encode(&mut page, &self.registry) {
            Ok(()) => answer(StatusCode::OK, CONTENT_TYPE, page),
            Err(error) => {
                tracing::error!(%error, "metrics cannot be encoded");
                answer(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", "metrics cannot be encoded")
            }
        }
    }
}

fn method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        "TRACE" => "TRACE",
        "CONNECT" => "CONNECT",
        _ => "other",
    }
}

/// A sandbox may answer with any number.
fn code(status: StatusCode) -> String {
    match status.canonical_reason().is_some() || status.as_u16() == 499 {
        true => status.as_u16().to_string(),
        false => "other".to_owned(),
    }
}

fn build_info(version: Version) -> BuildInfo {
    let Version { git_version, git_commit, build_date, compiler, platform } = version;
    // The label is part of the interface; there is no Go in it.
    BuildInfo { git_version, git_commit, build_date, go_version: "none", compiler, platform }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tracing::Span;

    use super::*;

    async fn page(metrics: &Metrics) -> String {
        let body = metrics.page("/metrics").into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    fn request<'a>(method: &'a Method, status: u16, known_namespace: Option<&'a str>) -> Finished<'a> {
        static NONE: Span = Span::none();
        Finished {
            method,
            path: "/",
            status: StatusCode::from_u16(status).unwrap(),
            named: Some(("made-up", "web")),
            known_namespace,
            duration: Duration::from_millis(7),
            bytes_out: 5,
            peer: "127.0.0.1".parse().unwrap(),
            caller: None,
            user_agent: None,
            span: &NONE,
        }
    }

    #[tokio::test]
    async fn names_are_those_of_the_reference() {
        let metrics = Metrics::new(None);
        metrics.started();
        metrics.finished(&request(&Method::GET, 200, Some("ns")));
        metrics.started();
        metrics.upstream_error("ns", UpstreamError::Dial);
        metrics.upstream_retry("ns");
        metrics.target_lost("ns");
        metrics.decision(Some("ns"), true);
        metrics.decision(None, false);
        metrics.certificate_read(true);
        let page = page(&metrics).await;
        for line in [
            r#"sandbox_router_requests_total{method="GET",code="200",sandbox_namespace="ns"} 1"#,
            r#"sandbox_router_request_duration_seconds_bucket{le="0.005",method="GET",code="200",sandbox_namespace="ns"} 0"#,
            r#"sandbox_router_request_duration_seconds_bucket{le="0.01",method="GET",code="200",sandbox_namespace="ns"} 1"#,
            "sandbox_router_inflight_requests 1",
            r#"sandbox_router_upstream_errors_total{sandbox_namespace="ns",reason="dial"} 1"#,
            r#"sandbox_router_upstream_retries_total{sandbox_namespace="ns"} 1"#,
            r#"sandbox_router_cache_invalidations_total{sandbox_namespace="ns"} 1"#,
            r#"sandbox_router_authz_decisions_total{sandbox_namespace="ns",decision="allow"} 1"#,
            r#"sandbox_router_authz_decisions_total{sandbox_namespace="-",decision="deny"} 1"#,
            r#"sandbox_router_cert_reloads_total{outcome="success"} 1"#,
            "sandbox_router_build_info{git_version=",
        ] {
            assert!(page.contains(line), "{line} is not in:\n{page}");
        }
    }

    #[tokio::test]
    async fn ours_tell_of_waiting_of_limits_and_of_tunnels() {
        let metrics = Metrics::new(None);
        metrics.held(Some("ns"), Duration::from_millis(7));
        metrics.held(None, Duration::from_millis(500));
        metrics.limited("rate");
        metrics.tunnel_opened();
        metrics.tunnel_opened();
        metrics.tunnel_closed();
        let page = page(&metrics).await;
        for line in [
            r#"sandbox_router_hold_duration_seconds_bucket{le="0.01",sandbox_namespace="ns"} 1"#,
            r#"sandbox_router_hold_duration_seconds_count{sandbox_namespace="-"} 1"#,
            r#"sandbox_router_limited_requests_total{limit="rate"} 1"#,
            "sandbox_router_open_tunnels 1",
        ] {
            assert!(page.contains(line), "{line} is not in:\n{page}");
        }
    }

    #[tokio::test]
    async fn callers_and_sandboxes_cannot_make_series() {
        let metrics = Metrics::new(None);
        for number in 0..200_u16 {
            let method = Method::from_bytes(format!("M{number}").as_bytes()).unwrap();
            metrics.finished(&request(&method, 700 + number, None));
        }
        let page = page(&metrics).await;
        let series = page.lines().filter(|line| line.starts_with("sandbox_router_requests_total")).count();
        assert_eq!(series, 1, "{page}");
        assert!(!page.contains("made-up"));
    }

    #[tokio::test]
    async fn namespaces_that_come_and_go_do_not_make_series_for_ever() {
        let metrics = Metrics::new(None);
        for number in 0..MOST_NAMESPACES + 500 {
            metrics.decision(Some(&format!("run-{number}")), true);
        }
        metrics.decision(Some("run-0"), true);
        let page = page(&metrics).await;
        let series =
            page.lines().filter(|line| line.starts_with("sandbox_router_authz_decisions_total")).count();
        assert_eq!(series, MOST_NAMESPACES + 1);
        for line in [
            r#"{sandbox_namespace="run-0",decision="allow"} 2"#,
            r#"{sandbox_namespace="_other",decision="allow"} 500"#,
        ] {
            assert!(page.contains(line), "{line}");
        }
    }
}
