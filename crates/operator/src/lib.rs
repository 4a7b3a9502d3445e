//! The controllers as a process on a cluster: `agent-sandbox-controller`, and `asb controller`.
//!
//! ```text
//! flags ─► options ─► settings (pure) ─► process ─► operator ─┬─ caches, probes, metrics: on every replica
//!                                                             └─ election ─► controllers: on the leader
//! ```
//!
//! Unlike other libraries this one installs a logger: `process` is the body of two programs.

pub mod connections;
pub mod election;
mod health;
mod label_domains;
pub mod limit;
mod listen;
mod metrics;
pub mod operator;
pub mod options;
pub mod process;
pub mod settings;
mod telemetry;
mod tls;
mod version;

pub use asb_goflags as go;
pub use operator::Operator;
pub use options::Options;
pub use settings::Settings;
