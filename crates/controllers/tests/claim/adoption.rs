//! Claims that take a member of their pool, and what may happen on the way.

use std::collections::BTreeSet;
use std::time::Duration;

use asb_controllers::claim::Settings;
use asb_testing::{Kind, World, both_servers, kubelet};
use asb_types::{Claim, Sandbox, Template, WarmPool, key};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::*;

both_servers! {
    claim_is_served_from_its_pool,
    three_claims_share_two_members,
    two_controllers_never_give_one_member_twice,
    restart_in_the_middle_loses_nothing,
    oldest_claims_get_the_members,
    ready_only_waits_for_a_member_to_be_ready,
    member_that_gets_ready_in_time_is_adopted,
    record_of_the_reference_is_completed,
    record_that_leads_nowhere_is_dropped,
    second_sandbox_of_a_claim_is_given_back,
    member_that_changes_meanwhile_is_taken_all_the_same,
    member_that_is_lost_is_replaced_by_the_next,
    status_that_is_overtaken_is_written_again_and_counted_once,
}

/// CL-070, CL-014, CL-084
async fn claim_is_served_from_its_pool(world: World) {
    filled(&world, 1, json!({"service": true})).await;
    let member = members(&world).await.remove(0);
    let made: Claim = world.create(claim("c", json!({}))).await;
    let served = world.eventually::<Claim>("c", is_ready).await;
    assert_eq!(sandbox_of(&served), member.name_any());
    assert!(
        served.annotations().is_empty() && served.labels().is_empty(),
        "nothing is written on the claim itself"
    );
    let bound = served.status.unwrap().sandbox.unwrap();
    assert_eq!(bound.pod_ips, ["10.1.2.3"]);
    assert_eq!(bound.service_fqdn, Some(format!("{}.{}.svc.cluster.local", bound.name, world.namespace)));

    let sandbox: Sandbox = world.get(&bound.name).await.unwrap();
    assert_eq!(sandbox.uid(), member.uid());
    let uid = made.uid().unwrap();
    assert_eq!(sandbox.owner_references().len(), 1);
    assert_eq!(sandbox.owner_references()[0].uid, uid);
    assert_eq!(
        (sandbox.label(key::LAUNCH_TYPE), sandbox.label(key::CLAIM_UID)),
        (Some("warm"), Some(uid.as_str()))
    );
    assert_eq!((sandbox.label(key::WARM_POOL_SANDBOX), sandbox.label(key::CREATED_BY)), (None, None));
    // The same Pod, now with the claim's label and without the pool's.
    let pod = world.eventually::<Pod>(&bound.name, |pod| pod.labels().contains_key(key::CLAIM_UID)).await;
    assert!(!pod.labels().contains_key(key::WARM_POOL_SANDBOX));
    assert!(!pod.annotations().contains_key(key::SAFE_TO_EVICT));
    refilled(&world, 1).await;
}

/// CL-085
async fn three_claims_share_two_members(world: World) {
    filled(&world, 2, json!({})).await;
    // No refill: the third must not get a member that came later.
    let warm: BTreeSet<_> = members(&world).await.iter().map(ResourceExt::name_any).collect();
    let names = numbered(3);
    claims(&world, &names).await;
    each_has_one(&world, &names).await;
    let taken: BTreeSet<_> = held(&world).await.into_iter().map(|(_, sandbox)| sandbox).collect();
    assert!(warm.is_subset(&taken), "both members are used");
}

/// Two controllers, each with its own lagging view, and fifty claims at once.
async fn two_controllers_never_give_one_member_twice(mut world: World) {
    world.start_claims(Settings::default());
    filled(&world, 50, json!({})).await;
    let names = numbered(50);
    claims(&world, &names).await;
    for name in &names {
        world.eventually::<Claim>(name, is_ready).await;
    }
    // A claim for which both took one gives the second back.
    settled(&world, 50).await;
    each_has_one(&world, &names).await;
}

async fn restart_in_the_middle_loses_nothing(mut world: World) {
    filled(&world, 10, json!({})).await;
    let names = numbered(20);
    claims(&world, &names).await;
    // Whatever the first one was doing when it was stopped, the next goes on from what the API server knows.
    world.eventually::<Claim>("c00", is_ready).await;
    for _ in 0..3 {
        world.stop_claims().await;
        world.start_claims(Settings::default());
    }
    each_has_one(&world, &names).await;
}

/// Weak spot 4 of the reference: after a restart it is chance who comes first.
async fn oldest_claims_get_the_members(mut world: World) {
    world.stop_claims().await;
    filled(&world, 2, json!({})).await;
    let warm: BTreeSet<_> = members(&world).await.iter().map(ResourceExt::name_any).collect();
    // Younger names sort first, so that no accident of order helps.
    let mut last = None;
    for name in ["z", "y", "b", "a"] {
        let made: Claim = world.create(claim(name, json!({}))).await;
        // Creation times are whole seconds: the next claim must be visibly younger.
        let second = made.metadata.creation_timestamp.unwrap().0.as_second();
        assert!(last.is_none_or(|last| second > last), "{name} is younger");
        last = Some(second);
        let next = second + 1;
        while Timestamp::now().as_second() < next {
            tokio::task::yield_now().await;
        }
    }
    world.start_claims(Settings::default());
    for name in ["a", "b", "y", "z"] {
        world.eventually::<Claim>(name, is_ready).await;
    }
    let first: BTreeSet<_> = held(&world)
        .await
        .into_iter()
        .filter(|(claim, _)| ["z", "y"].contains(&claim.as_str()))
        .map(|(_, s)| s)
        .collect();
    assert_eq!(first, warm);
}

/// A pool with one member whose Pod has an address and is not Ready.
async fn one_running_member(world: &World) -> String {
    let unready = json!({"podTemplate": {"metadata": {"annotations": {kubelet::PHASE: "Unknown"}}}});
    world.create::<Template>(template(unready)).await;
    world.create::<WarmPool>(pool(1)).await;
    let one = |pool: &WarmPool| pool.status.as_ref().is_some_and(|status| status.replicas == 1);
    world.eventually("pool", one).await;
    let name = members(world).await[0].name_any();
    let addressed =
        |sandbox: &Sandbox| sandbox.status.as_ref().is_some_and(|status| !status.pod_ips.is_empty());
    world.eventually(&name, addressed).await;
    name
}

/// Has the kubelet make the Pod Ready: what the template says of it goes to the Sandbox and on to the Pod.
async fn make_ready(world: &World, name: &str) {
    let running =
        json!({"spec": {"podTemplate": {"metadata": {"annotations": {kubelet::PHASE: "Running"}}}}});
    world.merge::<Template>("web", running.clone()).await;
    world.merge::<Sandbox>(name, running).await;
}

async fn ready_only_waits_for_a_member_to_be_ready(mut world: World) {
    world.stop_claims().await;
    let patient =
        Settings { ready_only: true, candidate_grace: Duration::from_secs(60), ..Settings::default() };
    world.start_claims(patient);
    let member = one_running_member(&world).await;
    world.create::<Claim>(claim("c", json!({}))).await;
    world.create::<Claim>(claim("invalid", json!({"additionalPodMetadata": {"labels": {"x": "y"}}}))).await;
    // A later claim has been dealt with, and the first is still unserved.
    world.eventually::<Claim>("invalid", because("InvalidMetadata")).await;
    assert_eq!(world.get::<Claim>("c").await.unwrap().status, None, "it waits without a word");
    make_ready(&world, &member).await;
    assert_eq!(sandbox_of(&world.eventually::<Claim>("c", is_ready).await), member);
}

/// CL-072, CL-082
async fn member_that_gets_ready_in_time_is_adopted(world: World) {
    let member = one_running_member(&world).await;
    world.create::<Claim>(claim("c", json!({}))).await;
    let bound = world.eventually::<Claim>("c", |claim| !sandbox_of(claim).is_empty()).await;
    assert_eq!(sandbox_of(&bound), member, "one that runs is better than none");
    assert!(because("DependenciesNotReady")(&bound));
    make_ready(&world, &member).await;
    world.eventually::<Claim>("c", is_ready).await;
}

/// CL-083: the reference wrote the annotation (or the label) and died before the transfer
async fn record_of_the_reference_is_completed(mut world: World) {
    world.stop_claims().await;
    filled(&world, 4, json!({})).await;
    // Not the ones that would be taken by their order.
    let mut chosen: Vec<_> = members(&world).await.iter().map(ResourceExt::name_any).collect();
    chosen.sort();
    let (annotated, labelled) = (chosen.pop().unwrap(), chosen.pop().unwrap());
    for (name, place, member) in [("a", "annotations", &annotated), ("b", "labels", &labelled)] {
        let mut object = claim(name, json!({}));
        object["metadata"][place] = json!({key::SANDBOX_NAME: member});
        world.create::<Claim>(object).await;
    }
    world.start_claims(Settings::default());
    assert_eq!(sandbox_of(&world.eventually::<Claim>("a", is_ready).await), annotated);
    assert_eq!(sandbox_of(&world.eventually::<Claim>("b", is_ready).await), labelled);
}

/// CL-088, CL-089, CL-106
async fn record_that_leads_nowhere_is_dropped(world: World) {
    filled(&world, 1, json!({})).await;
    world.create::<Claim>(claim("first", json!({}))).await;
    let taken = sandbox_of(&world.eventually::<Claim>("first", is_ready).await);
    for (name, record) in [("a", taken.as_str()), ("b", "nowhere")] {
        let mut object = claim(name, json!({}));
        object["metadata"]["annotations"] = json!({key::SANDBOX_NAME: record, "other": "kept"});
        world.create::<Claim>(object).await;
        let served = world.eventually::<Claim>(name, is_ready).await;
        assert_ne!(sandbox_of(&served), taken);
        assert_eq!(served.annotations().keys().collect::<Vec<_>>(), ["other"]);
    }
}

/// As when two controllers each took one and one of them died.
async fn second_sandbox_of_a_claim_is_given_back(mut world: World) {
    world.stop_claims().await;
    filled(&world, 2, json!({})).await;
    let made: Claim = world.create(claim("c", json!({}))).await;
    let owner = json!([{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": "c",
        "uid": made.uid(), "controller": true, "blockOwnerDeletion": true}]);
    for member in members(&world).await {
        let labels = json!({key::WARM_POOL_SANDBOX: null});
        world
            .merge::<Sandbox>(
                &member.name_any(),
                json!({"metadata": {"ownerReferences": owner, "labels": labels}}),
            )
            .await;
    }
    assert_eq!(held(&world).await.len(), 2);
    world.start_claims(Settings::default());
    let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
    settled(&world, 1).await;
    assert_eq!(held(&world).await, [("c".to_owned(), bound)]);
}

/// Has somebody note something on an object just before the next write of that kind reaches it.
fn meddle<K: Kind>(world: &World, write: &str) {
    let api = world.api::<K>();
    world.writes.before(write, |name| async move {
        let note = json!({"metadata": {"annotations": {"meddled": "with"}}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(note)).await.unwrap();
    });
}

/// CL-075, CL-105
async fn member_that_changes_meanwhile_is_taken_all_the_same(world: World) {
    filled(&world, 2, json!({})).await;
    let before = members(&world).await;
    world.writes.take();
    meddle::<Sandbox>(&world, "PATCH sandboxes");
    world.create::<Claim>(claim("c", json!({}))).await;
    let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
    assert_eq!(world.writes.take()["PATCH sandboxes"], 2, "one refused, one accepted");
    let taken: Sandbox = world.get(&bound).await.unwrap();
    assert_eq!(taken.annotations()["meddled"], "with", "the same member");
    let spare = before.iter().find(|member| member.name_any() != bound).unwrap();
    let now: Sandbox = world.get(&spare.name_any()).await.unwrap();
    assert_eq!(now.resource_version(), spare.resource_version(), "the other is untouched");
}

/// CL-106: nobody waits for another pass
async fn member_that_is_lost_is_replaced_by_the_next(world: World) {
    filled(&world, 2, json!({})).await;
    let warm: BTreeSet<_> = members(&world).await.iter().map(ResourceExt::name_any).collect();
    let api = world.api::<Sandbox>();
    world.writes.before("PATCH sandboxes", |name| async move {
        api.delete(&name, &DeleteParams::default()).await.unwrap();
    });
    world.create::<Claim>(claim("c", json!({}))).await;
    let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
    assert!(warm.contains(&bound), "the other member, not a Sandbox of its own");
    each_has_one(&world, &["c".to_owned()]).await;
}

/// CL-101, CL-102, MG-33
async fn status_that_is_overtaken_is_written_again_and_counted_once(world: World) {
    filled(&world, 1, json!({})).await;
    world.writes.take();
    meddle::<Claim>(&world, "PATCH sandboxclaims/status");
    world.create::<Claim>(claim("c", json!({}))).await;
    let served = world.eventually::<Claim>("c", is_ready).await;
    assert_eq!(served.annotations()["meddled"], "with");
    assert!(world.writes.take()["PATCH sandboxclaims/status"] >= 2, "the first was refused");
    // Not Ready and Ready again is no second start.
    let bound = sandbox_of(&served);
    let mode = |mode: &str| json!({"spec": {"operatingMode": mode}});
    world.merge::<Sandbox>(&bound, mode("Suspended")).await;
    world.eventually::<Claim>("c", because("SandboxSuspended")).await;
    world.merge::<Sandbox>(&bound, mode("Running")).await;
    world.eventually::<Claim>("c", is_ready).await;
    let line = "agent_sandbox_claim_controller_startup_latency_ms_count{launch_type=\"warm\",sandbox_template=\"web\"}";
    assert_eq!(measured(&world, line), Some("1".to_owned()));
    let line = format!(
        "agent_sandbox_claim_creation_total{{namespace=\"{}\",sandbox_template=\"web\",launch_type=\"warm\",\
         warmpool_name=\"pool\",pod_condition=\"ready\",created_by=\"unknown\"}}",
        world.namespace
    );
    assert_eq!(measured(&world, &line), Some("1".to_owned()));
}

/// The value of a metric of the claim controllers.
fn measured(world: &World, line: &str) -> Option<String> {
    let mut registry = prometheus_client::registry::Registry::default();
    world.claim_metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text.lines().find_map(|found| found.strip_prefix(line)).map(|value| value.trim().to_owned())
}
