//! What must be true of every Sandbox in every world.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::*;
use crate::object::{Pod, Service, VolumeClaim, controller_of};
use crate::sandbox::plan::Action;
use crate::write::Identity;
use asb_types::{Sandbox, key};

#[derive(Debug, Clone, Copy)]
enum Owner {
    Us,
    Nobody,
    Adoptable,
    Else,
}

fn owner() -> impl Strategy<Value = Owner> {
    prop_oneof![Just(Owner::Us), Just(Owner::Nobody), Just(Owner::Adoptable), Just(Owner::Else)]
}

fn give<T: Edit>(object: T, owner: Owner) -> T {
    match owner {
        Owner::Us => object.owned(),
        Owner::Nobody => object.edit(json!({"metadata": {"labels": null}})),
        Owner::Adoptable => object.edit(json!({"metadata": {"labels": {key::ADOPTABLE: "true"}}})),
        Owner::Else => object.foreign(),
    }
}

fn any_sandbox() -> impl Strategy<Value = Sandbox> {
    let mode = prop_oneof![Just("Running"), Just("Suspended")];
    let service = prop_oneof![Just(Value::Null), Just(json!(true)), Just(json!(false))];
    let expiry =
        prop_oneof![Just(Value::Null), Just(json!(at(50).to_string())), Just(json!(at(500).to_string()))];
    let policy = prop_oneof![Just("Retain"), Just("Delete")];
    let port = (0_u16..4, prop_oneof![Just(None), Just(Some("web")), Just(Some("p-1-tcp"))]);
    let ports = prop::collection::vec(port, 0..4);
    let labels = prop::collection::btree_map("[ab]|agents.x-k8s.io/[ab]", "[xy]", 0..3);
    (mode, service, expiry, policy, 0_usize..3, ports, labels).prop_map(
        |(mode, service, expiry, policy, claims, ports, labels)| {
            let ports: Vec<_> = ports
                .into_iter()
                .map(|(number, name)| json!({"containerPort": number, "name": name}))
                .collect();
            let claims: Vec<_> =
                (0..claims).map(|n| json!({"metadata": {"name": format!("v{n}")}, "spec": {}})).collect();
            sandbox(json!({
                "operatingMode": mode, "service": service, "shutdownTime": expiry, "shutdownPolicy": policy,
                "volumeClaimTemplates": claims,
                "podTemplate": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "main", "ports": ports}]},
                },
            }))
        },
    )
}

fn any_pod() -> impl Strategy<Value = Option<Pod>> {
    let phase = prop_oneof![Just("Pending"), Just("Running"), Just("Failed"), Just("Succeeded")];
    prop::option::of((phase, owner()).prop_map(|(phase, owner)| give(pod(phase), owner)))
}

fn any_service() -> impl Strategy<Value = Option<Service>> {
    let address = prop_oneof![Just("None"), Just("10.0.0.9")];
    prop::option::of(
        (address, owner())
            .prop_map(|(ip, owner)| give(service(), owner).edit(json!({"spec": {"clusterIP": ip}}))),
    )
}

fn any_world() -> impl Strategy<Value = World> {
    let claims = prop::collection::vec(prop::option::of(owner()), 0..3);
    (any_sandbox(), any_pod(), any_service(), claims).prop_map(|(sandbox, pod, service, claims)| {
        let mut seen = seen(pod, service);
        let named = |(n, owner): (usize, Option<Owner>)| {
            owner.map(|owner| Arc::new(give::<VolumeClaim>(claim(&format!("v{n}-box")), owner)))
        };
        seen.volume_claims = claims.into_iter().enumerate().map(named).collect();
        World::new(sandbox, seen)
    })
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("sandbox", &self.sandbox).field("seen", &self.seen).finish()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// Applying the plan until it settles converges, and a settled plan is empty.
    #[test]
    fn every_world_comes_to_rest(mut world in any_world()) {
        if world.sandbox.spec.shutdown_policy == asb_types::ShutdownPolicy::Delete && world.sandbox.spec.expired(world.now) {
            world.pass();
            world.pass();
            prop_assert!(world.sandbox_deleted);
        } else {
            prop_assert!(world.settle().actions.is_empty());
        }
    }

    #[test]
    fn nothing_is_deleted_that_is_not_ours(mut world in any_world()) {
        let is_ours = |name: &str, seen: &super::super::plan::Seen| {
            let pod = seen.named_pod.as_deref().filter(|pod| pod.metadata.name.as_deref() == Some(name)).and_then(|pod| controller_of(pod));
            let service = seen.service.as_deref().and_then(controller_of);
            (pod.is_some_and(|owner| owner.uid == UID), service.is_some_and(|owner| owner.uid == UID))
        };
        for _ in 0..4 {
            let before = world.seen.clone();
            for action in world.pass().actions {
                match action {
                    Action::DeletePod(Identity { name, .. }) => prop_assert!(is_ours(&name, &before).0),
                    Action::DeleteService(Identity { name, .. }) => prop_assert!(is_ours(&name, &before).1),
                    _ => {}
                }
            }
        }
    }

    /// There is no action that deletes a claim; what was there stays, and stays where it was.
    #[test]
    fn no_volume_claim_is_ever_lost(mut world in any_world()) {
        let names = |world: &World| -> Vec<_> {
            world.seen.volume_claims.iter().flatten().filter_map(|claim| claim.metadata.name.clone()).collect()
        };
        let before = names(&world);
        for _ in 0..4 { world.pass(); }
        let after = names(&world);
        prop_assert!(before.iter().all(|name| after.contains(name)));
    }

    #[test]
    fn one_sandbox_never_makes_two_pods(mut world in any_world()) {
        for _ in 0..4 { world.pass(); }
        let made = world.history.iter().filter(|action| matches!(action, Action::CreatePod(_))).count();
        prop_assert!(made <= 1);
    }

    #[test]
    fn settled_status_has_one_condition_of_each_kind(mut world in any_world()) {
        for _ in 0..20 { world.pass(); }
        let status = world.sandbox.status.clone().unwrap_or_default();
        let mut kinds: Vec<_> = status.conditions.iter().map(|condition| condition.type_.clone()).collect();
        kinds.sort();
        let count = kinds.len();
        kinds.dedup();
        prop_assert_eq!(kinds.len(), count);
        prop_assert!(kinds.iter().any(|kind| kind == "Ready"));
    }
}
