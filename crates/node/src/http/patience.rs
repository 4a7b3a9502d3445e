//! How long a request waits for a container that does not run yet: `Prefer: wait=SECONDS` (RFC 7240).
//!
//! Kubernetes answers at once that the container is waiting to start. Who says nothing gets that answer from us too.

use std::convert::Infallible;
use std::time::Duration;

use asb_runtime::Sandbox;
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;

use super::{Failure, has_containers, pod, sandbox_of, slot};
use crate::node::{Node, uid};

/// Longer is not waited, whatever is asked for.
const MOST: Duration = Duration::from_secs(300);

/// Nothing, unless the request says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience(Duration);

impl<S: Sync> FromRequestParts<S> for Patience {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers))
    }
}

impl Patience {
    /// A preference that is not understood is none, as the RFC wants it.
    fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
        let mut preferences = values.flat_map(|value| value.split(','));
        let seconds = preferences.find_map(|preference| {
            let (name, value) = preference.split_once('=')?;
            let value = value.split(';').next()?.trim().trim_matches('"');
            name.trim().eq_ignore_ascii_case("wait").then(|| value.parse().ok())?
        });
        Self(seconds.map_or(Duration::ZERO, Duration::from_secs).min(MOST))
    }

    /// The sandbox of a Pod's container as soon as there is one, or why there still is none.
    pub async fn sandbox(
        self,
        node: &Node,
        namespace: &str,
        name: &str,
        container: Option<&str>,
    ) -> Result<Sandbox, Failure> {
        if !self.0.is_zero() {
            let waited = tokio::time::timeout(self.0, started(node, namespace, name, container)).await;
            if let Ok(result) = waited {
                return result;
            }
        }
        sandbox_of(node, &pod(node, namespace, name).await?, container)
    }
}

/// The sandbox once there is one; an error only for a container that the Pod does not have.
async fn started(
    node: &Node,
    namespace: &str,
    name: &str,
    container: Option<&str>,
) -> Result<Sandbox, Failure> {
    let mut known = None;
    loop {
        // Listens before it looks: whatever starts in between is heard.
        let mut one_more = std::pin::pin!(node.shared.started.notified());
        one_more.as_mut().enable();
        if known.is_none() {
            known = pod(node, namespace, name).await.ok();
        }
        if let Some(pod) = &known {
            has_containers(node, pod)?;
            let slot = slot(pod, container)?;
            if let Some(sandbox) = node.shared.sandbox(&uid(pod), slot) {
                return Ok(sandbox);
            }
        }
        one_more.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_what_the_header_asks_for_and_no_more_than_there_is() {
        let of = |values: &[&str]| {
            let pairs =
                values.iter().map(|value| (axum::http::header::HeaderName::from_static("prefer"), value));
            Patience::of(&pairs.map(|(name, value)| (name, value.parse().unwrap())).collect()).0.as_secs()
        };
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&["wait=10"]), 10);
        assert_eq!(of(&["respond-async, Wait = \"7\"; x=1"]), 7);
        assert_eq!(of(&["return=minimal", "wait=3"]), 3);
        assert_eq!(of(&["wait=-1"]), 0);
        assert_eq!(of(&["wait=soon"]), 0);
        assert_eq!(of(&["wait=99999999"]), MOST.as_secs());
    }
}
