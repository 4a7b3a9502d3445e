//! How fast a pool may create: a pause after members were taken, and a bucket of tokens.
//!
//! Plain data with the time handed in. What was done is told by [`Pace::created`].

use std::time::Duration;

use jiff::Timestamp;

/// What one pool remembers between passes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pace {
    /// Members at the last look; `None` before the first.
    members: Option<usize>,
    /// No creation before this time.
    held_until: Option<Timestamp>,
    /// `None` until the first grant.
    bucket: Option<Bucket>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    tokens: f64,
    at: Timestamp,
}

/// What a pool may do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// Create this many, at least one.
    Create(usize),
    /// Create nothing before this time has passed.
    Wait(Duration),
}

impl Pace {
    /// Notes how many members there are, and begins a pause when there are fewer than before.
    ///
    /// The first look never pauses; a full pool needs no pause.
    pub fn look(&mut self, members: usize, full: bool, delay: Duration, now: Timestamp) {
        if delay.is_zero() {
            self.members = None;
            self.held_until = None;
            return;
        }
        if self.members.is_some_and(|before| members < before) {
            self.held_until = Some(now.saturating_add(delay).unwrap_or(Timestamp::MAX));
        }
        if full || self.held_until.is_some_and(|until| until <= now) {
            self.held_until = None;
        }
        self.members = Some(members);
    }

    /// What is left of the pause.
    pub fn pause(&self, now: Timestamp) -> Option<Duration> {
        let left = self.held_until?.duration_since(now);
        Duration::try_from(left).ok().filter(|left| !left.is_zero())
    }

    /// Takes up to `want` tokens; `rate` is tokens per second, 0 means no limit.
    pub fn take(&mut self, want: usize, rate: f64, now: Timestamp) -> Grant {
        if rate <= 0.0 {
            self.bucket = None;
            return Grant::Create(want);
        }
        let capacity = rate.max(1.0);
        let tokens = match self.bucket {
            None => capacity,
            Some(bucket) => {
                let passed = now.duration_since(bucket.at).as_secs_f64().max(0.0);
                (bucket.tokens + passed * rate).min(capacity)
            }
        };
        // A float as large as any usize becomes the largest one.
        let granted = want.min(tokens.floor() as usize);
        self.bucket = Some(Bucket { tokens: tokens - granted as f64, at: now });
        if granted > 0 {
            return Grant::Create(granted);
        }
        // Whole milliseconds, rounded up: waking too early would find nothing again.
        Grant::Wait(Duration::from_millis((((1.0 - tokens) / rate) * 1000.0).ceil() as u64))
    }

    /// Notes own creations, so that a member taken right after is noticed as a loss.
    pub fn created(&mut self, count: usize) {
        if let Some(members) = &mut self.members {
            *members += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    const DELAY: Duration = Duration::from_secs(10);

    /// WP-52, WP-53
    #[test]
    fn pool_pauses_after_a_loss_and_again_after_the_next() {
        let mut pace = Pace::default();
        pace.look(0, false, DELAY, at(0));
        assert_eq!(pace.pause(at(0)), None, "the first fill is not delayed");
        pace.created(3);
        pace.look(2, false, DELAY, at(1000));
        assert_eq!(pace.pause(at(1000)), Some(DELAY));
        assert_eq!(pace.pause(at(4000)), Some(Duration::from_secs(7)));
        pace.look(1, false, DELAY, at(4000));
        assert_eq!(pace.pause(at(4000)), Some(DELAY), "a further loss begins it anew");
        pace.look(1, false, DELAY, at(14_000));
        assert_eq!(pace.pause(at(14_000)), None);
    }

    /// WP-51, WP-55
    #[test]
    fn full_pool_and_no_delay_forget_the_pause() {
        let mut pace = Pace::default();
        pace.created(7);
        assert_eq!(pace, Pace::default(), "creations of a pool never looked at are not counted");
        pace.look(3, true, DELAY, at(0));
        pace.look(2, false, DELAY, at(1));
        assert!(pace.pause(at(1)).is_some());
        pace.look(3, true, DELAY, at(2));
        assert_eq!(pace.pause(at(2)), None);
        pace.look(1, false, DELAY, at(3));
        pace.look(0, false, Duration::ZERO, at(4));
        assert_eq!(pace, Pace::default(), "without a delay nothing is kept");
    }

    /// WP-56
    #[test]
    fn bucket_starts_full_and_fills_at_its_rate() {
        let mut pace = Pace::default();
        assert_eq!(pace.take(5, 0.0, at(0)), Grant::Create(5), "no rate, no limit");
        assert_eq!(pace.bucket, None);
        assert_eq!(pace.take(5, 2.0, at(0)), Grant::Create(2));
        assert_eq!(pace.take(3, 2.0, at(0)), Grant::Wait(Duration::from_millis(500)));
        assert_eq!(pace.take(3, 2.0, at(500)), Grant::Create(1));
        assert_eq!(pace.take(3, 2.0, at(60_000)), Grant::Create(2), "a long rest saves up one second");
        let mut slow = Pace::default();
        assert_eq!(slow.take(5, 0.25, at(0)), Grant::Create(1));
        assert_eq!(slow.take(5, 0.25, at(0)), Grant::Wait(Duration::from_secs(4)));
        assert_eq!(slow.take(5, 0.25, at(4000)), Grant::Create(1));
        let mut huge = Pace::default();
        assert_eq!(huge.take(usize::MAX, f64::MAX, at(0)), Grant::Create(usize::MAX));
        assert_eq!(huge.take(300, f64::MAX, at(1)), Grant::Create(300));
    }

    #[test]
    fn clock_that_goes_back_grants_nothing_extra() {
        let mut pace = Pace::default();
        pace.take(2, 2.0, at(10_000));
        assert_eq!(pace.take(1, 2.0, at(0)), Grant::Wait(Duration::from_millis(500)));
    }
}
