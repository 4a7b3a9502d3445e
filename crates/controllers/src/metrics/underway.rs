//! Work that has begun and not ended: how much in all, and for how long the oldest. Read at every scrape, for what hangs
//! is in no histogram.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::time::Instant;

use super::Queue;

/// Of all queues.
#[derive(Debug, Clone, Default)]
pub struct Underway(Arc<Mutex<Vec<(&'static str, Started)>>>);

/// When the work of one queue that has not ended began.
#[derive(Debug, Clone, Default)]
pub struct Started(Arc<Mutex<Vec<Instant>>>);

impl Underway {
    /// The part of one queue. A controller that runs anew begins anew.
    pub fn queue(&self, name: &'static str) -> Started {
        let started = Started::default();
        let mut queues = lock(&self.0);
        queues.retain(|(known, _)| *known != name);
        queues.push((name, started.clone()));
        started
    }
}

impl Started {
    pub fn begin(&self, now: Instant) {
        lock(&self.0).push(now);
    }

    /// Forgets one that began then.
    pub fn end(&self, since: Instant) {
        let mut started = lock(&self.0);
        if let Some(at) = started.iter().position(|began| *began == since) {
            started.swap_remove(at);
        }
    }

    /// Seconds in all, and of the oldest.
    fn seconds(&self, now: Instant) -> (f64, f64) {
        let started = lock(&self.0);
        let ages = started.iter().map(|began| now.saturating_duration_since(*began).as_secs_f64());
        ages.fold((0.0, 0.0), |(sum, longest), age| (sum + age, f64::max(longest, age)))
    }
}

impl Collector for Underway {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = Instant::now();
        let queues = lock(&self.0);
        let ages: Vec<_> = queues.iter().map(|(name, started)| (*name, started.seconds(now))).collect();
        let mut tell = |metric: &str, help: &str, pick: fn((f64, f64)) -> f64| {
            let mut family = encoder.encode_descriptor(metric, help, None, MetricType::Gauge)?;
            for (name, seconds) in &ages {
                ConstGauge::new(pick(*seconds)).encode(family.encode_family(&Queue { name })?)?;
            }
            Ok(())
        };
        tell("workqueue_unfinished_work_seconds", "Age of all work that has not ended", |(sum, _)| sum)?;
        tell(
            "workqueue_longest_running_processor_seconds",
            "Age of the oldest work that has not ended",
            |(_, longest)| longest,
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_work_that_has_not_ended_has_an_age() {
        let (started, begun) = (Started::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(started.seconds(at(0)), (0.0, 0.0));
        [at(0), at(1), at(1)].into_iter().for_each(|now| started.begin(now));
        assert_eq!(started.seconds(at(3)), (7.0, 3.0));
        started.end(at(1));
        assert_eq!(started.seconds(at(3)), (5.0, 3.0), "one of the two that began together goes on");
        started.end(at(0));
        started.end(at(0));
        assert_eq!(started.seconds(at(3)), (2.0, 2.0));
    }
}
