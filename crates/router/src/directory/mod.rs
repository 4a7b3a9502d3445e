//! Where every sandbox is, from watches of Sandboxes and Pods.
//!
//! ```text
//! [ Sandbox ] ─► UID, mode, controlled by a pool?  ┐
//!                                                  ├─► index ─► lookup: Ready(target) · Unclaimed · Suspended · NotReady · Unknown
//! [ Pod ]     ─► UID of its Sandbox, address       ┘      │
//!                                                         └─► wakes requests that are held for this name
//! ```
//!
//! A client learns from the API that its sandbox is Ready, and its first request may arrive before the router's own
//! watch has seen the same change. So a request is never refused on the first look: [`Directory::resolve`] holds it
//! until the watch reports a change that makes the sandbox reachable, for as long as [`Hold`] allows.
//!
//! `index` is a plain value; `watch` is the only part that does I/O.

mod hold;
mod index;
mod objects;
mod watch;

use std::sync::{Arc, PoisonError, RwLock};

use tokio::time::Instant;

use crate::address::Address;
use crate::dial::Target;
use crate::error::Error;
use crate::observe::Observe;
use hold::Waiters;
use index::Index;

pub use hold::Hold;
pub use watch::{Watching, watch};

/// The namespace and name of a Sandbox.
type Key = (String, String);

pub struct Directory {
    index: RwLock<Index>,
    waiters: Waiters,
    hold: Hold,
    observe: Observe,
}

/// What the directory knows about an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Ready(Arc<Target>),
    /// A pool controls it and no claim has it: by name it does not exist.
    Unclaimed,
    Suspended,
    NotReady {
        /// The message of its Ready condition; empty when there is none.
        message: String,
        /// Waiting will not help: its Pod has ended, or its spec is invalid.
        is_final: bool,
    },
    Unknown,
}

// === impl Directory ===

impl Directory {
    fn new(hold: Hold, index: Index, observe: Observe) -> Self {
        Self { index: RwLock::new(index), waiters: Waiters::new(hold.requests), hold, observe }
    }

    /// Whether the Pod of `target` can still be reached there.
    pub fn is_current(&self, target: &Target) -> bool {
        self.index.read().unwrap_or_else(PoisonError::into_inner).is_current(target)
    }

    pub fn lookup(&self, address: &Address) -> Found {
        self.index.read().unwrap_or_else(PoisonError::into_inner).lookup(address)
    }

    /// Looks `address` up, and holds the request while the sandbox is not reachable but may soon be.
    pub async fn resolve(&self, address: &Address) -> Result<Arc<Target>, Error> {
        match self.lookup(address) {
            Found::Ready(target) => Ok(target),
            _ => {
                let began = Instant::now();
                let found = self.wait(address).await;
                let known = self.has_namespace(&address.namespace).then_some(address.namespace.as_str());
                self.observe.held(known, began.elapsed());
                found.into_target(address)
            }
        }
    }

    /// True when some Sandbox of this namespace is known. Bounds the namespaces that metrics may name.
    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.index.read().unwrap_or_else(PoisonError::into_inner).has_namespace(namespace)
    }

    async fn wait(&self, address: &Address) -> Found {
        let began = Instant::now();
        let Some(waiter) = self.waiters.enter((address.namespace.clone(), address.name.clone())) else {
            return self.lookup(address);
        };
        loop {
            // Registered before the look: a change in between wakes this request.
            let changed = waiter.changed();
            let found = self.lookup(address);
            let until =
                began + address.timeout.map_or(self.hold.of(&found), |own| own.min(self.hold.of(&found)));
            if matches!(found, Found::Ready(_)) || tokio::time::timeout_at(until, changed).await.is_err() {
                return found;
            }
        }
    }

    /// Changes the index, and wakes the requests that are held for the Sandboxes it names.
    fn change(&self, change: impl FnOnce(&mut Index) -> Vec<Key>) {
        let touched = change(&mut self.index.write().unwrap_or_else(PoisonError::into_inner));
        self.waiters.wake(&touched);
    }
}

// === impl Found ===

impl Found {
    /// The target, or why `address` cannot be served.
    fn into_target(self, address: &Address) -> Result<Arc<Target>, Error> {
        let sandbox = || format!("{}/{}", address.namespace, address.name);
        match self {
            // `X-Sandbox-Pod-IP` is not used. A caller that could choose addresses would reach everything that the
            // router's network reaches. Nor is an outdated one refused: clients keep the address they saw first, and
            // after a suspend and resume the name still says which sandbox they mean.
            Self::Ready(target) => Ok(target),
            Self::Suspended => {
                Err(Error::Suspended { namespace: address.namespace.clone(), name: address.name.clone() })
            }
            Self::NotReady { message, .. } => Err(Error::NotReady { sandbox: sandbox(), reason: message }),
            Self::Unclaimed | Self::Unknown => Err(Error::Unknown { sandbox: sandbox() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use objects::{test_pod, test_sandbox};

    fn address(name: &str) -> Address {
        Address::new("ns", name, 8888)
    }

    fn directory(hold: Hold) -> Arc<Directory> {
        Arc::new(Directory::new(hold, Index::default(), Observe::default()))
    }

    /// A request that is held, and the change that ends the wait.
    async fn held(before: impl FnOnce(&mut Index), then: impl FnOnce(&mut Index) -> Vec<Key>) -> Arc<Target> {
        let directory = directory(Hold::default());
        directory.index.write().map(|mut index| before(&mut index)).unwrap();
        let asking = {
            let directory = directory.clone();
            tokio::spawn(async move { directory.resolve(&address("web")).await })
        };
        tokio::task::yield_now().await;
        assert!(!asking.is_finished(), "the request is held");
        directory.change(then);
        asking.await.unwrap().expect("the change makes it reachable")
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_ahead_of_the_watch_is_held_until_the_claim_is_seen() {
        let member = json!({"metadata": {"ownerReferences": [{
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "p", "controller": true,
        }]}});
        let target = held(
            |index| {
                index.apply_sandbox(test_sandbox("web", "u1", member));
                index.apply_pod(test_pod(
                    "web",
                    "u1",
                    json!({"metadata": {"labels": {"agents.x-k8s.io/warm-pool-sandbox": "x"}}}),
                ));
            },
            |index| index.apply_sandbox(test_sandbox("web", "u1", json!({}))),
        )
        .await;
        assert_eq!(target.address.to_string(), "10.0.0.5");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_for_a_sandbox_that_was_just_created_is_held_until_its_pod_is_ready() {
        held(|_| (), |index| index.apply_pod(test_pod("web", "u1", json!({})))).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_for_a_sandbox_that_resumes_is_held_until_it_is_seen_to_run() {
        held(
            |index| {
                index.apply_sandbox(test_sandbox(
                    "web",
                    "u1",
                    json!({"spec": {"operatingMode": "Suspended"}}),
                ));
                index.apply_pod(test_pod("web", "u1", json!({})));
            },
            |index| index.apply_sandbox(test_sandbox("web", "u1", json!({}))),
        )
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_not_held_for_longer_than_its_state_deserves() {
        let hold = Hold::default();
        for (patch, limit) in [
            (json!({"spec": {"operatingMode": "Suspended"}}), hold.watch_lag),
            (
                json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "PodFailed"}]}}),
                hold.watch_lag,
            ),
            (
                json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "DependenciesNotReady"}]}}),
                hold.starting,
            ),
        ] {
            let directory = directory(hold.clone());
            directory.change(|index| index.apply_sandbox(test_sandbox("web", "u1", patch)));
            let began = Instant::now();
            assert!(directory.resolve(&address("web")).await.is_err());
            assert_eq!(began.elapsed().as_millis(), limit.as_millis());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_callers_own_time_limit_ends_the_wait() {
        let directory = directory(Hold::default());
        let mut address = address("web");
        address.timeout = Some(Duration::from_millis(30));
        let began = Instant::now();
        assert!(matches!(directory.resolve(&address).await, Err(Error::Unknown { .. })));
        assert_eq!(began.elapsed().as_millis(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn when_too_many_requests_are_held_the_next_is_answered_at_once() {
        let directory = directory(Hold { requests: 1, ..Hold::default() });
        let first = {
            let directory = directory.clone();
            tokio::spawn(async move { directory.resolve(&address("a")).await })
        };
        tokio::task::yield_now().await;
        let began = Instant::now();
        assert!(directory.resolve(&address("b")).await.is_err());
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(first.await.unwrap().is_err());
        assert!(directory.waiters.is_empty(), "nothing is left behind");
    }
}
