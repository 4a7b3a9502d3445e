//! Claims that get a Sandbox of their own, and claims that get none.

use asb_controllers::claim::Settings;
use asb_testing::{World, both_servers};
use asb_types::{Claim, Sandbox, Template, WarmPool, key};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::*;

both_servers! {
    claim_without_a_member_gets_a_sandbox_of_its_own,
    environment_and_volumes_reach_the_pod,
    environment_that_is_not_allowed_is_refused,
    missing_pool_and_template_are_waited_for,
    bad_metadata_is_refused_until_it_is_mended,
    metadata_follows_the_claim_and_the_template,
    stranger_under_the_claims_name_is_left_alone,
    sandbox_that_is_deleted_is_replaced,
    old_network_policy_of_a_claim_goes,
    sandbox_that_is_there_already_is_found,
    nothing_is_made_from_a_template_whose_name_has_the_hash_of_another,
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

/// Weak spot 2 of the reference: the NetworkPolicies of both templates would select the Pods of each.
async fn nothing_is_made_from_a_template_whose_name_has_the_hash_of_another(world: World) {
    let [older, younger] = ["old-slow-code-22", "old-slow-fast-58"];
    for name in [older, younger] {
        let mut object = template(json!({}));
        object["metadata"]["name"] = json!(name);
        world.create::<Template>(object).await;
    }
    let mut pool = pool(1);
    pool["spec"]["sandboxTemplateRef"]["name"] = json!(younger);
    world.create::<WarmPool>(pool).await;
    world.create::<Claim>(claim("c", json!({}))).await;
    let refused = world.eventually::<Claim>("c", because("ReconcilerError")).await;
    assert!(message(&refused).contains(&format!("{younger:?} and the older {older:?}")), "{refused:?}");
    assert!(world.api::<Sandbox>().list(&ListParams::default()).await.unwrap().items.is_empty());
    world.delete::<Template>(older).await;
    world.create::<Claim>(claim("d", json!({}))).await;
    world.eventually::<Claim>("d", is_ready).await;
}
