//! Requests that wait for the watch to catch up, or for a sandbox to start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::{Found, Key};

/// How long requests may wait for a sandbox to become reachable, and how many at once.
#[derive(Debug, Clone)]
pub struct Hold {
    /// For a sandbox that the API may already report as Ready: the most that the router's watch may lag behind.
    pub watch_lag: Duration,
    /// For a sandbox that starts.
    pub starting: Duration,
    /// Requests that wait at once. The next one is answered from what is known.
    pub requests: usize,
}

/// The held requests, by the Sandbox they wait for.
pub struct Waiters {
    by_name: Mutex<HashMap<Key, Arc<Notify>>>,
    permits: Arc<Semaphore>,
}

/// One held request; leaves the table when it is dropped.
pub struct Waiter<'a> {
    waiters: &'a Waiters,
    key: Key,
    notify: Option<Arc<Notify>>,
    _permit: OwnedSemaphorePermit,
}

// === impl Hold ===

impl Default for Hold {
    fn default() -> Self {
        Self { watch_lag: Duration::from_millis(500), starting: Duration::from_secs(10), requests: 1024 }
    }
}

impl Hold {
    /// How long a request may wait in this state, counted from when it came.
    pub fn of(&self, found: &Found) -> Duration {
        match found {
            Found::Ready(_) => Duration::ZERO,
            Found::NotReady { is_final: false, .. } => self.starting.max(self.watch_lag),
            Found::Unclaimed | Found::Suspended | Found::NotReady { .. } | Found::Unknown => self.watch_lag,
        }
    }
}

// === impl Waiters ===

impl Waiters {
    pub fn new(requests: usize) -> Self {
        Self { by_name: Mutex::default(), permits: Arc::new(Semaphore::new(requests)) }
    }

    /// `None` when too many requests wait already.
    pub fn enter(&self, key: Key) -> Option<Waiter<'_>> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let notify = by_name.entry(key.clone()).or_default().clone();
        Some(Waiter { waiters: self, key, notify: Some(notify), _permit: permit })
    }

    pub fn wake(&self, keys: &[Key]) {
        let by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if by_name.is_empty() {
            return;
        }
        for notify in keys.iter().filter_map(|key| by_name.get(key)) {
            notify.notify_waiters();
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_name.lock().unwrap().is_empty()
    }
}

// === impl Waiter ===

impl Waiter<'_> {
    /// Completes with the first change after this call.
    pub fn changed(&self) -> OwnedNotified {
        // `notify_waiters` wakes every `Notified` that exists when it is called, polled or not.
        self.notify.clone().unwrap_or_default().notified_owned()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut by_name = self.waiters.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        self.notify = None;
        if by_name.get(&self.key).is_some_and(|notify| Arc::strong_count(notify) == 1) {
            by_name.remove(&self.key);
        }
    }
}
