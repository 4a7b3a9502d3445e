//! What is served at /metrics.

mod fleet;
mod process;
pub mod requests;

use std::sync::Arc;

use asb_controllers::{Caches, Config};
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::election::LEASE;
use crate::version::Version;
use fleet::Fleet;
use process::Process;
use requests::Requests;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildInfo {
    git_version: &'static str,
    git_commit: &'static str,
    build_date: &'static str,
    go_version: &'static str,
    compiler: &'static str,
    platform: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lease {
    name: &'static str,
}

/// All metrics of the process; and the gauge that says whether it leads.
pub fn registry(config: &Config, caches: Arc<Caches>, requests: Option<&Requests>) -> (Registry, Gauge) {
    let mut registry = Registry::default();
    config.metrics.register(&mut registry);
    config.claim_metrics.register(&mut registry);
    if let Some(requests) = requests {
        requests.register(&mut registry);
    }
    let leads = Family::<Lease, Gauge>::default();
    let leading = leads.get_or_create_owned(&Lease { name: LEASE });
    registry.register("leader_election_master_status", "Whether this process leads", leads);
    let info = Family::<BuildInfo, ConstGauge>::new_with_constructor(|| ConstGauge::new(1));
    drop(info.get_or_create(&build_info(Version::here())));
    registry.register("agent_sandbox_build_info", "What was built, when and how", info);
    registry.register_collector(Box::new(Fleet(caches)));
    registry.register_collector(Box::new(Process));
    (registry, leading)
}

fn build_info(version: Version) -> BuildInfo {
    let Version { git_version, git_commit, build_date, compiler, platform } = version;
    // The label is part of the interface; there is no Go in it.
    BuildInfo { git_version, git_commit, build_date, go_version: "none", compiler, platform }
}

/// `/metrics`.
pub fn routes(registry: Registry) -> Router {
    let registry = Arc::new(registry);
    Router::new().route("/metrics", get(async move || scrape(&registry)))
}

fn scrape(registry: &Registry) -> impl IntoResponse + use<> {
    let mut page = String::new();
    match text::encode(&mut page, registry) {
        Ok(()) => Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], page)),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be encoded");
            Err(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

#[cfg(test)]
mod tests {
    use asb_controllers::Scope;

    use super::*;

    /// MG-38
    #[test]
    fn build_info_has_exactly_six_labels_and_the_value_one() {
        let (registry, leading) = registry(&Config::default(), Arc::new(Caches::new(Scope::default())), None);
        leading.set(1);
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        let line = page.lines().find(|line| line.starts_with("agent_sandbox_build_info{")).unwrap();
        let (labels, value) = line.strip_suffix(" 1").zip(Some("1")).unwrap();
        let names: Vec<&str> =
            labels.split(['{', ',']).skip(1).map(|label| label.split('=').next().unwrap()).collect();
        assert_eq!(
            names,
            ["git_version", "git_commit", "build_date", "go_version", "compiler", "platform"],
            "{value}"
        );
        assert!(page.contains(&format!("leader_election_master_status{{name=\"{LEASE}\"}} 1")));
        assert!(page.contains("process_resident_memory_bytes "), "{page}");
    }
}
