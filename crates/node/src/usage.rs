//! How fast processor time is used, without a clock that ticks while nobody asks.
//!
//! A speed takes two samples. The last answer's sample is the first of the next one; where there is none of use, the
//! start of the sandbox is (it had used nothing then), or else the question is answered from two samples a moment apart.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use asb_runtime::Stats;

/// A sample older than this says more about the past than about now.
const OLDEST: Duration = Duration::from_secs(60);
/// Between samples closer than this, the kernel's own ticks are what is measured.
const CLOSEST: Duration = Duration::from_millis(250);

/// Something whose use is counted.
pub struct Subject<T> {
    /// Tells it from all others, also from one of the same name before it.
    pub key: String,
    /// Since when it counts, if it began at nothing.
    pub started: Option<SystemTime>,
    pub what: T,
}

/// What a subject uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub stats: Stats,
    pub nanocores: u64,
    /// The time over which the processor was measured.
    pub window: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    at: Instant,
    cpu_nanos: u64,
}

/// The samples of the last question.
#[derive(Default)]
pub struct Samples(Mutex<HashMap<String, Sample>>);

impl Samples {
    /// Measures all subjects; `read` is called once for each, or twice.
    pub async fn measure<T>(&self, subjects: Vec<Subject<T>>, read: impl Fn(&T) -> Stats) -> Vec<(T, Usage)> {
        let first: Vec<_> = subjects.iter().map(|subject| sample(read(&subject.what))).collect();
        let mut bases = self.bases(&subjects, &first);
        let mut latest = first.clone();
        if bases.iter().any(Option::is_none) {
            tokio::time::sleep(CLOSEST).await;
            for (at, subject) in subjects.iter().enumerate().filter(|(at, _)| bases[*at].is_none()) {
                latest[at] = sample(read(&subject.what));
            }
            for (base, (sample, _)) in bases.iter_mut().zip(&first) {
                base.get_or_insert(*sample);
            }
        }
        self.remember(&subjects, &latest);
        let measured = subjects.into_iter().zip(bases.into_iter().flatten()).zip(latest);
        let usage = |((subject, base), (now, stats)): ((Subject<T>, Sample), (Sample, Stats))| {
            let (nanocores, window) = speed(base, now);
            (subject.what, Usage { stats, nanocores, window })
        };
        measured.map(usage).collect()
    }

    fn bases<T>(&self, subjects: &[Subject<T>], now: &[(Sample, Stats)]) -> Vec<Option<Sample>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let base = |(subject, (now, _)): (&Subject<T>, &(Sample, Stats))| {
            let age = subject.started.and_then(|started| started.elapsed().ok());
            base(known.get(&subject.key).copied(), age, *now)
        };
        subjects.iter().zip(now).map(base).collect()
    }

    /// Whoever was not asked about is forgotten: most likely it is gone.
    fn remember<T>(&self, subjects: &[Subject<T>], latest: &[(Sample, Stats)]) {
        let samples =
            subjects.iter().zip(latest).map(|(subject, (sample, _))| (subject.key.clone(), *sample));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = samples.collect();
    }
}

fn sample(stats: Stats) -> (Sample, Stats) {
    (Sample { at: Instant::now(), cpu_nanos: stats.cpu_nanos.unwrap_or(0) }, stats)
}

/// The sample to compare with: the last one, or the start; `None` when neither is of use.
fn base(last: Option<Sample>, age: Option<Duration>, now: Sample) -> Option<Sample> {
    let of_use = |at: &Instant| {
        let ago = now.at.saturating_duration_since(*at);
        (CLOSEST..=OLDEST).contains(&ago)
    };
    let last = last.filter(|last| of_use(&last.at) && last.cpu_nanos <= now.cpu_nanos);
    let start = || now.at.checked_sub(age?).filter(of_use).map(|at| Sample { at, cpu_nanos: 0 });
    last.or_else(start)
}

/// Nanoseconds of processor time per second, and over which time.
fn speed(from: Sample, to: Sample) -> (u64, Duration) {
    let window = to.at.saturating_duration_since(from.at);
    let used = u128::from(to.cpu_nanos.saturating_sub(from.cpu_nanos));
    let nanocores = (used * 1_000_000_000).checked_div(window.as_nanos()).unwrap_or(0);
    (u64::try_from(nanocores).unwrap_or(u64::MAX), window)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(begin: Instant, seconds: u64, cpu_nanos: u64) -> Sample {
        Sample { at: begin + SECOND * seconds as u32, cpu_nanos }
    }

    #[test]
    fn last_sample_counts_while_it_is_neither_too_old_nor_too_close() {
        let begin = Instant::now();
        let now = at(begin, 100, 50);
        assert_eq!(base(Some(at(begin, 90, 20)), None, now), Some(at(begin, 90, 20)));
        assert_eq!(base(Some(at(begin, 10, 20)), None, now), None, "too old");
        assert_eq!(base(Some(at(begin, 100, 20)), None, now), None, "too close");
        assert_eq!(base(Some(at(begin, 90, 60)), None, now), None, "of something that was before");
    }

    #[test]
    fn young_sandbox_is_measured_from_its_start() {
        let now = at(Instant::now(), 100, 50);
        let start = base(None, Some(SECOND * 5), now).expect("a base");
        assert_eq!((now.at - start.at, start.cpu_nanos), (SECOND * 5, 0));
        assert_eq!(base(None, Some(SECOND * 500), now), None, "its youth is no measure of now");
    }

    #[test]
    fn speed_is_processor_time_per_time() {
        let begin = Instant::now();
        let speed = speed(at(begin, 0, 1_000_000_000), at(begin, 2, 2_000_000_000));
        assert_eq!(speed, (500_000_000, SECOND * 2), "half a processor");
    }

    #[tokio::test]
    async fn first_question_is_answered_from_two_samples() {
        let samples = Samples::default();
        let cpu = std::sync::atomic::AtomicU64::new(0);
        let read = |_: &()| Stats {
            cpu_nanos: Some(cpu.fetch_add(1_000_000, std::sync::atomic::Ordering::SeqCst)),
            ..Stats::default()
        };
        let subjects = || vec![Subject { key: "a".to_owned(), started: None, what: () }];
        let (_, usage) = samples.measure(subjects(), read).await[0];
        assert!(usage.window >= CLOSEST && usage.nanocores > 0, "{usage:?}");
        assert_eq!(cpu.load(std::sync::atomic::Ordering::SeqCst), 2_000_000, "read twice");
    }
}
