//! What a change of the template does to the members of a pool.

use asb_types::{Sandbox, Template, key};
use serde_json::{Value, json};

use super::world::*;
use crate::warm_pool::blueprint::Blueprint;

const RECREATE: &str = r#"{"replicas": 2, "updateStrategy": {"type": "Recreate"}}"#;

fn recreate() -> Value {
    serde_json::from_str(RECREATE).unwrap()
}

fn image(image: &str) -> Value {
    json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}})
}

fn two() -> Vec<Sandbox> {
    vec![ready(member("a")), ready(member("b"))]
}

/// WP-30
#[test]
fn recreate_replaces_all_members() {
    let mut world = World::new(recreate(), two());
    world.template = Some(template(image("v2")));
    assert_eq!(world.counts(), (0, 2), "first they go");
    assert_eq!(world.counts(), (2, 0), "then come the new ones");
    assert_eq!(world.images(), ["v2", "v2"]);
    let new = hash(&template(image("v2")));
    assert!(
        world
            .sandboxes
            .iter()
            .all(|sandbox| sandbox.metadata.labels.as_ref().unwrap()[key::TEMPLATE_HASH] == new)
    );
    assert_eq!(world.counts(), (0, 0));
}

/// WP-31
#[test]
fn other_strategies_keep_members_until_they_are_gone() {
    for strategy in [json!(null), json!({}), json!({"type": "OnReplenish"})] {
        let mut world = World::new(json!({"replicas": 2, "updateStrategy": strategy}), two());
        world.template = Some(template(image("v2")));
        assert_eq!(world.counts(), (0, 0));
        world.sandboxes.pop();
        assert_eq!(world.counts(), (1, 0));
        assert_eq!(world.images(), ["v1", "v2"]);
    }
}

/// WP-32
#[test]
fn another_template_replaces_members_even_if_it_says_the_same() {
    let mut world = World::new(recreate(), two());
    world.template = Some(edit(&template(json!({})), json!({"metadata": {"name": "other"}})));
    assert_eq!(world.counts(), (0, 2));
    assert_eq!(world.counts(), (2, 0));
    assert_eq!(world.counts(), (0, 0));
}

fn claims(edits: Value) -> Value {
    let mut claim = json!({"metadata": {"name": "work"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    json_patch::merge(&mut claim, &edits);
    json!({"volumeClaimTemplates": [claim]})
}

fn stale(before: Value, after: Value) -> bool {
    let mut world = World::new(recreate(), vec![]);
    world.template = Some(template(before));
    world.pass();
    world.sandboxes = world.sandboxes.into_iter().map(ready).collect();
    world.template = Some(template(after));
    world.counts() == (0, 2)
}

/// WP-33, WP-35
#[test]
fn changes_that_no_running_sandbox_would_notice_replace_nothing() {
    let metadata =
        |labels: Value| json!({"podTemplate": {"metadata": {"labels": labels, "annotations": {"a": "b"}}}});
    let pod = |spec: Value| json!({"podTemplate": {"spec": spec}});
    for (before, after) in [
        (json!({}), json!({})),
        (metadata(json!({"x": "1"})), metadata(json!({"x": "2"}))),
        (claims(json!({})), claims(json!({"metadata": {"labels": {"x": "1"}, "annotations": {"y": "2"}}}))),
        (pod(json!({})), pod(json!({"automountServiceAccountToken": false}))),
        (
            pod(json!({})),
            pod(json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["8.8.8.8", "1.1.1.1"]}})),
        ),
        (pod(json!({})), pod(json!({"tolerations": [], "nodeSelector": {}, "affinity": null}))),
    ] {
        assert!(!stale(before.clone(), after.clone()), "{before} to {after}");
    }
}

/// WP-34, WP-35, WP-38, WP-39
#[test]
fn changes_of_what_runs_replace_members() {
    let pod = |spec: Value| json!({"podTemplate": {"spec": spec}});
    let two_claims = |first: &str, second: &str| {
        json!({"volumeClaimTemplates": [
            {"metadata": {"name": first}, "spec": {}}, {"metadata": {"name": second}, "spec": {}}]})
    };
    for (before, after) in [
        (json!({}), image("v2")),
        (json!({}), claims(json!({}))),
        (claims(json!({})), json!({})),
        (claims(json!({})), claims(json!({"spec": {"accessModes": ["ReadWriteMany"]}}))),
        (claims(json!({})), claims(json!({"metadata": {"name": "other"}}))),
        (two_claims("a", "b"), two_claims("b", "a")),
        (json!({}), json!({"service": true})),
        (json!({}), json!({"service": false})),
        (json!({"service": true}), json!({"service": false})),
        (json!({}), pod(json!({"dnsPolicy": "ClusterFirst"}))),
        (
            pod(json!({"automountServiceAccountToken": true})),
            pod(json!({"automountServiceAccountToken": false})),
        ),
        (json!({}), json!({"networkPolicyManagement": "Unmanaged"})),
    ] {
        assert!(stale(before.clone(), after.clone()), "{before} to {after}");
    }
}

/// WP-37
#[test]
fn hash_follows_the_blueprint_and_nothing_else() {
    let base = hash(&template(json!({})));
    assert_eq!(base, hash(&template(json!({}))));
    assert_eq!(base, hash(&template(json!({"envVarsInjectionPolicy": "Allowed"}))));
    for change in [image("v2"), claims(json!({})), json!({"service": true}), json!({"service": false})] {
        assert_ne!(base, hash(&template(change.clone())), "{change}");
    }
}

/// WP-36
#[test]
fn orphan_is_judged_by_what_it_is_not_by_what_it_says() {
    let spoofed = edit(
        &orphan(made_from(&template(image("evil")), "spoofed", at(0))),
        json!({"metadata": {"labels": {key::TEMPLATE_HASH: hash(&template(json!({})))}}}),
    );
    let mislabelled =
        edit(&orphan(member("genuine")), json!({"metadata": {"labels": {key::TEMPLATE_HASH: "old"}}}));
    for strategy in [recreate(), json!({"replicas": 2})] {
        let mut world = World::new(strategy, vec![spoofed.clone(), ready(mislabelled.clone())]);
        let plan = world.pass();
        assert_eq!(plan.deletions.iter().map(|gone| gone.name.as_str()).collect::<Vec<_>>(), ["spoofed"]);
        assert_eq!(plan.create.map(|(_, count)| count), Some(1), "an orphan holds no place");
        assert!(is_ours(&world.sandboxes[0]));
    }
}

/// WP-38
#[test]
fn comparison_sees_the_secured_spec() {
    let template: Template = template(json!({}));
    let member = member("a");
    assert!(Blueprint::of(&template).matches(&member));
    let bare =
        edit(&member, json!({"spec": {"podTemplate": {"spec": {"automountServiceAccountToken": true}}}}));
    assert!(!Blueprint::of(&template).matches(&bare));
}

/// A pool of Ready members of `v1`, whose template says `v2` now.
fn rolling(replicas: usize, rolling: Value) -> World {
    let members = (0..replicas).map(|n| ready(member(&format!("old-{n}")))).collect();
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": rolling});
    let mut world = World::new(json!({"replicas": replicas, "updateStrategy": strategy}), members);
    world.template = Some(template(json!({
        "podTemplate": {"spec": {"containers": [{"name": "main", "image": "v2"}]}},
    })));
    world
}

fn all_ready(world: &mut World) {
    world.sandboxes = std::mem::take(&mut world.sandboxes).into_iter().map(ready).collect();
}

#[test]
fn rolling_update_keeps_to_its_limits_and_ends() {
    for (surge, unavailable) in [(1, 0), (0, 1), (2, 1), (0, 0), (5, 5)] {
        let mut world = rolling(4, json!({"maxSurge": surge, "maxUnavailable": unavailable}));
        let least = 4_usize.saturating_sub(if (surge, unavailable) == (0, 0) { 1 } else { unavailable });
        for _ in 0..20 {
            world.pass();
            let available = world.sandboxes.iter().filter(|sandbox| sandbox.is_ready()).count();
            assert!(available >= least, "surge {surge}: {available}");
            assert!(world.sandboxes.len() <= 4 + surge, "surge {surge}: {}", world.sandboxes.len());
            all_ready(&mut world);
        }
        assert_eq!(world.images(), vec![&json!("v2"); 4], "surge {surge}, unavailable {unavailable}");
        assert_eq!(world.counts(), (0, 0));
    }
}

#[test]
fn rolling_update_waits_for_new_members_to_be_ready() {
    let mut world = rolling(3, json!({"maxSurge": 1, "maxUnavailable": 0}));
    assert_eq!(world.counts(), (1, 0));
    assert_eq!(world.counts(), (0, 0), "the new one is not Ready");
    let status = world.status();
    assert_eq!((status.updated_replicas, status.replicas), (Some(1), 4));
    assert_eq!(status.conditions[0].message, "1 of 4 members follow the template");
    all_ready(&mut world);
    assert_eq!(world.counts(), (0, 1), "now an old one may go");
    assert_eq!(world.counts(), (1, 0));
}

#[test]
fn rolling_update_replaces_members_that_are_not_ready_at_once() {
    let mut world = rolling(3, json!({"maxSurge": 0, "maxUnavailable": 1}));
    world.sandboxes = (0..3).map(|n| member(&format!("old-{n}"))).collect();
    world.now = at(0);
    assert_eq!(world.counts(), (0, 3), "nobody could have used them");
    assert_eq!(world.counts(), (3, 0));
}
