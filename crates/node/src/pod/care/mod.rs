//! What is done about a container while it runs: hooks at its beginning and end, and probes in between.
//!
//! | file | what |
//! |---|---|
//! | `read` | from a Pod's fields to hooks and probes, or a refusal that names the field (pure) |
//! | `verdict` | from single answers of a probe to what they mean (pure) |
//! | `act` | one hook or one probe, done once |
//! | `http`, `tls`, `grpc` | how it asks |
//! | `attend` | hooks and probes of one container for as long as it runs |
//!
//! Every connection is made inside the Pod, on its own loopback interface: a Pod cannot make the engine ask anybody else.

mod act;
pub mod attend;
mod grpc;
mod http;
pub mod read;
pub mod tls;
mod verdict;

use std::time::Duration;

pub use act::{Problem, run};

/// Hooks and probes of one container.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Care {
    pub post_start: Option<Action>,
    pub pre_stop: Option<Action>,
    pub startup: Option<Probe>,
    pub readiness: Option<Probe>,
    pub liveness: Option<Probe>,
}

/// A question that is asked again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    pub action: Action,
    /// From the start of the container to the first time.
    pub delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    /// So many answers in a row change the verdict.
    pub successes: u32,
    pub failures: u32,
    /// How long a container may take to end that is stopped for this probe; `None`: as long as the Pod says.
    pub grace: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Exec(Vec<String>),
    Http(Request),
    Tcp(u16),
    Grpc { port: u16, service: String },
    Sleep(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub port: u16,
    /// Without looking at the certificate.
    pub tls: bool,
    /// With the query.
    pub path: String,
    /// What the header `Host` says.
    pub host: String,
    pub headers: Vec<(String, String)>,
}

/// What a probe is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Startup,
    Readiness,
    Liveness,
}

impl Kind {
    /// As events name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}
