//! What claims may put on their Pods.

use asb_types::TemplateMetadata;
use serde_json::{Value, json};

use super::world::*;
use crate::claim::metadata::{add, validate};
use crate::claim::problem::{Problem, Retry};

fn refused(labels: Value, annotations: Value) -> String {
    let problem = validate(&adding(labels, annotations), &domains()).expect_err("this is against the rules");
    assert_eq!((problem.reason(), problem.retry()), ("InvalidMetadata", Retry::OnChange));
    problem.message()
}

/// CL-030, CL-032
#[test]
fn allowed_labels_and_plain_annotations_pass() {
    for (labels, annotations) in [
        (json!({}), json!({})),
        (json!({"sandbox.users.io/team": "a"}), json!({"note": "any text, even with spaces"})),
        (json!({"deep.sandbox.users.io/team": ""}), json!({"example.com/note": "x"})),
        (json!({}), json!({"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"})),
    ] {
        assert_eq!(validate(&adding(labels, annotations), &domains()), Ok(()));
    }
    assert_eq!(validate(&claim("c", json!({})), &domains()), Ok(()));
}

/// CL-031
#[test]
fn everything_else_is_refused_by_name() {
    let long = "x".repeat(64);
    for (labels, annotations, names) in [
        (json!({"team": "a"}), json!({}), "\"team\" needs a domain prefix"),
        (json!({"sandbox.users.io/team": long}), json!({}), "sandbox.users.io/team"),
        (json!({"sandbox.users.io/team": "a b"}), json!({}), "\"a b\""),
        (json!({"sandbox.users.io/-": "a"}), json!({}), "not a qualified name"),
        (json!({"a/b/c": "a"}), json!({}), "not a qualified name"),
        (json!({"UPPER.sandbox.users.io/x": "a"}), json!({}), "not a qualified name"),
        (json!({"kubernetes.io/x": "a"}), json!({}), "\"kubernetes.io\" is not allowed"),
        (json!({"evilsandbox.users.io/x": "a"}), json!({}), "is not allowed"),
        (json!({}), json!({"agents.x-k8s.io/x": "a"}), "\"agents.x-k8s.io\" is reserved"),
        (json!({}), json!({"foo.k8s.io/x": "a"}), "reserved"),
        (json!({}), json!({"cluster-autoscaler.kubernetes.io/other": "a"}), "reserved"),
        (json!({}), json!({"not a key": "a"}), "not a qualified name"),
    ] {
        let message = refused(labels, annotations);
        assert!(message.starts_with("invalid additionalPodMetadata: "), "{message}");
        assert!(message.contains(names), "{message} names {names}");
    }
}

/// CL-033
#[test]
fn nobody_becomes_the_router() {
    for (key, value) in [("app", "sandbox-router"), ("App", "Sandbox-Router")] {
        assert!(refused(json!({key: value}), json!({})).contains("app=sandbox-router"));
    }
}

/// CL-034
#[test]
fn domains_are_a_matter_of_configuration() {
    let claim = adding(json!({"team.example.com/x": "a"}), json!({}));
    assert!(validate(&claim, &domains()).is_err());
    assert_eq!(validate(&claim, &["example.com".to_owned()]), Ok(()));
}

/// Weak spot 5 of the reference: a conflict is the user's to solve, so it is not tried again and again.
#[test]
fn what_the_template_says_may_be_repeated_but_not_changed() {
    let found = |value: &str| TemplateMetadata {
        labels: [("sandbox.users.io/team".to_owned(), value.to_owned())].into(),
        ..TemplateMetadata::default()
    };
    let claim = adding(json!({"sandbox.users.io/team": "a"}), json!({"note": "n"}));
    let mut same = found("a");
    assert_eq!(add(&claim, &mut same), Ok(()));
    assert_eq!(same.annotations["note"], "n");
    let problem = add(&claim, &mut found("b")).unwrap_err();
    assert_eq!((problem.reason(), problem.retry()), ("ReconcilerError", Retry::OnChange));
    let Problem::Mistake(text) = problem else { panic!("{problem:?}") };
    assert!(text.starts_with("metadata override conflict: label \"sandbox.users.io/team\""), "{text}");
}
