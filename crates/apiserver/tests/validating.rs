//! What is refused, and in which words.

mod common;
use common::*;
use serde_json::{Value, json};

async fn refusal(world: &World, path: &str, object: Value) -> String {
    let answer = world.call("POST", path, object).await;
    assert_eq!((answer.code, answer.body["reason"].as_str()), (422, Some("Invalid")), "{}", answer.body);
    answer.body["message"].as_str().expect("a message").to_owned()
}

#[tokio::test]
async fn a_custom_resource_is_checked_against_its_schema() {
    let world = World::new().await;
    let mut object = gadget("x");
    object["spec"]["mode"] = "Foo".into();
    assert_eq!(
        refusal(&world, GADGETS, object.clone()).await,
        "Gadget.example.com \"x\" is invalid: spec.mode: Unsupported value: \"Foo\": supported values: \"Running\", \"Suspended\""
    );
    object["spec"] = json!({ "size": 0, "ports": [{ "name": "a" }, { "name": "a" }] });
    let answer = world.call("POST", GADGETS, object).await;
    let fields: Vec<_> = answer.body["details"]["causes"]
        .as_array()
        .expect("causes")
        .iter()
        .map(|c| c["field"].clone())
        .collect();
    assert_eq!(fields, ["spec.ports[1]", "spec.size"]);
    let missing = json!({ "metadata": { "name": "x" }, "spec": {} });
    assert!(refusal(&world, GADGETS, missing).await.ends_with("spec.size: Required value"));
}

#[tokio::test]
async fn cel_rules_see_the_old_object() {
    let world = World::new().await;
    world.create(GADGETS, gadget("a")).await;
    let path = format!("{GADGETS}/a");
    assert_eq!(world.patch(&path, MERGE, json!({ "spec": { "size": 3 } })).await.code, 200);
    let shrunk = world.patch(&path, MERGE, json!({ "spec": { "size": 2 } })).await;
    assert_eq!(shrunk.code, 422);
    assert!(
        shrunk.body["message"]
            .as_str()
            .is_some_and(|m| m.contains("spec.size: Invalid value") && m.contains("size may only grow"))
    );
}

#[tokio::test]
async fn unknown_fields_are_pruned_warned_about_or_refused() {
    let world = World::new().await;
    let mut object = gadget("a");
    object["spec"]["foo"] = 1.into();
    object["spec"]["free"] = json!({ "anything": true });
    let strict = world.call("POST", &format!("{GADGETS}?fieldValidation=Strict"), object.clone()).await;
    assert_eq!(strict.code, 400);
    assert_eq!(strict.body["message"], "strict decoding error: unknown field \"spec.foo\"");
    let warned = world.call("POST", &format!("{GADGETS}?fieldValidation=Warn"), object).await;
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"spec.foo\\\"\"");
    assert!(warned.body["spec"]["foo"].is_null(), "pruned");
    assert_eq!(warned.body["spec"]["free"]["anything"], true, "kept where the schema says so");
    let twice = br#"{"metadata":{"name":"b"},"data":{"a":"1","a":"2"}}"#.to_vec();
    let answer = world.send("POST", &format!("{MAPS}?fieldValidation=Strict"), JSON, twice, JSON).await;
    assert_eq!(answer.body["message"], "strict decoding error: duplicate field \"data.a\"");
}

#[tokio::test]
async fn pods_are_checked_and_completed() {
    let world = World::new().await;
    let made = world.create(PODS, pod("p")).await;
    assert_eq!(made["spec"]["restartPolicy"], "Always");
    assert_eq!(made["status"], json!({ "phase": "Pending", "qosClass": "BestEffort" }));
    let message =
        refusal(&world, PODS, json!({ "metadata": { "name": "q" }, "spec": { "containers": [] } })).await;
    assert_eq!(message, "Pod \"q\" is invalid: spec.containers: Required value");
    let mut wrong = pod("q");
    wrong["spec"]["containers"][0]["ports"] = json!([{ "containerPort": "http" }]);
    let refused = world.call("POST", PODS, wrong).await;
    let message = refused.body["message"].as_str().unwrap_or_default();
    assert!(
        refused.code == 400
            && message.contains("spec.containers[0].ports[0].containerPort must be an integer"),
        "{message}"
    );
    let changed = world.patch(&format!("{PODS}/p"), MERGE, json!({ "spec": { "hostname": "other" } })).await;
    assert_eq!(changed.code, 422, "{}", changed.body);
}

#[tokio::test]
async fn names_follow_the_rule_of_their_kind() {
    let world = World::new().await;
    let message = refusal(&world, MAPS, config_map("Not_A_Name")).await;
    assert!(
        message.contains("metadata.name: Invalid value: \"Not_A_Name\": a lowercase RFC 1123 subdomain"),
        "{message}"
    );
    let services = "/api/v1/namespaces/default/services";
    let service = json!({ "metadata": { "name": "a.b" }, "spec": { "clusterIP": "None" } });
    assert!(refusal(&world, services, service).await.contains("a lowercase RFC 1123 label"));
    let digit = json!({ "metadata": { "name": "1st" }, "spec": { "clusterIP": "None" } });
    world.create(services, digit).await;
    let mut sandboxes = gadgets();
    sandboxes["metadata"]["name"] = "sandboxes.agents.x-k8s.io".into();
    sandboxes["spec"]["group"] = "agents.x-k8s.io".into();
    sandboxes["spec"]["names"] = json!({ "plural": "sandboxes", "kind": "Sandbox" });
    world.create(CRDS, sandboxes).await;
    let mut sandbox = gadget(&"a".repeat(64));
    sandbox["apiVersion"] = "agents.x-k8s.io/v1".into();
    sandbox["kind"] = "Sandbox".into();
    let message = refusal(&world, "/apis/agents.x-k8s.io/v1/namespaces/default/sandboxes", sandbox).await;
    assert!(message.contains("metadata.name") && message.contains("no more than 63 characters"), "{message}");
}

#[tokio::test]
async fn a_stricter_schema_does_not_lock_old_objects() {
    let world = World::new().await;
    world.create(GADGETS, gadget("a")).await;
    let narrow = json!([{ "op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/minimum", "value": 10 }]);
    let patched = world.patch(&format!("{CRDS}/gadgets.example.com"), JSON_PATCH, narrow).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    assert!(
        refusal(&world, GADGETS, gadget("b")).await.contains("greater than or equal to 10"),
        "the new schema is in force"
    );
    let labelled =
        world.patch(&format!("{GADGETS}/a"), MERGE, json!({ "metadata": { "labels": { "x": "y" } } })).await;
    assert_eq!(labelled.code, 200, "{}", labelled.body);
}

const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";

fn policy(spec: Value) -> Value {
    json!({ "metadata": { "name": "n" }, "spec": spec })
}

#[tokio::test]
async fn a_policy_with_a_typo_is_refused() {
    let world = World::new().await;
    let block =
        |cidr: &str| json!({ "podSelector": {}, "egress": [{ "to": [{ "ipBlock": { "cidr": cidr } }] }] });
    assert_eq!(
        refusal(&world, POLICIES, policy(block("1.2.3.4/99"))).await,
        "NetworkPolicy.networking.k8s.io \"n\" is invalid: spec.egress[0].to[0].ipBlock.cidr: Invalid value: \"1.2.3.4/99\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
    );
    let types = json!({ "podSelector": {}, "policyTypes": ["egress"] });
    assert!(
        refusal(&world, POLICIES, policy(types)).await.contains("supported values: \"Ingress\", \"Egress\"")
    );
    let typo = json!({ "podSelecter": { "matchLabels": { "app": "x" } } });
    let strict = world.call("POST", &format!("{POLICIES}?fieldValidation=Strict"), policy(typo)).await;
    assert_eq!(strict.body["message"], "strict decoding error: unknown field \"spec.podSelecter\"");
    let made = world.create(POLICIES, policy(json!({ "ingress": [{ "ports": [{ "port": 80 }] }] }))).await;
    assert_eq!(made["spec"]["podSelector"], json!({}), "every Pod of the namespace, as in Kubernetes");
    assert_eq!(made["spec"]["policyTypes"], json!(["Ingress"]));
    assert_eq!(made["spec"]["ingress"][0]["ports"][0]["protocol"], "TCP");
}

#[tokio::test]
async fn a_pod_is_refused_with_all_that_is_wrong_with_it() {
    let world = World::new().await;
    let mut wrong = pod("p");
    wrong["spec"]["restartPolicy"] = "always".into();
    wrong["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "cpu": "1" }, "requests": { "cpu": 2 } });
    let answer = world.call("POST", PODS, wrong).await;
    let causes = answer.body["details"]["causes"].as_array().expect("causes").clone();
    let shown: Vec<_> = causes
        .iter()
        .map(|c| (c["reason"].as_str().expect("a reason"), c["field"].as_str().expect("a field")))
        .collect();
    assert_eq!(
        shown,
        [
            ("FieldValueInvalid", "spec.containers[0].resources.requests"),
            ("FieldValueNotSupported", "spec.restartPolicy")
        ]
    );
    let message = answer.body["message"].as_str().expect("a message");
    assert!(
        message.contains("Invalid value: \"2\": must be less than or equal to cpu limit of 1"),
        "{message}"
    );
}

#[tokio::test]
async fn secrets_and_config_maps_have_a_largest_size() {
    let world = World::new().await;
    let large = "x".repeat(1 << 20);
    let mut map = config_map("m");
    map["data"]["key"] = large.clone().into();
    world.create(MAPS, map.clone()).await;
    map["metadata"]["name"] = "n".into();
    map["data"]["more"] = "x".into();
    assert_eq!(
        refusal(&world, MAPS, map).await,
        "ConfigMap \"n\" is invalid: []: Too long: may not be more than 1048576 bytes"
    );
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "a": large, "b": "x" } });
    let path = "/api/v1/namespaces/default/secrets";
    assert_eq!(
        refusal(&world, path, secret).await,
        "Secret \"s\" is invalid: data: Too long: may not be more than 1048576 bytes"
    );
}

#[tokio::test]
async fn definitions_must_be_structural_with_rules_that_compile() {
    let world = World::new().await;
    let other = |schema: Value| {
        let mut crd = gadgets();
        crd["metadata"]["name"] = "others.example.com".into();
        crd["spec"]["names"] = json!({ "plural": "others", "kind": "Other" });
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema;
        crd
    };
    let at = "CustomResourceDefinition.apiextensions.k8s.io \"others.example.com\" is invalid: spec.validation.openAPIV3Schema";
    let untyped = json!({ "type": "object", "properties": { "spec": {} } });
    assert_eq!(
        refusal(&world, CRDS, other(untyped)).await,
        format!("{at}.properties[spec].type: Required value: must not be empty for specified object fields")
    );
    let broken = json!({ "type": "object", "properties": { "spec": { "type": "object", "x-kubernetes-validations": [{ "rule": "self.a >" }] } } });
    let message = refusal(&world, CRDS, other(broken)).await;
    assert!(
        message
            .starts_with(&format!("{at}.properties[spec].x-kubernetes-validations[0].rule: Invalid value")),
        "{message}"
    );
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    world.create(CRDS, other(open)).await;
}
