//! What the controllers count. Names, labels and buckets are an interface: dashboards use them.
//!
//! Counting costs nothing until somebody registers and asks. What can be read off the caches is not here:
//! whoever serves metrics computes it when asked.

mod underway;

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::queue::Outcome;
use tokio::time::Instant;
use underway::{Started, Underway};

/// Seconds, from a reconcile that finds nothing to do to one that waits for the API server.
const SECONDS: [f64; 14] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Milliseconds, from a suspend without a Pod to a resume that pulls an image.
const MILLISECONDS: [f64; 14] = [
    10.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 30_000.0, 60_000.0, 120_000.0,
    300_000.0, 600_000.0,
];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Shared by all controllers of a process; clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    depth: Family<Queue, Gauge>,
    adds: Family<Queue, Counter>,
    retries: Family<Queue, Counter>,
    waited: Histograms<Queue>,
    worked: Histograms<Queue>,
    underway: Underway,
    reconciles: Family<Reconcile, Counter>,
    errors: Family<Controller, Counter>,
    reconcile_time: Histograms<Controller>,
    workers: Family<Controller, Gauge>,
    active: Family<Controller, Gauge>,
    suspends: Family<Namespace, Counter>,
    resumes: Family<Namespace, Counter>,
    suspend_latency: Histograms<Namespace>,
    resume_latency: Histograms<Namespace>,
    finished: Family<Finished, Counter>,
    expired: Family<Namespace, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Queue {
    name: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconcile {
    controller: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Namespace {
    namespace: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Finished {
    namespace: String,
    reason: String,
}

/// Something that happened to a Sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Milestone {
    Suspended,
    /// How long a suspend took from the wish to the end of the Pod.
    SuspendTook(Duration),
    Resumed,
    /// How long a resume took from the wish to Ready.
    ResumeTook(Duration),
    Finished(String),
    Expired,
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Histogram::new(SECONDS);
        let milliseconds = || Histogram::new(MILLISECONDS);
        Self {
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waited: Family::new_with_constructor(seconds),
            worked: Family::new_with_constructor(seconds),
            underway: Underway::default(),
            reconciles: Family::default(),
            errors: Family::default(),
            reconcile_time: Family::new_with_constructor(seconds),
            workers: Family::default(),
            active: Family::default(),
            suspends: Family::default(),
            resumes: Family::default(),
            suspend_latency: Family::new_with_constructor(milliseconds),
            resume_latency: Family::new_with_constructor(milliseconds),
            finished: Family::default(),
            expired: Family::default(),
        }
    }
}

impl Metrics {
    /// Makes everything part of what is served. The registry appends `_total` to counters, and units.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("workqueue_depth", "Keys that wait to be worked on", self.depth.clone());
        registry.register("workqueue_adds", "Keys that were asked for", self.adds.clone());
        registry.register("workqueue_retries", "Keys that come back after a failure", self.retries.clone());
        let mut seconds = |name: &str, help: &str, metric| {
            registry.register_with_unit(name, help, Unit::Seconds, metric);
        };
        seconds("workqueue_queue_duration", "How long a key waits", self.waited.clone());
        seconds("workqueue_work_duration", "How long a key is worked on", self.worked.clone());
        registry.register_collector(Box::new(self.underway.clone()));
        registry.register("controller_runtime_reconcile", "Passes by their result", self.reconciles.clone());
        registry.register("controller_runtime_reconcile_errors", "Passes that failed", self.errors.clone());
        let help = "Passes that may be made at the same time";
        registry.register("controller_runtime_max_concurrent_reconciles", help, self.workers.clone());
        let help = "Passes that are being made";
        registry.register("controller_runtime_active_workers", help, self.active.clone());
        registry.register_with_unit(
            "controller_runtime_reconcile_time",
            "How long a pass takes",
            Unit::Seconds,
            self.reconcile_time.clone(),
        );
        registry.register("agent_sandbox_suspend", "Sandboxes that were suspended", self.suspends.clone());
        registry.register("agent_sandbox_resume", "Sandboxes that were resumed", self.resumes.clone());
        registry.register(
            "agent_sandbox_suspend_latency_ms",
            "From the wish to suspend to the end of the Pod",
            self.suspend_latency.clone(),
        );
        registry.register(
            "agent_sandbox_resume_latency_ms",
            "From the wish to resume to Ready",
            self.resume_latency.clone(),
        );
        registry.register("agent_sandbox_finished", "Sandboxes whose Pod ended", self.finished.clone());
        registry.register(
            "agent_sandbox_expired",
            "Sandboxes past their shutdown time",
            self.expired.clone(),
        );
    }

    /// The part of one controller's queue, which has so many workers. Whatever it may count begins at zero, so that
    /// the first of its kind is an increase.
    pub fn queue(&self, name: &'static str, workers: usize) -> Meter {
        let (queue, controller) = (Queue { name }, Controller { controller: name });
        for result in ["error", "requeue_after", "success"] {
            drop(self.reconciles.get_or_create(&Reconcile { controller: name, result }));
        }
        self.workers.get_or_create(&controller).set(i64::try_from(workers).unwrap_or(i64::MAX));
        Meter {
            controller: name,
            depth: self.depth.get_or_create_owned(&queue),
            adds: self.adds.get_or_create_owned(&queue),
            retries: self.retries.get_or_create_owned(&queue),
            waited: self.waited.get_or_create_owned(&queue),
            worked: self.worked.get_or_create_owned(&queue),
            started: self.underway.queue(name),
            reconciles: self.reconciles.clone(),
            errors: self.errors.get_or_create_owned(&controller),
            reconcile_time: self.reconcile_time.get_or_create_owned(&controller),
            active: {
                let active = self.active.get_or_create_owned(&controller);
                active.set(0);
                active
            },
        }
    }

    /// Counts what happened to a Sandbox of this namespace.
    pub fn happened(&self, namespace: &str, milestone: Milestone) {
        let namespace = namespace.to_owned();
        let milliseconds = |took: Duration| took.as_secs_f64() * 1000.0;
        match milestone {
            Milestone::Suspended => _ = self.suspends.get_or_create(&Namespace { namespace }).inc(),
            Milestone::Resumed => _ = self.resumes.get_or_create(&Namespace { namespace }).inc(),
            Milestone::SuspendTook(took) => {
                self.suspend_latency.get_or_create(&Namespace { namespace }).observe(milliseconds(took));
            }
            Milestone::ResumeTook(took) => {
                self.resume_latency.get_or_create(&Namespace { namespace }).observe(milliseconds(took));
            }
            Milestone::Finished(reason) => {
                _ = self.finished.get_or_create(&Finished { namespace, reason }).inc();
            }
            Milestone::Expired => _ = self.expired.get_or_create(&Namespace { namespace }).inc(),
        }
    }
}

/// What one queue counts.
#[derive(Debug, Clone)]
pub struct Meter {
    controller: &'static str,
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
    started: Started,
    reconciles: Family<Reconcile, Counter>,
    errors: Counter,
    reconcile_time: Histogram,
    active: Gauge,
}

impl Meter {
    pub fn added(&self, depth: usize) {
        self.adds.inc();
        self.depth(depth);
    }

    pub fn taken(&self, depth: usize, waited: Duration, now: Instant) {
        self.depth(depth);
        self.waited.observe(waited.as_secs_f64());
        self.started.begin(now);
        self.active.inc();
    }

    /// A key that was taken at `since` is done with.
    pub fn finished(&self, outcome: Outcome, since: Instant, now: Instant) {
        self.started.end(since);
        self.active.dec();
        let result = match outcome {
            Outcome::Done => "success",
            Outcome::After(_) => "requeue_after",
            Outcome::Failed => "error",
        };
        if outcome == Outcome::Failed {
            self.retries.inc();
            self.errors.inc();
        }
        self.reconciles.get_or_create(&Reconcile { controller: self.controller, result }).inc();
        let worked = now.saturating_duration_since(since).as_secs_f64();
        self.worked.observe(worked);
        self.reconcile_time.observe(worked);
    }

    fn depth(&self, depth: usize) {
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }
}
