//! The SandboxTemplate controller on both API servers: the same stories, word for word.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use asb_testing::{World, both_servers};
use asb_types::{Template, key, name};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use serde_json::{Value, json};

both_servers! {
    template_gets_its_label_and_its_policy,
    policy_follows_the_template,
    unmanaged_template_loses_its_policy,
    changed_and_deleted_policies_are_put_right,
    policy_of_somebody_else_is_left_alone_until_it_goes,
    settled_template_is_not_written_again,
    deleting_a_template_collects_its_policy,
    template_whose_name_has_the_hash_of_another_waits_until_that_is_gone,
}

const POLICY: &str = "web-network-policy";

fn template(spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
        "metadata": {"name": "web"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "host"}]}}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    object
}

fn any(_: &NetworkPolicy) -> bool {
    true
}

fn spec(policy: &NetworkPolicy) -> Value {
    json!(policy.spec)
}

/// Waits until the template controller has worked off everything that was written before: the label that
/// it puts on a new template comes after the passes that were asked for earlier, because it has one worker.
async fn settled(world: &World) {
    let mut marker = template(json!({"networkPolicyManagement": "Unmanaged"}));
    let label = name::name_hash("marker");
    marker["metadata"]["name"] = json!("marker");
    world.create::<Template>(marker).await;
    let labelled = |template: &Template| template.labels().get(key::TEMPLATE_REF_HASH) == Some(&label);
    world.eventually("marker", labelled).await;
}

/// TP-01, TP-02, TP-07
async fn template_gets_its_label_and_its_policy(world: World) {
    let created: Template = world.create(template(json!({}))).await;
    let hash = name::name_hash("web");
    let labelled = |template: &Template| template.labels().get(key::TEMPLATE_REF_HASH) == Some(&hash);
    world.eventually("web", labelled).await;
    let policy = world.eventually(POLICY, any).await;
    let owner = &policy.owner_references()[0];
    assert_eq!((Some(owner.uid.clone()), owner.controller), (created.uid(), Some(true)));
    let spec = spec(&policy);
    assert_eq!(spec["podSelector"]["matchLabels"], json!({key::TEMPLATE_REF_HASH: hash}));
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
    let peer = &spec["ingress"][0]["from"][0];
    assert_eq!(
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"],
        "agent-sandbox-system"
    );
    assert_eq!(spec["egress"][0]["to"].as_array().unwrap().len(), 2);
}

/// TP-03
async fn policy_follows_the_template(world: World) {
    world.create::<Template>(template(json!({}))).await;
    world.eventually(POLICY, any).await;
    let rules = json!({"ingress": [{"ports": [{"port": 8080, "protocol": "TCP"}]}], "egress": []});
    world.merge::<Template>("web", json!({"spec": {"networkPolicy": rules}})).await;
    let custom = |policy: &NetworkPolicy| spec(policy)["ingress"] == rules["ingress"];
    let policy = world.eventually(POLICY, custom).await;
    let egress = spec(&policy)["egress"].as_array().map_or(0, Vec::len);
    assert_eq!(egress, 0, "no rule means deny");
    world.merge::<Template>("web", json!({"spec": {"networkPolicy": null}})).await;
    world.eventually(POLICY, |policy| spec(policy)["egress"].is_array()).await;
}

/// TP-04
async fn unmanaged_template_loses_its_policy(world: World) {
    world.create::<Template>(template(json!({}))).await;
    let policy = world.eventually(POLICY, any).await;
    world.merge::<Template>("web", json!({"spec": {"networkPolicyManagement": "Unmanaged"}})).await;
    world.gone(&policy).await;
    world.merge::<Template>("web", json!({"spec": {"networkPolicyManagement": "Managed"}})).await;
    let again = world.eventually(POLICY, any).await;
    assert_ne!(again.uid(), policy.uid());
}

/// TP-05
async fn changed_and_deleted_policies_are_put_right(world: World) {
    world.create::<Template>(template(json!({}))).await;
    let first = world.eventually(POLICY, any).await;
    let stray = json!({"spec": {"podSelector": {"matchLabels": {"stray": "x"}}, "egress": null}});
    world.merge::<NetworkPolicy>(POLICY, stray).await;
    world.eventually(POLICY, |policy| spec(policy) == spec(&first)).await;
    world.delete::<NetworkPolicy>(POLICY).await;
    world.eventually::<NetworkPolicy>(POLICY, |policy| policy.uid() != first.uid()).await;
}

/// TP-06
async fn policy_of_somebody_else_is_left_alone_until_it_goes(world: World) {
    let foreign = json!({"metadata": {"name": POLICY}, "spec": {"podSelector": {"matchLabels": {"a": "b"}}}});
    let foreign: NetworkPolicy = world.create(foreign).await;
    world.create::<Template>(template(json!({}))).await;
    settled(&world).await;
    world.merge::<Template>("web", json!({"spec": {"networkPolicyManagement": "Unmanaged"}})).await;
    world.merge::<Template>("web", json!({"spec": {"networkPolicyManagement": "Managed"}})).await;
    let found: NetworkPolicy = world.get(POLICY).await.unwrap();
    assert_eq!(found.resource_version(), foreign.resource_version(), "neither changed nor deleted");
    world.delete::<NetworkPolicy>(POLICY).await;
    let ours = world.eventually(POLICY, any).await;
    assert_eq!(ours.owner_references()[0].kind, "SandboxTemplate");
}

/// TP-07: also when the rules leave out what the API server fills in
async fn settled_template_is_not_written_again(world: World) {
    let rules = json!({"ingress": [{"ports": [{"port": 8080}]}], "egress": []});
    world.create::<Template>(template(json!({"networkPolicy": rules}))).await;
    let policy = world.eventually(POLICY, any).await;
    let touched = world.merge::<Template>("web", json!({"metadata": {"annotations": {"a": "b"}}})).await;
    settled(&world).await;
    let after: NetworkPolicy = world.get(POLICY).await.unwrap();
    assert_eq!(after.resource_version(), policy.resource_version());
    let template: Template = world.get("web").await.unwrap();
    assert_eq!(template.labels().get(key::TEMPLATE_REF_HASH), Some(&name::name_hash("web")));
    assert_eq!(template.metadata.generation, touched.metadata.generation);
}

async fn deleting_a_template_collects_its_policy(world: World) {
    world.create::<Template>(template(json!({}))).await;
    let policy = world.eventually(POLICY, any).await;
    world.delete::<Template>("web").await;
    world.gone(&policy).await;
}

/// Weak spot 2 of the reference: their policies would select the Pods of both.
async fn template_whose_name_has_the_hash_of_another_waits_until_that_is_gone(world: World) {
    let [older, younger] = ["old-slow-code-22", "old-slow-fast-58"];
    for name in [older, younger] {
        let mut object = template(json!({}));
        object["metadata"]["name"] = json!(name);
        world.create::<Template>(object).await;
        let hash = name::name_hash(older);
        let labelled = |template: &Template| template.labels().get(key::TEMPLATE_REF_HASH) == Some(&hash);
        world.eventually(name, labelled).await;
    }
    world.eventually(&name::network_policy(older), any).await;
    settled(&world).await;
    assert!(world.get::<NetworkPolicy>(&name::network_policy(younger)).await.is_none());
    world.delete::<Template>(older).await;
    world.eventually(&name::network_policy(younger), any).await;
}
