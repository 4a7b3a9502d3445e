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
pub mod judge;
pub mod plan;
mod pod;
mod service;
#[cfg(test)]
mod tests;
mod volume;

use std::sync::Arc;

use asb_types::{GROUP, Sandbox, key};
use jiff::Timestamp;
use kube::{Client, Resource};
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::Config;
use crate::cache::Cache;
use crate::object::{Key, Pod, Service, VolumeClaim, controller_of, is_kind};
use crate::queue::{Outcome, Queue};
use crate::run;
use crate::write::Kind;
use plan::{ProblemKind, Seen};

/// What the controller knows and where it writes.
pub(crate) struct World {
    client: Client,
    config: Config,
    sandboxes: Cache<Sandbox>,
    pods: Cache<Pod>,
    services: Cache<Service>,
    volume_claims: Cache<VolumeClaim>,
    queue: Queue<Key>,
}

/// Runs the controller until the future is dropped. `ready` is called once the caches are complete.
pub async fn run(client: Client, config: Config, ready: impl FnOnce()) {
    let world = Arc::new(World {
        client,
        sandboxes: Cache::new(|_| None),
        pods: Cache::new(|pod| controller_of(pod).map(|owner| owner.uid.clone())),
        services: Cache::new(|_| None),
        volume_claims: Cache::new(|_| None),
        queue: Queue::default(),
        config,
    });
    // Dropped with this future, and with it every task.
    let mut tasks = JoinSet::new();
    tasks.spawn(world.clone().watch(|world| &world.sandboxes, |sandbox| Some(Key::of(sandbox))));
    tasks.spawn(world.clone().watch(|world| &world.pods, sandbox_of));
    tasks.spawn(world.clone().watch(|world| &world.services, sandbox_of));
    tasks.spawn(world.clone().watch(|world| &world.volume_claims, sandbox_of));
    tokio::join!(
        world.sandboxes.synced(),
        world.pods.synced(),
        world.services.synced(),
        world.volume_claims.synced()
    );
    ready();
    for _ in 0..world.config.sandbox_workers {
        tasks.spawn(world.clone().work());
    }
    while let Some(ended) = tasks.join_next().await {
        tracing::error!(?ended, "a task of the sandbox controller ended");
    }
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

async fn reconcile(world: &World, key: &Key) -> Outcome {
    let Some(sandbox) = world.sandboxes.get(key) else { return Outcome::Done };
    if sandbox.metadata.deletion_timestamp.is_some() {
        return Outcome::Done;
    }
    let now = Timestamp::now();
    let plan = plan::plan(&sandbox, &world.observe(&sandbox), now);
    let mut problems = plan.problems;
    problems.extend(apply::apply(world, &key.namespace, plan.actions).await);

    let status =
        judge::judge(&sandbox, &world.observe(&sandbox), &problems, &world.config.cluster_domain, now);
    if judge::worth_writing(sandbox.status.as_ref(), &status)
        && let Err(problem) = apply::write_status(world, &sandbox, &status).await
    {
        problems.push(problem);
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

impl World {
    /// Keeps one cache; every object that changes wakes the Sandbox that it concerns.
    async fn watch<K>(self: Arc<Self>, cache: fn(&Self) -> &Cache<K>, sandbox_of: fn(&K) -> Option<Key>)
    where
        K: Kind + Send + 'static,
    {
        let api = run::scope(&self.client, self.config.namespace.as_deref());
        let wake = |object: &K| sandbox_of(object).into_iter().for_each(|key| self.queue.add(key));
        run::watch(api, cache(&self), wake).await;
    }

    async fn work(self: Arc<Self>) {
        let reconcile = async |key: Key| {
            let span = tracing::info_span!("sandbox", sandbox = %key);
            reconcile(&self, &key).instrument(span).await
        };
        run::work(&self.queue, reconcile).await;
    }

    fn observe(&self, sandbox: &Sandbox) -> Seen {
        let key = Key::of(sandbox);
        let annotation = sandbox.metadata.annotations.as_ref().and_then(|notes| notes.get(key::POD_NAME));
        let pod_name = annotation.filter(|name| !name.is_empty()).unwrap_or(&key.name);
        let named = |name: &str| Key::new(&key.namespace, name);
        let uid = sandbox.metadata.uid.as_deref().unwrap_or_default();
        Seen {
            owned_pods: self.pods.find(uid),
            // An old annotation that leads nowhere must not hide a Pod that stands in our way.
            named_pod: self.pods.get(&named(pod_name)).or_else(|| self.pods.get(&named(&key.name))),
            service: self.services.get(&key),
            volume_claims: volume::names(sandbox).map(|name| self.volume_claims.get(&named(&name))).collect(),
        }
    }
}
