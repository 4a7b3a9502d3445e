//! The claimed volumes that Pods use or are about to use. They are not removed, whatever the API says.
//!
//! A volume is either in use or being removed, never both.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The volumes that Pods of this engine use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Leases(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// By name: the data directory can be reached by several paths.
    volumes: Mutex<HashMap<String, State>>,
    released: Notify,
}

#[derive(Debug)]
enum State {
    /// The number of its leases.
    Used(usize),
    Removing,
}

/// Keeps a volume from being removed until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets the volume be removed"]
pub struct Lease(Leases, String);

/// Keeps a volume from being used until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets the volume be used"]
pub struct Removal(Leases, String);

impl Leases {
    /// `None` while the volume is being removed.
    pub fn take(&self, volume: &str) -> Option<Lease> {
        match self.lock().entry(volume.to_owned()).or_insert(State::Used(0)) {
            State::Used(count) => *count += 1,
            State::Removing => return None,
        }
        Some(Lease(self.clone(), volume.to_owned()))
    }

    /// `None` while the volume is in use, or being removed already.
    pub fn remove(&self, volume: &str) -> Option<Removal> {
        let mut volumes = self.lock();
        if volumes.contains_key(volume) {
            return None;
        }
        volumes.insert(volume.to_owned(), State::Removing);
        Some(Removal(self.clone(), volume.to_owned()))
    }

    /// Completes when a volume has lost its last user since the last call.
    pub async fn released(&self) {
        self.0.released.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, State>> {
        self.0.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut volumes = self.0.lock();
        if let Some(State::Used(count)) = volumes.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                volumes.remove(&self.1);
                self.0.0.released.notify_one();
            }
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_volume_is_not_removed_until_its_last_user_is_done() {
        let (leases, volume) = (Leases::default(), "a");
        let first = leases.take(volume).unwrap();
        let second = leases.take(volume).unwrap();
        drop(first);
        assert!(leases.remove(volume).is_none());
        assert!(leases.remove("b").is_some());
        assert!(leases.released().now_or_never().is_none());
        drop(second);
        assert!(leases.released().now_or_never().is_some());
        assert!(leases.remove(volume).is_some());
    }

    #[test]
    fn a_volume_that_is_being_removed_is_not_used() {
        let (leases, volume) = (Leases::default(), "a");
        let removal = leases.remove(volume).unwrap();
        assert!(leases.take(volume).is_none() && leases.remove(volume).is_none());
        drop(removal);
        assert!(leases.take(volume).is_some());
    }
}
