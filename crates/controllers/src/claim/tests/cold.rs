//! Sandboxes made for claims: environment, volumes, defaults.

use asb_types::{Claim, Template, key, name};
use serde_json::{Value, json};

use super::world::*;
use crate::claim::cold::sandbox;
use crate::claim::problem::{Problem, Retry};

fn made(claim: &Claim, template: &Template) -> Value {
    sandbox(claim, template).expect("the Sandbox can be made")
}

fn refused(claim: &Claim, template: &Template) -> Problem {
    sandbox(claim, template).expect_err("the claim asks for too much")
}

fn with_env(env: Value) -> Claim {
    claim("c", json!({"spec": {"env": env}}))
}

fn containers(policy: &str, containers: Value) -> Template {
    template(json!({"envVarsInjectionPolicy": policy, "podTemplate": {"spec": containers}}))
}

/// CL-001, CL-009, CL-011, CL-014
#[test]
fn sandbox_is_named_like_its_claim_and_secured() {
    let claim = claim("c", json!({"metadata": {"annotations": {key::TRACE_CONTEXT: "{}"}}}));
    let hash = name::name_hash("web");
    let object = made(&claim, &template(json!({"service": true})));
    let metadata = &object["metadata"];
    assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("c"), &json!("ns")));
    assert_eq!(metadata["annotations"], json!({key::TEMPLATE_REF: "web", key::TRACE_CONTEXT: "{}"}));
    assert_eq!(
        metadata["labels"],
        json!({key::CLAIM_UID: "uid-of-c", key::LAUNCH_TYPE: "cold", key::TEMPLATE_REF_HASH: hash})
    );
    assert_eq!(metadata["ownerReferences"][0]["uid"], "uid-of-c");
    assert_eq!(metadata["ownerReferences"][0]["controller"], true);
    let pod = &object["spec"]["podTemplate"];
    assert_eq!(pod["metadata"]["labels"], json!({key::CLAIM_UID: "uid-of-c", key::TEMPLATE_REF_HASH: hash}));
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    assert_eq!(pod["spec"]["dnsConfig"], json!({"nameservers": ["8.8.8.8", "1.1.1.1"]}));
    assert_eq!(object["spec"]["service"], true);
    assert!(object["spec"].get("shutdownTime").is_none(), "the claim's lifecycle is the claim's");
}

/// CL-002, CL-009, CL-013, CL-014, CL-030
#[test]
fn what_template_and_claim_say_is_kept() {
    let template = template(json!({
        "networkPolicy": {},
        "podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"automountServiceAccountToken": true}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"x": 1}}],
    }));
    let claim = claim(
        "c",
        json!({
            "metadata": {"labels": {key::CREATED_BY: "go-client"}},
            "spec": {"additionalPodMetadata": {"labels": {"sandbox.users.io/t": "1"}, "annotations": {"n": "2"}}},
        }),
    );
    let object = made(&claim, &template);
    let pod = &object["spec"]["podTemplate"];
    assert_eq!(pod["spec"]["automountServiceAccountToken"], true);
    assert!(pod["spec"].get("dnsPolicy").is_none());
    assert_eq!(pod["metadata"]["labels"]["a"], "b");
    assert_eq!(pod["metadata"]["labels"]["sandbox.users.io/t"], "1");
    assert_eq!(pod["metadata"]["labels"][key::CREATED_BY], "go-client");
    assert_eq!(object["metadata"]["labels"][key::CREATED_BY], "go-client");
    assert_eq!(pod["metadata"]["annotations"], json!({"n": "2"}));
    assert_eq!(
        object["spec"]["volumeClaimTemplates"],
        json!([{"metadata": {"name": "data"}, "spec": {"x": 1}}])
    );
}

/// CL-040, CL-041
#[test]
fn variables_are_added_and_under_overrides_replaced() {
    let env =
        json!([{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"key": "k"}}}]);
    let containers = |policy| containers(policy, json!({"containers": [{"name": "main", "env": env}]}));
    let env_of = |object: Value| object["spec"]["podTemplate"]["spec"]["containers"][0]["env"].clone();
    let new = with_env(json!([{"name": "C", "value": "3"}]));
    for policy in ["Allowed", "Overrides"] {
        let found = env_of(made(&new, &containers(policy)));
        assert_eq!(found.as_array().unwrap().len(), 3);
        assert_eq!(found[2], json!({"name": "C", "value": "3"}));
    }
    let known = with_env(json!([{"name": "B", "value": "2"}]));
    let replaced = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    assert_eq!(env_of(made(&known, &containers("Overrides"))), replaced);
    let problem = refused(&known, &containers("Allowed"));
    assert_eq!((problem.reason(), problem.retry()), ("ReconcilerError", Retry::OnChange));
    assert!(problem.message().contains("override not allowed: \"B\""), "{}", problem.message());
}

/// CL-042, CL-044
#[test]
fn template_decides_whether_variables_may_be_set() {
    let one = with_env(json!([{"name": "A", "value": "1"}]));
    let problem = refused(&one, &template(json!({})));
    assert_eq!((problem.reason(), problem.retry()), ("EnvVarsInjectionRejected", Retry::OnChange));
    assert!(problem.message().starts_with("environment variable injection rejected: "));

    let from = json!([{"configMapRef": {"name": "x"}}]);
    let main = json!({"containers": [{"name": "main", "envFrom": from}, {"name": "side"}],
        "initContainers": [{"name": "init", "envFrom": from}]});
    for target in ["main", "init"] {
        let claim = with_env(json!([{"name": "A", "value": "1", "containerName": target}]));
        let problem = refused(&claim, &containers("Allowed", main.clone()));
        assert_eq!(problem.reason(), "EnvVarsInjectionRejected");
        assert!(problem.message().contains(&format!("container {target:?} uses envFrom")));
        made(&claim, &containers("Overrides", main.clone()));
    }
    made(
        &with_env(json!([{"name": "A", "value": "1", "containerName": "side"}])),
        &containers("Allowed", main.clone()),
    );
    made(&with_env(json!([])), &containers("Allowed", main));
}

/// CL-045
#[test]
fn variable_goes_to_the_container_that_it_names() {
    let spec =
        json!({"containers": [{"name": "main"}, {"name": "side"}], "initContainers": [{"name": "init"}]});
    let env = json!([
        {"name": "A", "value": "1"},
        {"name": "B", "value": "2", "containerName": "side"},
        {"name": "C", "value": "3", "containerName": "init"},
        {"name": "D", "value": "4", "containerName": "main"},
    ]);
    let object = made(&with_env(env), &containers("Allowed", spec.clone()));
    let pod = &object["spec"]["podTemplate"]["spec"];
    let names = |container: &Value| -> Vec<String> {
        container["env"]
            .as_array()
            .unwrap()
            .iter()
            .map(|env| env["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&pod["containers"][0]), ["D", "A"], "those that name it come first");
    assert_eq!(names(&pod["containers"][1]), ["B"]);
    assert_eq!(names(&pod["initContainers"][0]), ["C"]);
    let nowhere = with_env(json!([{"name": "A", "value": "1", "containerName": "gone"}]));
    let problem = refused(&nowhere, &containers("Overrides", spec));
    assert_eq!((problem.reason(), problem.retry()), ("ReconcilerError", Retry::OnChange));
    assert!(problem.message().contains("target container \"gone\""), "{}", problem.message());
}

fn volume(name: &str, size: u32) -> Value {
    json!({"metadata": {"name": name}, "spec": {"size": size}})
}

fn with_volumes(claims: Value) -> Claim {
    claim("c", json!({"spec": {"volumeClaimTemplates": claims}}))
}

fn volumes(policy: &str, list: Value) -> Template {
    template(json!({"volumeClaimTemplatesPolicy": policy, "volumeClaimTemplates": list}))
}

/// CL-050
#[test]
fn volumes_of_the_claim_come_after_those_of_the_template() {
    let templates = json!([volume("a", 1), volume("b", 1)]);
    let all = made(&with_volumes(json!([volume("c", 2)])), &volumes("Allowed", templates.clone()));
    assert_eq!(all["spec"]["volumeClaimTemplates"], json!([volume("a", 1), volume("b", 1), volume("c", 2)]));
    let claim = with_volumes(json!([volume("c", 2), volume("a", 2)]));
    let all = made(&claim, &volumes("Overrides", templates));
    assert_eq!(all["spec"]["volumeClaimTemplates"], json!([volume("a", 2), volume("b", 1), volume("c", 2)]));
}

/// CL-052
#[test]
fn volumes_that_cannot_be_used_are_refused() {
    let (one, two) = (json!([volume("a", 1)]), json!([volume("a", 1), volume("a", 2)]));
    let nameless = json!([{"metadata": {}, "spec": {}}]);
    for (claimed, policy, templates) in [
        (one.clone(), "Disallowed", json!([])),
        (one.clone(), "Allowed", one.clone()),
        (two.clone(), "Overrides", json!([])),
        (nameless.clone(), "Overrides", json!([])),
        (json!([]), "Overrides", two),
        (json!([]), "Disallowed", nameless),
    ] {
        let problem = refused(&with_volumes(claimed), &volumes(policy, templates));
        assert_eq!((problem.reason(), problem.retry()), ("VolumeClaimTemplatesError", Retry::OnChange));
        assert!(problem.message().contains("volumeClaimTemplates"), "{}", problem.message());
    }
}
