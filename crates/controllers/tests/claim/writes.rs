//! What claims write: events, annotations, and how much in all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use asb_controllers::claim::Settings;
use asb_testing::{World, both_servers};
use asb_types::{Claim, Sandbox, Template, WarmPool, key};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

use super::*;

both_servers! {
    settled_claim_is_not_written_again,
    events_tell_the_story,
    annotations_are_written_if_asked_for,
}

/// CL-100: passes over what is settled write nothing
async fn settled_claim_is_not_written_again(world: World) {
    filled(&world, 1, json!({})).await;
    world.create::<Claim>(claim("c", json!({}))).await;
    let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
    world.eventually::<Pod>(&bound, |pod| pod.labels().contains_key(key::CLAIM_UID)).await;
    refilled(&world, 1).await;
    // The pool tells its numbers when they have stood for a while, but answers a new spec at once: then all is said.
    let strategy = json!({"spec": {"updateStrategy": {"type": "OnReplenish"}}});
    let asked = world.merge::<WarmPool>("pool", strategy).await.metadata.generation;
    let answered = |pool: &WarmPool| pool.status.as_ref().is_some_and(|it| it.observed_generation == asked);
    world.eventually("pool", |pool| answered(pool) && full(1)(pool)).await;

    let world = world.one_at_a_time().await;
    world.writes.take();
    // When they have answered this, the new controllers know everything and hear of every change.
    let mut own = markers(&world, "first").await;
    let touch = || json!({"metadata": {"annotations": {"touched": "yes"}}});
    for sandbox in [bound.clone(), members(&world).await[0].name_any()] {
        world.merge::<Pod>(&sandbox, touch()).await;
        world.merge::<Sandbox>(&sandbox, touch()).await;
    }
    world.merge::<Template>("web", touch()).await;
    world.merge::<WarmPool>("pool", touch()).await;
    world.merge::<Claim>("c", touch()).await;
    // And when they have answered this, they are through with all of that.
    for (write, count) in markers(&world, "second").await {
        *own.entry(write).or_default() += count;
    }
    assert_eq!(world.writes.take(), own, "nothing but the markers' own");
}

/// Makes an object of each kind that its controller has a word about at once, waits for it, and returns what that
/// costs.
async fn markers(world: &World, name: &str) -> BTreeMap<String, usize> {
    let mut unlabelled = template(json!({}));
    unlabelled["metadata"]["name"] = json!(name);
    world.create::<Template>(unlabelled).await;
    world.eventually::<NetworkPolicy>(&asb_types::name::network_policy(name), |_| true).await;
    let mut empty = pool(0);
    empty["metadata"]["name"] = json!(name);
    world.create::<WarmPool>(empty).await;
    world.eventually(name, full(0)).await;
    let asleep = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"operatingMode": "Suspended", "podTemplate": {"spec": {"containers": []}}},
    });
    world.create::<Sandbox>(asleep).await;
    world.eventually::<Sandbox>(name, |sandbox| sandbox.condition("Suspended").is_some()).await;
    let invalid = json!({"additionalPodMetadata": {"labels": {"x": "y"}}});
    world.create::<Claim>(claim(name, invalid)).await;
    world.eventually::<Claim>(name, because("InvalidMetadata")).await;
    let costs = [
        "PATCH sandboxclaims/status",
        "PATCH sandboxes/status",
        "PATCH sandboxtemplates",
        "PATCH sandboxwarmpools/status",
        "POST networkpolicies",
    ];
    costs.map(|write| (write.to_owned(), 1)).into()
}

/// CL-012
async fn events_tell_the_story(world: World) {
    filled(&world, 1, json!({})).await;
    world.create::<Claim>(claim("warm", json!({}))).await;
    let bound = sandbox_of(&world.eventually::<Claim>("warm", is_ready).await);
    let lifecycle =
        json!({"env": [], "lifecycle": {"shutdownTime": in_the_past(), "shutdownPolicy": "Delete"}});
    world.merge::<WarmPool>("pool", json!({"spec": {"replicas": 0}})).await;
    world.eventually("pool", full(0)).await;
    world.create::<Claim>(claim("cold", json!({}))).await;
    world.eventually::<Claim>("cold", is_ready).await;
    world.merge::<Claim>("warm", json!({"spec": lifecycle})).await;
    let wanted = [
        ("SandboxAdopted", "Adoption", format!("Adopted warm pool Sandbox \"{bound}\"")),
        ("SandboxProvisioned", "Provisioning", "Created Sandbox \"cold\"".to_owned()),
        ("ClaimExpired", "Claim Expired", "Claim expired".to_owned()),
        ("ClaimExpired", "Deleting", "Deleting Claim (ShutdownPolicy=Delete)".to_owned()),
    ];
    let mut changes = watcher(world.api::<Event>(), watcher::Config::default()).default_backoff().boxed();
    let wait = async {
        loop {
            let events: Vec<Event> = world.api::<Event>().list(&ListParams::default()).await.unwrap().items;
            let came = |(reason, action, note): &(&str, &str, String)| {
                events.iter().any(|event| {
                    event.reason.as_deref() == Some(reason)
                        && event.action.as_deref() == Some(action)
                        && event.message.as_deref() == Some(note)
                        && event.reporting_component.as_deref() == Some("sandboxclaim-controller")
                })
            };
            if wanted.iter().all(came) {
                return;
            }
            changes.next().await.unwrap().ok();
        }
    };
    let came = tokio::time::timeout(Duration::from_secs(30), wait).await;
    let found = world.api::<Event>().list(&ListParams::default()).await.unwrap();
    assert!(came.is_ok(), "{found:#?}");
}

/// CL-143
async fn annotations_are_written_if_asked_for(mut world: World) {
    world.stop_claims().await;
    world.start_claims(Settings { observability_annotations: true, ..Settings::default() });
    filled(&world, 1, json!({})).await;
    world.create::<Claim>(claim("c", json!({}))).await;
    let noted = world
        .eventually::<Claim>("c", |claim| claim.annotations().contains_key(key::CLAIM_FIRST_READY_AT))
        .await;
    assert!(is_ready(&noted), "it was Ready before anything was noted");
    let time = |key: &str| -> Timestamp { noted.annotations()[key].parse().unwrap() };
    let (seen, ready) = (time(key::CONTROLLER_FIRST_OBSERVED_AT), time(key::CLAIM_FIRST_READY_AT));
    assert!(seen < ready);
    assert_ne!(ready.subsec_nanosecond(), 0, "more exact than a second");
}

/// What one warm claim costs, refill included, on a real API server: everything that the controllers write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_claim_costs_at_most_six_writes() {
    const CLAIMS: usize = 20;
    let world = World::kubernetes().await;
    let replicas = i32::try_from(CLAIMS).unwrap();
    filled(&world, replicas, json!({})).await;
    let before: BTreeSet<_> = members(&world).await.iter().map(ResourceExt::name_any).collect();
    world.writes.take();
    let names = numbered(CLAIMS);
    claims(&world, &names).await;
    each_has_one(&world, &names).await;
    for (_, sandbox) in held(&world).await {
        assert!(before.contains(&sandbox), "all are served warm");
        world.eventually::<Pod>(&sandbox, |pod| pod.labels().contains_key(key::CLAIM_UID)).await;
    }
    refilled(&world, CLAIMS).await;
    world.eventually("pool", full(replicas)).await;
    let mut writes = world.writes.take();
    writes.remove("POST events"); // told later, by a task of its own
    let per_claim = |count: usize| count as f64 / CLAIMS as f64;
    for (what, count) in &writes {
        println!("{what:28} {:5.2} per claim", per_claim(*count));
    }
    // The pool's numbers are told once for many claims.
    let numbers = writes.remove("PATCH sandboxwarmpools/status").unwrap_or_default();
    let all: usize = writes.values().sum();
    println!("{:28} {:5.2} per claim, and the pool's status {numbers} times", "all", per_claim(all));
    assert!(all <= 6 * CLAIMS, "{writes:?}");
    assert!(numbers <= CLAIMS / 2, "the pool's status was written {numbers} times");
}
