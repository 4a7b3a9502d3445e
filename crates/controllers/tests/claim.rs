//! The SandboxClaim controller on both API servers: the same stories, word for word.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::Duration;

use asb_controllers::claim::Settings;
use asb_testing::{Kind, World, both_servers, kubelet};
use asb_types::{Claim, Sandbox, Template, WarmPool, condition, key};
use futures::StreamExt;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

both_servers! {
    claim_is_served_from_its_pool,
    claim_without_a_member_gets_a_sandbox_of_its_own,
    three_claims_share_two_members,
    two_controllers_never_give_one_member_twice,
    restart_in_the_middle_loses_nothing,
    oldest_claims_get_the_members,
    ready_only_waits_for_a_member_to_be_ready,
    member_that_gets_ready_in_time_is_adopted,
    record_of_the_reference_is_completed,
    record_that_leads_nowhere_is_dropped,
    retained_claim_outlives_its_sandbox,
    deleted_claim_takes_its_sandbox_with_it,
    foreground_deletion_waits_for_the_sandbox,
    finished_claim_expires_after_its_ttl,
    environment_and_volumes_reach_the_pod,
    environment_that_is_not_allowed_is_refused,
    missing_pool_and_template_are_waited_for,
    bad_metadata_is_refused_until_it_is_mended,
    metadata_follows_the_claim_and_the_template,
    stranger_under_the_claims_name_is_left_alone,
    sandbox_that_is_deleted_is_replaced,
    second_sandbox_of_a_claim_is_given_back,
    old_network_policy_of_a_claim_goes,
    settled_claim_is_not_written_again,
    events_tell_the_story,
    member_that_changes_meanwhile_is_taken_all_the_same,
    member_that_is_lost_is_replaced_by_the_next,
    status_that_is_overtaken_is_written_again_and_counted_once,
    sandbox_that_is_there_already_is_found,
    annotations_are_written_if_asked_for,
    pool_decides_how_long_its_claims_live,
}

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

/// CL-001, CL-012, CL-085
async fn claim_without_a_member_gets_a_sandbox_of_its_own(world: World) {
    filled(&world, 0, json!({})).await;
    let claim: Claim = world.create(claim("c", json!({}))).await;
    let served = world.eventually::<Claim>("c", is_ready).await;
    assert_eq!(sandbox_of(&served), "c");
    let sandbox: Sandbox = world.get("c").await.unwrap();
    assert_eq!(sandbox.label(key::LAUNCH_TYPE), Some("cold"));
    assert_eq!(sandbox.label(key::CLAIM_UID), claim.uid().as_deref());
    let pod: Pod = world.get("c").await.unwrap();
    assert_eq!(pod.labels().get(key::CLAIM_UID), claim.uid().as_ref());
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

fn in_the_past() -> String {
    (Timestamp::now() - SignedDuration::from_secs(60)).to_string()
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

/// CL-040, CL-043, CL-050
async fn environment_and_volumes_reach_the_pod(world: World) {
    filled(&world, 1, json!({"envVarsInjectionPolicy": "Overrides", "volumeClaimTemplatesPolicy": "Allowed",
        "podTemplate": {"spec": {"containers": [{"name": "main", "image": "v1", "env": [{"name": "A", "value": "0"}]}]}}}))
    .await;
    let storage = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    let spec = json!({
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": storage}],
    });
    world.create::<Claim>(claim("c", spec)).await;
    assert_eq!(sandbox_of(&world.eventually::<Claim>("c", is_ready).await), "c", "no member has these");
    let pod: Value = json!(world.get::<Pod>("c").await.unwrap());
    assert_eq!(
        pod["spec"]["containers"][0]["env"],
        json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    );
    assert_eq!(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "data-c");
    assert_eq!(members(&world).await.len(), 1);
}

/// CL-041, CL-042, CL-052: final, and mended by an edit of the template
async fn environment_that_is_not_allowed_is_refused(world: World) {
    filled(&world, 0, json!({})).await;
    let env = json!({"env": [{"name": "A", "value": "1"}]});
    world.create::<Claim>(claim("c", env)).await;
    let volumes = json!({"volumeClaimTemplates": [{"metadata": {"name": "x"}, "spec": {}}]});
    world.create::<Claim>(claim("v", volumes)).await;
    world.eventually::<Claim>("c", because("EnvVarsInjectionRejected")).await;
    world.eventually::<Claim>("v", because("VolumeClaimTemplatesError")).await;
    assert!(world.get::<Sandbox>("c").await.is_none());
    let known =
        json!({"containers": [{"name": "main", "image": "v1", "env": [{"name": "A", "value": "0"}]}]});
    let allowed = json!({"spec": {"envVarsInjectionPolicy": "Allowed", "podTemplate": {"spec": known}}});
    world.merge::<Template>("web", allowed).await;
    let refused = world.eventually::<Claim>("c", because("ReconcilerError")).await;
    assert!(message(&refused).contains("override not allowed"), "{}", message(&refused));
    world.merge::<Template>("web", json!({"spec": {"envVarsInjectionPolicy": "Overrides"}})).await;
    world.eventually::<Claim>("c", is_ready).await;
}

/// CL-003, CL-004, CL-120, CL-122
async fn missing_pool_and_template_are_waited_for(world: World) {
    world.create::<Claim>(claim("c", json!({}))).await;
    let lost = world.eventually::<Claim>("c", because("WarmPoolNotFound")).await;
    assert_eq!(message(&lost), "SandboxWarmPool \"pool\" not found");
    world.create::<WarmPool>(pool(0)).await;
    let lost = world.eventually::<Claim>("c", because("TemplateNotFound")).await;
    assert_eq!(message(&lost), "SandboxTemplate \"web\" not found");
    world.create::<Template>(template(json!({}))).await;
    world.eventually::<Claim>("c", is_ready).await;
}

/// CL-030, CL-031
async fn bad_metadata_is_refused_until_it_is_mended(world: World) {
    filled(&world, 1, json!({})).await;
    world.create::<Claim>(claim("c", json!({"additionalPodMetadata": {"labels": {"team": "a"}}}))).await;
    let refused = world.eventually::<Claim>("c", because("InvalidMetadata")).await;
    assert!(message(&refused).starts_with("invalid additionalPodMetadata: "));
    assert_eq!(held(&world).await, []);
    let labels = json!({"team": null, "sandbox.users.io/team": "a"});
    world.merge::<Claim>("c", json!({"spec": {"additionalPodMetadata": {"labels": labels}}})).await;
    let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
    world.eventually::<Pod>(&bound, |pod| pod.labels().contains_key("sandbox.users.io/team")).await;
}

/// Weak spot 16 of the reference: without waiting for an unrelated event
async fn metadata_follows_the_claim_and_the_template(world: World) {
    filled(&world, 1, json!({})).await;
    world.create::<Claim>(claim("c", json!({}))).await;
    let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
    let notes = json!({"spec": {"additionalPodMetadata": {"annotations": {"note": "1"}}}});
    world.merge::<Claim>("c", notes).await;
    world.eventually::<Pod>(&bound, |pod| pod.annotations().contains_key("note")).await;
    let labels = json!({"spec": {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}});
    world.merge::<Template>("web", labels).await;
    world.eventually::<Pod>(&bound, |pod| pod.labels().contains_key("a")).await;
    let notes = json!({"spec": {"additionalPodMetadata": null}});
    world.merge::<Claim>("c", notes).await;
    world.eventually::<Pod>(&bound, |pod| !pod.annotations().contains_key("note")).await;
}

/// CL-005
async fn stranger_under_the_claims_name_is_left_alone(world: World) {
    filled(&world, 0, json!({})).await;
    let stranger: Sandbox = world
        .create(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "c"},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "v1"}]}}},
        }))
        .await;
    world.create::<Claim>(claim("c", json!({}))).await;
    let refused = world.eventually::<Claim>("c", because("ReconcilerError")).await;
    assert!(message(&refused).contains("controlled by nobody"), "{}", message(&refused));
    let kept: Sandbox = world.get("c").await.unwrap();
    assert!(kept.owner_references().is_empty());
    world.delete::<Sandbox>("c").await;
    world.eventually::<Claim>("c", is_ready).await;
    assert_ne!(world.get::<Sandbox>("c").await.unwrap().uid(), stranger.uid());
}

async fn sandbox_that_is_deleted_is_replaced(world: World) {
    filled(&world, 1, json!({})).await;
    world.create::<Claim>(claim("c", json!({}))).await;
    let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
    world.delete::<Sandbox>(&bound).await;
    world.eventually::<Claim>("c", |claim| is_ready(claim) && sandbox_of(claim) != bound).await;
    settled(&world, 1).await;
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

/// CL-020
async fn old_network_policy_of_a_claim_goes(mut world: World) {
    world.stop_claims().await;
    filled(&world, 1, json!({})).await;
    let mut policies = Vec::new();
    for (name, owned) in [("a", true), ("b", false)] {
        let made: Claim = world.create(claim(name, json!({}))).await;
        let owner = json!({"apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": "SandboxClaim", "name": name,
            "uid": made.uid(), "controller": true});
        let owners: Vec<_> = owned.then_some(owner).into_iter().collect();
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": format!("{name}-network-policy"), "ownerReferences": owners},
            "spec": {"podSelector": {}},
        });
        policies.push(world.create::<NetworkPolicy>(policy).await);
    }
    world.start_claims(Settings::default());
    world.gone(&policies[0]).await;
    world.eventually::<Claim>("b", is_ready).await;
    assert!(world.get::<NetworkPolicy>("b-network-policy").await.is_some(), "a user made it");
}

/// CL-100: passes over a served claim write nothing
async fn settled_claim_is_not_written_again(mut world: World) {
    filled(&world, 1, json!({})).await;
    world.create::<Claim>(claim("c", json!({}))).await;
    let bound = sandbox_of(&world.eventually::<Claim>("c", is_ready).await);
    world.eventually::<Pod>(&bound, |pod| pod.labels().contains_key(key::CLAIM_UID)).await;
    refilled(&world, 1).await;
    world.stop_claims().await;
    world.writes.take();
    world.start_claims(Settings::default());
    world.create::<Claim>(claim("marker", json!({"additionalPodMetadata": {"labels": {"x": "y"}}}))).await;
    world.eventually::<Claim>("marker", because("InvalidMetadata")).await;
    assert_eq!(
        world.writes.take(),
        [("PATCH sandboxclaims/status".to_owned(), 1)].into(),
        "the marker's own"
    );
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

/// CL-110: a create that has happened already, as of a controller whose answer was lost
async fn sandbox_that_is_there_already_is_found(world: World) {
    filled(&world, 0, json!({})).await;
    let (sandboxes, claims) = (world.api::<Sandbox>(), world.api::<Claim>());
    world.writes.before("POST sandboxes", |_| async move {
        let owner = claims.get("c").await.unwrap();
        let sandbox: Sandbox = serde_json::from_value(json!({
            "metadata": {"name": "c", "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1beta1",
                "kind": "SandboxClaim", "name": "c", "uid": owner.uid(), "controller": true}]},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "v1"}]}}},
        }))
        .unwrap();
        sandboxes.create(&PostParams::default(), &sandbox).await.unwrap();
    });
    world.create::<Claim>(claim("c", json!({}))).await;
    world.eventually::<Claim>("c", is_ready).await;
    each_has_one(&world, &["c".to_owned()]).await;
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
