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
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::metrics::Meter;

const FIRST_RETRY: Duration = Duration::from_millis(5);
const LONGEST_RETRY: Duration = Duration::from_secs(1000);

pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    meter: Meter,
    stop: CancellationToken,
}

struct State<K> {
    ready: VecDeque<K>,
    /// Members of `ready`, and since when they wait.
    waiting: HashMap<K, Instant>,
    /// Since when each key is worked on.
    working: HashMap<K, Instant>,
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

impl<K: Clone + Eq + Hash> Queue<K> {
    /// The queue of a controller, which is counted under this name and has so many workers.
    pub fn new(name: &'static str, workers: usize, config: &Config) -> Self {
        Self::with(config.metrics.queue(name, workers), config.stop.clone())
    }

    fn with(meter: Meter, stop: CancellationToken) -> Self {
        let state = State {
            ready: VecDeque::new(),
            waiting: HashMap::new(),
            working: HashMap::new(),
            again: HashSet::new(),
            due: HashMap::new(),
            delayed: BTreeMap::new(),
            failures: HashMap::new(),
        };
        Self { state: Mutex::new(state), changed: Notify::new(), meter, stop }
    }

    /// Asks for a look at this key, as soon as possible.
    pub fn add(&self, key: K) {
        let mut state = self.lock();
        if state.add(key, Instant::now()) {
            self.meter.added(state.ready.len());
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Asks for a look at this key after a while, or whenever somebody wants one earlier.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.lock().delay(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Takes the next key, waiting for one if need be; `None` when the controllers are asked to stop.
    /// Every key taken must be given to [`Queue::finish`].
    pub async fn next(&self) -> Option<K> {
        loop {
            if self.stop.is_cancelled() {
                return None;
            }
            let wake = {
                let mut state = self.lock();
                let now = Instant::now();
                state.release(now);
                if let Some((key, waited)) = state.take(now) {
                    self.meter.taken(state.ready.len(), waited, now);
                    if !state.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return Some(key);
                }
                state.delayed.keys().next().copied()
            };
            let due = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.changed.notified() => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    pub fn finish(&self, key: K, outcome: Outcome) {
        let now = Instant::now();
        let since = self.lock().finish(key, outcome, now);
        self.meter.finished(outcome, since, now);
        self.changed.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Returns whether the key was not asked for already.
    fn add(&mut self, key: K, now: Instant) -> bool {
        if self.working.contains_key(&key) {
            return self.again.insert(key);
        }
        let new = !self.waiting.contains_key(&key);
        if new {
            self.waiting.insert(key.clone(), now);
            self.ready.push_back(key);
        }
        new
    }

    /// The next key, and how long it waited.
    fn take(&mut self, now: Instant) -> Option<(K, Duration)> {
        let key = self.ready.pop_front()?;
        let since = self.waiting.remove(&key).unwrap_or(now);
        self.working.insert(key.clone(), now);
        Some((key, now - since))
    }

    /// Returns since when the key was worked on.
    fn finish(&mut self, key: K, outcome: Outcome, now: Instant) -> Instant {
        let since = self.working.remove(&key).unwrap_or(now);
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
            self.add(key, now);
        }
        since
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
                    self.add(key, now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue<&'static str> {
        Queue::new("test", 1, &Config::default())
    }

    #[tokio::test]
    async fn key_added_twice_is_worked_on_once() {
        let queue = queue();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await, Some("a"));
        assert_eq!(queue.next().await, Some("b"));
        assert!(queue.lock().ready.is_empty());
    }

    /// WP-61, WP-78
    #[tokio::test]
    async fn key_added_during_its_work_comes_back_after_it() {
        let queue = queue();
        queue.add("a");
        let key = queue.next().await.unwrap();
        queue.add("a");
        assert!(queue.lock().ready.is_empty(), "never two workers on one key");
        queue.finish(key, Outcome::Done);
        assert_eq!(queue.next().await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn wishes_for_later_are_answered_together_when_the_first_is_due() {
        let queue = queue();
        let begun = Instant::now();
        for _ in 0..3 {
            queue.add_after("a", Duration::from_millis(10));
            tokio::time::advance(Duration::from_millis(3)).await;
        }
        let key = queue.next().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::from_millis(10));
        queue.finish(key, Outcome::Done);
        let later = tokio::time::timeout(Duration::from_secs(60), queue.next()).await;
        assert!(later.is_err(), "one look answers them all");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_come_back_later_each_time_until_one_succeeds() {
        let queue = queue();
        queue.add("a");
        for wait in [5, 10, 20, 40] {
            let key = queue.next().await.unwrap();
            let before = Instant::now();
            queue.finish(key, Outcome::Failed);
            let key = queue.next().await.unwrap();
            assert_eq!(before.elapsed(), Duration::from_millis(wait));
            queue.lock().working.remove(key);
            queue.add(key);
        }
        let key = queue.next().await.unwrap();
        queue.finish(key, Outcome::Done);
        assert!(queue.lock().failures.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_wish_wins_and_the_later_one_is_forgotten() {
        let queue = queue();
        for delay in [60, 10] {
            queue.add("a");
            let key = queue.next().await.unwrap();
            queue.finish(key, Outcome::After(Duration::from_secs(delay)));
        }
        let before = Instant::now();
        let key = queue.next().await.unwrap();
        assert_eq!(before.elapsed(), Duration::from_secs(10));
        queue.finish(key, Outcome::Done);
        let quiet = tokio::time::timeout(Duration::from_secs(120), queue.next()).await;
        assert!(quiet.is_err(), "the 60 s wish was overtaken");
    }

    #[tokio::test]
    async fn stopped_queue_gives_out_nothing_and_wakes_who_waits() {
        let config = Config::default();
        let queue = Queue::new("test", 1, &config);
        let (given, ()) = tokio::join!(queue.next(), async { config.stop.cancel() });
        assert_eq!(given, None::<&str>);
        queue.add("a");
        assert_eq!(queue.next().await, None);
    }
}
