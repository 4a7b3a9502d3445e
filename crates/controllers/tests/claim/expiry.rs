//! How claims end.

use asb_testing::{World, both_servers, kubelet};
use asb_types::{Claim, Sandbox, WarmPool, condition};
use kube::api::DeleteParams;
use serde_json::json;

use super::*;

both_servers! {
    retained_claim_outlives_its_sandbox,
    deleted_claim_takes_its_sandbox_with_it,
    foreground_deletion_waits_for_the_sandbox,
    finished_claim_expires_after_its_ttl,
    pool_decides_how_long_its_claims_live,
}

/// CL-060, CL-064: the Sandbox of a warm claim has another name
async fn retained_claim_outlives_its_sandbox(world: World) {
    filled(&world, 1, json!({})).await;
    world.create::<Claim>(claim("c", json!({}))).await;
    let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
    let sandbox: Sandbox = world.get(&bound).await.unwrap();
    let lifecycle = json!({"shutdownTime": in_the_past(), "shutdownPolicy": "Retain"});
    world.merge::<Claim>("c", json!({"spec": {"lifecycle": lifecycle}})).await;
    world.gone(&sandbox).await;
    let expired = world.eventually::<Claim>("c", |claim| sandbox_of(claim).is_empty()).await;
    assert!(because("ClaimExpired")(&expired));
    assert_eq!(message(&expired), "Claim expired. Sandbox cleanup initiated.");
    // Time given back is a new life.
    world.merge::<Claim>("c", json!({"spec": {"lifecycle": null}})).await;
    world.eventually::<Claim>("c", is_ready).await;
}

/// CL-062, and a claim that its user deletes
async fn deleted_claim_takes_its_sandbox_with_it(world: World) {
    filled(&world, 1, json!({})).await;
    let lifecycle = json!({"shutdownTime": in_the_past(), "shutdownPolicy": "Delete"});
    for expires in [true, false] {
        let made: Claim = world.create(claim("c", json!({}))).await;
        let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
        let sandbox: Sandbox = world.get(&bound).await.unwrap();
        match expires {
            true => drop(world.merge::<Claim>("c", json!({"spec": {"lifecycle": lifecycle}})).await),
            false => drop(world.api::<Claim>().delete("c", &DeleteParams::default()).await.unwrap()),
        }
        world.gone(&made).await;
        world.gone(&sandbox).await;
    }
}

/// CL-062, CL-067
async fn foreground_deletion_waits_for_the_sandbox(world: World) {
    filled(&world, 1, json!({})).await;
    let made: Claim = world.create(claim("c", json!({}))).await;
    let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
    // Something holds the Sandbox.
    world.merge::<Sandbox>(&bound, json!({"metadata": {"finalizers": ["test/hold"]}})).await;
    let lifecycle = json!({"shutdownTime": in_the_past(), "shutdownPolicy": "DeleteForeground"});
    world.merge::<Claim>("c", json!({"spec": {"lifecycle": lifecycle}})).await;
    world.eventually::<Sandbox>(&bound, |sandbox| sandbox.metadata.deletion_timestamp.is_some()).await;
    let held: Claim = world.get("c").await.expect("it waits for its Sandbox");
    assert!(held.metadata.deletion_timestamp.is_some() && because("ClaimExpired")(&held));
    world.merge::<Sandbox>(&bound, json!({"metadata": {"finalizers": null}})).await;
    world.gone(&made).await;
}

/// CL-063, CL-064, CL-065, CL-067
async fn finished_claim_expires_after_its_ttl(world: World) {
    let ends = json!({"podTemplate": {"metadata": {"annotations": {kubelet::PHASE: "Succeeded"}}}});
    filled(&world, 0, ends).await;
    world.create::<Claim>(claim("kept", json!({"lifecycle": {"shutdownPolicy": "Delete"}}))).await;
    let spec = json!({"lifecycle": {"ttlSecondsAfterFinished": 0, "shutdownPolicy": "Retain"}});
    world.create::<Claim>(claim("c", spec)).await;
    let expired =
        world.eventually::<Claim>("c", |it| because("ClaimExpired")(it) && sandbox_of(it).is_empty()).await;
    let finished = condition::get(&expired.status.as_ref().unwrap().conditions, "Finished").unwrap();
    assert_eq!((finished.status.as_str(), finished.reason.as_str()), ("True", "PodSucceeded"));
    assert!(world.get::<Sandbox>("c").await.is_none());
    let kept = world.eventually::<Claim>("kept", because("PodSucceeded")).await;
    assert_eq!(sandbox_of(&kept), "kept", "finished without a TTL is not expired");
}

async fn pool_decides_how_long_its_claims_live(world: World) {
    filled(&world, 1, json!({})).await;
    let made: Claim = world.create(claim("short", json!({}))).await;
    world.create::<Claim>(claim("long", json!({"lifecycle": {"shutdownPolicy": "Retain"}}))).await;
    world.eventually::<Claim>("short", is_ready).await;
    world.eventually::<Claim>("long", is_ready).await;
    let given = json!({"shutdownAfterSeconds": 0, "shutdownPolicy": "Delete"});
    world.merge::<WarmPool>("pool", json!({"spec": {"claimLifecycle": given}})).await;
    world.gone(&made).await;
    assert!(world.get::<Claim>("long").await.is_some(), "its own word counts");
}
