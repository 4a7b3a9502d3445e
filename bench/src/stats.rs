//! Samples, and what is said about them.

use std::time::Duration;

use serde_json::{Value, json};

/// Durations of one thing that was done many times, in the order in which they were taken.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    taken: Vec<Duration>,
}

impl Samples {
    pub fn push(&mut self, sample: Duration) {
        self.taken.push(sample);
    }

    pub fn count(&self) -> usize {
        self.taken.len()
    }

    /// The smallest sample that `percent` of all samples do not exceed; `None` without samples.
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let mut sorted = self.taken.clone();
        sorted.sort();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied()
    }

    pub fn median(&self) -> Option<Duration> {
        self.percentile(50)
    }

    /// Milliseconds, with every sample in its order, so that a drift can be seen.
    pub fn json(&self) -> Value {
        let at = |percent| self.percentile(percent).map(milliseconds);
        json!({
            "unit": "ms", "count": self.count(),
            "min": at(0), "p50": at(50), "p90": at(90), "p99": at(99), "max": at(100),
            "samples": self.taken.iter().copied().map(milliseconds).collect::<Vec<_>>(),
        })
    }
}

pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The middle one; the lower of two middles.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::default();
        values.into_iter().for_each(|value| samples.push(Duration::from_millis(value)));
        samples
    }

    #[test]
    fn percentiles_are_samples_that_were_really_taken() {
        let hundred = samples((1..=100).rev());
        let at = |percent| hundred.percentile(percent).map(|it| it.as_millis());
        assert_eq!(
            [at(0), at(50), at(90), at(99), at(100)],
            [Some(1), Some(50), Some(90), Some(99), Some(100)]
        );
        let few = samples([30, 10, 20]);
        assert_eq!(few.median(), Some(Duration::from_millis(20)));
        assert_eq!(
            few.percentile(99),
            Some(Duration::from_millis(30)),
            "one slow sample of three is the p99"
        );
    }

    #[test]
    fn nothing_is_said_about_no_samples() {
        assert_eq!(samples([]).median(), None);
        assert_eq!(samples([]).json()["p50"], Value::Null);
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn samples_keep_the_order_in_which_they_were_taken() {
        assert_eq!(samples([3, 1, 2]).json()["samples"], json!([3.0, 1.0, 2.0]));
        assert_eq!(median(vec![9.0, 1.0, 5.0]), Some(5.0));
    }
}
