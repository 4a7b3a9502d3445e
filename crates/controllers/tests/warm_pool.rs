//! The SandboxWarmPool controller on both API servers: the same stories, word for word.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::Duration;

use asb_controllers::warm_pool::Settings;
use asb_testing::{World, both_servers, kubelet};
use asb_types::{Claim, Sandbox, Template, WarmPool, condition, key, name};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

both_servers! {
    pool_fills_itself_and_says_so,
    pool_follows_its_scale,
    pool_waits_for_its_template,
    never_more_than_asked_for_are_made,
    deleted_and_claimed_members_are_replaced,
    orphan_is_adopted,
    member_that_was_claimed_meanwhile_is_never_deleted,
    recreate_rolls_only_the_pools_of_that_template,
    on_replenish_keeps_members_until_they_go,
    rolling_update_replaces_members_gradually_and_tells,
    stuck_member_is_replaced,
    unschedulable_pool_says_so_once_even_after_a_restart,
    settled_pool_is_not_written_again,
    deleting_a_pool_collects_its_members,
}

fn template(name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "v1"}]}}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    object
}

fn pool(name: &str, template: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "metadata": {"name": name},
        "spec": {"sandboxTemplateRef": {"name": template}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    object
}

fn image(image: &str) -> Value {
    json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}}})
}

/// Whether a pool says that it has this many members, all of them Ready.
fn full(count: i32) -> impl Fn(&WarmPool) -> bool {
    move |pool| {
        pool.status.as_ref().is_some_and(|status| {
            (status.replicas, status.ready_replicas) == (count, count)
                && status.observed_generation == pool.metadata.generation
        })
    }
}

/// The Sandboxes that carry the label of a pool.
async fn members(world: &World, pool: &str) -> Vec<Sandbox> {
    let labels = format!("{}={}", key::WARM_POOL_SANDBOX, name::name_hash(pool));
    world.api().list(&ListParams::default().labels(&labels)).await.unwrap().items
}

/// Waits until the members of a pool are as `wanted` says.
async fn members_become(world: &World, pool: &str, wanted: impl Fn(&[Sandbox]) -> bool) -> Vec<Sandbox> {
    let mut changes = watcher(world.api::<Sandbox>(), watcher::Config::default()).default_backoff().boxed();
    let wait = async {
        loop {
            let found = members(world, pool).await;
            if wanted(&found) {
                return found;
            }
            changes.next().await.unwrap().ok();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the members did not get there")
}

fn images(members: &[Sandbox]) -> BTreeSet<String> {
    let image =
        |sandbox: &Sandbox| sandbox.spec.pod_template.spec["containers"][0]["image"].as_str().map(Into::into);
    members.iter().filter_map(image).collect()
}

fn names(members: &[Sandbox]) -> BTreeSet<String> {
    members.iter().map(ResourceExt::name_any).collect()
}

async fn filled(world: &World, count: i32) {
    world.create::<Template>(template("web", json!({}))).await;
    world.create::<WarmPool>(pool("pool", "web", json!({"replicas": count}))).await;
    world.eventually("pool", full(count)).await;
}

async fn scale(world: &World, pool: &str, replicas: i32) {
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    world.api::<WarmPool>().patch_scale(pool, &PatchParams::default(), &patch).await.unwrap();
}

/// What a claim does when it takes a member: fails if the member has changed since it was seen.
async fn transfer(world: &World, claim: &Claim, member: &Sandbox) -> Result<Sandbox, kube::Error> {
    let patch = json!({"metadata": {
        "resourceVersion": member.resource_version(),
        "labels": {key::WARM_POOL_SANDBOX: null},
        "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "name": claim.name_any(), "uid": claim.uid(), "controller": true}],
    }});
    world.api().patch(&member.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
}

async fn claim(world: &World) -> Claim {
    let claim = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": "claim"},
        "spec": {"warmPoolRef": {"name": "pool"}},
    });
    world.create(claim).await
}

/// WP-01, WP-02, WP-04, WP-05, WP-10, WP-12
async fn pool_fills_itself_and_says_so(world: World) {
    filled(&world, 3).await;
    let pool: WarmPool = world.get("pool").await.unwrap();
    let selector = format!("{}={}", key::WARM_POOL_SANDBOX, name::name_hash("pool"));
    assert_eq!(pool.status.clone().unwrap().selector, Some(selector));
    let members = members(&world, "pool").await;
    assert_eq!(members.len(), 3);
    for member in &members {
        assert!(member.name_any().starts_with("pool-"));
        assert_eq!(member.owner_references()[0].uid, pool.uid().unwrap());
        assert_eq!(member.labels()[key::LAUNCH_TYPE], "warm");
        let pod: Pod = world.get(&member.name_any()).await.unwrap();
        assert_eq!(pod.labels()[key::TEMPLATE_REF_HASH], name::name_hash("web"), "the policy finds it");
        assert_eq!(pod.annotations()[key::SAFE_TO_EVICT], "true");
        let spec = pod.spec.unwrap();
        assert_eq!(spec.automount_service_account_token, Some(false));
        assert_eq!(spec.dns_policy.as_deref(), Some("None"));
    }
}

/// WP-01, WP-06
async fn pool_follows_its_scale(world: World) {
    filled(&world, 1).await;
    for size in [4, 2, 0] {
        scale(&world, "pool", size).await;
        let pool = world.eventually("pool", full(size)).await;
        assert!(pool.status.unwrap().selector.is_some());
        let left =
            members_become(&world, "pool", |members| members.len() == usize::try_from(size).unwrap()).await;
        assert_eq!(left.len(), usize::try_from(size).unwrap());
    }
}

/// WP-40
async fn pool_waits_for_its_template(world: World) {
    world.create::<WarmPool>(pool("pool", "web", json!({}))).await;
    world.eventually("pool", full(0)).await;
    world.create::<Template>(template("other", json!({}))).await;
    world.create::<Template>(template("web", json!({}))).await;
    world.eventually("pool", full(1)).await;
}

/// WP-60, WP-61
async fn never_more_than_asked_for_are_made(world: World) {
    let watched = watcher(world.api::<Sandbox>(), watcher::Config::default()).default_backoff();
    let mut objects = watched.applied_objects().boxed();
    filled(&world, 20).await;
    // Every write to pool and template asks for another pass.
    for n in 0..10 {
        let touch = json!({"metadata": {"annotations": {"touched": n.to_string()}}});
        world.merge::<WarmPool>("pool", touch.clone()).await;
        world.merge::<Template>("web", touch).await;
    }
    scale(&world, "pool", 21).await;
    world.eventually("pool", full(21)).await;
    let mut seen = BTreeSet::new();
    let all = names(&members(&world, "pool").await);
    while !seen.is_superset(&all) {
        seen.insert(objects.next().await.unwrap().unwrap().name_any());
    }
    assert_eq!(seen, all, "not one Sandbox more was ever there");
}

/// WP-31, WP-51
async fn deleted_and_claimed_members_are_replaced(mut world: World) {
    world.stop_claims().await; // this test takes members by hand
    filled(&world, 2).await;
    let first = members(&world, "pool").await;
    world.delete::<Sandbox>(&first[0].name_any()).await;
    let second = members_become(&world, "pool", |now| now.len() == 2 && names(now) != names(&first)).await;
    world.eventually("pool", full(2)).await;

    let claim = claim(&world).await;
    let taken = loop {
        let member: Sandbox = world.get(&second[0].name_any()).await.unwrap();
        if let Ok(taken) = transfer(&world, &claim, &member).await {
            break taken;
        }
    };
    members_become(&world, "pool", |now| now.len() == 2 && !names(now).contains(&taken.name_any())).await;
    world.eventually("pool", full(2)).await;
    let kept: Sandbox = world.get(&taken.name_any()).await.expect("a claimed member stays");
    assert_eq!(kept.owner_references()[0].kind, "SandboxClaim");
}

/// WP-03, WP-36
async fn orphan_is_adopted(world: World) {
    filled(&world, 1).await;
    let member = members(&world, "pool").await.remove(0);
    world.merge::<Sandbox>(&member.name_any(), json!({"metadata": {"ownerReferences": null}})).await;
    // The pool lost a member; its next pass finds it again.
    let adopted = |sandbox: &Sandbox| {
        sandbox.owner_references().first().is_some_and(|owner| owner.kind == "SandboxWarmPool")
    };
    world.eventually(&member.name_any(), adopted).await;
    world.eventually("pool", full(1)).await;
    let found = members_become(&world, "pool", |now| now.len() == 1).await;
    assert_eq!(found[0].uid(), member.uid());
}

/// The delete names the state in which the pool saw the member: a claim that was faster keeps it.
async fn member_that_was_claimed_meanwhile_is_never_deleted(mut world: World) {
    world.stop_claims().await; // this test takes members by hand
    filled(&world, 10).await;
    let claim = claim(&world).await;
    let members = members(&world, "pool").await;
    let race = async {
        let transfers = members.iter().map(|member| transfer(&world, &claim, member));
        futures::future::join_all(transfers).await
    };
    let (taken, ()) = tokio::join!(race, scale(&world, "pool", 0));
    world.eventually("pool", full(0)).await;
    let taken: Vec<Sandbox> = taken.into_iter().flatten().collect();
    for sandbox in &taken {
        let found: Sandbox = world.get(&sandbox.name_any()).await.expect("a claimed member stays");
        assert_eq!(found.uid(), sandbox.uid());
        assert!(found.metadata.deletion_timestamp.is_none());
    }
}

/// WP-30, WP-41
async fn recreate_rolls_only_the_pools_of_that_template(world: World) {
    let recreate = json!({"replicas": 2, "updateStrategy": {"type": "Recreate"}});
    for (pool_name, template_name) in [("a", "one"), ("b", "two")] {
        world.create::<Template>(template(template_name, json!({}))).await;
        world.create::<WarmPool>(pool(pool_name, template_name, recreate.clone())).await;
        world.eventually(pool_name, full(2)).await;
    }
    let untouched = names(&members(&world, "b").await);
    world
        .merge::<Template>("one", json!({"spec": {"podTemplate": {"metadata": {"labels": {"x": "y"}}}}}))
        .await;
    let before = names(&members(&world, "a").await);
    world.merge::<Template>("one", image("v2")).await;
    let after =
        members_become(&world, "a", |now| now.len() == 2 && images(now) == ["v2".to_owned()].into()).await;
    world.eventually("a", full(2)).await;
    assert!(names(&after).is_disjoint(&before));
    assert_eq!(names(&members(&world, "b").await), untouched);
}

async fn rolling_update_replaces_members_gradually_and_tells(world: World) {
    world.create::<Template>(template("web", json!({}))).await;
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    world.create::<WarmPool>(pool("pool", "web", json!({"replicas": 3, "updateStrategy": rolling}))).await;
    world.eventually("pool", full(3)).await;
    let ready = |sandbox: &Sandbox| {
        let conditions = sandbox.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        condition::get(&conditions, "Ready").is_some_and(|ready| ready.status == "True")
    };
    world.merge::<Template>("web", image("v2")).await;
    let watched = |found: &[Sandbox]| {
        let living: Vec<_> =
            found.iter().filter(|sandbox| sandbox.metadata.deletion_timestamp.is_none()).cloned().collect();
        assert!(living.iter().filter(|sandbox| ready(sandbox)).count() >= 3, "never fewer than asked for");
        assert!(found.len() <= 4, "never more than one above");
        images(found) == BTreeSet::from(["v2".to_owned()]) && living.len() == 3
    };
    members_become(&world, "pool", watched).await;
    let told = |pool: &WarmPool| {
        let conditions = pool.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        condition::get(&conditions, "Progressing").is_some_and(|it| it.reason == "RolloutComplete")
    };
    let pool: WarmPool = world.eventually("pool", told).await;
    assert_eq!(pool.status.unwrap().updated_replicas, Some(3));
}

/// WP-31
async fn on_replenish_keeps_members_until_they_go(world: World) {
    filled(&world, 2).await;
    let before = members(&world, "pool").await;
    world.merge::<Template>("web", image("v2")).await;
    world.delete::<Sandbox>(&before[0].name_any()).await;
    let both = ["v1".to_owned(), "v2".to_owned()].into();
    let after = members_become(&world, "pool", |now| now.len() == 2 && images(now) == both).await;
    assert!(names(&after).contains(&before[1].name_any()));
}

/// A template whose Pods never become Ready.
fn pending(name: &str) -> Value {
    template(name, json!({"podTemplate": {"metadata": {"annotations": {kubelet::PHASE: "Pending"}}}}))
}

/// WP-20, WP-25, WP-26
async fn stuck_member_is_replaced(mut world: World) {
    let quick = Settings { readiness_grace: Duration::from_secs(1), ..Settings::default() };
    world.start_warm_pools(quick).await;
    world.create::<Template>(pending("web")).await;
    world.create::<WarmPool>(pool("pool", "web", json!({}))).await;
    let first = members_become(&world, "pool", |members| members.len() == 1).await;
    members_become(&world, "pool", |now| now.len() == 1 && now[0].uid() != first[0].uid()).await;
}

async fn reasons(world: &World) -> Vec<String> {
    let events: Vec<Event> = world.api::<Event>().list(&ListParams::default()).await.unwrap().items;
    let about = |event: &Event| event.involved_object.name.as_deref() == Some("pool");
    let mut reasons: Vec<_> = events.into_iter().filter(about).filter_map(|event| event.reason).collect();
    reasons.sort();
    reasons
}

/// Waits for an event about the pool; returns the reasons of all.
async fn told(world: &World, reason: &str) -> Vec<String> {
    let mut events =
        watcher(world.api::<Event>(), watcher::Config::default()).default_backoff().applied_objects().boxed();
    let wait = async {
        while events.next().await.unwrap().is_ok_and(|event| event.reason.as_deref() != Some(reason)) {}
    };
    let came = tokio::time::timeout(Duration::from_secs(30), wait).await;
    let reasons = reasons(world).await;
    assert!(
        came.is_ok(),
        "no {reason} event came; there are {reasons:?} and {:#?}",
        members(world, "pool").await
    );
    reasons
}

/// WP-22, WP-25: and a controller that takes over knows what was said
async fn unschedulable_pool_says_so_once_even_after_a_restart(mut world: World) {
    let quick = Settings {
        readiness_grace: Duration::from_secs(3),
        unschedulable_recheck: Duration::from_millis(200),
        ..Settings::default()
    };
    world.start_warm_pools(quick.clone()).await;
    world.create::<Template>(pending("web")).await;
    world.create::<WarmPool>(pool("pool", "web", json!({}))).await;
    let member = members_become(&world, "pool", |members| members.len() == 1).await.remove(0).name_any();
    // A real API server says "scheduled" when the Pod is bound; what the test says comes after that.
    world
        .eventually::<Pod>(&member, |pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()))
        .await;
    let status = json!({"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]}});
    let pods = world.api::<Pod>();
    pods.patch_status(&member, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    assert_eq!(told(&world, "WarmPoolNotProgressing").await, ["WarmPoolNotProgressing"]);

    world.start_warm_pools(quick).await;
    let touched = world.merge::<WarmPool>("pool", json!({"spec": {"replicas": 2}})).await;
    let seen = |pool: &WarmPool| {
        pool.status.as_ref().is_some_and(|status| status.observed_generation == touched.metadata.generation)
    };
    world.eventually("pool", seen).await;
    assert_eq!(reasons(&world).await, ["WarmPoolNotProgressing"], "the new controller does not repeat it");
    assert!(world.get::<Sandbox>(&member).await.is_some(), "a held member is kept");

    world.merge::<WarmPool>("pool", json!({"spec": {"replicas": 1}})).await;
    let ready = json!({"status": {"phase": "Running", "conditions": [
        {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]}});
    world.merge::<Pod>(&member, json!({"metadata": {"annotations": {kubelet::PHASE: "Running"}}})).await;
    let _ = pods.patch_status(&member, &PatchParams::default(), &Patch::Merge(ready)).await;
    let all = told(&world, "WarmPoolProgressing").await;
    assert_eq!(all, ["WarmPoolNotProgressing", "WarmPoolProgressing"]);
}

async fn settled_pool_is_not_written_again(world: World) {
    filled(&world, 2).await;
    let touched = world.merge::<WarmPool>("pool", json!({"metadata": {"annotations": {"a": "b"}}})).await;
    let before = members(&world, "pool").await;
    // A second pool that is filled afterwards: the only worker was done with the first.
    world.create::<WarmPool>(pool("marker", "web", json!({}))).await;
    world.eventually("marker", full(1)).await;
    let after: WarmPool = world.get("pool").await.unwrap();
    assert_eq!(after.resource_version(), touched.resource_version());
    let versions =
        |members: &[Sandbox]| members.iter().map(|m| m.resource_version().unwrap()).collect::<Vec<_>>();
    assert_eq!(versions(&members(&world, "pool").await), versions(&before));
}

async fn deleting_a_pool_collects_its_members(world: World) {
    filled(&world, 2).await;
    let members = members(&world, "pool").await;
    world.delete::<WarmPool>("pool").await;
    for member in &members {
        world.gone(member).await;
    }
}
