//! The program itself, as a cluster starts it, against the embedded API server.
//!
//! | file | story |
//! |---|---|
//! | `flags` | what refuses to start, and why; files and variables |
//! | `lifecycle` | readiness, draining, addresses that are taken |
//! | `reports` | metrics and the access log |
//! | `secure` | TLS, certificates that change, certificates of clients |
//! | `traces` | spans of requests |
//! | `pushed` | metrics sent by OTLP |

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod flags;
mod lifecycle;
mod pushed;
mod reference;
mod reports;
mod secure;
mod traces;
mod world;
