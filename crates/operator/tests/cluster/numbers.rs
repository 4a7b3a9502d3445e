//! How long users wait on a cluster, and what a claim costs its API server. One thing at a time; every number has
//! its peer from the same run.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use asb_testing::World;
use asb_types::{Claim, Sandbox, Template, WarmPool, key};
use futures::StreamExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::{audit, stories};

const SAMPLES: usize = 10;
/// Claims that come at once.
const BURST: usize = 20;

pub async fn report(cluster: &Cluster, world: &World) {
    for runtime in [None, Some("gvisor")] {
        let name = runtime.unwrap_or("runc");
        let spec = stories::sandbox("any", runtime)["spec"]["podTemplate"]["spec"].clone();
        let (mut pods, mut sandboxes, mut resumes) = (Vec::new(), Vec::new(), Vec::new());
        // In turn, so that whatever else the machine does hits all alike.
        for sample in 0..SAMPLES {
            pods.push(pod(world, &format!("{name}-pod-{sample}"), &spec).await);
            let (cold, resume) = sandbox(world, &format!("{name}-{sample}"), runtime).await;
            sandboxes.push(cold);
            resumes.push(resume);
        }
        tell(&format!("{name}: bare Pod to Ready"), pods);
        tell(&format!("{name}: Sandbox to Ready"), sandboxes);
        tell(&format!("{name}: resume to Ready"), resumes);
    }
    claims(cluster, world).await;
}

async fn pod(world: &World, name: &str, spec: &Value) -> Duration {
    let started = Instant::now();
    world.create::<Pod>(json!({"metadata": {"name": name}, "spec": spec})).await;
    let ready = |pod: &Pod| json!(pod)["status"]["containerStatuses"][0]["ready"] == true;
    world.eventually::<Pod>(name, ready).await;
    let took = started.elapsed();
    world.delete::<Pod>(name).await;
    took
}

/// From nothing, and from suspended.
async fn sandbox(world: &World, name: &str, runtime: Option<&str>) -> (Duration, Duration) {
    let started = Instant::now();
    world.create::<Sandbox>(stories::sandbox(name, runtime)).await;
    world.eventually::<Sandbox>(name, stories::is_ready).await;
    let cold = started.elapsed();
    let pod = world.get::<Pod>(name).await.expect("a Sandbox that is Ready has a Pod");
    world.merge::<Sandbox>(name, json!({"spec": {"operatingMode": "Suspended"}})).await;
    world.gone(&pod).await;
    let started = Instant::now();
    world.merge::<Sandbox>(name, json!({"spec": {"operatingMode": "Running"}})).await;
    world.eventually::<Sandbox>(name, stories::is_ready).await;
    let resume = started.elapsed();
    world.delete::<Sandbox>(name).await;
    (cold, resume)
}

async fn claims(cluster: &Cluster, world: &World) {
    world.create::<Template>(stories::template("pooled")).await;
    world.create::<WarmPool>(stories::pool("pooled", BURST)).await;
    let mut alone = Vec::new();
    for sample in 0..SAMPLES {
        filled(world).await;
        alone.push(claim(world, &format!("alone-{sample}")).await.1);
    }
    tell("warm claim to Ready", alone);
    filled(world).await;
    let names: Vec<_> = (0..BURST).map(|sample| format!("burst-{sample}")).collect();
    let started = Instant::now();
    let burst = join_all(names.iter().map(|name| claim(world, name))).await;
    println!("{BURST} warm claims at once, all Ready: {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    let (bound, times): (BTreeSet<String>, Vec<_>) = burst.into_iter().unzip();
    tell("  each of them", times);
    assert_eq!(bound.len(), BURST, "no Sandbox serves two claims");
    let named: BTreeSet<_> = names.into_iter().chain(bound).collect();
    let writes = audit::writes_to(cluster, &named) as f64 / BURST as f64;
    println!("writes per claim (to it, its Sandbox and its Pod, since they were made): {writes:.1}");
}

/// Waits until all members are Ready. (The pool's status tells the number a moment later.)
async fn filled(world: &World) {
    let members = ListParams::default().labels(key::WARM_POOL_SANDBOX);
    let mut changes = watcher(world.api::<Sandbox>(), watcher::Config::default()).default_backoff().boxed();
    loop {
        let found = world.api::<Sandbox>().list(&members).await.expect("the API answers").items;
        if found.iter().filter(|sandbox| stories::is_ready(sandbox)).count() == BURST {
            return;
        }
        _ = changes.next().await;
    }
}

/// The Sandbox that it got, and how long that took.
async fn claim(world: &World, name: &str) -> (String, Duration) {
    let started = Instant::now();
    world.create::<Claim>(stories::claim(name, "pooled")).await;
    let claim: Claim = world.eventually(name, stories::claim_is_ready).await;
    let took = started.elapsed();
    (claim.status.and_then(|status| status.sandbox).expect("a claim that is Ready is bound").name, took)
}

fn tell(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let ms = |at: usize| times[at].as_secs_f64() * 1e3;
    println!("{what}: p50 {:.0} ms, {:.0}–{:.0} ms", ms(times.len() / 2), ms(0), ms(times.len() - 1));
}
