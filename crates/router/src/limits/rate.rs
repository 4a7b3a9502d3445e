//! A token bucket in one atomic number (GCRA): the time at which the bucket would be full again.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Requests per second on average, and how many may come at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub per_second: NonZeroU32,
    pub burst: NonZeroU32,
}

impl Rate {
    /// Nanoseconds for one token, and for all but one token of a full bucket.
    fn interval_and_depth(self) -> (u64, u64) {
        let interval = 1_000_000_000 / u64::from(self.per_second.get());
        (interval, interval * (u64::from(self.burst.get()) - 1))
    }
}

/// The state of one bucket. Times are nanoseconds since the limiter's start.
#[derive(Debug, Default)]
pub struct Bucket {
    full_at: AtomicU64,
}

impl Bucket {
    /// Whether a token is left, without taking it.
    pub fn check(&self, rate: Rate, now: u64) -> Result<(), Duration> {
        let (_, depth) = rate.interval_and_depth();
        let ahead = self.full_at.load(Ordering::Relaxed).saturating_sub(now);
        if ahead > depth { Err(Duration::from_nanos(ahead - depth)) } else { Ok(()) }
    }

    /// Takes one token, or returns how long to wait for one.
    pub fn take(&self, rate: Rate, now: u64) -> Result<(), Duration> {
        let (interval, depth) = rate.interval_and_depth();
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        loop {
            let from = full_at.max(now);
            if from - now > depth {
                return Err(Duration::from_nanos(from - now - depth));
            }
            let next = from + interval;
            match self.full_at.compare_exchange_weak(full_at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(seen) => full_at = seen,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn rate(per_second: u32, burst: u32) -> Rate {
        Rate { per_second: per_second.try_into().unwrap(), burst: burst.try_into().unwrap() }
    }

    #[test]
    fn a_burst_passes_and_then_the_average() {
        let (bucket, rate) = (Bucket::default(), rate(10, 3));
        for _ in 0..3 {
            assert_eq!(bucket.take(rate, SECOND), Ok(()));
        }
        assert_eq!(bucket.check(rate, SECOND), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(rate, SECOND), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(rate, SECOND + SECOND / 20), Err(Duration::from_millis(50)));
        assert_eq!(bucket.check(rate, SECOND + SECOND / 10), Ok(()), "looking takes nothing");
        assert_eq!(bucket.take(rate, SECOND + SECOND / 10), Ok(()));
        assert!(bucket.take(rate, SECOND + SECOND / 10).is_err());
    }

    proptest! {
        #![proptest_config(crate::fuzz::config())]

        #[test]
        fn never_more_than_burst_and_average(per_second in 1_u32..1000, burst in 1_u32..50, gaps in proptest::collection::vec(0..SECOND / 10, 1..200)) {
            let (bucket, rate) = (Bucket::default(), rate(per_second, burst));
            let (mut now, mut passed) = (0, 0_u64);
            for gap in gaps {
                now += gap;
                match bucket.take(rate, now) {
                    Ok(()) => passed += 1,
                    Err(wait) => prop_assert!(wait <= Duration::from_secs(1)),
                }
                // An interval is rounded down to nanoseconds, hence one more.
                let most = u64::from(burst) + now * u64::from(per_second) / SECOND + 1;
                prop_assert!(passed <= most, "{passed} of {most}");
            }
        }
    }
}
