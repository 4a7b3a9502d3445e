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
pub mod pace;
pub mod plan;
mod progress;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use asb_types::{EXTENSIONS_GROUP, Sandbox, Template, WarmPool, key};
use jiff::Timestamp;
use kube::Client;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::Config;
use crate::cache::Cache;
use crate::object::{Key, controller_of, is_kind};
use crate::queue::{Outcome, Queue};
use crate::{run, write};
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
    config: Config,
    /// By the template that they name.
    pools: Cache<WarmPool>,
    templates: Cache<Template>,
    /// By the pool whose label they carry.
    sandboxes: Cache<Sandbox>,
    /// By the UID of the pool: another pool of the same name begins anew.
    memories: Mutex<HashMap<Key, (String, Memory)>>,
    queue: Queue<Key>,
}

/// Runs the controller until the future is dropped. `ready` is called once the caches are complete.
pub async fn run(client: Client, config: Config, ready: impl FnOnce()) {
    let world = Arc::new(World {
        client,
        pools: Cache::new(|pool| Some(template_of(pool).to_string())),
        templates: Cache::new(|_| None),
        sandboxes: Cache::new(pool_label),
        memories: Mutex::default(),
        queue: Queue::default(),
        config,
    });
    // Dropped with this future, and with it every task.
    let mut tasks = JoinSet::new();
    tasks.spawn(world.clone().watch_pools());
    tasks.spawn(world.clone().watch_templates());
    tasks.spawn(world.clone().watch_sandboxes());
    tokio::join!(world.pools.synced(), world.templates.synced(), world.sandboxes.synced());
    ready();
    for _ in 0..world.config.warm_pools.workers {
        tasks.spawn(world.clone().work());
    }
    while let Some(ended) = tasks.join_next().await {
        tracing::error!(?ended, "a task of the warm pool controller ended");
    }
}

fn template_of(pool: &WarmPool) -> Key {
    Key::new(pool.metadata.namespace.as_deref().unwrap_or_default(), &pool.spec.sandbox_template_ref.name)
}

/// The pool that controls a Sandbox.
fn pool_of(sandbox: &Sandbox) -> Option<Key> {
    let owner = controller_of(sandbox).filter(|owner| is_kind(owner, EXTENSIONS_GROUP, "SandboxWarmPool"))?;
    Some(Key::new(sandbox.metadata.namespace.as_deref().unwrap_or_default(), &owner.name))
}

/// Namespace and pool hash of a Sandbox that carries the label of a pool.
fn pool_label(sandbox: &Sandbox) -> Option<String> {
    let hash = sandbox.metadata.labels.as_ref()?.get(key::WARM_POOL_SANDBOX)?;
    Some(Key::new(sandbox.metadata.namespace.as_deref().unwrap_or_default(), hash).to_string())
}

async fn reconcile(world: &World, key: &Key) -> Outcome {
    let pool = world.pools.get(key).filter(|pool| pool.metadata.deletion_timestamp.is_none());
    let Some(pool) = pool else {
        world.forget(key);
        return Outcome::Done;
    };
    let memory = world.recall(key, &pool).await;
    let seen = Seen { sandboxes: world.members(&pool), template: world.templates.get(&template_of(&pool)) };
    let settings = &world.config.warm_pools;
    let mut plan = plan::plan(&pool, &seen, &memory, settings, Timestamp::now(), rand::random());
    let mut applied = apply::apply(world, &pool, &plan).await;
    plan.memory.pace.created(applied.created);
    if applied.unreported {
        plan.memory.stuck = memory.stuck; // told at the next try
    }
    world.remember(key, &pool, plan.memory);

    if let Err(error) = apply::write_status(world, &pool).await {
        applied.problems.push(write::message(&error));
    }
    for problem in &applied.problems {
        tracing::warn!(%problem, "warm pool is not as it should be");
    }
    match plan.look_again {
        _ if applied.conflicts > 0 || !applied.problems.is_empty() => Outcome::Failed,
        Some(delay) => Outcome::After(delay),
        None => Outcome::Done,
    }
}

impl World {
    /// Everything that carries the label of a pool.
    fn members(&self, pool: &WarmPool) -> Vec<Arc<Sandbox>> {
        self.sandboxes.find(&Key::new(&Key::of(pool).namespace, &plan::hash(pool)).to_string())
    }

    /// What is remembered of a pool; of one that is new to this process, what its events tell.
    async fn recall(&self, key: &Key, pool: &WarmPool) -> Memory {
        let uid = pool.metadata.uid.as_deref().unwrap_or_default();
        let known = self.lock().get(key).filter(|(of, _)| of == uid).map(|(_, memory)| memory.clone());
        if let Some(memory) = known {
            return memory;
        }
        // Without the right to read events, a warning may come twice. That is all.
        let stuck = progress::was_stuck(&self.client, pool).await.unwrap_or(false);
        Memory { stuck, ..Memory::default() }
    }

    fn remember(&self, key: &Key, pool: &WarmPool, memory: Memory) {
        let uid = pool.metadata.uid.clone().unwrap_or_default();
        self.lock().insert(key.clone(), (uid, memory));
    }

    fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, (String, Memory)>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn watch_pools(self: Arc<Self>) {
        let api = run::scope(&self.client, self.config.namespace.as_deref());
        run::watch(api, &self.pools, |pool| self.queue.add(Key::of(pool))).await;
    }

    async fn watch_templates(self: Arc<Self>) {
        let api = run::scope(&self.client, self.config.namespace.as_deref());
        let wake = |template: &Template| {
            let pools = self.pools.find(&Key::of(template).to_string());
            pools.iter().for_each(|pool| self.queue.add(Key::of(&**pool)));
        };
        run::watch(api, &self.templates, wake).await;
    }

    async fn watch_sandboxes(self: Arc<Self>) {
        let api = run::scope(&self.client, self.config.namespace.as_deref());
        let wake = |sandbox: &Sandbox| pool_of(sandbox).into_iter().for_each(|key| self.queue.add(key));
        run::watch(api, &self.sandboxes, wake).await;
    }

    async fn work(self: Arc<Self>) {
        let reconcile = async |key: Key| {
            let span = tracing::info_span!("warm_pool", pool = %key);
            reconcile(&self, &key).instrument(span).await
        };
        run::work(&self.queue, reconcile).await;
    }
}
