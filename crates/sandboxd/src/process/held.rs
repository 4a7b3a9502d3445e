//! How much output the daemon holds for all callers together, from the first byte read to the last one sent.

use std::sync::atomic::{AtomicUsize, Ordering};

const LIMIT: usize = 256 << 20;

static HELD: AtomicUsize = AtomicUsize::new(0);

/// A share of the limit, given back when it is dropped.
#[derive(Debug, Default)]
pub struct Held(usize);

impl Held {
    /// Takes more of the limit; returns whether there was room.
    pub fn add(&mut self, bytes: usize) -> bool {
        let fits = |held: usize| held.checked_add(bytes).filter(|&sum| sum <= LIMIT);
        let has_room = HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        self.0 += if has_room { bytes } else { 0 };
        has_room
    }

    /// Gives back what is more than `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.0.saturating_sub(bytes);
        HELD.fetch_sub(surplus, Ordering::Relaxed);
        self.0 -= surplus;
    }

    pub fn join(mut self, mut other: Self) -> Self {
        self.0 += std::mem::take(&mut other.0);
        self
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}
