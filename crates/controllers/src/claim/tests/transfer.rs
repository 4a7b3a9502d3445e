//! What a Sandbox looks like after a claim took it.

use asb_types::{Claim, Sandbox, Template, key, name};
use serde_json::json;

use super::world::*;
use crate::claim::transfer::{follow, transfer};

fn taken(claim: &Claim, sandbox: &Sandbox, template: Option<&Template>) -> Sandbox {
    let patch = transfer(claim, sandbox, template).unwrap();
    assert_eq!(patch["metadata"]["resourceVersion"], json!(sandbox.metadata.resource_version), "locked");
    assert_eq!(patch["metadata"]["uid"], json!(sandbox.metadata.uid));
    edit(sandbox, patch)
}

/// CL-070, CL-014: the record on the claim and the pod-name annotation are not written any more
#[test]
fn transfer_moves_everything_from_pool_to_claim() {
    let hash = name::name_hash("web");
    let claim = claim("c", json!({"metadata": {"annotations": {key::TRACE_CONTEXT: "{}"}}}));
    let sandbox = taken(&claim, &ready(member("m", 1)), Some(&template(json!({}))));
    assert_eq!(
        json!(sandbox.metadata.labels),
        json!({key::CLAIM_UID: "uid-of-c", key::LAUNCH_TYPE: "warm", key::TEMPLATE_REF_HASH: hash})
    );
    let owners = sandbox.metadata.owner_references.clone().unwrap();
    assert_eq!(owners.len(), 1);
    assert_eq!((owners[0].kind.as_str(), owners[0].uid.as_str()), ("SandboxClaim", "uid-of-c"));
    let notes = sandbox.metadata.annotations.clone().unwrap();
    assert_eq!(json!(notes), json!({key::TEMPLATE_REF: "web", key::TRACE_CONTEXT: "{}"}));
    assert_eq!(
        sandbox.spec,
        member("m", 1).spec,
        "its generation stays, and with it the truth of its status"
    );
    assert!(sandbox.is_ready());
}

/// CL-014
#[test]
fn creator_is_the_one_of_the_claim() {
    let claim = claim("c", json!({"metadata": {"labels": {key::CREATED_BY: "python-client"}}}));
    let sandbox = taken(&claim, &member("m", 1), Some(&template(json!({}))));
    assert_eq!(sandbox.label(key::CREATED_BY), Some("python-client"));
}

/// CL-074: what others noted on a member stays
#[test]
fn other_annotations_are_kept() {
    let noted = edit(&member("m", 1), json!({"metadata": {"annotations": {"x": "y", key::POD_NAME: "old"}}}));
    let notes =
        taken(&claim("c", json!({})), &noted, Some(&template(json!({})))).metadata.annotations.unwrap();
    assert_eq!((notes["x"].as_str(), notes[key::POD_NAME].as_str()), ("y", "old"));
}

/// CL-076
#[test]
fn eviction_is_what_template_or_claim_say_and_else_forbidden() {
    let said = |value: &str| json!({key::SAFE_TO_EVICT: value});
    let saying = |value: &str| template(json!({"podTemplate": {"metadata": {"annotations": said(value)}}}));
    let wanting = adding(json!({}), said("true"));
    let plain = claim("c", json!({}));
    let note = |sandbox: Sandbox| {
        let (_, notes) = crate::sandbox::pod::reaching(sandbox.spec.pod_template.metadata.unwrap(), false);
        notes.get(key::SAFE_TO_EVICT).cloned()
    };
    let (never, always) = (saying("false"), saying("true"));
    let member = |template: &Template| member_of(template, "m", 1);
    for (claim, template, visible, wanted) in [
        (&plain, &template(json!({})), true, None),
        (&plain, &template(json!({})), false, None),
        (&plain, &never, true, Some("false")),
        (&plain, &never, false, Some("false")),
        (&plain, &always, true, Some("true")),
        (&wanting, &template(json!({})), true, Some("true")),
        (&wanting, &template(json!({})), false, Some("true")),
    ] {
        let sandbox = taken(claim, &member(template), visible.then_some(template));
        assert_eq!(note(sandbox).as_deref(), wanted, "template visible: {visible}");
    }
}

/// CL-006, CL-084, CL-092
#[test]
fn bound_sandbox_needs_nothing_after_its_transfer_and_missing_labels_are_added() {
    let claim = adding(json!({"sandbox.users.io/t": "1"}), json!({"n": "2"}));
    let web = template(json!({"podTemplate": {"metadata": {"labels": {"a": "b"}}}}));
    for visible in [Some(&web), None] {
        let sandbox = taken(&claim, &member_of(&web, "m", 1), visible);
        assert_eq!(follow(&claim, &sandbox, visible), Ok(None));
        assert_eq!(follow(&claim, &sandbox, None), Ok(None), "a template that is gone changes nothing");
    }
    let sandbox = taken(&claim, &member_of(&web, "m", 1), Some(&web));
    for (name, wanted) in [("m", "warm"), ("c", "cold")] {
        let bare = edit(&sandbox, json!({"metadata": {"name": name, "labels": {key::LAUNCH_TYPE: null}}}));
        let patch = follow(&claim, &bare, Some(&web)).unwrap().unwrap();
        let uid = json!(sandbox.metadata.uid);
        assert_eq!(patch, json!({"metadata": {"uid": uid, "labels": {key::LAUNCH_TYPE: wanted}}}));
    }
    let unhashed = edit(&sandbox, json!({"metadata": {"labels": {key::TEMPLATE_REF_HASH: null}}}));
    let patch = follow(&claim, &unhashed, Some(&web)).unwrap().unwrap();
    assert_eq!(patch["metadata"]["labels"], json!({key::TEMPLATE_REF_HASH: name::name_hash("web")}));
}

#[test]
fn bound_sandbox_follows_edits_of_claim_and_template_but_not_another_template() {
    let before = adding(json!({"sandbox.users.io/t": "1"}), json!({}));
    let web = template(json!({}));
    let sandbox = taken(&before, &member("m", 1), Some(&web));
    let after = adding(json!({"sandbox.users.io/t": "2"}), json!({}));
    let patch = follow(&after, &sandbox, Some(&web)).unwrap().unwrap();
    assert_eq!(edit(&sandbox, patch).spec.pod_template.metadata.unwrap().labels["sandbox.users.io/t"], "2");
    let labelled = template(json!({"podTemplate": {"metadata": {"labels": {"a": "b"}}}}));
    let patch = follow(&before, &sandbox, Some(&labelled)).unwrap().unwrap();
    assert_eq!(edit(&sandbox, patch).spec.pod_template.metadata.unwrap().labels["a"], "b");
    let mut other = labelled;
    other.metadata.name = Some("other".to_owned());
    assert_eq!(follow(&before, &sandbox, Some(&other)), Ok(None), "its pool turned to another template");
}
