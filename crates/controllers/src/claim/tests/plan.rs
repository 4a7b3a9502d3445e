//! Which step a claim takes in which world.

use std::sync::Arc;
use std::time::Duration;

use asb_types::{Claim, key};
use serde_json::json;

use super::world::*;
use crate::claim::candidates::is_adoptable;
use crate::claim::plan::{Seen, Step, cold, is_acceptable, patience, plan, surplus};
use crate::claim::problem::{Problem, Retry};

fn step(claim: &Claim, seen: &Seen) -> Result<Step, Problem> {
    plan(claim, seen, &domains())
}

fn is_create(step: Result<Step, Problem>) -> bool {
    matches!(step, Ok(Step::Create(_)))
}

#[test]
fn new_claim_asks_its_pool_first() {
    let claim = claim("c", json!({}));
    assert_eq!(step(&claim, &seen(&claim, &[ready(member("m", 1))])), Ok(Step::Adopt));
    assert!(cold(&claim, &seen(&claim, &[])).is_ok());
}

/// CL-043, CL-050, CL-051
#[test]
fn env_and_volumes_need_a_sandbox_of_their_own() {
    for spec in [
        json!({"env": [{"name": "A", "value": "1"}]}),
        json!({"volumeClaimTemplates": [{"metadata": {"name": "a"}, "spec": {}}]}),
    ] {
        let claim = claim("c", json!({"spec": spec}));
        let mut seen = seen(&claim, &[ready(member("m", 1))]);
        let open = json!({"envVarsInjectionPolicy": "Allowed", "volumeClaimTemplatesPolicy": "Allowed"});
        seen.template = Some(Arc::new(template(open)));
        assert!(is_create(step(&claim, &seen)));
    }
    let empty = claim("c", json!({"spec": {"env": [], "volumeClaimTemplates": []}}));
    assert_eq!(step(&empty, &seen(&empty, &[])), Ok(Step::Adopt));
}

/// CL-003, CL-004
#[test]
fn what_is_missing_is_named() {
    let claim = claim("c", json!({}));
    let mut without = seen(&claim, &[]);
    without.template = None;
    let problem = cold(&claim, &without).unwrap_err();
    assert_eq!(problem.reason(), "TemplateNotFound");
    assert_eq!(problem.message(), "SandboxTemplate \"web\" not found");
    assert_eq!(problem.retry(), Retry::After(Duration::from_secs(60)));
    without.pool = None;
    let problem = step(&claim, &without).unwrap_err();
    assert_eq!(
        (problem.reason(), problem.message().as_str()),
        ("WarmPoolNotFound", "SandboxWarmPool \"pool\" not found")
    );
    assert_eq!(cold(&claim, &without).unwrap_err(), problem);
}

#[test]
fn claim_of_v1alpha1_without_a_pool_gets_a_sandbox_from_its_template() {
    let noted = |template: &str| {
        let note = json!({"spec": {"sandboxTemplateRef": {"name": template}}}).to_string();
        let annotations = json!({"api.agents.x-k8s.io/v1alpha1-sandboxclaim-state": note});
        let pool = json!({"warmPoolRef": {"name": "shadow-pool-web"}});
        claim("c", json!({"metadata": {"annotations": annotations}, "spec": pool}))
    };
    let mut without = seen(&noted("web"), &[]);
    without.pool = None;
    assert!(is_create(step(&noted("web"), &without)));
    assert_eq!(
        step(&noted("other"), &without).unwrap_err().reason(),
        "WarmPoolNotFound",
        "the note is of another"
    );
    without.template = None;
    let problem = step(&noted("web"), &without).unwrap_err();
    assert_eq!(problem.message(), "SandboxTemplate \"web\" not found");
}

/// CL-005
#[test]
fn stranger_under_the_claims_name_is_named() {
    let claim = claim("c", json!({}));
    let stranger = owned_by(member("c", 1), "apps/v1", "Other", "x");
    for (sandbox, whose) in [
        (stranger.clone(), "controlled by Other \"x\""),
        (edit(&stranger, json!({"metadata": {"ownerReferences": null}})), "controlled by nobody"),
    ] {
        let problem = step(&claim, &seen(&claim, &[sandbox])).unwrap_err();
        assert_eq!((problem.reason(), problem.retry()), ("ReconcilerError", Retry::OnChange));
        let message = problem.message();
        assert!(message.starts_with("Error seen: Sandbox \"c\"") && message.contains("SandboxClaim \"c\""));
        assert!(message.contains(whose), "{message}");
    }
}

/// CL-031: and nothing else happens
#[test]
fn bad_metadata_stops_everything() {
    let claim = adding(json!({"team": "a"}), json!({}));
    let bound = taken_by(member("m", 1), &claim);
    for sandboxes in [vec![], vec![bound]] {
        assert!(matches!(step(&claim, &seen(&claim, &sandboxes)), Err(Problem::InvalidMetadata(_))));
    }
}

/// CL-006, CL-007, CL-084, CL-100
#[test]
fn sandbox_of_the_claim_is_used_and_no_other() {
    let claim = claim("c", json!({}));
    let bound = taken_by(ready(member("m", 1)), &claim);
    let mut seen = seen(&claim, &[bound.clone(), ready(member("spare", 0))]);
    assert_eq!(step(&claim, &seen), Ok(Step::Rest(Arc::new(bound.clone()))));
    (seen.pool, seen.template) = (None, None);
    assert_eq!(step(&claim, &seen), Ok(Step::Rest(Arc::new(bound))), "whatever became of pool and template");
}

/// CL-083, CL-070: a record of the reference is completed, even before the member has an address
#[test]
fn record_of_another_controller_is_completed() {
    for record in [recorded("m"), json!({"metadata": {"labels": {key::SANDBOX_NAME: "m"}}})] {
        let claim = claim("c", record);
        let member = member("m", 1);
        assert_eq!(
            step(&claim, &seen(&claim, std::slice::from_ref(&member))),
            Ok(Step::Complete(Arc::new(member)))
        );
    }
}

/// CL-088, CL-089, CL-106
#[test]
fn record_that_leads_nowhere_is_dropped() {
    let claim = claim("c", recorded("m"));
    let other_pool =
        owned_by(member("m", 1), "extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool", "other");
    let other_claim =
        owned_by(member("m", 1), "extensions.agents.x-k8s.io/v1alpha1", "SandboxClaim", "other");
    for sandboxes in [vec![], vec![other_pool], vec![other_claim], vec![leaving(member("m", 1))]] {
        let Ok(Step::DropRecord(patch)) = step(&claim, &seen(&claim, &sandboxes)) else { panic!("it goes") };
        let after: Claim = edit(&claim, patch);
        assert_eq!(step(&after, &seen(&after, &[])), Ok(Step::Adopt));
    }
    let foreign = owned_by(member("m", 1), "apps/v1", "Other", "x");
    assert_eq!(step(&claim, &seen(&claim, &[foreign])), Ok(Step::Adopt), "kept, but of no use");
}

/// CL-071, CL-077, CL-090
#[test]
fn only_members_of_pools_can_be_taken() {
    let m = || member("m", 1);
    assert!(is_adoptable(&m()));
    for version in ["v1beta1", "v1alpha1"] {
        let api = format!("extensions.agents.x-k8s.io/{version}");
        assert!(is_adoptable(&owned_by(m(), &api, "SandboxWarmPool", "p")));
        assert!(!is_adoptable(&owned_by(m(), &api, "SandboxClaim", "p")));
    }
    assert!(!is_adoptable(&owned_by(m(), "agents.x-k8s.io/v1beta1", "SandboxWarmPool", "p")));
    assert!(!is_adoptable(&leaving(m())));
    assert!(!is_adoptable(&edit(&m(), json!({"metadata": {"ownerReferences": null}}))));
    for label in [key::WARM_POOL_SANDBOX, key::TEMPLATE_REF_HASH] {
        assert!(!is_adoptable(&edit(&m(), json!({"metadata": {"labels": {label: null}}}))));
    }
}

/// CL-078, CL-079
#[test]
fn stale_members_are_taken_unless_the_pool_replaces_them() {
    let claim = claim("c", json!({}));
    let new = template(json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "v2"}]}}}));
    let fresh = member_of(&new, "fresh", 1);
    let unhashed = edit(&fresh, json!({"metadata": {"labels": {key::TEMPLATE_HASH: null}}}));
    for (strategy, has_template, wanted) in [
        (json!(null), true, [true, true, true]),
        (json!({"type": "OnReplenish"}), true, [true, true, true]),
        (json!({"type": "OnReplenish"}), false, [true, true, true]),
        (json!({"type": "Recreate"}), true, [false, true, true]),
        (json!({"type": "Recreate"}), false, [false, false, false]),
    ] {
        let mut seen = seen(&claim, &[]);
        seen.pool = Some(Arc::new(pool(json!({"updateStrategy": strategy}))));
        seen.template = has_template.then(|| Arc::new(new.clone()));
        let found = [&member("stale", 1), &fresh, &unhashed].map(|member| is_acceptable(&seen)(member));
        assert_eq!(found, wanted, "{strategy} with template: {has_template}");
    }
}

#[test]
fn member_of_an_earlier_pool_of_that_name_is_not_taken() {
    let claim = claim("c", json!({}));
    let old = owned_by(member("m", 1), "extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool", "pool");
    assert!(!is_acceptable(&seen(&claim, &[]))(&old));
}

/// Two controllers may each have taken a Sandbox for one claim: the status decides, and only then one goes.
#[test]
fn second_sandbox_of_a_claim_goes_once_the_status_names_the_first() {
    let fresh = claim("c", json!({}));
    let settled = claim("c", json!({"status": {"sandbox": {"name": "b"}}}));
    let both = [taken_by(member("a", 1), &fresh), taken_by(member("b", 2), &fresh)];
    assert_eq!(surplus(&fresh, &seen(&fresh, &both)), []);
    assert!(
        matches!(step(&fresh, &seen(&fresh, &both)), Ok(Step::Rest(kept)) if kept.metadata.name.as_deref() == Some("a"))
    );
    let gone = surplus(&settled, &seen(&settled, &both));
    assert_eq!(gone.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["a"]);
    assert!(
        matches!(step(&settled, &seen(&settled, &both)), Ok(Step::Rest(kept)) if kept.metadata.name.as_deref() == Some("b"))
    );
    let dying = [both[0].clone(), leaving(both[1].clone())];
    assert_eq!(surplus(&settled, &seen(&settled, &dying)), [], "the last one is never given back");
}

/// CL-081: counted from the last change of Ready, else from creation
#[test]
fn patience_ends_with_the_grace() {
    let grace = Duration::from_secs(2);
    let new = claim("c", json!({}));
    assert_eq!(patience(&new, grace, at(100)), Some(grace));
    assert_eq!(patience(&new, grace, at(99)), Some(grace), "another clock");
    assert_eq!(patience(&new, grace, at(102)), None);
    let lost = json!({"type": "Ready", "status": "False", "reason": "X", "message": "",
        "lastTransitionTime": at(500).to_string()});
    let old = claim("c", json!({"status": {"conditions": [lost]}}));
    assert_eq!(patience(&old, grace, at(501)), Some(Duration::from_secs(1)));
    let timeless = claim("c", json!({"metadata": {"creationTimestamp": null}}));
    assert_eq!(patience(&timeless, grace, at(100)), None);
}
