//! Carries HTTP from one address to the sandbox that the request names.
//!
//! ```text
//! connection ─► headers ─► (sandbox, port) ─► token ─► directory ─┬ Ready      ─► dial ─► bytes both ways
//!               request                                           ├ Suspended  ─► 503 and how to resume
//!                                                                 ├ not Ready  ─► 503 and when to come again
//!                                                                 └ unknown    ─► 404
//! ```
//!
//! The directory is kept by watches. A request never waits for the Kubernetes API, and while the API is gone the router
//! goes on serving from what it knew last.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod authorize;
mod dial;
mod directory;
mod error;
mod headers;
mod proxy;
mod request;
mod serve;
mod upstream;

use std::time::Duration;

pub use dial::{Dial, Stream, Target, TcpDial};
pub use serve::{Serving, serve};

/// What a router is started with.
#[derive(Default)]
pub struct Config {
    /// Callers must send `Authorization: Bearer <token>`. `None` lets everybody in.
    pub token: Option<String>,
    pub limits: Limits,
}

/// What callers can use up.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections of callers, tunnels included. More wait in the kernel's queue.
    pub connections: usize,
    /// All headers of one request together.
    pub header_bytes: usize,
    /// To send the headers; also how long an idle connection is kept.
    pub header_read_timeout: Duration,
    /// From the request to the sandbox's response headers. `X-Sandbox-Timeout` may shorten it. Longer than the
    /// runtime's own limit for one command, because it answers only when the command has ended.
    pub response_timeout: Duration,
    /// How long [`serve`] waits for the first complete directory.
    pub sync_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            header_bytes: 64 * 1024,
            header_read_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(3600),
            sync_timeout: Duration::from_secs(60),
        }
    }
}
