//! The Sandbox controller.
//!
//! Watched: Sandboxes, and the Pods, Services and PersistentVolumeClaims that a Sandbox controls or that
//! stand under its name.
//!
//! ```text
//! [ Pod ] ─────────┐
//! [ Service ] ─────┼─ owner or name ─► [ Sandbox ] ─► plan ─► apply ─► judge ─► status
//! [ PVC ] ─────────┘
//! ```

mod apply;
mod child;
mod defer;
pub mod judge;
mod milestone;
pub mod plan;
pub(crate) mod pod;
mod retry;
mod service;
#[cfg(test)]
mod tests;
mod trouble;
mod volume;

pub(crate) use volume::mounted as mounted_claims;

use std::sync::Arc;
use std::time::Duration;

use asb_types::{GROUP, OperatingMode, Sandbox, SandboxStatus, key};
use jiff::Timestamp;
use kube::{Client, Resource};
use tracing::{Instrument, Span};

use crate::Config;
use crate::caches::{BY_NAME_HASH, BY_OWNER, Caches, MOUNTS_CLAIMS};
use crate::event::Recorder;
use crate::memory::Memories;
use crate::object::{Key, VolumeClaim, controller_of, is_kind};
use crate::queue::{Outcome, Queue};
use crate::{cache, run, trace};
use apply::MANAGER;
use milestone::Change;
use plan::{Met, Plan, Problem, ProblemKind, Rivals, Seen};
use retry::Failures;

/// What the controller knows and where it writes.
pub(crate) struct World {
    client: Client,
    caches: Arc<Caches>,
    config: Config,
    memories: Memories<Memory>,
    queue: Arc<Queue<Key>>,
    events: Recorder,
}

/// Runs the controller until it is asked to stop, or the future is dropped.
pub async fn run(client: Client, caches: Arc<Caches>, config: Config) {
    caches.synced().await;
    let queue = Arc::new(Queue::new("sandbox", config.sandbox_workers, &config));
    let of_sandboxes = queue.clone();
    let _listening = (
        caches.sandboxes.listen(move |change| match changes_hands(change) {
            Some(sandbox) => of_sandboxes.add_after(sandbox, AFTER_CLAIM),
            None => change.sides().for_each(|sandbox| of_sandboxes.add(Key::of(&**sandbox))),
        }),
        caches.pods.listen(run::waker(&queue, sandbox_of)),
        caches.services.listen(run::waker(&queue, sandbox_of)),
        caches.volume_claims.listen(run::waker(&queue, sandbox_of)),
        caches.volume_claims.listen(mounters_waker(&queue, &caches)),
    );
    let (events, telling) = Recorder::new(client.clone(), MANAGER, config.sandbox_events);
    let memories = Memories::default();
    let world = Arc::new(World { client, caches: caches.clone(), config, memories, queue, events });
    let working = async {
        run::workers(world.config.sandbox_workers, || world.clone().work()).await;
        drop(world); // and with it the recorder
    };
    tokio::join!(working, telling);
}

/// A Sandbox that goes from one owner to another as it is.
fn changes_hands(change: &cache::Change<Sandbox>) -> Option<Key> {
    let (before, after) = (change.before.as_ref()?, change.after.as_ref()?);
    (before.metadata.owner_references != after.metadata.owner_references).then(|| Key::of(&**after))
}

/// The Sandbox that a child concerns: its controller, else the one of its name if it carries our label.
fn sandbox_of(child: &impl Resource) -> Option<Key> {
    let meta = child.meta();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    match controller_of(child) {
        Some(owner) => is_kind(owner, GROUP, "Sandbox").then(|| Key::new(namespace, &owner.name)),
        None => {
            let ours = meta.labels.as_ref()?.keys().any(|label| key::is_reserved_label(label));
            ours.then(|| Key::new(namespace, meta.name.as_deref().unwrap_or_default()))
        }
    }
}

/// Wakes the Sandboxes whose Pods mount a claim that was made, has another phase, or is gone.
fn mounters_waker(
    queue: &Arc<Queue<Key>>,
    caches: &Arc<Caches>,
) -> impl Fn(&cache::Change<VolumeClaim>) + use<> {
    // The cache of claims holds this listener.
    let (queue, caches) = (queue.clone(), Arc::downgrade(caches));
    move |change| {
        let phase = |claim: &Option<Arc<VolumeClaim>>| claim.as_ref().map(|it| it.status.phase.clone());
        let Some(caches) = caches.upgrade() else { return };
        let Some(claim) = change.sides().next().filter(|_| phase(&change.before) != phase(&change.after))
        else {
            return;
        };
        let Key { namespace, name } = Key::of(&**claim);
        for sandbox in caches.sandboxes.find(MOUNTS_CLAIMS, &namespace) {
            if volume::mounted(&sandbox).any(|mounted| mounted == name) {
                queue.add(Key::of(&*sandbox));
            }
        }
    }
}

/// What a claim changes of a Sandbox that it takes can wait until the claim is served.
const AFTER_CLAIM: Duration = Duration::from_millis(250);

/// What is remembered of a Sandbox between passes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Memory {
    failures: Failures,
    /// Since when its Pod's metadata should be different.
    drift: Option<Timestamp>,
    /// Since when its first status waits.
    untold: Option<Timestamp>,
    /// The change of mode that is underway.
    change: Option<Change>,
}

async fn reconcile(world: &World, key: &Key) -> Outcome {
    let sandbox = world.caches.sandboxes.get(key);
    let Some(sandbox) = sandbox.filter(|sandbox| sandbox.metadata.deletion_timestamp.is_none()) else {
        world.memories.forget(key);
        return Outcome::Done;
    };
    let now = Timestamp::now();
    let mut memory = world.memories.recall(&*sandbox).unwrap_or_default();
    if let Some(context) = trace::context(world.config.traces.as_deref(), &Span::current(), &*sandbox) {
        apply::write_trace(world, key, &context).await;
    }
    let mut met = Met::default();
    let (mut plan, mut problems) = pass(world, &sandbox, &mut memory, &mut met, now).await;
    if !met.is_empty() {
        // What stood in the way is there: adopted, waited for, or told of.
        (plan, problems) = pass(world, &sandbox, &mut memory, &mut met, now).await;
    }
    let known = world.caches.sandboxes.get(key).filter(|known| known.metadata.uid == sandbox.metadata.uid);
    if known.is_none_or(|known| known.metadata.deletion_timestamp.is_some()) {
        world.memories.forget(key);
        return Outcome::Done; // deleted meanwhile, perhaps by this plan: nobody needs its status
    }

    let seen = world.observe(&sandbox, &mut memory, &met, now);
    let status = judge::judge(&sandbox, &seen, &problems, &world.config.cluster_domain, now);
    if judge::worth_writing(sandbox.status.as_ref(), &status) {
        match defer::first_status(&sandbox, &status, &mut memory.untold, now) {
            Some(left) => plan.look_again_after(left),
            None => match apply::write_status(world, &sandbox, &status).await {
                Ok(()) => {
                    memory.untold = None;
                    world.tell(&sandbox, &status, &mut memory, now);
                }
                Err(problem) => problems.push(problem),
            },
        }
    }
    match memory == Memory::default() {
        true => world.memories.forget(key),
        false => world.memories.remember(&*sandbox, memory),
    }
    for problem in problems.iter().filter(|problem| problem.kind == ProblemKind::Failed) {
        tracing::warn!(step = ?problem.step, problem = %problem.message, "sandbox is not as it should be");
    }
    let retry = |kind| matches!(kind, ProblemKind::Failed | ProblemKind::Conflict);
    match plan.look_again {
        _ if problems.iter().any(|problem| retry(problem.kind)) => Outcome::Failed,
        Some(delay) => Outcome::After(delay),
        None => Outcome::Done,
    }
}

/// Plans once, and does what the plan says. Returns the plan, and all that stands in its way.
async fn pass(
    world: &World,
    sandbox: &Sandbox,
    memory: &mut Memory,
    met: &mut Met,
    now: Timestamp,
) -> (Plan, Vec<Problem>) {
    let seen = world.observe(sandbox, memory, met, now);
    if let Ok(Some(pod)) = plan::tracked_pod(&seen) {
        let (name, phase) = (&pod.metadata.name, &pod.status.phase);
        tracing::debug!(pod.Name = name, pod.Phase = phase, "ExistingPodStatusObserved");
        if sandbox.spec.operating_mode == OperatingMode::Suspended {
            // Now: it may be over before this pass is.
            milestone::begin(&mut memory.change, OperatingMode::Suspended, now);
        }
    }
    let mut plan = plan::plan(sandbox, &seen, now);
    let replaced: Vec<_> = volume::replaced(sandbox, &plan).map(str::to_owned).collect();
    defer::pod_patch(&mut plan, &mut memory.drift, world.config.write_behind, now);
    let mut problems = std::mem::take(&mut plan.problems);
    let namespace = sandbox.metadata.namespace.as_deref().unwrap_or_default();
    problems.extend(apply::apply(world, namespace, std::mem::take(&mut plan.actions), met).await);
    let was_met = |name: &str| met.volume_claims.iter().any(|it| it.metadata.name.as_deref() == Some(name));
    let was_made = |name: &str| world.caches.volume_claims.get(&Key::new(namespace, name)).is_some();
    for claim in replaced.iter().filter(|name| was_made(name) && !was_met(name)) {
        world.events.record(sandbox, &milestone::replaced(claim));
    }
    (plan, problems)
}

impl World {
    async fn work(self: Arc<Self>) {
        let reconcile = async |key: Key| {
            let span = self.span(&key);
            reconcile(&self, &key).instrument(span).await
        };
        run::work(&self.queue, reconcile).await;
    }

    /// The span of one pass, which belongs to the trace of whoever asked for the Sandbox.
    fn span(&self, key: &Key) -> Span {
        let span = tracing::info_span!(
            "ReconcileSandbox",
            sandbox.name = key.name,
            sandbox.namespace = key.namespace,
            "agents.x-k8s.io/created-by" = tracing::field::Empty,
        );
        let sandbox = self.caches.sandboxes.get(key);
        trace::join(self.config.traces.as_deref(), &span, sandbox.as_deref());
        span
    }

    /// Counts what a status that was written means, and tells users what they should know of.
    fn tell(&self, sandbox: &Sandbox, status: &SandboxStatus, memory: &mut Memory, now: Timestamp) {
        if let Some(event) = milestone::event(sandbox.status.as_ref(), status) {
            self.events.record(sandbox, &event);
        }
        let namespace = sandbox.metadata.namespace.as_deref().unwrap_or_default();
        for milestone in milestone::judge(sandbox, status, &mut memory.change, now) {
            self.config.metrics.happened(namespace, milestone);
        }
    }

    fn rivals(&self, sandbox: &Sandbox) -> Rivals {
        let hash = Key::new(&Key::of(sandbox).namespace, &child::hash(sandbox)).to_string();
        Rivals {
            served: plan::rival(sandbox, &self.caches.services.find(BY_NAME_HASH, &hash)),
            running: plan::rival(sandbox, &self.caches.pods.find(BY_NAME_HASH, &hash)),
        }
    }

    fn observe(&self, sandbox: &Sandbox, memory: &mut Memory, met: &Met, now: Timestamp) -> Seen {
        let key = Key::of(sandbox);
        let named = |name: &str| Key::new(&key.namespace, name);
        let uid = sandbox.metadata.uid.as_deref().unwrap_or_default();
        let mut seen = Seen {
            owned_pods: self.caches.pods.find(BY_OWNER, uid),
            // An old annotation that leads nowhere must not hide a Pod that stands in our way.
            named_pod: self
                .caches
                .pods
                .get(&named(plan::pod_name(sandbox)))
                .or_else(|| self.caches.pods.get(&named(&key.name))),
            service: self.caches.services.get(&key),
            volume_claims: volume::names(sandbox)
                .map(|name| self.caches.volume_claims.get(&named(&name)))
                .collect(),
            mounted_claims: match self.caches.has_all_volume_claims() {
                true => volume::mounted(sandbox)
                    .map(|name| (name.to_owned(), self.caches.volume_claims.get(&named(name))))
                    .collect(),
                false => Vec::new(),
            },
            retry: None,
            rivals: self.rivals(sandbox),
        };
        seen.meet(uid, volume::names(sandbox), met);
        if let [pod] = seen.owned_pods.as_slice() {
            seen.retry = memory.failures.note(sandbox, pod, now);
        }
        seen
    }
}
