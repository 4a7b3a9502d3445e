//! What the task of a Pod does with one of its containers, and hears of it.

use std::sync::Arc;
use std::time::Duration;

use asb_runtime::Sandbox;
use futures::FutureExt;
use tokio_util::task::AbortOnDropHandle;

use super::care::Care;
use super::container::{Role, Slot};
use super::keeper;
use super::plan::{Doing, Finished, Running};
use super::prewarm::prewarm;
use super::replace::Cause;
use super::spec::{LABEL_IMAGE, LABEL_IMAGE_ID};
use super::start::{Began, Start, Stopped, is_final, start};
use super::stop::{Leaving, stop};
use super::trouble::Trouble;
use super::watch::{self, Instance, News, Reporter, Watch};
use super::worker::{DEFAULT_GRACE, Worker};
use crate::node::uid;

/// One container, as the task has it in hand.
pub struct Hand {
    pub slot: Slot,
    pub care: Arc<Care>,
    pub sandbox: Option<Sandbox>,
    pub watch: Option<Watch>,
    /// The task that stops it.
    pub stopping: Option<AbortOnDropHandle<()>>,
    /// Why it could not be started.
    pub trouble: Option<Trouble>,
}

impl Hand {
    pub fn new(slot: Slot, care: Care) -> Self {
        let (sandbox, watch, stopping, trouble) = Default::default();
        Self { slot, care: Arc::new(care), sandbox, watch, stopping, trouble }
    }
}

impl Worker {
    /// Begins to start a container; an instance that ended makes room for it.
    pub(super) fn start(&mut self, index: usize) {
        let (hand, seen) = (&mut self.hands[index], &mut self.seen[index]);
        let end = match &seen.doing {
            Doing::Ended(end) => Some(end.clone()),
            _ => None,
        };
        seen.cleared();
        seen.doing = Doing::Starting;
        (hand.watch, hand.stopping) = (None, None);
        let previous = hand.sandbox.take().map(|sandbox| (sandbox, end));
        let (slot, restarts) = (hand.slot, seen.restarts);
        self.node.shared.events.hold();
        let is_new = self.seen.iter().enumerate().all(|(other, one)| other == index || !one.begun());
        let future = start(Start {
            is_new: is_new && self.seen[index].last.is_none(),
            node: self.node.clone(),
            pod: self.pod.clone(),
            slot,
            reporter: self.reporter(index, restarts),
            previous,
            place: self.place.take(),
            volumes: self.volumes.clone(),
            cancel: self.cancel.clone(),
        });
        self.starting = Some((index, future.boxed()));
    }

    /// A start is through.
    pub(super) fn began(&mut self, index: usize, began: Began) {
        let Began { place, volumes, image, references, result, unenforced } = began;
        self.address = place.as_ref().map(|place| place.address);
        self.address6 = place.as_ref().and_then(|place| place.beside(&self.node));
        (self.place, self.volumes) = (place, volumes);
        self.watch_common();
        // Once: starting again changes nothing about it.
        if let Some(message) = unenforced.filter(|_| self.seen[index].restarts == 0) {
            self.node.shared.events.warn(&self.pod, "LimitsNotEnforced", message);
        }
        match result {
            Ok(sandbox) => {
                let care = &self.hands[index].care;
                let running = Running {
                    since: sandbox.started_at(),
                    greeted: care.post_start.is_none(),
                    started: care.startup.is_none(),
                    ready: care.readiness.is_none(),
                    stopping: false,
                    restart: false,
                };
                let (events, slot) = (&self.node.shared.events, self.hands[index].slot);
                events.tell_of(&self.pod, slot, "Created", "Container created");
                events.tell_of(&self.pod, slot, "Started", "Container started");
                self.took_place = true;
                prewarm(&self.pod, self.hands[index].slot, &sandbox);
                self.runs(index, sandbox, running);
                if self.keeper.is_none() {
                    let desired = self.desired.clone();
                    self.keeper = keeper::keep(&self.node, &self.pod, desired, Some(references));
                }
            }
            Err(Stopped::Cancelled) => self.seen[index].doing = Doing::Absent,
            Err(Stopped::Refused(refusal)) => {
                self.seen[index].doing = Doing::Absent;
                match is_final(&refusal) {
                    true if self.hands[index].slot.role(&self.pod) != Role::Ephemeral => self.refuse(refusal),
                    // By now the Pod asks for another one: this says nothing about it.
                    false if self.asks_for(index) != image => {}
                    _ => self.note_trouble(index, refusal, references),
                }
            }
        }
    }

    /// Takes note of a container that runs, and watches over it.
    pub(super) fn runs(&mut self, index: usize, sandbox: Sandbox, running: Running) {
        let slot = self.hands[index].slot;
        self.node.shared.remember(&uid(&self.pod), slot, &sandbox);
        let enter = || self.node.shared.disk.enter(&self.pod, self.evictions.0.clone());
        self.tenancy.get_or_insert_with(enter);
        let instance = Instance {
            node: self.node.clone(),
            pod: self.pod.clone(),
            slot,
            sandbox: sandbox.clone(),
            care: self.hands[index].care.clone(),
            reporter: self.reporter(index, self.seen[index].restarts),
        };
        let watch = watch::watch(instance, &running);
        let (hand, seen) = (&mut self.hands[index], &mut self.seen[index]);
        if let Some(image) = sandbox.spec().labels.get(LABEL_IMAGE) {
            seen.image = image.clone();
        }
        seen.image_id = sandbox.spec().labels.get(LABEL_IMAGE_ID).cloned().unwrap_or_default();
        (seen.doing, seen.waits, seen.not_before) = (Doing::Running(running), None, None);
        (hand.sandbox, hand.watch, hand.trouble) = (Some(sandbox), Some(watch), None);
    }

    /// Takes in what became known of a container.
    pub(super) fn hear(&mut self, index: usize, restarts: u32, news: News) {
        if self.seen[index].restarts != restarts {
            return; // of an instance that is gone
        }
        match (&mut self.seen[index].doing, news) {
            (Doing::Starting, News::Pulling) => self.pulling = true,
            (Doing::Running(_), News::Ended(end)) => self.ended(index, end),
            (Doing::Running(it), _) if it.stopping => {}
            (Doing::Running(it), News::Greeted) => it.greeted = true,
            (Doing::Running(it), News::Started) => it.started = true,
            (Doing::Running(it), News::Ready(ready)) => it.ready = ready,
            (Doing::Running(_), News::HookFailed) => {
                self.stop(index, None, Some("FailedPostStartHook".to_owned()));
            }
            (Doing::Running(_), News::Unhealthy(kind)) => self.replace(index, Cause::Unhealthy(kind)),
            _ => {}
        }
    }

    pub(super) fn ended(&mut self, index: usize, end: Finished) {
        tracing::debug!(container = self.name(index), code = end.code, "container ended");
        (self.hands[index].watch, self.hands[index].stopping) = (None, None);
        self.seen[index].ended(end);
    }

    /// Begins to stop a container, unless that was done. The message is that of the event, if it is not the usual one.
    pub(super) fn stop(&mut self, index: usize, grace: Option<Duration>, message: Option<String>) {
        let Doing::Running(running) = &mut self.seen[index].doing else { return };
        if std::mem::replace(&mut running.stopping, true) {
            return;
        }
        let hand = &mut self.hands[index];
        hand.watch.iter_mut().for_each(Watch::only_the_end);
        let grace = grace.unwrap_or_else(|| {
            let spec = self.pod.spec.as_ref();
            let seconds = spec.and_then(|spec| spec.termination_grace_period_seconds);
            seconds.and_then(|it| u64::try_from(it).ok()).map_or(DEFAULT_GRACE, Duration::from_secs)
        });
        if let Some(leaving) = self.leaving_of(index) {
            let leaving = Leaving { message, ..leaving };
            let task = tokio::spawn(async move { stop(&leaving, grace, std::future::ready(())).await });
            self.hands[index].stopping = Some(AbortOnDropHandle::new(task));
        }
    }

    pub(super) fn leaving_of(&self, index: usize) -> Option<Leaving> {
        let hand = &self.hands[index];
        Some(Leaving {
            events: self.node.shared.events.clone(),
            pod: self.pod.clone(),
            slot: hand.slot,
            message: None,
            sandbox: hand.sandbox.clone()?,
            pre_stop: hand.care.pre_stop.clone(),
        })
    }

    fn reporter(&self, index: usize, restarts: u32) -> Reporter {
        Reporter { to: self.news.0.clone(), index, restarts }
    }

    pub(super) fn name(&self, index: usize) -> &str {
        self.hands[index].slot.name(&self.pod)
    }
}
