//! The controllers as a process on a cluster: `agent-sandbox-controller`, and `asb controller`.
//!
//! ```text
//! flags ─► options ─► settings (pure) ─► process: caches, controllers
//! ```

pub mod election;
pub mod go;
pub mod options;
pub mod process;
pub mod settings;

pub use options::Options;
pub use settings::Settings;
