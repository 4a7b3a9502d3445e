//! The conversion checklist as tables.

use serde_json::{Value, json};

use super::*;

pub(super) const SANDBOX_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandbox-state";
pub(super) const CLAIM_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxclaim-state";
const CLAIM_NOTE: &str = "api.agents.x-k8s.io/v1beta1-sandboxclaim-state";
const POLICY: &str = "api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy";

fn group(kind: &str) -> &'static str {
    if kind == "Sandbox" { GROUP } else { EXTENSIONS_GROUP }
}

pub(super) fn object(version: &str, kind: &str, name: &str, spec: Value) -> Value {
    let api_version = format!("{}/{version}", group(kind));
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn alpha(kind: &str, spec: Value) -> Value {
    object(V1ALPHA1, kind, "it", spec)
}

fn beta(kind: &str, spec: Value) -> Value {
    object(VERSION, kind, "it", spec)
}

fn to(version: &str, object: &Value) -> Value {
    let kind = object["kind"].as_str().unwrap();
    let mut object = object.clone();
    convert(&mut object, &format!("{}/{version}", group(kind))).unwrap();
    object
}

pub(super) fn to_beta(object: &Value) -> Value {
    to(VERSION, object)
}

pub(super) fn to_alpha(object: &Value) -> Value {
    to(V1ALPHA1, object)
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a Value {
    &object["metadata"]["annotations"][key]
}

fn pod() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "python:3.12"}]}})
}

/// CV-01
#[test]
fn replicas_become_the_operating_mode() {
    for (replicas, mode) in
        [(Value::Null, "Running"), (json!(1), "Running"), (json!(0), "Suspended"), (json!(2), "Running")]
    {
        let sandbox = alpha("Sandbox", json!({"podTemplate": pod(), "replicas": replicas}));
        let stored = to_beta(&sandbox);
        assert_eq!(stored["spec"]["operatingMode"], mode, "replicas {replicas}");
        assert!(stored["spec"]["replicas"].is_null());
    }
}

/// CV-02, CV-08
#[test]
fn a_sandbox_comes_back_as_it_was() {
    let rest = json!({
        "podTemplate": pod(), "shutdownPolicy": "Delete", "service": true,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
    });
    for replicas in [None, Some(0), Some(1)] {
        let mut spec = rest.clone();
        if let Some(replicas) = replicas {
            spec["replicas"] = replicas.into();
        }
        let sandbox = alpha("Sandbox", spec);
        assert_eq!(to_alpha(&to_beta(&sandbox))["spec"], sandbox["spec"]);
    }
}

/// CV-03
#[test]
fn status_replicas_come_back_while_the_status_is_the_same() {
    let mut sandbox = alpha("Sandbox", json!({"podTemplate": pod(), "replicas": 0}));
    sandbox["status"] = json!({"replicas": 1, "service": "it", "podIPs": ["10.0.0.1"]});
    let mut stored = to_beta(&sandbox);
    assert_eq!(to_alpha(&stored)["status"], sandbox["status"], "suspending: the Pod is still there");
    stored["status"] = json!({"service": "it"});
    assert_eq!(to_alpha(&stored)["status"]["replicas"], 0, "a newer status tells nothing about the old one");
}

/// CV-04
#[test]
fn a_sandbox_made_at_v1beta1_shows_replicas_by_its_mode() {
    for (mode, replicas) in [(json!("Running"), 1), (json!("Suspended"), 0), (Value::Null, 1)] {
        let shown = to_alpha(&beta("Sandbox", json!({"podTemplate": pod(), "operatingMode": mode})));
        assert_eq!(
            (&shown["spec"]["replicas"], &shown["status"]["replicas"]),
            (&replicas.into(), &replicas.into())
        );
        assert!(shown["spec"]["operatingMode"].is_null());
    }
}

/// The same for one made at v1alpha1, whose status was empty then.
#[test]
fn a_running_sandbox_made_at_v1alpha1_shows_one_replica() {
    let mut stored = to_beta(&alpha("Sandbox", json!({"podTemplate": pod(), "replicas": 1})));
    stored["status"] = json!({"podIPs": ["10.0.0.1"], "nodeName": "n"});
    assert_eq!(to_alpha(&stored)["status"]["replicas"], 1);
    stored["spec"]["operatingMode"] = "Suspended".into();
    assert_eq!(to_alpha(&stored)["spec"]["replicas"], 0);
}

/// CV-05
#[test]
fn other_labels_and_annotations_are_kept() {
    for kind in ["Sandbox", "SandboxClaim", "SandboxTemplate", "SandboxWarmPool"] {
        let mut source = alpha(kind, json!({"sandboxTemplateRef": {"name": "t"}, "replicas": 1}));
        source["metadata"]["labels"] = json!({"a": "b"});
        source["metadata"]["annotations"] = json!({"c": "d"});
        let stored = to_beta(&source);
        assert_eq!(stored["metadata"]["labels"], source["metadata"]["labels"]);
        assert_eq!(annotation(&stored, "c"), "d");
    }
}

/// CV-06
#[test]
fn states_do_not_nest() {
    for (kind, key) in [("Sandbox", SANDBOX_STATE), ("SandboxClaim", CLAIM_STATE)] {
        let mut source = alpha(kind, json!({"sandboxTemplateRef": {"name": "t"}}));
        source["metadata"]["annotations"] = json!({key: "{\"spec\":{\"replicas\":7}}"});
        let state = annotation(&to_beta(&source), key).as_str().unwrap().to_owned();
        assert!(!state.contains(key) && !state.contains('7'), "{state}");
    }
}

/// CV-07
#[test]
fn no_state_is_left_at_v1alpha1() {
    for kind in ["Sandbox", "SandboxClaim", "SandboxTemplate", "SandboxWarmPool"] {
        let key = format!("api.agents.x-k8s.io/v1alpha1-{}-state", kind.to_lowercase());
        let mut stored = beta(kind, json!({"warmPoolRef": {"name": "p"}}));
        stored["metadata"]["annotations"] = json!({key.as_str(): "{}", "mine": "kept"});
        let shown = to_alpha(&stored);
        assert!(annotation(&shown, &key).is_null());
        assert_eq!(annotation(&shown, "mine"), "kept");
        assert_eq!(to_alpha(&to_beta(&shown))["metadata"]["annotations"], json!({"mine": "kept"}));
    }
}

/// CV-09, CV-10, CV-11, CV-12, CV-13
#[test]
fn a_claim_finds_its_pool() {
    let none = Value::Null;
    let named = json!("my-pool");
    for (policy, sandbox, pool) in [
        (&named, "it", "my-pool"),
        (&json!("none"), "it", "shadow-pool-t"),
        (&json!("default"), "it", "shadow-pool-t"),
        (&named, "other-abcde", "my-pool"),
        (&json!("default"), "my-pool-abcde", "my-pool"),
        (&json!("default"), "single", "single"),
        (&named, "", "my-pool"),
        (&none, "", "shadow-pool-t"),
        (&json!(""), "", "shadow-pool-t"),
    ] {
        let mut claim =
            alpha("SandboxClaim", json!({"sandboxTemplateRef": {"name": "t"}, "warmpool": policy}));
        if !sandbox.is_empty() {
            claim["status"] = json!({"sandbox": {"name": sandbox}});
        }
        let stored = to_beta(&claim);
        assert_eq!(stored["spec"], json!({"warmPoolRef": {"name": pool}}), "{policy} with {sandbox:?}");
    }
}

/// CV-14
#[test]
fn a_claim_gets_its_template_and_policy_back() {
    for policy in [Value::Null, json!("default"), json!("none"), json!("my-pool")] {
        let mut spec = json!({"sandboxTemplateRef": {"name": "t"}});
        if !policy.is_null() {
            spec["warmpool"] = policy;
        }
        let mut stored = to_beta(&alpha("SandboxClaim", spec.clone()));
        assert_eq!(to_alpha(&stored)["spec"], spec);
        let pool = stored["spec"]["warmPoolRef"]["name"].as_str().unwrap().to_owned();
        stored["status"] = json!({"sandbox": {"name": format!("{pool}-abcde")}});
        assert_eq!(to_alpha(&stored)["spec"], spec, "bound meanwhile");
        stored["spec"]["warmPoolRef"]["name"] = "elsewhere".into();
        stored["status"] = Value::Null;
        let moved = json!({"sandboxTemplateRef": {"name": "t"}, "warmpool": "elsewhere"});
        assert_eq!(to_alpha(&stored)["spec"], moved, "moved to another pool");
    }
}

/// CV-15
#[test]
fn a_claim_made_at_v1beta1_shows_its_pool() {
    for (pool, template, policy) in
        [("my-pool", "my-pool", "my-pool"), ("", "", ""), ("shadow-pool-t", "t", "default")]
    {
        let shown = to_alpha(&beta("SandboxClaim", json!({"warmPoolRef": {"name": pool}})));
        assert_eq!(shown["spec"], json!({"sandboxTemplateRef": {"name": template}, "warmpool": policy}));
    }
}

#[test]
fn changing_a_claim_at_v1alpha1_keeps_its_volumes() {
    let volumes = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    let stored = beta("SandboxClaim", json!({"warmPoolRef": {"name": "p"}, "volumeClaimTemplates": volumes}));
    let mut shown = to_alpha(&stored);
    assert!(shown["spec"]["volumeClaimTemplates"].is_null());
    shown["spec"]["warmpool"] = "other".into();
    let written = to_beta(&shown);
    assert_eq!(written["spec"]["volumeClaimTemplates"], volumes);
    assert_eq!(written["spec"]["warmPoolRef"]["name"], "other");
}

#[test]
fn volumes_that_do_not_fit_are_refused_rather_than_lost() {
    let volumes = json!([{"spec": {"storageClassName": "x".repeat(note::LIMIT)}}]);
    let stored = beta("SandboxClaim", json!({"warmPoolRef": {"name": "p"}, "volumeClaimTemplates": volumes}));
    let mut shown = to_alpha(&stored);
    assert!(shown.to_string().len() < 1024);
    let refused = convert(&mut shown, stored["apiVersion"].as_str().unwrap()).unwrap_err();
    assert!(refused.to_string().contains(CLAIM_NOTE), "{refused}");
}

/// CV-16, CV-20
#[test]
fn templates_and_pools_come_back_as_they_were() {
    let template = json!({
        "podTemplate": pod(), "service": true, "envVarsInjectionPolicy": "Allowed",
        "networkPolicyManagement": "Unmanaged", "networkPolicy": {},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
    });
    let mut pool = alpha("SandboxWarmPool", json!({"replicas": 3, "sandboxTemplateRef": {"name": "t"}}));
    pool["status"] = json!({"replicas": 3, "readyReplicas": 2, "selector": "a=b"});
    let mut rolling = pool.clone();
    rolling["spec"]["updateStrategy"] = json!({"type": "Recreate"});
    for object in [alpha("SandboxTemplate", template), pool, rolling] {
        assert_eq!(to_alpha(&to_beta(&object)), object);
    }
    let bare = beta("SandboxWarmPool", json!({"sandboxTemplateRef": {"name": "t"}}));
    assert_eq!(to_alpha(&bare)["spec"]["replicas"], 1);
}

/// CV-17, CV-18, CV-19
#[test]
fn the_volume_policy_of_a_template_travels_in_its_annotation() {
    let mut stored =
        beta("SandboxTemplate", json!({"podTemplate": pod(), "volumeClaimTemplatesPolicy": "Allowed"}));
    let mut shown = to_alpha(&stored);
    assert_eq!(annotation(&shown, POLICY), "Allowed");
    assert!(shown["spec"]["volumeClaimTemplatesPolicy"].is_null());
    assert_eq!(to_beta(&shown), stored);

    stored["metadata"]["annotations"] = json!({POLICY: "Allowed"});
    stored["spec"]["volumeClaimTemplatesPolicy"] = "".into();
    let cleared = to_alpha(&stored);
    assert!(annotation(&cleared, POLICY).is_null());
    assert!(to_beta(&cleared)["spec"]["volumeClaimTemplatesPolicy"].is_null());

    shown["metadata"]["annotations"][POLICY] = "Sometimes".into();
    let refused = convert(&mut shown, "extensions.agents.x-k8s.io/v1beta1").unwrap_err();
    assert!(matches!(&refused, Error::Annotation { annotation, .. } if annotation == POLICY), "{refused}");
}

/// As other implementations write it: the whole object.
#[test]
fn a_state_that_holds_the_whole_object_is_understood() {
    let mut stored = beta("Sandbox", json!({"podTemplate": pod(), "operatingMode": "Running"}));
    let whole = json!({
        "kind": "Sandbox", "apiVersion": "agents.x-k8s.io/v1alpha1", "metadata": {"name": "it", "creationTimestamp": null},
        "spec": {"podTemplate": pod()}, "status": {},
    });
    stored["metadata"]["annotations"] = json!({SANDBOX_STATE: whole.to_string()});
    let shown = to_alpha(&stored);
    assert!(shown["spec"].get("replicas").is_none(), "absent as it was");
    assert_eq!(shown["status"]["replicas"], 1, "running, whatever was known when it was created");
}

#[test]
fn garbage_in_a_state_breaks_no_read() {
    for garbage in [
        "",
        "x",
        "[]",
        "null",
        "{\"spec\":1,\"status\":2}",
        "{\"spec\":{\"replicas\":\"x\",\"sandboxTemplateRef\":{}}}",
    ] {
        let mut sandbox = beta("Sandbox", json!({"podTemplate": pod(), "operatingMode": "Running"}));
        sandbox["metadata"]["annotations"] = json!({SANDBOX_STATE: garbage});
        assert_eq!(to_alpha(&sandbox)["status"]["replicas"], 1, "{garbage:?}");
        let mut claim = beta("SandboxClaim", json!({"warmPoolRef": {"name": "p"}}));
        claim["metadata"]["annotations"] = json!({CLAIM_STATE: garbage});
        assert_eq!(to_alpha(&claim)["spec"]["warmpool"], "p", "{garbage:?}");
    }
}

#[test]
fn notes_that_would_put_wrong_types_into_v1beta1_are_refused() {
    for (kind, note) in [
        ("Sandbox", json!({"status": {"nodeName": 1}})),
        ("Sandbox", json!("text")),
        ("SandboxClaim", json!({"spec": {"volumeClaimTemplates": ["x"]}})),
        ("SandboxWarmPool", json!({"status": {"observedGeneration": -1}})),
    ] {
        let key = format!("api.agents.x-k8s.io/v1beta1-{}-state", kind.to_lowercase());
        let mut shown = alpha(kind, json!({"sandboxTemplateRef": {"name": "t"}}));
        shown["metadata"]["annotations"] = json!({key.as_str(): note.to_string()});
        let refused = convert(&mut shown, &format!("{}/v1beta1", group(kind))).unwrap_err();
        assert!(refused.to_string().contains(&key), "{refused}");
    }
}

#[test]
fn only_our_kinds_and_versions_are_converted() {
    let sandbox = beta("Sandbox", json!({}));
    let mut same = sandbox.clone();
    for to in ["agents.x-k8s.io/v2", "extensions.agents.x-k8s.io/v1alpha1", "v1", ""] {
        assert!(matches!(convert(&mut same, to), Err(Error::Unknown { .. })), "{to}");
    }
    assert!(convert(&mut json!({"apiVersion": "v1", "kind": "Pod"}), "v1").is_err());
    assert_eq!(convert(&mut same, "agents.x-k8s.io/v1beta1"), Ok(()));
    assert_eq!(same, sandbox);
}
