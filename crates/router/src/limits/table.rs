//! A bounded table of counters. Sharded, so that requests for different keys rarely wait for each other.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;

use super::rate::Bucket;
use super::{Exceeded, Kind};

const SHARDS: usize = 16;
/// Entries looked at for one that is idle.
const EVICTION_TRIES: usize = 8;

/// What one key uses. Referenced by every guard, so an entry without guards is idle.
#[derive(Debug, Default)]
pub struct Usage {
    requests: Counter,
    tunnels: Counter,
    connections: Counter,
    pub rate: Bucket,
}

#[derive(Debug, Default)]
pub struct Counter(AtomicU32);

pub struct Table {
    shards: [Mutex<LruCache<u64, Arc<Usage>>>; SHARDS],
}

// === impl Table ===

impl Table {
    pub fn new(entries: NonZeroUsize) -> Self {
        let size = NonZeroUsize::new(entries.get().div_ceil(SHARDS)).unwrap_or(NonZeroUsize::MIN);
        // Grows with use; only the bound is fixed. `put` never evicts, because `get` makes room before.
        Self { shards: std::array::from_fn(|_| Mutex::new(bounded(size))) }
    }

    /// The counters of a key. Makes room by forgetting the idle entry that was used longest ago.
    pub fn get(&self, key: u64) -> Result<Arc<Usage>, Exceeded> {
        let shard = &self.shards[key as usize % SHARDS];
        let mut entries = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(usage) = entries.get(&key) {
            return Ok(usage.clone());
        }
        if entries.len() == entries.cap().get() && !evict(&mut entries) {
            return Err(Exceeded::TableFull);
        }
        let usage = Arc::new(Usage::default());
        entries.put(key, usage.clone());
        Ok(usage)
    }

    /// The counters of a key that has some.
    pub fn peek(&self, key: u64) -> Option<Arc<Usage>> {
        let shard = &self.shards[key as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    #[cfg(test)]
    pub fn usages(&self) -> Vec<Arc<Usage>> {
        let all = self.shards.iter().flat_map(|shard| {
            shard.lock().unwrap().iter().map(|(_, usage)| usage.clone()).collect::<Vec<_>>()
        });
        all.collect()
    }
}

/// An LRU table that allocates as it grows, not all at once.
fn bounded(size: NonZeroUsize) -> LruCache<u64, Arc<Usage>> {
    let mut entries = LruCache::unbounded();
    entries.resize(size);
    entries
}

fn evict(entries: &mut LruCache<u64, Arc<Usage>>) -> bool {
    for _ in 0..EVICTION_TRIES {
        let Some((&key, usage)) = entries.peek_lru() else { return false };
        if Arc::strong_count(usage) == 1 {
            entries.pop_lru();
            return true;
        }
        entries.promote(&key);
    }
    false
}

// === impl Usage ===

impl Usage {
    /// The counter of a kind; `None` is for connections.
    pub fn counter(&self, kind: Option<Kind>) -> &Counter {
        match kind {
            Some(Kind::Request) => &self.requests,
            Some(Kind::Tunnel) => &self.tunnels,
            None => &self.connections,
        }
    }
}

// === impl Counter ===

impl Counter {
    pub fn try_add(&self, max: u32) -> bool {
        let add = |count: u32| (count < max).then(|| count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    pub fn subtract(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}
