//! Remembers the API server's decisions: bounded, with one call at a time per key.
//!
//! ```text
//! get ─► known ──┬ fresh ─► answer
//!        others ─┴ old ───► one caller asks, the rest wait ─► stored; an allowed one moves to `known`
//! ```
//!
//! Refused and unknown keys have a table of their own: a caller that tries many wrong tokens evicts only its own entries.

use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lru::LruCache;
use tokio::time::Instant;

use super::Refusal;

pub type Key = [u8; 32];

/// The API server allowed it with this value, refused it, or could not decide.
type Outcome<T> = Result<Result<T, Refusal>, String>;

/// How long answers are kept.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub allowed: Duration,
    pub refused: Duration,
    /// How much longer an allowed answer may serve while the API server cannot answer.
    pub stale: Duration,
}

pub struct Cache<T> {
    times: Times,
    tables: Mutex<Tables<T>>,
}

struct Tables<T> {
    known: LruCache<Key, Arc<Slot<T>>>,
    others: LruCache<Key, Arc<Slot<T>>>,
}

struct Slot<T> {
    answer: Mutex<Option<Answer<T>>>,
    /// Held by the one caller that asks.
    asking: tokio::sync::Mutex<()>,
}

struct Answer<T> {
    outcome: Outcome<T>,
    until: Instant,
    /// The last allowed value and when it may no longer serve.
    fallback: Option<(T, Instant)>,
}

/// An error from the API server, or the memory of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    pub cause: String,
    pub cached: bool,
}

impl<T: Clone> Cache<T> {
    pub fn new(size: NonZeroUsize, times: Times) -> Self {
        let tables = Tables { known: LruCache::new(size), others: LruCache::new(size) };
        Self { times, tables: Mutex::new(tables) }
    }

    /// The remembered answer, or the one of `ask`.
    pub async fn get<F>(&self, key: Key, ask: impl FnOnce() -> F) -> Result<Result<T, Refusal>, Failed>
    where
        F: Future<Output = Outcome<T>>,
    {
        let slot = self.slot(key);
        if let Some(answer) = slot.fresh() {
            return answer;
        }
        let asking = slot.asking.lock().await;
        if let Some(answer) = slot.fresh() {
            return answer;
        }
        let outcome = ask().await;
        let allowed = matches!(outcome, Ok(Ok(_)));
        let answer = slot.store(outcome, self.times);
        drop(asking);
        if allowed {
            self.promote(key, slot);
        }
        answer
    }

    /// The remembered value of a key that is allowed. Never calls the API server.
    pub fn known(&self, key: &Key) -> Option<T> {
        let slot = self.tables.lock().unwrap_or_else(PoisonError::into_inner).known.get(key).cloned()?;
        slot.fresh()?.ok()?.ok()
    }

    fn slot(&self, key: Key) -> Arc<Slot<T>> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = tables.known.get(&key) {
            return slot.clone();
        }
        let new = || Arc::new(Slot { answer: Mutex::new(None), asking: tokio::sync::Mutex::default() });
        tables.others.get_or_insert(key, new).clone()
    }

    fn promote(&self, key: Key, slot: Arc<Slot<T>>) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.others.pop(&key);
        tables.known.put(key, slot);
    }
}

impl<T: Clone> Slot<T> {
    fn fresh(&self) -> Option<Result<Result<T, Refusal>, Failed>> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = answer.as_ref().filter(|answer| Instant::now() < answer.until)?;
        Some(answer.outcome.clone().map_err(|cause| Failed { cause, cached: true }))
    }

    fn store(&self, outcome: Outcome<T>, times: Times) -> Result<Result<T, Refusal>, Failed> {
        let now = Instant::now();
        let mut stored = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let fallback = match &outcome {
            Ok(Ok(value)) => Some((value.clone(), now + times.allowed + times.stale)),
            Ok(Err(_)) => None,
            Err(_) => stored.take().and_then(|old| old.fallback).filter(|(_, until)| now < *until),
        };
        // Failures are forgotten sooner, but not at once: an API server in trouble is not helped by more questions.
        let retry = (times.allowed / 3).max(Duration::from_secs(1));
        let (outcome, until) = match (outcome, &fallback) {
            (Err(_), Some((value, end))) => (Ok(Ok(value.clone())), *end.min(&(now + retry))),
            (Err(cause), None) => (Err(cause), now + retry),
            (Ok(Ok(value)), _) => (Ok(Ok(value)), now + times.allowed),
            (Ok(Err(refusal)), _) => (Ok(Err(refusal)), now + times.refused),
        };
        let answer = outcome.clone().map_err(|cause| Failed { cause, cached: false });
        *stored = Some(Answer { outcome, until, fallback });
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn cache(size: usize, stale: Duration) -> Cache<u32> {
        let times = Times { allowed: 30 * SECOND, refused: 10 * SECOND, stale };
        Cache::new(NonZeroUsize::new(size).unwrap(), times)
    }

    fn key(byte: u8) -> Key {
        [byte; 32]
    }

    struct Api(Cell<u32>);

    impl Api {
        async fn says(&self, outcome: Outcome<u32>) -> Outcome<u32> {
            self.0.set(self.0.get() + 1);
            tokio::task::yield_now().await;
            outcome
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_remembered_for_their_time() {
        let (cache, api) = (cache(8, Duration::ZERO), Api(Cell::new(0)));
        for (byte, outcome, seconds) in
            [(1, Ok(Ok(7)), 30), (2, Ok(Err(Refusal::NotAuthenticated)), 10), (3, Err("down".to_owned()), 10)]
        {
            api.0.set(0);
            let get = || cache.get(key(byte), || api.says(outcome.clone()));
            let first = get().await;
            assert_eq!(first.clone().map_err(|failed| failed.cause), outcome);
            advance((seconds - 1) * SECOND).await;
            assert_eq!(get().await.map_err(|failed| failed.cached), outcome.clone().map_err(|_| true));
            assert_eq!(api.0.get(), 1);
            advance(SECOND).await;
            let _ = get().await;
            assert_eq!(api.0.get(), 2, "asked again after {seconds} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_callers_ask_once() {
        let (cache, api) = (cache(8, Duration::ZERO), Api(Cell::new(0)));
        let all = (0..50).map(|_| cache.get(key(1), || api.says(Ok(Ok(7)))));
        assert!(futures::future::join_all(all).await.into_iter().all(|answer| answer == Ok(Ok(7))));
        assert_eq!(api.0.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_does_not_block_the_next() {
        let (cache, api) = (cache(8, Duration::ZERO), Api(Cell::new(0)));
        let never = cache.get(key(1), std::future::pending);
        assert!(tokio::time::timeout(SECOND, never).await.is_err());
        assert_eq!(cache.get(key(1), || api.says(Ok(Ok(7)))).await, Ok(Ok(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_keys_do_not_evict_good_ones() {
        let (cache, api) = (cache(4, Duration::ZERO), Api(Cell::new(0)));
        cache.get(key(0), || api.says(Ok(Ok(7)))).await.unwrap().unwrap();
        for byte in 1..=100 {
            let _ = cache.get(key(byte), || api.says(Ok(Err(Refusal::NotAuthenticated)))).await;
        }
        assert_eq!(api.0.get(), 101);
        assert_eq!(cache.get(key(0), || api.says(Err("asked".to_owned()))).await, Ok(Ok(7)));
        let tables = cache.tables.lock().unwrap();
        assert_eq!((tables.known.len(), tables.others.len()), (1, 4), "and the tables stay small");
    }

    #[tokio::test(start_paused = true)]
    async fn an_allowed_answer_may_outlive_the_api_for_a_bounded_time() {
        let (cache, api) = (cache(8, 60 * SECOND), Api(Cell::new(0)));
        cache.get(key(1), || api.says(Ok(Ok(7)))).await.unwrap().unwrap();
        for _ in 0..8 {
            advance(11 * SECOND).await;
            assert_eq!(cache.get(key(1), || api.says(Err("down".to_owned()))).await, Ok(Ok(7)));
        }
        advance(3 * SECOND).await;
        assert!(cache.get(key(1), || api.says(Err("down".to_owned()))).await.is_err(), "91 s have passed");
        assert!(api.0.get() < 9, "and the API was not asked for every request");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_ends_what_may_be_stale() {
        let (cache, api) = (cache(8, 600 * SECOND), Api(Cell::new(0)));
        cache.get(key(1), || api.says(Ok(Ok(7)))).await.unwrap().unwrap();
        advance(31 * SECOND).await;
        let refused = cache.get(key(1), || api.says(Ok(Err(Refusal::NotAuthenticated)))).await;
        assert_eq!(refused, Ok(Err(Refusal::NotAuthenticated)));
        advance(11 * SECOND).await;
        assert!(cache.get(key(1), || api.says(Err("down".to_owned()))).await.is_err());
    }
}
