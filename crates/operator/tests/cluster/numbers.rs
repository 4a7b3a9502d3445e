//! How long users wait on a cluster, and what a claim costs its API server. One thing at a time; every number has
//! its peer from the same run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use asb_testing::{Kind, World};
use asb_types::{Claim, Sandbox, Template, WarmPool};
use futures::StreamExt;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::audit::{self, Writer};
use crate::cluster::Cluster;
use crate::stories;

const SAMPLES: usize = 30;
/// Claims one by one, which are quick.
const CLAIMS: usize = 40;
/// Claims that come at once, and how often that happens.
const BURST: usize = 20;
const BURSTS: usize = 5;
/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(120);

pub async fn report(cluster: &Cluster, world: &World) {
    let (pods, sandboxes) = (Watched::new(world, pod_is_ready), Watched::new(world, stories::is_ready));
    for runtime in [None, Some("gvisor")] {
        let name = runtime.unwrap_or("runc");
        let (mut bare, mut cold, mut resumed, mut own) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // In turn, so that whatever else the machine does hits all alike, and neither always comes after the other.
        for sample in 0..SAMPLES {
            let pod = async || pod(world, &pods, &format!("{name}-pod-{sample}"), runtime).await;
            let sandbox =
                async || sandbox(world, &pods, &sandboxes, &format!("{name}-{sample}"), runtime).await;
            let (alone, (born, awake)) = match sample % 2 {
                0 => (pod().await, sandbox().await),
                _ => {
                    let sandbox = sandbox().await;
                    (pod().await, sandbox)
                }
            };
            bare.push(alone.ready);
            cold.push(born.ready);
            resumed.push(awake);
            own.push(ms(born.pod_seen) - ms(alone.pod_seen) + ms(born.ready) - ms(born.pod_ready));
        }
        let more: Vec<_> = cold.iter().zip(&bare).map(|(cold, bare)| ms(*cold) - ms(*bare)).collect();
        tell(&format!("{name}: bare Pod to Ready"), bare);
        tell(&format!("{name}: Sandbox to Ready"), cold);
        tell(&format!("{name}: resume to Ready"), resumed);
        println!("{name}: a Sandbox takes longer than the Pod next to it by {}", median(more));
        println!("  of which before its Pod is there, and after that is Ready: {}", median(own));
    }
    claims(cluster, world, &sandboxes).await;
}

/// Knows which objects of a kind are there and Ready, and since when, as a client with a watch does.
pub struct Watched<K> {
    known: watch::Receiver<Known<K>>,
    _task: JoinSet<()>,
}

struct Known<K> {
    seen: HashMap<String, Instant>,
    /// Since when, and what it was then.
    ready: HashMap<String, (Instant, K)>,
}

impl<K: Kind> Watched<K> {
    pub fn new(world: &World, is_ready: fn(&K) -> bool) -> Self {
        let (tell, known) = watch::channel(Known { seen: HashMap::new(), ready: HashMap::new() });
        let mut events = watcher(world.api::<K>(), watcher::Config::default()).default_backoff().boxed();
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Some(event) = events.next().await {
                let now = Instant::now();
                tell.send_modify(|known| match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => {
                        let name = object.name_any();
                        known.seen.entry(name.clone()).or_insert(now);
                        match is_ready(&object) {
                            true => drop(known.ready.entry(name).or_insert((now, object))),
                            false => drop(known.ready.remove(&name)),
                        }
                    }
                    Ok(Event::Delete(object)) => {
                        known.seen.remove(&object.name_any());
                        known.ready.remove(&object.name_any());
                    }
                    _ => {}
                });
            }
        });
        Self { known, _task: task }
    }

    /// Since when an object is there.
    fn seen(&self, name: &str) -> Instant {
        self.known.borrow().seen[name]
    }

    /// Waits until an object is Ready, and tells since when.
    async fn ready(&self, name: &str) -> Instant {
        self.ready_object(name).await.0
    }

    /// The same with the object as it was then.
    pub async fn ready_object(&self, name: &str) -> (Instant, K) {
        self.until(|known| known.contains_key(name)).await.remove(name).expect("it is there")
    }

    pub async fn until(
        &self,
        wanted: impl Fn(&HashMap<String, (Instant, K)>) -> bool,
    ) -> HashMap<String, (Instant, K)> {
        let mut known = self.known.clone();
        let found = tokio::time::timeout(PATIENCE, known.wait_for(|known| wanted(&known.ready))).await;
        let found = found.unwrap_or_else(|_| panic!("some {} is not Ready", K::kind(&())));
        found.expect("the watch lives").ready.clone()
    }
}

fn pod_is_ready(pod: &Pod) -> bool {
    json!(pod)["status"]["containerStatuses"][0]["ready"] == true
}

/// What a user sees of a start, and when.
struct Start {
    pod_seen: Duration,
    pod_ready: Duration,
    ready: Duration,
}

async fn pod(world: &World, pods: &Watched<Pod>, name: &str, runtime: Option<&str>) -> Start {
    let spec = stories::sandbox(name, runtime)["spec"]["podTemplate"]["spec"].clone();
    quiet().await;
    let started = Instant::now();
    let pod: Pod = world.create(json!({"metadata": {"name": name}, "spec": spec})).await;
    let ready = pods.ready(name).await - started;
    let start = Start { pod_seen: pods.seen(name) - started, pod_ready: ready, ready };
    world.delete::<Pod>(name).await;
    // Its end is work too, and would be counted as the next one's start.
    world.gone(&pod).await;
    start
}

/// From nothing, and from suspended.
async fn sandbox(
    world: &World,
    pods: &Watched<Pod>,
    sandboxes: &Watched<Sandbox>,
    name: &str,
    runtime: Option<&str>,
) -> (Start, Duration) {
    quiet().await;
    let started = Instant::now();
    world.create::<Sandbox>(stories::sandbox(name, runtime)).await;
    let ready = sandboxes.ready(name).await - started;
    let pod_ready = pods.ready(name).await - started;
    let cold = Start { pod_seen: pods.seen(name) - started, pod_ready, ready };
    suspend(world, sandboxes, name).await;
    quiet().await;
    let started = Instant::now();
    world.merge::<Sandbox>(name, json!({"spec": {"operatingMode": "Running"}})).await;
    let resume = sandboxes.ready(name).await - started;
    suspend(world, sandboxes, name).await;
    world.delete::<Sandbox>(name).await;
    (cold, resume)
}

async fn suspend(world: &World, sandboxes: &Watched<Sandbox>, name: &str) {
    let pod = world.get::<Pod>(name).await.expect("a Sandbox that is Ready has a Pod");
    world.merge::<Sandbox>(name, json!({"spec": {"operatingMode": "Suspended"}})).await;
    world.gone(&pod).await;
    sandboxes.until(|known| !known.contains_key(name)).await;
}

async fn claims(cluster: &Cluster, world: &World, sandboxes: &Watched<Sandbox>) {
    let claims = Watched::new(world, stories::claim_is_ready);
    world.create::<Template>(stories::template("pooled")).await;
    world.create::<WarmPool>(stories::pool("pooled", BURST)).await;
    sandboxes.until(|known| known.len() == BURST).await;
    let (since, cpu) = (Timestamp::now(), cluster.controller_cpu().await);
    let mut alone = Vec::new();
    for sample in 0..CLAIMS {
        alone.push(claim(world, &claims, &format!("alone-{sample}")).await);
        sandboxes.until(|known| known.len() == BURST + alone.len()).await;
    }
    tell("warm claim to Ready", alone);
    let cpu = (cluster.controller_cpu().await - cpu) * 1e3 / CLAIMS as f64;
    println!("processor time of the controller per claim, with its refill: {cpu:.1} ms");
    tell_writes(audit::writes_in(cluster, &world.namespace, since));
    release(world, (0..CLAIMS).map(|sample| format!("alone-{sample}"))).await;
    let mut all_ready = Vec::new();
    for burst in 0..BURSTS {
        sandboxes.until(|known| known.len() == BURST).await;
        all_ready.push(claims_at_once(world, &claims, burst).await);
    }
    tell(&format!("{BURST} warm claims at once to all Ready"), all_ready);
}

async fn claims_at_once(world: &World, claims: &Watched<Claim>, burst: usize) -> Duration {
    let names: Vec<_> = (0..BURST).map(|sample| format!("burst-{burst}-{sample}")).collect();
    quiet().await;
    // Who claims is connected already.
    join_all(names.iter().map(|name| world.get::<Claim>(name))).await;
    let started = Instant::now();
    join_all(names.iter().map(|name| claim(world, claims, name))).await;
    let took = started.elapsed();
    let mut bound = BTreeSet::new();
    for name in &names {
        bound.insert(sandbox_of(world, name).await.name_any());
    }
    assert_eq!(bound.len(), BURST, "no Sandbox serves two claims");
    release(world, names).await;
    took
}

/// Deletes claims, and waits for the end of what they held.
async fn release(world: &World, claims: impl IntoIterator<Item = String>) {
    let mut held = Vec::new();
    for name in claims {
        let pod = world.get::<Pod>(&sandbox_of(world, &name).await.name_any()).await;
        held.push(pod.expect("a Sandbox that is Ready has a Pod"));
        world.delete::<Claim>(&name).await;
    }
    for pod in held {
        world.gone(&pod).await;
    }
}

async fn sandbox_of(world: &World, claim: &str) -> Sandbox {
    let claim = world.get::<Claim>(claim).await.expect("it is there");
    let bound = claim.status.and_then(|status| status.sandbox).expect("a claim that is Ready is bound");
    world.get(&bound.name).await.expect("what serves a claim is there")
}

/// Waits until the machine has nothing to do: whatever was started or ended before is work for a while after.
pub async fn quiet() {
    const LOOK: Duration = Duration::from_millis(250);
    let begun = Instant::now();
    let mut before = processors();
    while begun.elapsed() < PATIENCE {
        tokio::time::sleep(LOOK).await;
        let (idle, all) = processors();
        // A kubelet and its API server are never quite still.
        if (idle - before.0) as f64 > 0.85 * (all - before.1) as f64 {
            return;
        }
        before = (idle, all);
    }
}

/// Ticks of all processors so far: those without work, and all.
fn processors() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").expect("Linux counts");
    let first = text.lines().next().expect("all processors come first");
    let ticks: Vec<u64> = first.split_whitespace().skip(1).filter_map(|ticks| ticks.parse().ok()).collect();
    // The fourth is idle; the fifth waits for a disk, and whoever starts now would wait with it.
    (ticks[3], ticks[..8].iter().sum())
}

fn tell_writes(counts: BTreeMap<(Writer, String), usize>) {
    let per_claim = |count: usize| count as f64 / CLAIMS as f64;
    println!("writes per claim, with its refill: {:.1}", per_claim(counts.values().sum()));
    for ((writer, resource), count) in counts {
        println!("  {writer:?} {resource}: {:.2}", per_claim(count));
    }
}

async fn claim(world: &World, claims: &Watched<Claim>, name: &str) -> Duration {
    let started = Instant::now();
    world.create::<Claim>(stories::claim(name, "pooled")).await;
    claims.ready(name).await - started
}

/// Prints the median with the range, and returns the median in milliseconds.
pub fn tell(what: &str, mut times: Vec<Duration>) -> f64 {
    times.sort();
    let at = |at: usize| ms(times[at]);
    println!("{what}: p50 {:.1} ms, {:.1}–{:.1} ms", at(times.len() / 2), at(0), at(times.len() - 1));
    at(times.len() / 2)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The median of some times, and between what it is with a certainty of 95 %.
fn median(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let middle = times.len() / 2;
    // How many of them are below the true one is binomial: half of them, give or take two deviations.
    let around = (times.len() as f64).sqrt().round() as usize;
    let (least, most) = (times[middle - around], times[(middle + around).min(times.len() - 1)]);
    format!("p50 {:.0} ms ({least:.0} to {most:.0})", times[middle])
}
