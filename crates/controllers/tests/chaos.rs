//! All controllers while everything goes wrong: requests fail before and after they took effect, conflicts come from
//! nowhere, watches lag and break off, processes die in the middle of their work, and at times two of them lead.
//!
//! Whatever happens, no Sandbox ever serves two claims, no claim is ever moved to another Sandbox, every claim ends
//! Ready or with a true reason, and in the end nothing is left.
//!
//! ```text
//! cargo test -p asb-controllers --test chaos                          short, with a new seed
//! ASB_CHAOS_CLAIMS=10000 cargo test -p asb-controllers --test chaos   long
//! ASB_CHAOS_SEED=7 …                                                  the same faults again
//! ```

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use asb_controllers::{Caches, Config, Scope, run_all};
use asb_testing::{Faults, World};
use asb_types::{Claim, Sandbox, Template, WarmPool, condition};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::{DeleteParams, ListParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, JoinSet};

const EXTENSIONS: &str = "extensions.agents.x-k8s.io/v1beta1";
/// Claims at the same time.
const AT_ONCE: usize = 64;
/// The longest that a claim may take while everything goes wrong.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_lost_and_no_sandbox_shared_while_everything_goes_wrong() {
    let seed = number("ASB_CHAOS_SEED").unwrap_or_else(rand::random);
    let count = number("ASB_CHAOS_CLAIMS").unwrap_or(400);
    println!("seed {seed}: ASB_CHAOS_SEED={seed} ASB_CHAOS_CLAIMS={count} repeats this");
    let world = Arc::new(World::idle().await);
    world.create::<Template>(template()).await;
    world.create::<WarmPool>(pool(40)).await;
    let history = Arc::new(History::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(watch_sandboxes(world.clone(), history.clone()));
    tasks.spawn(watch_claims(world.clone(), history.clone()));

    let mut leaders = Leaders::new(world.clone(), seed);
    let started = Instant::now();
    let served = tokio::select! {
        served = serve(&world, &history, count, seed) => served,
        never = leaders.die_and_rise() => never,
    };
    let took = started.elapsed();
    leaders.calm();

    let left = settle(&world, &history).await;
    println!(
        "{count} claims in {took:.1?} ({:.0}/s): {served:?}; {} still there, {} processes, {} faults",
        f64::from(u32::try_from(count).unwrap()) / took.as_secs_f64(),
        left.len(),
        leaders.started,
        leaders.injected(),
    );
    history.check();
    everything_goes(&world).await;
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text:?}")))
}

fn template() -> Value {
    json!({
        "apiVersion": EXTENSIONS, "kind": "SandboxTemplate", "metadata": {"name": "web"},
        "spec": {
            "service": true,
            "envVarsInjectionPolicy": "Allowed",
            "podTemplate": {"spec": {"containers": [{"name": "main", "image": "v1"}]}},
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }],
        },
    })
}

fn pool(replicas: u32) -> Value {
    json!({
        "apiVersion": EXTENSIONS, "kind": "SandboxWarmPool", "metadata": {"name": "pool"},
        "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": "web"}},
    })
}

/// Most claims want a member of the pool; some need a Sandbox of their own; some cannot be served.
fn claim(name: &str, kind: u32) -> (Value, &'static str) {
    let mut claim = json!({
        "apiVersion": EXTENSIONS, "kind": "SandboxClaim", "metadata": {"name": name},
        "spec": {"warmPoolRef": {"name": "pool"}},
    });
    let reason = match kind {
        0 => {
            claim["spec"]["warmPoolRef"]["name"] = json!("nowhere");
            "WarmPoolNotFound"
        }
        1 => {
            claim["spec"]["additionalPodMetadata"] = json!({"labels": {"no-domain": "x"}});
            "InvalidMetadata"
        }
        2 | 3 => {
            claim["spec"]["env"] = json!([{"name": "A", "value": "b"}]);
            "DependenciesReady"
        }
        _ => "DependenciesReady",
    };
    (claim, reason)
}

/// Makes claims, waits until each is told what it should be told, and deletes most of them. Counts the reasons.
async fn serve(
    world: &Arc<World>,
    history: &Arc<History>,
    count: u64,
    seed: u64,
) -> BTreeMap<&'static str, usize> {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut dice = StdRng::seed_from_u64(seed);
    let mut claims = JoinSet::new();
    for number in 0..count {
        let place = places.clone().acquire_owned().await.unwrap();
        let (kind, stays) = (dice.random_range(0..40), dice.random_range(0..10) == 0);
        let (world, history) = (world.clone(), history.clone());
        claims.spawn(async move {
            let name = format!("claim-{number}");
            let (object, reason) = claim(&name, kind);
            world.create::<Claim>(object).await;
            history.wait(&name, reason).await;
            if !stays {
                world.api::<Claim>().delete(&name, &DeleteParams::default()).await.unwrap();
            }
            drop(place);
            reason
        });
    }
    let mut reasons = BTreeMap::new();
    for reason in claims.join_all().await {
        *reasons.entry(reason).or_default() += 1;
    }
    reasons
}

/// Waits until every claim that is left has exactly one Sandbox and the pool is full; returns the claims.
async fn settle(world: &World, history: &History) -> Vec<Claim> {
    let full = |pool: &WarmPool| pool.status.as_ref().is_some_and(|status| status.ready_replicas == 40);
    world.eventually("pool", full).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let changed = history.changed.notified();
        let claims: Vec<Claim> = all(&world.api()).await;
        let sandboxes: Vec<Sandbox> = all(&world.api()).await;
        let of_claim = |claim: &Claim| {
            let owned = |it: &&Sandbox| {
                it.owner_references().iter().any(|owner| Some(&owner.uid) == claim.uid().as_ref())
            };
            sandboxes.iter().filter(owned).count()
        };
        let wanted = |claim: &Claim| usize::from(ready_reason(claim).as_deref() == Some("DependenciesReady"));
        let owners = |it: &Sandbox| it.owner_references().len() == 1;
        let expected = 40 + claims.iter().map(wanted).sum::<usize>();
        if claims.iter().all(|it| of_claim(it) == wanted(it))
            && sandboxes.len() == expected
            && sandboxes.iter().all(owners)
        {
            return claims;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "{} Sandboxes instead of {expected}", sandboxes.len());
        let _ = tokio::time::timeout(left.min(Duration::from_secs(1)), changed).await;
    }
}

/// Deletes what is left and waits until nothing is.
async fn everything_goes(world: &World) {
    world.api::<Claim>().delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    world.delete::<WarmPool>("pool").await;
    world.delete::<Template>("web").await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let sandboxes = names(all::<Sandbox>(&world.api()).await);
        let pods = names(all::<Pod>(&world.api()).await);
        let volumes = names(all::<PersistentVolumeClaim>(&world.api()).await);
        let services = names(all::<Service>(&world.api()).await);
        let left = [sandboxes, pods, volumes, services].concat();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left behind: {left:?}");
        tokio::task::yield_now().await;
    }
}

async fn all<K: asb_testing::Kind>(api: &Api<K>) -> Vec<K> {
    api.list(&ListParams::default()).await.unwrap().items
}

fn names<K: ResourceExt>(objects: Vec<K>) -> Vec<String> {
    objects.iter().map(ResourceExt::name_any).collect()
}

fn ready_reason(claim: &Claim) -> Option<String> {
    let conditions = &claim.status.as_ref()?.conditions;
    condition::get(conditions, condition::READY).map(|ready| ready.reason.clone())
}

/// What an undisturbed observer has seen.
#[derive(Default)]
struct History {
    seen: Mutex<Seen>,
    changed: Notify,
}

#[derive(Default)]
struct Seen {
    /// The claims that ever controlled a Sandbox, by the Sandbox's UID.
    owners: HashMap<String, BTreeSet<String>>,
    /// The Sandboxes that a claim ever named while it was Ready, by the claim's UID.
    bound: HashMap<String, BTreeSet<String>>,
    /// Why each claim is as it is, by its name.
    reasons: HashMap<String, String>,
}

impl History {
    /// Waits until a claim says `reason`.
    async fn wait(&self, claim: &str, reason: &str) {
        let said = async {
            loop {
                let changed = self.changed.notified();
                if self.seen.lock().unwrap().reasons.get(claim).is_some_and(|said| said == reason) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(PATIENCE, said).await.is_err() {
            let said = self.seen.lock().unwrap().reasons.get(claim).cloned();
            panic!("{claim} says {said:?} instead of {reason:?}");
        }
    }

    fn check(&self) {
        let seen = self.seen.lock().unwrap();
        let shared: Vec<_> = seen.owners.iter().filter(|(_, claims)| claims.len() > 1).collect();
        assert!(shared.is_empty(), "Sandboxes of several claims: {shared:?}");
        let moved: Vec<_> = seen.bound.iter().filter(|(_, sandboxes)| sandboxes.len() > 1).collect();
        assert!(moved.is_empty(), "claims that were moved: {moved:?}");
    }
}

async fn watch_sandboxes(world: Arc<World>, history: Arc<History>) {
    let mut objects = watcher(world.api::<Sandbox>(), watcher::Config::default())
        .default_backoff()
        .touched_objects()
        .boxed();
    while let Some(sandbox) = objects.next().await {
        let sandbox = sandbox.unwrap();
        let claims = sandbox.owner_references().iter().filter(|owner| owner.kind == "SandboxClaim");
        let mut seen = history.seen.lock().unwrap();
        seen.owners.entry(sandbox.uid().unwrap()).or_default().extend(claims.map(|owner| owner.uid.clone()));
        drop(seen);
        history.changed.notify_waiters();
    }
}

async fn watch_claims(world: Arc<World>, history: Arc<History>) {
    let mut objects =
        watcher(world.api::<Claim>(), watcher::Config::default()).default_backoff().applied_objects().boxed();
    while let Some(claim) = objects.next().await {
        let claim = claim.unwrap();
        if let Some(reason) = ready_reason(&claim) {
            let mut seen = history.seen.lock().unwrap();
            let bound =
                claim.status.as_ref().and_then(|status| status.sandbox.clone()).map(|sandbox| sandbox.name);
            let bound = bound.filter(|_| reason == "DependenciesReady");
            seen.bound.entry(claim.uid().unwrap()).or_default().extend(bound);
            seen.reasons.insert(claim.name_any(), reason);
            drop(seen);
            history.changed.notify_waiters();
        }
    }
}

/// The processes that run the controllers: mostly one, at times two, none for long.
struct Leaders {
    world: Arc<World>,
    dice: StdRng,
    running: Vec<AbortHandle>,
    faults: Vec<Arc<Faults>>,
    tasks: JoinSet<()>,
    started: usize,
}

impl Leaders {
    fn new(world: Arc<World>, seed: u64) -> Self {
        let dice = StdRng::seed_from_u64(seed.rotate_left(32));
        let (running, faults) = (Vec::new(), Vec::new());
        let mut leaders = Self { world, dice, running, faults, tasks: JoinSet::new(), started: 0 };
        leaders.start();
        leaders
    }

    fn start(&mut self) {
        let faults = Faults::new(self.dice.random());
        let client = faults.between(&self.world.controller_client);
        let scope =
            Scope { namespaces: vec![self.world.namespace.clone()], extensions: true, ..Scope::default() };
        let process = async move {
            let caches = Arc::new(Caches::new(scope));
            let controllers = run_all(client.clone(), caches.clone(), Config::default());
            tokio::join!(caches.run(&client), controllers);
        };
        self.running.push(self.tasks.spawn(process));
        self.faults.push(faults);
        self.started += 1;
    }

    /// Kills processes in the middle of whatever they do, and starts others: before the death, or after it.
    async fn die_and_rise<T>(&mut self) -> T {
        loop {
            tokio::time::sleep(Duration::from_millis(self.dice.random_range(1000..4000))).await;
            let overlap = self.dice.random_range(0..3) == 0;
            if overlap {
                self.start();
                tokio::time::sleep(Duration::from_millis(self.dice.random_range(50..800))).await;
            }
            self.running.remove(0).abort();
            if !overlap {
                self.start();
            }
        }
    }

    /// From now on nothing goes wrong.
    fn calm(&mut self) {
        self.faults.iter().for_each(|faults| faults.stop());
    }

    fn injected(&self) -> u64 {
        self.faults.iter().map(|faults| faults.injected()).sum()
    }
}
