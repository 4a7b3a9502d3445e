//! Which Pod, Service and volume claims a Sandbox gets, and whose it leaves alone.

use std::sync::Arc;

use serde_json::{Value, json};

use super::world::*;
use crate::object::ServicePort;
use crate::sandbox::judge::judge;
use crate::sandbox::plan::{Action, Rivals, Seen, plan, pod_name, rival};
use crate::sandbox::{child, pod, volume};
use asb_types::{Sandbox, condition, key};

fn actions(sandbox: &Sandbox, seen: &Seen) -> Vec<Action> {
    plan(sandbox, seen, at(100)).actions
}

fn problems(sandbox: &Sandbox, seen: &Seen) -> Vec<String> {
    plan(sandbox, seen, at(100)).problems.into_iter().map(|problem| problem.message).collect()
}

fn pod_patch(sandbox: &Sandbox, pod: crate::object::Pod) -> Value {
    match actions(sandbox, &seen(Some(pod), None)).as_slice() {
        [Action::PatchPod { patch, .. }] => patch.clone(),
        [] => Value::Null,
        other => panic!("expected one Pod patch, got {other:?}"),
    }
}

/// SB-031, SB-033, SB-038, SB-039, SB-042, SB-091
#[test]
fn new_pod_carries_the_template_and_none_of_the_reserved_keys() {
    let sandbox = sandbox(json!({
        "podTemplate": {
            "metadata": {
                "labels": {"app": "x", "b": "2", key::WARM_POOL_SANDBOX: "no", "extensions.agents.x-k8s.io/y": "no"},
                "annotations": {"note": "n", key::TRACE_CONTEXT: "no", key::POD_NAME: "no"},
            },
            "spec": {"volumes": [{"name": "work", "emptyDir": {}}, {"name": "kept", "emptyDir": {}}], "newField": 7},
        },
        "volumeClaimTemplates": [{"metadata": {"name": "work"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
    }));
    let pod = pod::desired(&sandbox);
    let hash = child::hash(&sandbox);
    assert_eq!(pod["metadata"]["name"], "box");
    assert_eq!(pod["metadata"]["labels"], json!({"app": "x", "b": "2", key::SANDBOX_NAME_HASH: hash}));
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({"note": "n", key::PROPAGATED_LABELS: "app,b", key::PROPAGATED_ANNOTATIONS: "note"})
    );
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], UID);
    assert_eq!(pod["metadata"]["ownerReferences"][0]["controller"], true);
    assert_eq!(pod["spec"]["newField"], 7, "fields of a newer Kubernetes pass through");
    assert_eq!(
        pod["spec"]["volumes"],
        json!([
            {"name": "kept", "emptyDir": {}},
            {"name": "work", "persistentVolumeClaim": {"claimName": "work-box"}},
        ])
    );
}

/// SB-055
#[test]
fn creator_is_normalized() {
    for (given, expected) in
        [("go-client", json!("go-client")), ("my tool", json!("unknown")), ("", Value::Null)]
    {
        let sandbox = sandbox(json!({})).edit(json!({"metadata": {"labels": {key::CREATED_BY: given}}}));
        assert_eq!(
            pod::desired(&sandbox)["metadata"]["labels"][key::CREATED_BY],
            expected,
            "created by {given:?}"
        );
    }
    let pod = ready_pod().edit(json!({"metadata": {"labels": {
        key::CREATED_BY: "go-client", key::SANDBOX_NAME_HASH: child::hash(&sandbox(json!({}))),
    }}}));
    let patch = pod_patch(&sandbox(json!({})), pod);
    assert_eq!(patch, json!({"metadata": {"labels": {key::CREATED_BY: null}}}));
}

/// SB-041, SB-043, SB-044, SB-045, SB-046
#[test]
fn extension_labels_follow_the_owner_of_the_sandbox() {
    let labels =
        json!({key::WARM_POOL_SANDBOX: "pool", key::TEMPLATE_REF_HASH: "tpl", key::CLAIM_UID: "claim"});
    let owned_by = |kind: &str, group: &str| {
        let owner = json!({"apiVersion": format!("{group}/v1alpha1"), "kind": kind, "name": "o", "uid": "o", "controller": true});
        let sandbox =
            sandbox(json!({})).edit(json!({"metadata": {"labels": labels, "ownerReferences": [owner]}}));
        let on_pod = pod::desired(&sandbox)["metadata"]["labels"].clone();
        [key::WARM_POOL_SANDBOX, key::TEMPLATE_REF_HASH, key::CLAIM_UID]
            .map(|label| on_pod.get(label).is_some())
    };
    assert_eq!(owned_by("SandboxWarmPool", "extensions.agents.x-k8s.io"), [true, true, false]);
    assert_eq!(owned_by("SandboxClaim", "extensions.agents.x-k8s.io"), [false, true, true]);
    assert_eq!(owned_by("SandboxWarmPool", "example.com"), [false, false, false]);
    let stale = ready_pod().edit(json!({"metadata": {"labels": labels}}));
    let patch = pod_patch(&sandbox(json!({})), stale);
    assert_eq!(patch["metadata"]["labels"][key::WARM_POOL_SANDBOX], Value::Null);
    assert_eq!(patch["metadata"]["labels"][key::TEMPLATE_REF_HASH], Value::Null);
}

/// SB-040, SB-054
#[test]
fn metadata_follows_the_template_and_spares_what_others_added() {
    let sandbox = sandbox(json!({"podTemplate": {"metadata": {"labels": {"app": "new"}}}}));
    let pod = ready_pod().edit(json!({"metadata": {
        "labels": {
            "app": "old", "gone": "1", "others": "1", key::ADOPTABLE: "true",
            key::SANDBOX_NAME_HASH: child::hash(&sandbox),
        },
        "annotations": {
            "dropped": "1", "others": "1",
            key::PROPAGATED_LABELS: format!("{},app,gone", key::ADOPTABLE), key::PROPAGATED_ANNOTATIONS: "dropped",
        },
    }}));
    let patch = pod_patch(&sandbox, pod);
    assert_eq!(patch["metadata"]["labels"], json!({"app": "new", "gone": null, key::ADOPTABLE: null}));
    assert_eq!(
        patch["metadata"]["annotations"],
        json!({"dropped": null, key::PROPAGATED_LABELS: "app", key::PROPAGATED_ANNOTATIONS: null})
    );
}

/// SB-035, SB-037, SB-049
#[test]
fn unowned_pod_with_either_label_is_adopted() {
    let sandbox = sandbox(json!({}));
    for label in [json!({key::ADOPTABLE: "true"}), json!({key::SANDBOX_NAME_HASH: child::hash(&sandbox)})] {
        let pod = pod("Running").edit(json!({"metadata": {"labels": label}}));
        let patch = pod_patch(&sandbox, pod);
        assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], UID, "adopted through {label}");
    }
}

/// SB-050, SB-053
#[test]
fn pod_of_somebody_else_is_an_error_and_stays_as_it_is() {
    let sandbox = sandbox(json!({}));
    let foreign = seen(Some(pod("Running").foreign()), None);
    assert_eq!(actions(&sandbox, &foreign), []);
    assert_eq!(problems(&sandbox, &foreign), [r#"Pod "box" is owned by Other "else""#]);
    let unlabelled = seen(Some(pod("Running")), None);
    assert_eq!(actions(&sandbox, &unlabelled), []);
    assert!(
        problems(&sandbox, &unlabelled)[0].contains(key::ADOPTABLE),
        "the error says how to have it adopted"
    );
}

/// SB-047, SB-048, SB-051, SB-061
#[test]
fn suspend_deletes_only_an_owned_pod_and_only_once() {
    let suspended = sandbox(json!({"operatingMode": "Suspended"}));
    let deleting = json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z"}});
    assert!(matches!(actions(&suspended, &seen(Some(ready_pod()), None))[..], [Action::DeletePod(_)]));
    assert_eq!(actions(&suspended, &seen(None, None)), []);
    assert_eq!(actions(&suspended, &seen(Some(ready_pod().foreign()), None)), []);
    assert_eq!(actions(&suspended, &seen(Some(ready_pod().edit(deleting.clone())), None)), []);
    let running = actions(&sandbox(json!({})), &seen(Some(ready_pod().edit(deleting)), None));
    assert!(!running.iter().any(|action| matches!(action, Action::CreatePod(_))), "Pods never overlap");
}

/// SB-057
#[test]
fn owned_pod_wins_over_an_adoptable_one_under_the_tracked_name() {
    let adoptable = pod("Running").edit(json!({"metadata": {"labels": {key::ADOPTABLE: "true"}}}));
    let mut world = seen(Some(adoptable), None);
    world.owned_pods = vec![Arc::new(ready_pod().edit(json!({"metadata": {"name": "other"}})))];
    let patched: Vec<_> = actions(&sandbox(json!({})), &world);
    assert!(patched.iter().all(|action| matches!(action, Action::PatchPod { name, .. } if name == "other")));
}

fn ports(containers: Value) -> Vec<(String, u16, String)> {
    let sandbox = sandbox(json!({"service": true, "podTemplate": {"spec": containers}}));
    let created =
        actions(&sandbox, &seen(Some(ready_pod()), None)).into_iter().find_map(|action| match action {
            Action::CreateService(object) => Some(object),
            _ => None,
        });
    let ports = created.expect("a Service is created")["spec"]["ports"].clone();
    let ports: Vec<ServicePort> = serde_json::from_value(ports).unwrap_or_default();
    ports.into_iter().map(|port| (port.name, port.port, port.protocol)).collect()
}

fn port(name: &str, number: u16, protocol: &str) -> (String, u16, String) {
    (name.into(), number, protocol.into())
}

/// SB-070, SB-071, SB-072
#[test]
fn service_ports_come_from_containers_and_sidecars() {
    assert_eq!(ports(json!({})), []);
    let unnamed = json!({"containers": [{"name": "m", "ports": [{"containerPort": 8080}]}]});
    assert_eq!(ports(unnamed), [port("p-8080-tcp", 8080, "TCP")]);
    let init = json!({"initContainers": [
        {"name": "once", "ports": [{"containerPort": 1}]},
        {"name": "sidecar", "restartPolicy": "Always", "ports": [{"containerPort": 2, "protocol": "UDP"}]},
    ]});
    assert_eq!(ports(init), [port("p-2-udp", 2, "UDP")]);
}

/// SB-073, SB-074, SB-075
#[test]
fn service_port_names_are_unique() {
    let duplicates = json!({"containers": [{"name": "m", "ports": [
        {"containerPort": 9090}, {"containerPort": 8080}, {"containerPort": 8080, "name": "http"}, {"containerPort": 0},
    ]}]});
    assert_eq!(ports(duplicates), [port("http", 8080, "TCP"), port("p-9090-tcp", 9090, "TCP")]);
    let same_name = json!({"containers": [{"name": "m", "ports": [
        {"containerPort": 9090, "name": "web"}, {"containerPort": 8080, "name": "web"},
    ]}]});
    assert_eq!(ports(same_name), [port("p-8080-tcp", 8080, "TCP"), port("web", 9090, "TCP")]);
    let collision = json!({"containers": [{"name": "m", "ports": [
        {"containerPort": 8080}, {"containerPort": 9090, "name": "p-8080-tcp"},
    ]}]});
    assert_eq!(ports(collision), [port("p-8080-tcp-2", 8080, "TCP"), port("p-8080-tcp", 9090, "TCP")]);
}

/// SB-032, SB-076, SB-077, SB-081
#[test]
fn owned_service_is_repaired() {
    let ready = || {
        Some(ready_pod().edit(json!({"metadata": {"labels": {
            key::SANDBOX_NAME_HASH: child::hash(&sandbox(json!({}))),
        }}})))
    };
    let asked = sandbox(json!({"service": true, "podTemplate": {"spec": {"containers": [
        {"name": "m", "ports": [{"containerPort": 80}]},
    ]}}}));
    let drifted = service().owned().edit(json!({
        "metadata": {"labels": {key::SANDBOX_NAME_HASH: "wrong", "theirs": "1"}},
        "spec": {"selector": {"stray": "1"}, "ports": [{"port": 1}]},
    }));
    for (sandbox, with_ports) in [(asked.clone(), true), (sandbox(json!({})), false)] {
        let found = actions(&sandbox, &seen(ready(), Some(drifted.clone())));
        let [Action::PatchService { patch, .. }] = &found[..] else {
            panic!("expected one patch, got {found:?}")
        };
        let hash = child::hash(&sandbox);
        assert_eq!(patch["metadata"]["labels"], json!({key::SANDBOX_NAME_HASH: hash}));
        assert_eq!(patch["spec"]["selector"], json!({"stray": null, key::SANDBOX_NAME_HASH: hash}));
        assert_eq!(patch["spec"].get("ports").is_some(), with_ports);
    }
    let same = service().owned().edit(json!({"spec": {"ports": [
        {"name": "p-80-tcp", "port": 80, "protocol": "TCP", "targetPort": 80, "appProtocol": "kept"},
    ]}}));
    assert_eq!(actions(&asked, &seen(ready(), Some(same))), []);
}

/// SB-078, SB-079, SB-080, SB-082
#[test]
fn service_of_others_is_adopted_only_when_it_may_be() {
    let asked = sandbox(json!({"service": true}));
    let with = |sandbox: &Sandbox, service| {
        let plan = plan(sandbox, &seen(None, Some(service)), at(100));
        let touched = plan.actions.into_iter().find(|action| !matches!(action, Action::CreatePod(_)));
        (touched, plan.problems.into_iter().map(|problem| problem.message).next().unwrap_or_default())
    };
    let (action, _) = with(&asked, service());
    let Some(Action::PatchService { patch, .. }) = action else { panic!("labelled Service is adopted") };
    assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], UID);
    let (action, problem) = with(&asked, service().foreign());
    assert!(action.is_none() && problem.contains("is owned by"), "{problem}");
    let (action, problem) = with(&asked, service().edit(json!({"spec": {"clusterIP": "10.0.0.9"}})));
    assert!(action.is_none() && problem.contains("immutable"), "{problem}");
    let unlabelled = service().edit(json!({"metadata": {"labels": null}}));
    let (action, problem) = with(&asked, unlabelled.clone());
    assert!(action.is_none() && !problem.is_empty());
    let refused = sandbox(json!({"service": false}));
    assert!(matches!(with(&refused, service().owned()).0, Some(Action::DeleteService(_))));
    assert!(with(&refused, unlabelled).0.is_none());
    assert!(with(&sandbox(json!({})), service()).0.is_none());
}

/// Weak spot 2 of the reference: names with the same hash share the traffic of their Services.
#[test]
fn sandboxes_whose_names_have_the_same_hash_never_share_a_service() {
    let asked = sandbox(json!({"service": true}));
    let rivals = |served: Option<&str>, running: Option<&str>| Seen {
        rivals: Rivals { served: served.map(Into::into), running: running.map(Into::into) },
        ..Seen::default()
    };
    let made = |world: &Seen| -> Vec<&str> {
        let kind = |action: &Action| match action {
            Action::CreatePod(_) => "Pod",
            Action::CreateService(_) => "Service",
            other => panic!("{other:?}"),
        };
        actions(&asked, world).iter().map(kind).collect()
    };
    assert_eq!(made(&rivals(None, None)), ["Pod", "Service"]);
    assert_eq!(made(&rivals(None, Some("older"))), ["Pod"], "its Service would lead to the other's Pod");
    assert_eq!(made(&rivals(Some("older"), Some("older"))), [""; 0], "and the other's to its own");
    let told = problems(&asked, &rivals(Some("older"), None)).remove(0);
    assert!(told.contains("\"older\"") && told.contains(&child::hash(&asked)), "{told}");

    let owned = |uid: &str, kind: &str| {
        let owner = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": kind, "name": "other", "uid": uid,
            "controller": true});
        Arc::new(pod("Running").edit(json!({"metadata": {"ownerReferences": [owner]}})))
    };
    let nobodys = Arc::new(pod("Running"));
    assert_eq!(rival(&asked, &[nobodys, owned(UID, "Sandbox"), owned("x", "Job")]), None);
    assert_eq!(rival(&asked, &[owned("x", "Sandbox")]).as_deref(), Some("other"));
}

/// SB-090
#[test]
fn volume_claims_are_made_kept_or_adopted() {
    let sandbox = sandbox(json!({"volumeClaimTemplates": [
        {"metadata": {"name": "a", "labels": {"l": "1", key::SANDBOX_NAME_HASH: "no"}, "annotations": {"n": "1"}}, "spec": {"x": 1}},
        {"metadata": {"name": "b"}, "spec": {}},
    ]}));
    let with = |claims: Vec<Option<crate::object::VolumeClaim>>| {
        let claims = claims.into_iter().map(|claim| claim.map(Arc::new)).collect();
        plan(&sandbox, &Seen { volume_claims: claims, ..seen(Some(ready_pod()), None) }, at(100))
    };
    let made = with(vec![None, Some(claim("b-box").owned())]);
    let Action::CreateVolumeClaim(object) = &made.actions[0] else { panic!("a claim is made") };
    assert_eq!(object["metadata"]["name"], "a-box");
    assert_eq!(
        object["metadata"]["labels"],
        json!({"l": "1", key::SANDBOX_NAME_HASH: child::hash(&sandbox)})
    );
    assert_eq!((&object["metadata"]["annotations"], &object["spec"]), (&json!({"n": "1"}), &json!({"x": 1})));

    let adoptable = claim("a-box").edit(json!({"metadata": {"labels": {key::ADOPTABLE: "true"}}}));
    let adopted = with(vec![Some(adoptable), Some(claim("b-box").owned())]);
    assert!(matches!(&adopted.actions[0], Action::PatchVolumeClaim { name, .. } if name == "a-box"));

    let foreign = with(vec![Some(claim("a-box").foreign()), None]);
    assert!(foreign.problems[0].message.contains("is owned by"));
    assert!(
        !foreign.actions.iter().any(|action| matches!(action, Action::CreateVolumeClaim(_))),
        "stops at the first"
    );
    let unowned = with(vec![Some(claim("a-box")), None]);
    assert_eq!((unowned.problems.len(), foreign.problems.len()), (1, 1));
}

#[test]
fn a_volume_that_is_lost_under_a_running_pod_is_told_and_not_replaced() {
    let fresh = sandbox(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}));
    let known = fresh.clone().edit(json!({"status": {"selector": "x=y"}}));
    let bound = || claim("data-box").owned();
    let without_volume = bound().edit(json!({"status": {"phase": "Lost"}}));
    let waiting = ready_pod().edit(json!({"status": {"phase": "Pending"}}));
    for (sandbox, pod, claim, made, lost) in [
        (&known, Some(ready_pod()), Some(bound()), false, None),
        (&known, Some(ready_pod()), None, false, Some("\"data-box\" is gone; suspend and resume")),
        (
            &known,
            Some(ready_pod()),
            Some(without_volume),
            false,
            Some("\"data-box\" has lost its PersistentVolume"),
        ),
        // Nothing runs with it: the Pod gets a volume when it starts.
        (&known, Some(waiting), None, true, None),
        (&known, None, None, true, None),
        // An adopted Pod has brought no claim, so none is lost.
        (&fresh, Some(ready_pod()), None, true, None),
    ] {
        let seen = Seen { volume_claims: vec![claim.map(Arc::new)], ..seen(pod, None) };
        let planned = plan(sandbox, &seen, at(100));
        let makes = planned.actions.iter().any(|action| matches!(action, Action::CreateVolumeClaim(_)));
        assert_eq!(makes, made, "{seen:?}");
        assert_eq!(volume::replaced(sandbox, &planned).count(), usize::from(made && *sandbox == known));
        let status = judge(sandbox, &seen, &[], "cluster.local", at(100));
        let ready = condition::get(&status.conditions, condition::READY).unwrap();
        match lost {
            Some(message) => {
                assert!(ready.reason == "VolumeLost" && ready.message.contains(message), "{ready:?}")
            }
            None => assert_ne!(ready.reason, "VolumeLost"),
        }
    }
}

#[test]
fn a_claim_of_the_user_that_is_lost_under_a_running_pod_is_told_and_never_made() {
    let volumes = json!([
        {"name": "work", "persistentVolumeClaim": {"claimName": "mine"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "gives-way"}},
        {"name": "scratch", "emptyDir": {}},
    ]);
    let sandbox = sandbox(json!({
        "podTemplate": {"spec": {"volumes": volumes}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
    }));
    let known = sandbox.edit(json!({"status": {"selector": "x=y"}}));
    assert_eq!(volume::mounted(&known).collect::<Vec<_>>(), ["mine"]);
    let lost = claim("mine").edit(json!({"status": {"phase": "Lost"}}));
    for (mine, told) in [
        (Some(claim("mine")), None),
        (Some(lost), Some("\"mine\" has lost its PersistentVolume")),
        (None, Some("\"mine\" is gone; create it again")),
    ] {
        let seen = Seen {
            volume_claims: vec![Some(Arc::new(claim("data-box").owned()))],
            mounted_claims: vec![("mine".to_owned(), mine.map(Arc::new))],
            ..seen(Some(ready_pod()), None)
        };
        let planned = plan(&known, &seen, at(100));
        assert!(!planned.actions.iter().any(|action| matches!(action, Action::CreateVolumeClaim(_))));
        let status = judge(&known, &seen, &[], "cluster.local", at(100));
        let ready = condition::get(&status.conditions, condition::READY).unwrap();
        assert_eq!(ready.reason == "VolumeLost", told.is_some(), "{ready:?}");
        assert!(told.is_none_or(|told| ready.message.contains(told)), "{ready:?}");
    }
}

/// SB-030
#[test]
fn pod_is_named_like_its_sandbox_unless_an_annotation_names_another() {
    let noted = |notes: Value| sandbox(json!({})).edit(json!({"metadata": {"annotations": notes}}));
    for notes in [Value::Null, json!({"x": "y"}), json!({key::POD_NAME: ""})] {
        assert_eq!(pod_name(&noted(notes)), "box");
    }
    assert_eq!(pod_name(&noted(json!({key::POD_NAME: "older"}))), "older");
}

/// SB-052
#[test]
fn pod_of_somebody_else_under_the_noted_name_is_an_error() {
    let sandbox = sandbox(json!({})).edit(json!({"metadata": {"annotations": {key::POD_NAME: "older"}}}));
    let stranger = ready_pod().foreign().edit(json!({"metadata": {"name": "older"}}));
    let world = seen(Some(stranger), None);
    assert_eq!(actions(&sandbox, &world), []);
    assert!(problems(&sandbox, &world)[0].contains("older"), "{:?}", problems(&sandbox, &world));
}

/// SB-056
#[test]
fn owned_pod_of_another_name_is_used_instead_of_a_new_one() {
    let survivor = ready_pod().edit(json!({"metadata": {
        "name": "older", "labels": {key::SANDBOX_NAME_HASH: child::hash(&sandbox(json!({})))},
    }}));
    let world = Seen { owned_pods: vec![Arc::new(survivor)], ..Seen::default() };
    assert_eq!(actions(&sandbox(json!({})), &world), []);
    assert_eq!(said(&status(&sandbox(json!({})), &world, &[]), "Ready").unwrap().0, "True");
}

/// CL-076: what a pool says of its members ends when the pool no longer controls them; what a template says does not
#[test]
fn eviction_of_pool_members_ends_with_the_pool() {
    let annotations = json!({key::SAFE_TO_EVICT: "true", "note": "n"});
    let reaching = |labels: Value, in_pool: bool| {
        let template = serde_json::from_value(json!({"labels": labels, "annotations": annotations})).unwrap();
        crate::sandbox::pod::reaching(template, in_pool).1.contains_key(key::SAFE_TO_EVICT)
    };
    let of_a_pool = json!({key::WARM_POOL_SANDBOX: "x"});
    assert!(reaching(of_a_pool.clone(), true));
    assert!(!reaching(of_a_pool, false));
    assert!(reaching(json!({}), false), "a template or a user said so");
}

/// MG-06
#[test]
fn patch_of_a_pod_names_only_the_metadata_that_changes() {
    let sandbox = sandbox(json!({"podTemplate": {"metadata": {"labels": {"app": "x"}}}}));
    let hash = child::hash(&sandbox);
    let pod =
        ready_pod().edit(json!({"metadata": {"labels": {"theirs": "y", key::SANDBOX_NAME_HASH: hash}}}));
    let expected =
        json!({"metadata": {"labels": {"app": "x"}, "annotations": {key::PROPAGATED_LABELS: "app"}}});
    assert_eq!(pod_patch(&sandbox, pod), expected);
}
