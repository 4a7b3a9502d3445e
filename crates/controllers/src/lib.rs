//! The controllers: Kubernetes objects in, Kubernetes objects out.
//!
//! ```text
//! watch ─► cache ─► queue ─► plan (pure) ─► apply (effects) ─► judge (pure) ─► status
//! ```
//!
//! A controller sees only a `kube::Client`: it cannot tell which API server answers. One folder per
//! kind; `sandbox` is the model.

pub mod cache;
pub mod object;
pub mod queue;
pub mod sandbox;

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
