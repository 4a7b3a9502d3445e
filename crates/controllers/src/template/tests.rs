//! The planner against a template and a policy in memory: a table of cases, and what holds for all.

use asb_types::{Template, key, name};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{Action, Plan, plan};
use super::policy::same;
use crate::object::{NetworkPolicy, controller_of, owner_reference};

const ROUTER: &str = "agent-sandbox-system";
const UID: &str = "template-uid";

/// A template edited by `spec`, a merge patch of its spec.
fn template(spec: Value) -> Template {
    let hash = name::name_hash("web");
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": UID, "resourceVersion": "1",
            "labels": {key::TEMPLATE_REF_HASH: hash}},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "host"}]}}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    serde_json::from_value(object).unwrap()
}

fn policy(owner: Option<Value>, spec: Value) -> NetworkPolicy {
    let object = json!({
        "metadata": {"name": "web-network-policy", "namespace": "ns", "uid": "p", "resourceVersion": "7",
            "ownerReferences": owner.into_iter().collect::<Vec<_>>()},
        "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

fn ours() -> Option<Value> {
    Some(json!(owner_reference(&template(json!({})))))
}

fn theirs() -> Option<Value> {
    Some(json!({"apiVersion": "v1", "kind": "Other", "name": "else", "uid": "x", "controller": true}))
}

fn decide(spec: Value, found: Option<&NetworkPolicy>) -> Plan {
    plan(&template(spec), found, None, ROUTER)
}

/// The spec of the policy that a template without one gets.
fn created(spec: Value) -> Value {
    match decide(spec, None).actions.as_slice() {
        [Action::CreatePolicy(object)] => object["spec"].clone(),
        other => panic!("expected one new policy, got {other:?}"),
    }
}

/// TP-01, TP-02
#[test]
fn default_policy_lets_the_router_in_and_only_public_addresses_out() {
    let plan = decide(json!({}), None);
    let [Action::CreatePolicy(object)] = plan.actions.as_slice() else { panic!("a policy is made") };
    assert_eq!(object["metadata"]["name"], "web-network-policy");
    assert_eq!(object["metadata"]["ownerReferences"], json!([ours()]));
    assert!(object["metadata"].get("labels").is_none());
    let spec = &object["spec"];
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(spec["podSelector"], json!({"matchLabels": {key::TEMPLATE_REF_HASH: name::name_hash("web")}}));
    assert_eq!(
        spec["ingress"],
        json!([{"from": [{
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ROUTER}},
            "podSelector": {"matchLabels": {"app": "sandbox-router"}},
        }]}])
    );
    assert_eq!(
        spec["egress"],
        json!([{"to": [
            {"ipBlock": {"cidr": "0.0.0.0/0",
                "except": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"]}},
            {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]}},
        ]}])
    );
}

#[test]
fn router_may_live_in_another_namespace() {
    let plan = plan(&template(json!({})), None, None, "elsewhere");
    let [Action::CreatePolicy(object)] = plan.actions.as_slice() else { panic!("a policy is made") };
    let peer = &object["spec"]["ingress"][0]["from"][0];
    assert_eq!(peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], "elsewhere");
}

/// TP-03
#[test]
fn own_rules_are_used_as_they_are() {
    let rules = json!({
        "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 80}]}],
        "egress": [{}],
    });
    let spec = created(json!({"networkPolicy": rules}));
    assert_eq!((&spec["ingress"], &spec["egress"]), (&rules["ingress"], &rules["egress"]));
    let closed = created(json!({"networkPolicy": {}}));
    assert!(closed.get("ingress").is_none() && closed.get("egress").is_none());
    assert_eq!(closed["policyTypes"], json!(["Ingress", "Egress"]), "no rule means deny");
}

/// TP-04
#[test]
fn unmanaged_template_has_no_policy_and_removes_its_own() {
    let unmanaged = json!({"networkPolicyManagement": "Unmanaged", "networkPolicy": {"egress": [{}]}});
    assert_eq!(decide(unmanaged.clone(), None), Plan::default());
    let found = policy(ours(), json!({}));
    let plan = decide(unmanaged, Some(&found));
    let [Action::DeletePolicy(identity)] = plan.actions.as_slice() else { panic!("the policy goes") };
    assert_eq!((identity.uid.as_str(), identity.resource_version.as_str()), ("p", "7"));
}

/// TP-05
#[test]
fn outdated_policy_is_overwritten_as_a_whole() {
    let found =
        policy(ours(), json!({"podSelector": {"matchLabels": {"stray": "x"}}, "policyTypes": ["Ingress"]}));
    let plan = decide(json!({}), Some(&found));
    let [Action::ReplacePolicy(new)] = plan.actions.as_slice() else { panic!("the policy is replaced") };
    assert_eq!(json!(new.spec), created(json!({})));
    assert_eq!(new.metadata, found.metadata, "so that a newer one is a conflict");
}

/// TP-06
#[test]
fn policy_of_somebody_else_is_left_alone() {
    for (owner, whose) in [(None, "belongs to nobody"), (theirs(), "is owned by Other \"else\"")] {
        let found = policy(owner, json!({}));
        let managed = decide(json!({}), Some(&found));
        assert_eq!(managed.actions, []);
        assert_eq!(
            managed.problem.unwrap(),
            format!(
                "NetworkPolicy \"web-network-policy\" {whose}; delete it, or set spec.networkPolicyManagement to Unmanaged"
            )
        );
        assert_eq!(decide(json!({"networkPolicyManagement": "Unmanaged"}), Some(&found)), Plan::default());
    }
}

/// TP-07
#[test]
fn template_gets_its_label_once() {
    let mut unlabelled = template(json!({"networkPolicyManagement": "Unmanaged"}));
    unlabelled.metadata.labels = None;
    let patch = json!({"metadata": {"labels": {key::TEMPLATE_REF_HASH: name::name_hash("web")}}});
    assert_eq!(plan(&unlabelled, None, None, ROUTER).actions, [Action::PatchTemplate(patch)]);
    assert_eq!(decide(json!({"networkPolicyManagement": "Unmanaged"}), None), Plan::default());
}

#[test]
fn template_on_its_way_out_is_left_to_the_garbage_collector() {
    let mut template = template(json!({}));
    template.metadata.labels = None;
    template.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(plan(&template, None, None, ROUTER), Plan::default());
}

/// What the API server fills in is not a difference: a port without protocol is TCP.
#[test]
fn spelling_is_not_a_difference_but_meaning_is() {
    let equal = |a: &Value, b: &Value| same(a.as_object().unwrap(), b.as_object().unwrap());
    for (a, b) in [
        (
            json!({"ingress": [{"ports": [{"port": 80}]}]}),
            json!({"ingress": [{"ports": [{"port": 80, "protocol": "TCP"}]}]}),
        ),
        (json!({"ingress": []}), json!({})),
        (json!({"egress": [{"to": [], "ports": null}]}), json!({"egress": [{}]})),
        (json!({"podSelector": {"matchLabels": {}, "matchExpressions": []}}), json!({"podSelector": {}})),
    ] {
        assert!(equal(&a, &b), "{a} means {b}");
    }
    for (a, b) in [
        (
            json!({"ingress": [{"ports": [{"port": 80}]}]}),
            json!({"ingress": [{"ports": [{"port": 80, "protocol": "UDP"}]}]}),
        ),
        (json!({"ingress": [{}]}), json!({})),
        (json!({"egress": [{"to": [{"podSelector": {}}]}]}), json!({"egress": [{"to": [{}]}]})),
        (
            json!({"egress": [{"ports": [{"port": 80}]}]}),
            json!({"egress": [{"ports": [{"port": 80, "endPort": 90}]}]}),
        ),
    ] {
        assert!(!equal(&a, &b), "{a} is not {b}");
    }
}

fn any_spec() -> impl Strategy<Value = Value> {
    let management = prop_oneof![Just(json!(null)), Just(json!("Managed")), Just(json!("Unmanaged"))];
    let port = prop_oneof![Just(json!({"port": 80})), Just(json!({"port": 53, "protocol": "UDP"}))];
    let rule = prop_oneof![
        Just(json!({})),
        port.prop_map(|port| json!({"ports": [port]})),
        Just(json!({"ports": [], "from": []}))
    ];
    let rules = prop::option::of(prop::collection::vec(rule, 0..3));
    (management, rules).prop_map(|(management, rules)| {
        let rules = rules.map(|rules| json!({"ingress": rules}));
        json!({"networkPolicyManagement": management, "networkPolicy": rules})
    })
}

fn any_policy() -> impl Strategy<Value = Option<NetworkPolicy>> {
    let owner = prop_oneof![Just(ours()), Just(None), Just(theirs())];
    let spec = prop_oneof![Just(json!({})), Just(json!({"policyTypes": ["Egress"], "egress": [{}]}))];
    prop::option::of((owner, spec).prop_map(|(owner, spec)| policy(owner, spec)))
}

/// Weak spot 2 of the reference: templates whose names have one hash share their NetworkPolicies.
#[test]
fn refused_template_gets_no_policy_and_keeps_what_it_has() {
    let stale = policy(ours(), json!({"podSelector": {}}));
    for found in [None, Some(&stale)] {
        let plan = plan(&template(json!({})), found, Some("another was first".to_owned()), ROUTER);
        assert_eq!((plan.actions, plan.problem.as_deref()), (vec![], Some("another was first")));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    /// The plan settles after one pass, and never touches what the template does not own.
    #[test]
    fn every_template_comes_to_rest(spec in any_spec(), mut found in any_policy()) {
        let template = template(spec);
        let is_ours = |policy: &NetworkPolicy| controller_of(policy).is_some_and(|owner| owner.uid == UID);
        for action in plan(&template, found.as_ref(), None, ROUTER).actions {
            match action {
                Action::PatchTemplate(_) => prop_assert!(false, "it has its label"),
                Action::CreatePolicy(object) => {
                    prop_assert!(found.is_none());
                    found = Some(serde_json::from_value(object).unwrap());
                }
                Action::ReplacePolicy(new) => {
                    prop_assert!(found.as_ref().is_some_and(is_ours));
                    found = Some(*new);
                }
                Action::DeletePolicy(_) => {
                    prop_assert!(found.as_ref().is_some_and(is_ours));
                    found = None;
                }
            }
        }
        prop_assert!(plan(&template, found.as_ref(), None, ROUTER).actions.is_empty());
    }
}
