//! The life of one Pod. One task owns it: nobody else starts, stops or reports its containers.
//!
//! ```text
//! seen ──► plan (pure) ──► start one, stop some ──► status (pure), if it changed ──► wait for news ─┐
//!   ▲                                                                                               │
//!   └──────── a start is through · an end, a hook, a probe · the object changed · time is up ◄──────┘
//!
//! deleted ──► stop all within the grace period ──► remove ──► Pod object gone
//! ```
//!
//! While a container starts, nothing is reported: that takes milliseconds, and then there is more to tell.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use futures::future::{BoxFuture, OptionFuture};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::adopt::{self, Left};
use super::care::{Care, read};
use super::container::Slot;
use super::hand::Hand;
use super::plan::{Doing, Outcome, Plan, Rules, Seen, plan};
use super::replace::Cause;
use super::spec::Refusal;
use super::start::{Began, Place};
use super::stop::{Leaving, SIGKILL, stop_all};
use super::volumes::Prepared;
use super::watch::Told;
use super::{evict, keeper, report};
use crate::disk::{EVICTED, Tenancy};
use crate::node::{Node, uid};
use crate::volume::Lease;

pub(super) const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// How long places for other Pods wait after a start. Making them takes the processors that the Pod's first output needs.
const FIRST_OUTPUT: Duration = Duration::from_millis(20);

/// What the API wants of a Pod.
#[derive(Debug, Clone)]
pub enum Desired {
    Present(Arc<Pod>),
    /// The object is gone.
    Gone,
}

/// Runs a Pod until it is gone.
pub async fn run(node: Node, desired: watch::Receiver<Desired>, left: Left) {
    let pod = match &*desired.borrow() {
        Desired::Present(pod) => pod.clone(),
        Desired::Gone => return,
    };
    let span = tracing::info_span!("pod", sandbox = %pod.name_any(), namespace = pod.namespace());
    let mut worker = Worker::new(node.clone(), desired, pod, left);
    worker.live().instrument(span.clone()).await;
    // Once begun, the end is not interrupted by that of the engine.
    node.shared.ending.spawn(async move { worker.end().await }.instrument(span));
}

pub(super) struct Worker {
    pub node: Node,
    pub desired: watch::Receiver<Desired>,
    /// The last form of the Pod that was seen.
    pub pod: Arc<Pod>,
    /// When it was first seen.
    pub since: SystemTime,
    /// In the order of [`Slot::with_ephemeral`], like `hands`.
    pub seen: Vec<Seen>,
    pub hands: Vec<Hand>,
    /// Only another Pod can help.
    pub refused: Option<Refusal>,
    pub place: Option<Place>,
    /// Its address, also while the place is in the hands of a start.
    pub address: Option<Ipv4Addr>,
    pub address6: Option<Ipv6Addr>,
    pub volumes: Option<Arc<BTreeMap<String, Prepared>>>,
    /// Of the claimed volumes that sandboxes of an earlier engine have mounted.
    _leases: Vec<Lease>,
    /// Resolves when what the containers share has ended.
    pub common_end: Option<BoxFuture<'static, ()>>,
    pub starting: Option<(usize, BoxFuture<'static, Began>)>,
    /// What is being started needs its image first.
    pub pulling: bool,
    pub cancel: CancellationToken,
    pub news: (mpsc::UnboundedSender<Told>, mpsc::UnboundedReceiver<Told>),
    /// Resolves when something changes that a container waits for.
    pub awaited: Option<BoxFuture<'static, ()>>,
    /// Keeps volumes that are files as the API has them.
    pub keeper: Option<AbortOnDropHandle<()>>,
    /// What it takes of the disk is watched while this is there.
    pub tenancy: Option<Tenancy>,
    pub evictions: (mpsc::UnboundedSender<Refusal>, mpsc::UnboundedReceiver<Refusal>),
    /// The status as last written.
    pub told: Option<Value>,
    /// Nothing is to be done about this Pod any more but to let it go.
    over: bool,
    /// A place was taken that another should be made for.
    pub took_place: bool,
}

impl Worker {
    fn new(node: Node, desired: watch::Receiver<Desired>, pod: Arc<Pod>, left: Left) -> Self {
        let known = pod.status.as_ref().and_then(|status| status.start_time.clone());
        let since = known.as_ref().map_or_else(SystemTime::now, |time| time.0.into());
        let mut refused = None;
        let mut hand = |slot: Slot| {
            let care = read::care(&pod, slot).unwrap_or_else(|refusal| {
                refused.get_or_insert(refusal);
                Care::default()
            });
            Hand::new(slot, care)
        };
        let hands: Vec<_> = Slot::with_ephemeral(&pod).into_iter().map(&mut hand).collect();
        let mut worker = Self {
            node,
            desired,
            since,
            seen: vec![Seen::default(); hands.len()],
            hands,
            refused: None,
            place: None,
            address: None,
            address6: None,
            volumes: None,
            _leases: left.leases,
            common_end: None,
            starting: None,
            pulling: false,
            cancel: CancellationToken::new(),
            news: mpsc::unbounded_channel(),
            awaited: None,
            keeper: None,
            tenancy: None,
            evictions: mpsc::unbounded_channel(),
            told: None,
            over: false,
            took_place: false,
            pod,
        };
        let has_main = worker.hands.iter().any(|hand| matches!(hand.slot, Slot::Main(_)));
        let empty = || Refusal::new("InvalidPod", "spec.containers: at least one is required");
        let known_refusal = evict::known(&worker.pod).or_else(|| evict::rejected(&worker.pod));
        worker.refused = known_refusal.or(refused).or_else(|| (!has_main).then(empty));
        adopt::take_over(&mut worker, left.sandboxes);
        if known.is_none() {
            worker.node.shared.events.scheduled(&worker.pod);
        }
        if worker.seen.iter().any(|one| matches!(one.doing, Doing::Running(_))) {
            worker.keeper = keeper::keep(&worker.node, &worker.pod, worker.desired.clone(), None);
        }
        worker
    }

    async fn live(&mut self) {
        self.watch_common();
        if self.common_end.as_mut().is_some_and(|end| end.now_or_never().is_some()) {
            self.lose_common().await;
        }
        if let Some(refusal) = self.refused.take_if(|refusal| refusal.reason != EVICTED) {
            self.refuse(refusal);
        }
        while !self.leaving() {
            let now = SystemTime::now();
            let rules = Rules::of(&self.pod, self.since);
            let mut plan = plan(&rules, &self.seen, self.refused.is_some(), now);
            for index in std::mem::take(&mut plan.stop) {
                self.stop(index, self.eviction_grace(), None);
            }
            for index in std::mem::take(&mut plan.replace) {
                self.replace(index, Cause::Changed);
            }
            self.tell_of_pauses(&plan);
            plan.wake = plan.wake.into_iter().chain(self.tell_of_images(now)).min();
            match plan.start.filter(|_| self.starting.is_none()) {
                Some(index) => self.start(index),
                None if self.starting.is_none() || self.pulling => {
                    let later = self.settle(&plan, now).await;
                    plan.wake = plan.wake.into_iter().chain(later).min();
                }
                None => {}
            }
            self.next(plan.wake).await;
        }
    }

    /// Reports, and does what can wait until then. When to report again, should nobody have listened.
    async fn settle(&mut self, plan: &Plan, now: SystemTime) -> Option<SystemTime> {
        let runs = self.seen.iter().any(|one| matches!(one.doing, Doing::Running(_)));
        let over = plan.outcome.is_some() && !runs;
        if over && !self.over && self.eviction_grace().is_some() {
            // Before it is reported: there may be no room for that.
            self.shed().await;
        }
        let later = report::report(self, plan.outcome, now).await;
        if std::mem::take(&mut self.took_place) {
            // Tracked, so that nothing is made after all was removed; nor when all is about to be.
            let node = self.node.clone();
            self.node.shared.ending.spawn(async move {
                tokio::time::sleep(FIRST_OUTPUT).await;
                if !node.shared.ending.is_closed() {
                    node.park().await;
                }
            });
        }
        if over && !std::mem::replace(&mut self.over, true) {
            if plan.outcome == Some(Outcome::DeadlineExceeded) {
                let message = "Pod was active on the node longer than the specified deadline";
                self.node.shared.events.tell(&self.pod, "DeadlineExceeded", message);
            }
            self.keeper = None;
            if let Some(place) = &mut self.place {
                if let Some(kernel) = &place.kernel {
                    // One that has ended takes none.
                    let _ = kernel.signal(SIGKILL).await;
                }
                place.namespace = None;
                self.node.shared.wires.mute(&uid(&self.pod), place.address).await;
            }
            self.shed().await;
        }
        later
    }

    /// Waits until there is something new.
    async fn next(&mut self, wake: Option<SystemTime>) {
        let wake = wake.map(|time| time.duration_since(SystemTime::now()).unwrap_or_default());
        let starting = OptionFuture::from(self.starting.as_mut().map(|(_, start)| start));
        let awaited = OptionFuture::from(self.awaited.as_mut());
        let common_end = OptionFuture::from(self.common_end.as_mut());
        tokio::select! {
            Some(began) = starting => {
                if let Some((index, _)) = self.starting.take() {
                    self.pulling = false;
                    self.began(index, began);
                }
            }
            Some(()) = common_end => self.lose_common().await,
            Some((index, restarts, news)) = self.news.1.recv() => self.hear(index, restarts, news),
            _ = self.desired.changed() => {}
            Some(refusal) = self.evictions.1.recv() => self.evict(refusal),
            Some(()) = awaited => {
                self.awaited = None;
                for (hand, seen) in self.hands.iter().zip(&mut self.seen) {
                    if hand.trouble.is_some() {
                        seen.not_before = None;
                    }
                }
            }
            () = tokio::time::sleep(wake.unwrap_or_default()), if wake.is_some() => {}
        }
    }

    /// Stops what runs, removes every trace, and lets the API server forget the Pod.
    async fn end(&mut self) {
        self.cancel.cancel();
        self.finish_start().await;
        (self.keeper, self.awaited) = (None, None);
        for hand in &mut self.hands {
            (hand.watch, hand.stopping) = (None, None);
        }
        let running =
            (0..self.hands.len()).filter(|index| matches!(self.seen[*index].doing, Doing::Running(_)));
        let leaving: Vec<_> = running.filter_map(|index| self.leaving_of(index)).collect();
        let grace = self.grace();
        if grace.is_zero() {
            leaving.iter().for_each(Leaving::tell);
        } else {
            let mut desired = self.desired.clone();
            let forced = async {
                if desired.wait_for(|desired| matches!(desired, Desired::Gone)).await.is_err() {
                    std::future::pending::<()>().await; // the engine ends; that is no reason to hurry
                }
            };
            tokio::select! {
                () = stop_all(leaving, grace) => {}
                () = forced => {}
            }
        }
        let sandboxes = self.hands.iter_mut().filter_map(|hand| hand.sandbox.take());
        let kernel = self.place.as_mut().and_then(|place| place.kernel.take());
        let sandboxes = sandboxes.chain(kernel).collect();
        adopt::remove(&self.node, sandboxes).await;
        self.drop_common().await;
        let place = self.place.take();
        let kept = place.as_ref().map(|place| (place.address, place.alone));
        drop(place);
        if let Some((address, alone)) = kept {
            adopt::leave(&self.node, &uid(&self.pod), address, !alone);
        }
        if let Err(error) = self.node.shared.volumes.forget_pod(&uid(&self.pod)).await {
            tracing::warn!(%error, "volumes of the Pod were not removed");
        }
        self.tenancy = None;
        if !matches!(&*self.desired.borrow(), Desired::Gone) {
            report::remove(&self.node.shared.client, &self.pod).await;
        }
    }

    /// Waits for a start that is on its way: half of one cannot be undone.
    pub(super) async fn finish_start(&mut self) {
        if let Some((index, start)) = self.starting.take() {
            let began = start.await;
            self.pulling = false;
            self.began(index, began);
        }
    }

    /// Takes in the latest form of the Pod; whether it is to go.
    fn leaving(&mut self) -> bool {
        let desired = self.desired.borrow_and_update().clone();
        match desired {
            Desired::Gone => true,
            Desired::Present(pod) => {
                let leaves = pod.metadata.deletion_timestamp.is_some();
                self.take_in(pod);
                leaves
            }
        }
    }

    fn grace(&self) -> Duration {
        if matches!(&*self.desired.borrow(), Desired::Gone) {
            return Duration::ZERO; // forced: nobody waits for it
        }
        let seconds = self.pod.metadata.deletion_grace_period_seconds;
        seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(DEFAULT_GRACE, Duration::from_secs)
    }
}
