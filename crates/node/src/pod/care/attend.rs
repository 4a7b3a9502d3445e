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
use kube::Client;

use super::verdict::Answers;
use super::{Care, Kind, Probe, act};
use crate::event;
use crate::pod::watch::{News, Reporter};

/// A running container and what is known of it.
pub struct Patient {
    pub client: Client,
    pub pod: Arc<Pod>,
    pub name: String,
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
                let message = format!("The postStart hook of container {} failed: {problem}", self.name);
                event::warn(&self.client, &self.pod, "FailedPostStartHook", &message).await;
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
    /// The problem that was told last: the same one again is no news.
    told: Option<String>,
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
        Self { patient, probe, kind, answers: Answers::default(), told: None, ticks }
    }

    /// Asks once; says what is true, if that is known by now.
    async fn next(&mut self) -> Option<bool> {
        self.ticks.tick().await;
        let Patient { sandbox, client, pod, name, .. } = self.patient;
        let asked = tokio::time::timeout(self.probe.timeout, act::run(sandbox, &self.probe.action)).await;
        let answer = asked.unwrap_or_else(|_| Err(format!("no answer within {:?}", self.probe.timeout)));
        match &answer {
            Ok(()) => self.told = None,
            Err(problem) if self.told.as_ref() != Some(problem) => {
                let message = format!("{} probe of container {name} failed: {problem}", self.kind.name());
                event::warn(client, pod, "Unhealthy", &message).await;
                self.told = Some(problem.clone());
            }
            Err(_) => {}
        }
        self.answers.note(answer.is_ok(), self.probe)
    }
}
