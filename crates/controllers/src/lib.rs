//! The controllers: Kubernetes objects in, Kubernetes objects out.
//!
//! ```text
//! watch ─► cache ─► queue ─► plan (pure) ─► apply (effects) ─► judge (pure) ─► status
//! ```
//!
//! A controller sees only a `kube::Client`: it cannot tell which API server answers. One folder per
//! kind; `sandbox` is the model. What all of them share is beside it: `caches` (what was seen and
//! written), `queue` (what to look at), `run` (the loops), `write` (the effects), `object` (lean views
//! of the core kinds).

pub mod cache;
pub mod caches;
pub mod claim;
mod event;
mod memory;
pub mod metrics;
pub mod object;
pub mod queue;
mod run;
pub mod sandbox;
pub mod template;
pub mod trace;
pub mod warm_pool;
mod write;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use caches::{Caches, Scope};
pub use run::all as run_all;

/// What all controllers are started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// The suffix of Service names.
    pub cluster_domain: String,
    /// Sandboxes worked on at the same time.
    pub sandbox_workers: usize,
    /// Tell users of Sandboxes through events.
    pub sandbox_events: bool,
    /// How long a change of a running Pod's labels and annotations may wait for more; at most a second.
    pub write_behind: std::time::Duration,
    /// Templates worked on at the same time.
    pub template_workers: usize,
    /// Where the router's Pods are: the default NetworkPolicy lets nobody else in.
    pub router_namespace: String,
    /// How pools are filled and watched over.
    pub warm_pools: warm_pool::Settings,
    /// How claims are served.
    pub claims: claim::Settings,
    /// How long claims take; the process registers them where it serves metrics.
    pub claim_metrics: Arc<claim::metrics::ClaimMetrics>,
    /// Where the rest is counted.
    pub metrics: metrics::Metrics,
    /// Whoever exports spans.
    pub traces: Option<Arc<dyn trace::Traces>>,
    /// Asks all controllers to finish what they have begun, begin nothing more, and return.
    pub stop: CancellationToken,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_domain: "cluster.local".to_owned(),
            sandbox_workers: 32,
            sandbox_events: true,
            write_behind: std::time::Duration::ZERO,
            template_workers: 1,
            router_namespace: "agent-sandbox-system".to_owned(),
            warm_pools: warm_pool::Settings::default(),
            claims: claim::Settings::default(),
            claim_metrics: Arc::default(),
            metrics: metrics::Metrics::default(),
            traces: None,
            stop: CancellationToken::new(),
        }
    }
}
