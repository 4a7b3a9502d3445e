//! The SandboxClaim controller: gives every claim a Sandbox, a waiting member of its pool if it can.
//!
//! Watched: SandboxClaims, the Sandboxes that they control or may take, their pools, and the pools' templates.
//!
//! ```text
//! [ Sandbox ] ─────── owner ─────────┬─► [ SandboxClaim ] ─► plan ─► apply ─► judge ─► status
//!      └─► candidates ─ a member came┤                         ▲
//! [ SandboxWarmPool ] ── index ──────┤                         └─ until the claim is at rest
//! [ SandboxTemplate ] ── index ──────┘
//! ```
//!
//! Who has which Sandbox is written in one place, the Sandbox's owner reference, by one write that the API server
//! accepts only for the state that was seen. Everything else follows from it: after a restart, beside a second
//! controller, or with a watch that lags, a claim finds its Sandbox by that reference.

mod apply;
pub mod candidates;
mod cold;
mod env;
pub mod expiry;
pub mod judge;
mod metadata;
pub mod metrics;
mod observed;
pub mod plan;
mod problem;
#[cfg(test)]
mod tests;
mod transfer;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use asb_types::claim::{ClaimShutdownPolicy, Lifecycle};
use asb_types::conversion::template_of_shadow_claim;
use asb_types::{Claim, ClaimStatus, EXTENSIONS_GROUP, Sandbox, WarmPool, condition};
use jiff::Timestamp;
use kube::{Client, Resource};
use tracing::{Instrument, Span};

use crate::cache::Change;
use crate::caches::{BY_OWNER, BY_POOL, BY_TEMPLATE, Caches, pool_named_by, template_of};
use crate::event::Recorder;
use crate::object::{Key, controller_of, is_kind};
use crate::queue::{Outcome, Queue};
use crate::template::twin;
use crate::write::Identity;
use crate::{Config, run, trace, write};
use apply::{REPORTER, Resolved};
use candidates::Candidates;
use observed::Observed;
use plan::Seen;
pub use problem::{Problem, Retry};

/// How claims are served.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Claims worked on at the same time.
    pub workers: usize,
    /// Take only members that are Ready; else a member that runs is better than none.
    pub ready_only: bool,
    /// How long a claim waits for members that are about to be usable before it gets a Sandbox of its own.
    pub candidate_grace: Duration,
    /// Domains whose labels claims may put on their Pods, in lower case.
    pub allowed_label_domains: Vec<String>,
    /// Tell users through events.
    pub events: bool,
    /// Note on every claim when it was seen and when it was Ready, at one more write.
    pub observability_annotations: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 50,
            ready_only: false,
            candidate_grace: Duration::from_secs(2),
            allowed_label_domains: vec!["sandbox.users.io".to_owned()],
            events: true,
            observability_annotations: false,
        }
    }
}

/// What the controller knows and where it writes.
pub(crate) struct World {
    client: Client,
    caches: Arc<Caches>,
    config: Config,
    queue: Arc<Queue<Key>>,
    candidates: Arc<Candidates>,
    observed: Arc<Observed>,
    events: Recorder,
}

/// Runs the controller until it is asked to stop, or the future is dropped.
pub async fn run(client: Client, caches: Arc<Caches>, config: Config) {
    caches.synced().await;
    let (events, telling) = Recorder::new(client.clone(), REPORTER, config.claims.events);
    let queue = Arc::new(Queue::new("sandboxclaim", config.claims.workers, &config));
    let candidates = Candidates::new(queue.clone());
    let world = Arc::new(World {
        client,
        caches: caches.clone(),
        config,
        queue,
        candidates,
        observed: Arc::default(),
        events,
    });
    let listening = world.listen(&caches);
    let working = async {
        run::workers(world.config.claims.workers, || world.clone().work()).await;
        drop((listening, world)); // and with them the recorder
    };
    tokio::join!(working, telling);
}

async fn reconcile(world: &World, key: &Key) -> Outcome {
    let claim = world.caches.claims.get(key).filter(|claim| claim.metadata.deletion_timestamp.is_none());
    let Some(claim) = claim else {
        world.candidates.served(key);
        return Outcome::Done;
    };
    apply::drop_legacy_policy(world, &claim).await;
    let status = claim.status.clone().unwrap_or_default();
    match world.time_left(&claim, &status, Timestamp::now()) {
        Some(Duration::ZERO) => {
            world.candidates.served(key);
            let expired = expire(world, &claim, status).await;
            expired.unwrap_or_else(|error| failed(&write::message(&error)))
        }
        _ => serve(world, &claim).await,
    }
}

/// Gives a claim its Sandbox and says so.
async fn serve(world: &World, claim: &Arc<Claim>) -> Outcome {
    let key = Key::of(&**claim);
    let resolved = match apply::resolve(world, claim, Timestamp::now()).await {
        Ok(Resolved::Wait(delay)) => return Outcome::After(delay),
        Ok(Resolved::Bound(sandbox)) => Ok(sandbox),
        Err(problem) => Err(problem),
    };
    world.candidates.served(&key);
    // It may have been written to on the way; and another one of its name is another one.
    let same = world.caches.claims.get(&key).filter(|now| now.metadata.uid == claim.metadata.uid);
    let Some(claim) = same else { return Outcome::Done };
    let now = Timestamp::now();
    let mut status = judge::judge(&claim, resolved.as_deref(), now);
    let left = world.time_left(&claim, &status, now);
    let expired = left == Some(Duration::ZERO);
    if expired {
        status = judge::mark_expired(&claim, status, now);
    }
    match apply::write_status(world, &claim, &status).await {
        Ok(true) => {}
        Ok(false) => return Outcome::Done,
        Err(error) => return failed(&write::message(&error)),
    }
    if expired {
        apply::tell(world, &claim, "ClaimExpired", "Claim Expired", "Claim expired".to_owned());
        return Outcome::After(Duration::ZERO);
    }
    let later = left.map_or(Outcome::Done, Outcome::After);
    match resolved {
        Ok(sandbox) => match settle(world, &claim, &status, &sandbox).await {
            Ok(()) => later,
            Err(error) => failed(&write::message(&error)),
        },
        Err(problem) => match problem.retry() {
            Retry::OnChange => later,
            Retry::After(delay) => Outcome::After(left.map_or(delay, |left| left.min(delay))),
            Retry::Backoff => failed(&problem.message()),
        },
    }
}

/// What remains to be done once the status tells which Sandbox serves the claim.
async fn settle(
    world: &World,
    before: &Claim,
    status: &ClaimStatus,
    sandbox: &Sandbox,
) -> Result<(), kube::Error> {
    let is_ready = |status: &ClaimStatus| {
        condition::get(&status.conditions, condition::READY).is_some_and(|ready| ready.status == "True")
    };
    let became_ready = is_ready(status) && !before.status.as_ref().is_some_and(is_ready);
    if let Some(seen) = became_ready.then(|| world.observed.count(before)).flatten() {
        let now = Timestamp::now();
        world.config.claim_metrics.started(before, sandbox, seen, now);
        if world.config.claims.observability_annotations {
            apply::annotate(world, before, seen, now).await?;
        }
    }
    let claim = Claim { status: Some(status.clone()), ..before.clone() };
    apply::give_back_surplus(world, &claim).await
}

/// First the status tells why, then things go: a client that waits never sees a Sandbox vanish without a reason.
async fn expire(world: &World, claim: &Claim, status: ClaimStatus) -> Result<Outcome, kube::Error> {
    let now = Timestamp::now();
    if !expiry::is_marked(&status) {
        let marked = judge::mark_expired(claim, status, now);
        if !apply::write_status(world, claim, &marked).await? {
            return Ok(Outcome::Done);
        }
        apply::tell(world, claim, "ClaimExpired", "Claim Expired", "Claim expired".to_owned());
        return Ok(Outcome::After(Duration::ZERO));
    }
    let policy = world.lifecycle(claim).map(|lifecycle| lifecycle.shutdown_policy).unwrap_or_default();
    if policy != ClaimShutdownPolicy::Retain {
        return apply::delete_claim(world, claim, policy).await.map(|()| Outcome::Done);
    }
    let doomed = world.observe(claim).owned.into_iter().filter(|it| it.metadata.deletion_timestamp.is_none());
    apply::delete_sandboxes(world, claim, doomed.map(|sandbox| Identity::of(&*sandbox)).collect()).await?;
    let seen = world.observe(claim);
    let left = plan::bound(claim, &seen);
    let named = Key::new(&Key::of(claim).namespace, plan::bound_name(claim));
    let stranger = world.caches.sandboxes.get(&named).filter(|_| left.is_none()).map(|_| named.name.as_str());
    let status = judge::retained(claim, left.map(|sandbox| &**sandbox), stranger, now);
    apply::write_status(world, claim, &status).await.map(|_| Outcome::Done)
}

fn failed(problem: &str) -> Outcome {
    tracing::warn!(problem, "claim is not as it should be");
    Outcome::Failed
}

/// The claim that controls a Sandbox.
fn claim_of(sandbox: &Sandbox) -> Option<Key> {
    let owner = controller_of(sandbox).filter(|owner| is_kind(owner, EXTENSIONS_GROUP, "SandboxClaim"))?;
    Some(Key::new(sandbox.metadata.namespace.as_deref().unwrap_or_default(), &owner.name))
}

/// The claims that a change of a Sandbox concerns.
fn woken_by(change: &Change<Sandbox>) -> Vec<Key> {
    let owners = || change.sides().filter_map(|sandbox| claim_of(sandbox));
    match (&change.before, &change.after) {
        (Some(before), Some(after)) => {
            let news = |of: fn(&Sandbox) -> Option<String>| of(before) != of(after);
            let mirrored = claim_of(before) != claim_of(after)
                || before.metadata.deletion_timestamp != after.metadata.deletion_timestamp
                || before.condition(condition::READY) != after.condition(condition::READY)
                || before.condition(condition::FINISHED) != after.condition(condition::FINISHED)
                || before.status.as_ref().map(|status| &status.pod_ips)
                    != after.status.as_ref().map(|status| &status.pod_ips)
                || news(|sandbox| sandbox.status.as_ref()?.service_fqdn.clone());
            owners().filter(|_| mirrored).collect()
        }
        // Whoever has its name may have waited for it to go.
        (Some(before), None) => owners().chain([Key::of(&**before)]).collect(),
        (None, _) => owners().collect(),
    }
}

/// Whether a change is more than one of the status: a new object, the end of one, or a new spec.
fn is_new_spec<K: Resource>(change: &Change<K>) -> bool {
    let generation = |side: &Option<Arc<K>>| side.as_ref().and_then(|object| object.meta().generation);
    change.before.is_none()
        || change.after.is_none()
        || generation(&change.before) != generation(&change.after)
}

/// Whether claims live longer or shorter by a change of their pool.
fn gives_other_lifecycle(change: &Change<WarmPool>) -> bool {
    let given =
        |side: &Option<Arc<WarmPool>>| side.as_ref().and_then(|pool| pool.spec.claim_lifecycle.clone());
    given(&change.before) != given(&change.after)
}

/// Whether a claim looks again after its pool's spec changed: one that has a Sandbox only if its time changes.
fn concerns(change: &Change<WarmPool>, claim: &Claim) -> bool {
    gives_other_lifecycle(change) || plan::bound_name(claim).is_empty()
}

/// Whether a claim has not been looked at yet, and is one that a pool can serve.
pub(crate) fn waits_for_a_member(claim: &Claim) -> bool {
    let status = claim.status.as_ref();
    let unheard = status.is_none_or(|status| condition::get(&status.conditions, condition::READY).is_none());
    unheard
        && claim.metadata.deletion_timestamp.is_none()
        && claim.spec.env.is_empty()
        && claim.spec.volume_claim_templates.as_ref().is_none_or(Vec::is_empty)
}

impl World {
    /// Wakes claims whenever something changes that concerns them, as long as the result is kept.
    fn listen<'a>(self: &Arc<Self>, caches: &'a Caches) -> impl Sized + use<'a> {
        let (of_sandboxes, of_claims, of_pools, of_templates) =
            (self.clone(), self.clone(), self.clone(), self.clone());
        (
            // Before the claims, so that the first claim sees all members.
            caches.sandboxes.listen(move |change| {
                of_sandboxes.candidates.observe(change.before.as_ref(), change.after.as_ref());
                woken_by(change).into_iter().for_each(|claim| of_sandboxes.queue.add(claim));
            }),
            caches.claims.listen(move |change| of_claims.claim_changed(change)),
            caches.pools.listen(move |change| {
                let changed = change.sides().next().filter(|_| is_new_spec(change));
                let claims =
                    changed.map(|pool| of_pools.caches.claims.find(BY_POOL, &Key::of(&**pool).to_string()));
                let concerned = claims.iter().flatten().filter(|claim| concerns(change, claim));
                concerned.for_each(|claim| of_pools.queue.add(Key::of(&**claim)));
            }),
            caches.templates.listen(move |change| {
                let changed = change.after.as_ref().filter(|_| is_new_spec(change));
                let pools = changed.map(|template| {
                    of_templates.caches.pools.find(BY_TEMPLATE, &Key::of(&**template).to_string())
                });
                for pool in pools.iter().flatten() {
                    let claims = of_templates.caches.claims.find(BY_POOL, &Key::of(&**pool).to_string());
                    claims.iter().for_each(|claim| of_templates.queue.add(Key::of(&**claim)));
                }
            }),
        )
    }

    fn claim_changed(&self, change: &Change<Claim>) {
        match (&change.before, &change.after) {
            (_, Some(claim)) => {
                self.observed.see(claim, Timestamp::now());
                if waits_for_a_member(claim) {
                    self.candidates.wait(claim);
                }
            }
            (before, None) => before.iter().for_each(|claim| self.observed.forget(claim)),
        }
        change.sides().for_each(|claim| self.queue.add(Key::of(&**claim)));
    }

    fn lifecycle(&self, claim: &Claim) -> Option<Lifecycle> {
        expiry::lifecycle(claim, self.caches.pools.get(&pool_named_by(claim)).as_deref())
    }

    fn time_left(&self, claim: &Claim, status: &ClaimStatus, now: Timestamp) -> Option<Duration> {
        expiry::time_left(self.lifecycle(claim).as_ref(), status, now)
    }

    fn observe(&self, claim: &Claim) -> Seen {
        let key = Key::of(claim);
        let pool = self.caches.pools.get(&pool_named_by(claim));
        let template = match pool.as_deref() {
            Some(pool) => Some(template_of(pool)),
            None => template_of_shadow_claim(claim).map(|name| Key::new(&key.namespace, &name)),
        };
        let template = template.and_then(|key| self.caches.templates.get(&key));
        let refusal = template.as_deref().and_then(|template| twin::refusal(&self.caches, template));
        let record = plan::record(claim).map(|name| Key::new(&key.namespace, name));
        Seen {
            owned: self.caches.sandboxes.find(BY_OWNER, claim.metadata.uid.as_deref().unwrap_or_default()),
            recorded: record.and_then(|key| self.caches.sandboxes.get(&key)),
            named: self.caches.sandboxes.get(&key),
            pool,
            template,
            refusal,
        }
    }

    async fn work(self: Arc<Self>) {
        let reconcile = async |key: Key| {
            let span = self.span(&key);
            reconcile(&self, &key).instrument(span).await
        };
        run::work(&self.queue, reconcile).await;
    }

    /// The span of one pass, which belongs to the trace of whoever made the claim.
    fn span(&self, key: &Key) -> Span {
        let span = tracing::info_span!(
            "ReconcileSandboxClaim",
            sandboxclaim.name = key.name,
            sandboxclaim.namespace = key.namespace,
            "agents.x-k8s.io/created-by" = tracing::field::Empty,
        );
        let claim = self.caches.claims.get(key);
        trace::join(self.config.traces.as_deref(), &span, claim.as_deref());
        span
    }
}
