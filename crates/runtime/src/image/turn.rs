//! Whose turn it is to pull.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Images that are pulled at once.
const AT_ONCE: usize = 2;

pub struct Turns {
    slots: Arc<Semaphore>,
    names: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

/// The right to pull; given back when dropped.
#[derive(Debug)]
pub struct Turn {
    _name: OwnedMutexGuard<()>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { slots: Arc::new(Semaphore::new(AT_ONCE)), names: Mutex::default() }
    }
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns").finish_non_exhaustive()
    }
}

impl Turns {
    pub async fn next(&self, name: &str) -> Turn {
        let lock = {
            let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            names.retain(|_, lock| lock.strong_count() > 0);
            match names.get(name).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    let lock = Arc::default();
                    names.insert(name.to_owned(), Arc::downgrade(&lock));
                    lock
                }
            }
        };
        // The name first: those that wait for the same image must not take the slots of others.
        let _name = lock.lock_owned().await;
        Turn { _name, _slot: self.slots.clone().acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_name_at_a_time_and_few_names_at_once() {
        let turns = Turns::default();
        let first = turns.next("a").await;
        let blocked = |name| {
            let turns = &turns;
            async move {
                tokio::time::timeout(std::time::Duration::from_millis(20), turns.next(name)).await.is_err()
            }
        };
        assert!(blocked("a").await, "the same name waits");
        let _b = turns.next("b").await;
        assert!(blocked("d").await, "two are enough");
        drop(first);
        turns.next("a").await;
        turns.next("d").await;
    }
}
