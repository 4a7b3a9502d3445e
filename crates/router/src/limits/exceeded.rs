//! What a request used too much of, as its caller sees it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use http::StatusCode;

/// The owner of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Caller,
    Sandbox,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    #[error("Too many requests at once for this {of}.")]
    Requests { of: Of },
    #[error("Too many open WebSockets or tunnels for this {of}.")]
    Tunnels { of: Of },
    #[error("Too many requests per second for this {of}.")]
    Rate { of: Of, wait: Duration },
    #[error("Too many refused requests from this address.")]
    Refusals { wait: Duration },
    #[error("Too many connections from this address.")]
    Connections,
    #[error("Too many callers or sandboxes at once.")]
    TableFull,
    #[error("The request body is larger than {limit} bytes.")]
    Body { limit: u64 },
    #[error("The request has more than {limit} header fields.")]
    HeaderCount { limit: usize },
    #[error("The request's header fields are larger than {limit} bytes.")]
    HeaderBytes { limit: usize },
}

impl Exceeded {
    /// The limit, as a label of metrics.
    pub fn limit(self) -> &'static str {
        match self {
            Self::Requests { .. } => "requests",
            Self::Tunnels { .. } => "tunnels",
            Self::Rate { .. } => "rate",
            Self::Refusals { .. } => "refusals",
            Self::Connections => "connections",
            Self::TableFull => "table",
            Self::Body { .. } => "body",
            Self::HeaderCount { .. } => "header_count",
            Self::HeaderBytes { .. } => "header_bytes",
        }
    }

    pub fn status(self) -> StatusCode {
        match self {
            Self::Requests { .. }
            | Self::Tunnels { .. }
            | Self::Rate { .. }
            | Self::Refusals { .. }
            | Self::Connections
            | Self::TableFull => StatusCode::TOO_MANY_REQUESTS,
            Self::Body { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeaderCount { .. } | Self::HeaderBytes { .. } => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
        }
    }

    /// Whole seconds, rounded up.
    pub fn retry_after(self) -> Option<u64> {
        match self {
            Self::Rate { wait, .. } | Self::Refusals { wait } => {
                Some(wait.as_secs_f64().ceil().max(1.0) as u64)
            }
            _ => (self.status() == StatusCode::TOO_MANY_REQUESTS).then_some(1),
        }
    }

    pub fn hint(self) -> Cow<'static, str> {
        match self {
            Self::Requests { .. } => "Wait for earlier requests to end, or raise the router's limit.".into(),
            Self::Tunnels { .. } | Self::Connections => {
                "Close connections that are not in use, or raise the router's limit.".into()
            }
            Self::Rate { .. } => {
                "Try again after the seconds in Retry-After, or raise the router's limit.".into()
            }
            Self::Refusals { .. } => {
                "Try again after the seconds in Retry-After, with a token that is valid.".into()
            }
            Self::TableFull => "Try again in a moment. The router counts as many as it can remember.".into(),
            Self::Body { .. } => {
                "Send the data in smaller pieces, or raise the router's limit for request bodies.".into()
            }
            Self::HeaderCount { .. } | Self::HeaderBytes { .. } => {
                "Send fewer or shorter header fields; large cookies are the usual cause.".into()
            }
        }
    }
}

impl fmt::Display for Of {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Caller => "caller",
            Self::Sandbox => "sandbox",
        })
    }
}
