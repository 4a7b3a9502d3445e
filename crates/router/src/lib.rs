//! Carries HTTP from one address to the sandbox that the request names.
//!
//! ```text
//! connection ─► address ─► authorize ─► limits ─► directory ─┬ Ready ─► dial ─► bytes both ways
//!               which       who may      how      where      ├ may be Ready soon ─► held, then looked up again
//!               sandbox                  much                └ else ─► an error with a hint
//! ```
//!
//! A connection belongs to one of a few workers (threads); so do the connections into sandboxes that it uses.
//! The directory is kept by watches. A request never waits for the Kubernetes API, and while the API is gone the router
//! goes on serving from what it knew last.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod activity;
pub mod address;
pub mod authorize;
mod body;
mod connection;
mod dial;
mod directory;
mod error;
#[cfg(test)]
mod fuzz;
mod headers;
pub mod limits;
mod observe;
mod proxy;
mod serve;
mod tunnel;
mod upstream;
mod worker;

use std::num::NonZeroUsize;
use std::time::Duration;

pub use address::Addressing;
pub use authorize::Authorization;
pub use dial::{Dial, Stream, Target, TcpDial};
pub use directory::Hold;
pub use error::Error;
pub use limits::Quotas;
pub use observe::{Exchange, Finished, Observe, Observer, UpstreamError};
pub use serve::{Connections, Handshake, Peer, Router, Serving, Slot, serve, start};
pub use upstream::DialRetries;

/// What a router is started with.
#[derive(Default)]
pub struct Config {
    pub addressing: Addressing,
    /// The default refuses every request.
    pub authorization: Authorization,
    /// What each caller and each sandbox may use.
    pub quotas: Quotas,
    /// What all callers together may use.
    pub limits: Limits,
    /// Only sandboxes of this namespace; `None` serves all.
    pub namespace: Option<String>,
    /// Threads that serve connections; `None` takes one for each processor.
    pub workers: Option<NonZeroUsize>,
    /// Receives what happens, for metrics and logs.
    pub observe: Observe,
}

/// What all callers together may use up, and how long things may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections of callers, tunnels included. More wait in the kernel's queue.
    pub connections: usize,
    /// All headers of one request together.
    pub header_bytes: usize,
    /// To send the headers.
    pub header_read_timeout: Duration,
    /// How long a connection without a request is kept. Longer than proxies in front keep theirs, so that they never
    /// send a request on a connection that is just being closed.
    pub keep_alive: Duration,
    /// From the request to the sandbox's response headers; while a body is sent, from its last byte. `X-Sandbox-Timeout`
    /// may shorten it. Longer than the runtime's own limit for one command, because it answers only when the command
    /// has ended.
    pub response_timeout: Duration,
    /// A connection with a request on which nothing moves for this long is closed. There is no limit on the whole time.
    pub idle_timeout: Duration,
    /// The same for WebSockets and other tunnels.
    pub tunnel_idle_timeout: Duration,
    /// The longest that a tunnel may last.
    pub tunnel_lifetime: Option<Duration>,
    /// How often an HTTP/2 connection is asked whether the caller is still there.
    pub http2_keep_alive: Duration,
    /// How long requests wait for a sandbox that is not reachable yet.
    pub hold: Hold,
    pub dial_retries: DialRetries,
    /// How long [`serve`] waits for the first complete directory.
    pub sync_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            header_bytes: 64 * 1024,
            header_read_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(120),
            response_timeout: Duration::from_secs(3600),
            idle_timeout: Duration::from_secs(3600),
            tunnel_idle_timeout: Duration::from_secs(3600),
            tunnel_lifetime: None,
            http2_keep_alive: Duration::from_secs(30),
            hold: Hold::default(),
            dial_retries: DialRetries::default(),
            sync_timeout: Duration::from_secs(60),
        }
    }
}
