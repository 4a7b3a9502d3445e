//! The SandboxWarmPool controller: keeps a number of Sandboxes ready before anybody asks for one.
//!
//! Watched: SandboxWarmPools, the Sandboxes that a pool controls or controlled a moment ago, and the
//! SandboxTemplates that pools name.
//!
//! ```text
//! [ Sandbox ] ── owner, now or before ──┐
//! [ SandboxTemplate ] ── index ─────────┴─► [ SandboxWarmPool ] ─► plan ─► apply ─► judge ─► status
//! ```
//!
//! A pool must not create twice what it has not seen yet. Its cache knows its own creations and deletions
//! at once, and no two passes of one pool overlap; nothing else needs counting.

mod apply;
pub mod blueprint;
mod gather;
pub mod judge;
pub mod pace;
pub mod plan;
mod progress;
pub mod rollout;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use asb_types::{Sandbox, WarmPool, condition};
use jiff::Timestamp;
use kube::Client;
use tokio::time::Instant;
use tracing::Instrument;

use crate::Config;
use crate::cache::Change;
use crate::caches::{BY_POOL_LABEL, BY_TEMPLATE, Caches, UNSERVED_BY_POOL, pool_of, template_of};
use crate::memory::Memories;
use crate::object::Key;
use crate::queue::{Outcome, Queue};
use crate::template::twin;
use crate::{run, write};
use gather::Gathering;
use plan::{Memory, Seen};

/// How pools are filled and watched over.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Pools worked on at the same time.
    pub workers: usize,
    /// Sandboxes created or deleted for one pool in one pass.
    pub max_batch_size: usize,
    /// How long a pool waits before it replaces members that were taken; zero means not at all.
    pub replenish_delay: Duration,
    /// Sandboxes created per second and pool; zero means no limit.
    pub max_refill_rate: f64,
    /// How long a member may take to become Ready.
    pub readiness_grace: Duration,
    /// How often to look at members that find no node.
    pub unschedulable_recheck: Duration,
    /// Let the cluster autoscaler move members that nobody uses yet.
    pub safe_to_evict: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 1,
            max_batch_size: 300,
            replenish_delay: Duration::ZERO,
            max_refill_rate: 0.0,
            readiness_grace: Duration::from_secs(5 * 60),
            unschedulable_recheck: Duration::from_secs(60),
            safe_to_evict: true,
        }
    }
}

/// What the controller knows and where it writes.
pub(crate) struct World {
    client: Client,
    caches: Arc<Caches>,
    config: Config,
    memories: Memories<Memory>,
    gathering: Arc<Gathering>,
    queue: Arc<Queue<Key>>,
}

/// Runs the controller until it is asked to stop, or the future is dropped.
pub async fn run(client: Client, caches: Arc<Caches>, config: Config) {
    caches.synced().await;
    let queue = Arc::new(Queue::new("sandboxwarmpool", config.warm_pools.workers, &config));
    let gathering = Arc::new(Gathering::default());
    let changes = gathering.clone();
    let (pools, of_sandboxes, of_templates) = (caches.clone(), queue.clone(), queue.clone());
    let _listening = (
        caches.pools.listen(run::waker(&queue, |pool| Some(Key::of(pool)))),
        caches.sandboxes.listen(move |change| {
            let concerned = change.sides().filter(|_| is_news(change)).filter_map(|sandbox| pool_of(sandbox));
            concerned.for_each(|pool| {
                changes.changed(&pool, Instant::now());
                of_sandboxes.add_after(pool, gather::QUIET);
            });
        }),
        caches.templates.listen(move |change| {
            let names = change.sides().map(|template| Key::of(&**template).to_string());
            let concerned = names.flat_map(|name| pools.pools.find(BY_TEMPLATE, &name));
            concerned.for_each(|pool| of_templates.add(Key::of(&*pool)));
        }),
    );
    let memories = Memories::default();
    let world = Arc::new(World { client, caches: caches.clone(), config, memories, gathering, queue });
    run::workers(world.config.warm_pools.workers, || world.clone().work()).await;
}

async fn reconcile(world: &World, key: &Key) -> Outcome {
    let serving = world.caches.claims.any(UNSERVED_BY_POOL, &key.to_string());
    if let Some(wait) = world.gathering.wait(key, serving, Instant::now()) {
        return Outcome::After(wait);
    }
    let pool = world.caches.pools.get(key).filter(|pool| pool.metadata.deletion_timestamp.is_none());
    let Some(pool) = pool else {
        world.memories.forget(key);
        return Outcome::Done;
    };
    let memory = world.recall(&pool).await;
    let seen = world.observe(&pool);
    let settings = &world.config.warm_pools;
    let mut plan = plan::plan(&pool, &seen, &memory, settings, Timestamp::now(), rand::random());
    let mut applied = apply::apply(world, &pool, &plan).await;
    plan.memory.pace.created(applied.created);
    let stuck = plan.memory.stuck;
    if applied.unreported {
        // Told at the next try.
        (plan.memory.stuck, plan.memory.refusal) = (memory.stuck, memory.refusal);
    }

    let (seen, now) = (world.observe(&pool), Timestamp::now());
    let status = judge::judge(&pool, &seen.sandboxes, seen.template.as_deref(), stuck, now);
    let mut later = plan.look_again;
    match judge::wait(pool.status.as_ref(), &status, &mut plan.memory.unsaid, now) {
        None => {}
        Some(Duration::ZERO) => {
            let written = apply::write_status(world, &pool, &status).await;
            applied.problems.extend(written.err().map(|error| write::message(&error)));
        }
        Some(wait) => later = Some(later.map_or(wait, |later| later.min(wait))),
    }
    world.memories.remember(&*pool, plan.memory);
    for problem in &applied.problems {
        tracing::warn!(%problem, "warm pool is not as it should be");
    }
    match later {
        _ if applied.conflicts > 0 || !applied.problems.is_empty() => Outcome::Failed,
        Some(delay) => Outcome::After(delay),
        None => Outcome::Done,
    }
}

/// Whether a change of a Sandbox can mean anything to its pool: most are about addresses and the like.
fn is_news(change: &Change<Sandbox>) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return true };
    let condition = |kind| before.condition(kind) != after.condition(kind);
    let (old, new) = (&before.metadata, &after.metadata);
    old.generation != new.generation
        || old.deletion_timestamp != new.deletion_timestamp
        || old.owner_references != new.owner_references
        || old.labels != new.labels
        || condition(condition::READY)
        || condition(condition::POD_SCHEDULED)
}

impl World {
    /// The pool's template, and everything that carries the pool's label.
    fn observe(&self, pool: &WarmPool) -> Seen {
        let label = Key::new(&Key::of(pool).namespace, &plan::hash(pool)).to_string();
        let template = self.caches.templates.get(&template_of(pool));
        let refusal = template.as_deref().and_then(|template| twin::refusal(&self.caches, template));
        Seen { sandboxes: self.caches.sandboxes.find(BY_POOL_LABEL, &label), template, refusal }
    }

    /// What is remembered of a pool; of one that is new to this process, what its events tell.
    async fn recall(&self, pool: &WarmPool) -> Memory {
        if let Some(memory) = self.memories.recall(pool) {
            return memory;
        }
        // Without the right to read events, a warning may come twice. That is all.
        let stuck = progress::was_stuck(&self.client, pool).await.unwrap_or(false);
        Memory { stuck, ..Memory::default() }
    }

    async fn work(self: Arc<Self>) {
        let reconcile = async |key: Key| {
            let span = tracing::info_span!("warm_pool", pool = %key);
            reconcile(&self, &key).instrument(span).await
        };
        run::work(&self.queue, reconcile).await;
    }
}
