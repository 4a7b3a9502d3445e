//! The controllers: Kubernetes objects in, Kubernetes objects out.
//!
//! ```text
//! watch ─► cache ─► queue ─► plan (pure) ─► apply (effects) ─► judge (pure) ─► status
//! ```
//!
//! A controller sees only a `kube::Client`: it cannot tell which API server answers. One folder per
//! kind; `sandbox` is the model. What all of them share is beside it: `cache` (what was seen and
//! written), `queue` (what to look at), `run` (the loops), `write` (the effects), `object` (lean views
//! of the core kinds).

pub mod cache;
pub mod object;
pub mod queue;
mod run;
pub mod sandbox;
mod write;

/// What all controllers are started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// The suffix of Service names.
    pub cluster_domain: String,
    /// Sandboxes worked on at the same time.
    pub sandbox_workers: usize,
    /// Watch this namespace only; `None` means all.
    pub namespace: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self { cluster_domain: "cluster.local".to_owned(), sandbox_workers: 32, namespace: None }
    }
}
