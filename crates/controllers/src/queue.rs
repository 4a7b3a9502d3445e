//! The work queue of a controller: which keys to look at, and when.
//!
//! A key waits at most once, is never worked on twice at the same time, and comes back if it was added
//! while it was worked on. Two lanes: at once, and after a delay. (`kube::runtime::Controller` sends
//! even immediate work through a millisecond timer; a sandbox should not wait for that.)

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

const FIRST_RETRY: Duration = Duration::from_millis(5);
const LONGEST_RETRY: Duration = Duration::from_secs(1000);

pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    /// Members of `ready`.
    waiting: HashSet<K>,
    working: HashSet<K>,
    /// Added again while being worked on.
    again: HashSet<K>,
    /// When each delayed key comes back; the earliest wish wins.
    due: HashMap<K, Instant>,
    delayed: BTreeMap<Instant, Vec<K>>,
    failures: HashMap<K, u32>,
}

/// How the work on a key ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Look again after this time.
    After(Duration),
    /// Try again, later each time.
    Failed,
}

impl<K: Clone + Eq + Hash> Default for Queue<K> {
    fn default() -> Self {
        let state = State {
            ready: VecDeque::new(),
            waiting: HashSet::new(),
            working: HashSet::new(),
            again: HashSet::new(),
            due: HashMap::new(),
            delayed: BTreeMap::new(),
            failures: HashMap::new(),
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Asks for a look at this key, as soon as possible.
    pub fn add(&self, key: K) {
        self.lock().add(key);
        self.changed.notify_one();
    }

    /// Takes the next key, waiting for one if need be. Every key taken must be given to [`Queue::finish`].
    pub async fn next(&self) -> K {
        loop {
            let wake = {
                let mut state = self.lock();
                state.release(Instant::now());
                if let Some(key) = state.take() {
                    if !state.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return key;
                }
                state.delayed.keys().next().copied()
            };
            match wake {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    pub fn finish(&self, key: K, outcome: Outcome) {
        self.lock().finish(key, outcome, Instant::now());
        self.changed.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        if self.working.contains(&key) {
            self.again.insert(key);
        } else if self.waiting.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn take(&mut self) -> Option<K> {
        let key = self.ready.pop_front()?;
        self.waiting.remove(&key);
        self.working.insert(key.clone());
        Some(key)
    }

    fn finish(&mut self, key: K, outcome: Outcome, now: Instant) {
        self.working.remove(&key);
        match outcome {
            Outcome::Done => {
                self.failures.remove(&key);
            }
            Outcome::After(delay) => {
                self.failures.remove(&key);
                self.delay(key.clone(), now + delay);
            }
            Outcome::Failed => {
                let failures = self.failures.entry(key.clone()).or_default();
                let delay = FIRST_RETRY.saturating_mul(1 << (*failures).min(20)).min(LONGEST_RETRY);
                *failures += 1;
                self.delay(key.clone(), now + delay);
            }
        }
        if self.again.remove(&key) {
            self.add(key);
        }
    }

    fn delay(&mut self, key: K, at: Instant) {
        if self.due.get(&key).is_none_or(|known| at < *known) {
            self.due.insert(key.clone(), at);
            self.delayed.entry(at).or_default().push(key);
        }
    }

    /// Moves the keys whose time has come to the ready lane.
    fn release(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry().filter(|entry| *entry.key() <= now) {
            let (at, keys) = entry.remove_entry();
            for key in keys {
                // An entry whose wish was overtaken by an earlier one is stale.
                if self.due.get(&key) == Some(&at) {
                    self.due.remove(&key);
                    self.add(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn key_added_twice_is_worked_on_once() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await, "a");
        assert_eq!(queue.next().await, "b");
        assert!(queue.lock().ready.is_empty());
    }

    /// WP-61, WP-78
    #[tokio::test]
    async fn key_added_during_its_work_comes_back_after_it() {
        let queue = Queue::default();
        queue.add("a");
        let key = queue.next().await;
        queue.add("a");
        assert!(queue.lock().ready.is_empty(), "never two workers on one key");
        queue.finish(key, Outcome::Done);
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_come_back_later_each_time_until_one_succeeds() {
        let queue = Queue::default();
        queue.add("a");
        for wait in [5, 10, 20, 40] {
            let key = queue.next().await;
            let before = Instant::now();
            queue.finish(key, Outcome::Failed);
            let key = queue.next().await;
            assert_eq!(before.elapsed(), Duration::from_millis(wait));
            queue.lock().working.remove(key);
            queue.add(key);
        }
        let key = queue.next().await;
        queue.finish(key, Outcome::Done);
        assert!(queue.lock().failures.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_wish_wins_and_the_later_one_is_forgotten() {
        let queue = Queue::default();
        for delay in [60, 10] {
            queue.add("a");
            let key = queue.next().await;
            queue.finish(key, Outcome::After(Duration::from_secs(delay)));
        }
        let before = Instant::now();
        let key = queue.next().await;
        assert_eq!(before.elapsed(), Duration::from_secs(10));
        queue.finish(key, Outcome::Done);
        let quiet = tokio::time::timeout(Duration::from_secs(120), queue.next()).await;
        assert!(quiet.is_err(), "the 60 s wish was overtaken");
    }
}
