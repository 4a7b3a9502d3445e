//! The SandboxClaim controller on both API servers: the same stories, word for word. Here is what they share.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::Duration;

use asb_testing::World;
use asb_types::{Claim, Sandbox, Template, WarmPool, condition, key};
use futures::StreamExt;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

mod adoption;
mod cold;
mod expiry;
mod writes;

fn template(spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate", "metadata": {"name": "web"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "v1"}]}}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    object
}

fn pool(replicas: i32) -> Value {
    json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "metadata": {"name": "pool"},
        "spec": {"sandboxTemplateRef": {"name": "web"}, "replicas": replicas},
    })
}

fn claim(name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": name},
        "spec": {"warmPoolRef": {"name": "pool"}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    object
}

/// A template and a pool with that many members, all Ready.
async fn filled(world: &World, replicas: i32, spec: Value) {
    world.create::<Template>(template(spec)).await;
    world.create::<WarmPool>(pool(replicas)).await;
    world.eventually("pool", full(replicas)).await;
}

fn full(count: i32) -> impl Fn(&WarmPool) -> bool {
    move |pool| pool.status.as_ref().is_some_and(|it| (it.replicas, it.ready_replicas) == (count, count))
}

fn is_ready(claim: &Claim) -> bool {
    says(claim, "True", "DependenciesReady")
}

fn says(claim: &Claim, status: &str, reason: &str) -> bool {
    let conditions = claim.status.as_ref().map_or(&[][..], |status| &status.conditions);
    condition::get(conditions, "Ready").is_some_and(|ready| ready.status == status && ready.reason == reason)
}

fn because(reason: &'static str) -> impl Fn(&Claim) -> bool {
    move |claim| says(claim, "False", reason)
}

fn message(claim: &Claim) -> String {
    condition::get(&claim.status.as_ref().unwrap().conditions, "Ready").unwrap().message.clone()
}

fn sandbox_of(claim: &Claim) -> String {
    claim
        .status
        .as_ref()
        .and_then(|status| status.sandbox.as_ref())
        .map(|it| it.name.clone())
        .unwrap_or_default()
}

/// The Sandboxes that each claim controls, by the claim's name.
async fn held(world: &World) -> Vec<(String, String)> {
    let sandboxes: Vec<Sandbox> = world.api().list(&ListParams::default()).await.unwrap().items;
    let owner = |sandbox: &Sandbox| sandbox.owner_references().first().cloned();
    let claimed = |sandbox: &Sandbox| {
        let owner = owner(sandbox).filter(|owner| owner.kind == "SandboxClaim")?;
        Some((owner.name, sandbox.name_any()))
    };
    let mut held: Vec<_> = sandboxes.iter().filter_map(claimed).collect();
    held.sort();
    held
}

async fn members(world: &World) -> Vec<Sandbox> {
    let labels = key::WARM_POOL_SANDBOX.to_owned();
    world.api().list(&ListParams::default().labels(&labels)).await.unwrap().items
}

/// Every claim is Ready, has exactly one Sandbox, and says which.
async fn each_has_one(world: &World, claims: &[String]) {
    for name in claims {
        world.eventually::<Claim>(name, is_ready).await;
    }
    let mut said = Vec::new();
    for name in claims {
        said.push((name.clone(), sandbox_of(&world.get::<Claim>(name).await.unwrap())));
    }
    said.sort();
    assert_eq!(held(world).await, said);
    let sandboxes: BTreeSet<_> = said.iter().map(|(_, sandbox)| sandbox).collect();
    assert_eq!(sandboxes.len(), claims.len(), "no Sandbox twice");
}

async fn claims(world: &World, names: &[String]) {
    join_all(names.iter().map(|name| world.create::<Claim>(claim(name, json!({}))))).await;
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("c{n:02}")).collect()
}

/// Waits until that many members of the pool are Ready. (Its status tells the number a moment later.)
async fn refilled(world: &World, count: usize) {
    let mut changes = watcher(world.api::<Sandbox>(), watcher::Config::default()).default_backoff().boxed();
    let wait = async {
        while members(world).await.iter().filter(|member| member.is_ready()).count() != count {
            changes.next().await.unwrap().ok();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the pool is filled again");
}

/// Waits until claims control exactly that many Sandboxes that are not on their way out.
async fn settled(world: &World, count: usize) {
    let mut changes = watcher(world.api::<Sandbox>(), watcher::Config::default()).default_backoff().boxed();
    let wait = async {
        while held(world).await.len() != count {
            changes.next().await.unwrap().ok();
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), wait).await;
    assert!(waited.is_ok(), "{count} Sandboxes are wanted, there are {:?}", held(world).await);
}

fn in_the_past() -> String {
    (Timestamp::now() - SignedDuration::from_secs(60)).to_string()
}
