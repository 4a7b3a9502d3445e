//! The router as a process on a cluster: `sandbox-router`, and `asb router`.
//!
//! ```text
//! environment ─┐
//! config file ─┼─► layers ─► options ─► settings (pure) ─► process ─┬─ listeners, TLS ─► asb_router
//! command line ┘                                                    └─ probes, metrics, access log, traces
//! ```
//!
//! Unlike other libraries this one installs a logger: `process` is the body of two programs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admin;
pub mod authorization;
mod changes;
pub mod config;
mod keys;
mod layers;
mod listen;
mod metrics;
pub mod options;
pub mod process;
#[cfg_attr(not(feature = "otlp"), path = "no_push.rs")]
mod push;
mod report;
pub mod secrets;
pub mod settings;
mod telemetry;
mod tls;
mod version;
