//! Hooks and probes of one container, for as long as it runs.
//!
//! ```text
//! postStart ──► startup probe until it succeeds ──► readiness and liveness probes, side by side
//!     └ failed ──► stop        └ failed ──► stop        ready or not   └ failed ──► stop
//! ```

use std::sync::Arc;
use std::time::SystemTime;

use asb_runtime::Sandbox;
use k8s_openapi::api::core::v1::Pod;

use super::verdict::Answers;
use super::{Care, Kind, Probe, Problem, act};
use crate::event::Recorder;
use crate::pod::container::Slot;
use crate::pod::watch::{News, Reporter};

/// A running container and what is known of it.
pub struct Patient {
    pub events: Recorder,
    pub pod: Arc<Pod>,
    pub slot: Slot,
    pub sandbox: Sandbox,
    pub care: Arc<Care>,
    pub greeted: bool,
    pub started: bool,
    pub ready: bool,
    pub reporter: Reporter,
}

/// Returns when there is nothing more to look at, which may be at once or never.
pub async fn attend(patient: Patient) {
    if !patient.greeted && !patient.greet().await {
        return;
    }
    let care = patient.care.clone();
    if let Some(probe) = care.startup.as_ref().filter(|_| !patient.started) {
        if !patient.wait_for_start(probe).await {
            return;
        }
        patient.tell(News::Started);
    }
    tokio::join!(
        async {
            if let Some(probe) = &care.readiness {
                patient.watch_readiness(probe).await;
            }
        },
        async {
            if let Some(probe) = &care.liveness {
                patient.watch_liveness(probe).await;
            }
        },
    );
}

impl Patient {
    async fn greet(&self) -> bool {
        let done = match &self.care.post_start {
            Some(hook) => act::run(&self.sandbox, hook).await,
            None => Ok(()),
        };
        match done {
            Ok(()) => self.tell(News::Greeted),
            Err(problem) => {
                let message = format!("PostStartHook failed: {problem}");
                self.events.warn_of(&self.pod, self.slot, "FailedPostStartHook", message);
                self.tell(News::HookFailed);
                return false;
            }
        }
        true
    }

    async fn wait_for_start(&self, probe: &Probe) -> bool {
        let mut asking = Asking::new(self, probe, Kind::Startup).await;
        loop {
            match asking.next().await {
                Some(true) => return true,
                Some(false) => {
                    self.tell(News::Unhealthy(Kind::Startup));
                    return false;
                }
                None => {}
            }
        }
    }

    async fn watch_readiness(&self, probe: &Probe) {
        let mut asking = Asking::new(self, probe, Kind::Readiness).await;
        let mut known = self.ready;
        loop {
            if let Some(ready) = asking.next().await.filter(|ready| *ready != known) {
                known = ready;
                self.tell(News::Ready(ready));
            }
        }
    }

    async fn watch_liveness(&self, probe: &Probe) {
        let mut asking = Asking::new(self, probe, Kind::Liveness).await;
        while asking.next().await != Some(false) {}
        self.tell(News::Unhealthy(Kind::Liveness));
    }

    fn tell(&self, news: News) {
        self.reporter.tell(news);
    }
}

/// A probe being asked, with what it said so far.
struct Asking<'a> {
    patient: &'a Patient,
    probe: &'a Probe,
    kind: Kind,
    answers: Answers,
    ticks: tokio::time::Interval,
}

impl<'a> Asking<'a> {
    /// Waits for the first time to ask.
    async fn new(patient: &'a Patient, probe: &'a Probe, kind: Kind) -> Self {
        let since = patient.sandbox.started_at();
        let delay = probe.delay.saturating_sub(SystemTime::now().duration_since(since).unwrap_or_default());
        tokio::time::sleep(delay).await;
        let mut ticks = tokio::time::interval(probe.period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Self { patient, probe, kind, answers: Answers::default(), ticks }
    }

    /// Asks once; says what is true, if that is known by now.
    async fn next(&mut self) -> Option<bool> {
        self.ticks.tick().await;
        let Patient { sandbox, events, pod, slot, .. } = self.patient;
        let asked = tokio::time::timeout(self.probe.timeout, act::run(sandbox, &self.probe.action)).await;
        let late = || Err(Problem::Failed(format!("no answer within {:?}", self.probe.timeout)));
        let answer = asked.unwrap_or_else(|_| late());
        if let Err(problem) = &answer {
            let what = if matches!(problem, Problem::Untried(_)) { "errored" } else { "failed" };
            let message = format!("{} probe {what}: {problem}", self.kind.name());
            events.warn_of(pod, *slot, "Unhealthy", message);
        }
        match answer {
            // As with a kubelet, a probe that cannot be asked changes nothing.
            Err(Problem::Untried(_)) => None,
            answer => self.answers.note(answer.is_ok(), self.probe),
        }
    }
}
