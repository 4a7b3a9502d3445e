//! Whatever is sent, the server answers with a decision, never with a failure of its own.

mod common;
use common::*;

use proptest::prelude::*;
use serde_json::{Value, json};

/// Objects of many kinds, each with the path they are created at.
fn seeds() -> Vec<(&'static str, Value)> {
    let space = "/api/v1/namespaces/default";
    let rule = json!({ "ports": [{ "port": 80 }] });
    let mut full = pod("p");
    full["spec"]["volumes"] = json!([{ "name": "v", "emptyDir": {} }]);
    full["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80 }]);
    full["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "cpu": "1" }, "requests": { "memory": "1Gi" } });
    full["spec"]["containers"][0]["readinessProbe"] = json!({ "httpGet": { "port": 80 } });
    let claim = json!({ "metadata": { "name": "c" }, "spec": { "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": "1Gi" } } } });
    let mut object = gadget("g");
    object["metadata"] = json!({ "name": "g", "labels": { "a": "b" }, "finalizers": ["x.y/z"],
        "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u" }] });
    vec![
        (PODS, full),
        (MAPS, config_map("m")),
        (GADGETS, object),
        (CRDS, gadgets()),
        (
            "/apis/agents.x-k8s.io/v1alpha1/namespaces/default/sandboxes",
            json!({ "metadata": { "name": "s", "annotations": { "api.agents.x-k8s.io/v1beta1-sandbox-state": "{}" } },
                "spec": { "replicas": 1, "podTemplate": { "spec": { "containers": [{ "name": "main" }] } } } }),
        ),
        (
            "/apis/extensions.agents.x-k8s.io/v1alpha1/namespaces/default/sandboxclaims",
            json!({ "metadata": { "name": "c", "annotations": { "api.agents.x-k8s.io/v1beta1-sandboxclaim-state": "{}" } },
                "spec": { "warmpool": "p", "sandboxTemplateRef": { "name": "t" } } }),
        ),
        (
            "/api/v1/namespaces",
            json!({ "metadata": { "name": "n", "labels": {} }, "spec": { "finalizers": [] } }),
        ),
        (
            const_path(space, "services"),
            json!({ "metadata": { "name": "s" }, "spec": { "ports": [{ "port": 80 }] } }),
        ),
        (
            const_path(space, "secrets"),
            json!({ "metadata": { "name": "s" }, "stringData": { "a": "b" }, "data": {} }),
        ),
        (const_path(space, "persistentvolumeclaims"), claim),
        (
            const_path(space, "events"),
            json!({ "metadata": { "name": "e" }, "involvedObject": { "name": "p" }, "count": 1 }),
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
            json!({ "metadata": { "name": "n" }, "spec": { "podSelector": {}, "ingress": [rule.clone()], "egress": [rule] } }),
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses",
            json!({ "metadata": { "name": "s" }, "provisioner": "x" }),
        ),
    ]
}

fn const_path(space: &str, plural: &str) -> &'static str {
    Box::leak(format!("{space}/{plural}").into_boxed_str())
}

/// The places in an object, as JSON pointers.
fn places(value: &Value, at: String, out: &mut Vec<String>) {
    out.push(at.clone());
    match value {
        Value::Object(map) => map.iter().for_each(|(key, child)| {
            places(child, format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), out);
        }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, child)| places(child, format!("{at}/{i}"), out))
        }
        _ => {}
    }
}

fn wrong_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        Just(json!("x")),
        Just(json!("")),
        Just(json!(7)),
        Just(json!(-1.5)),
        Just(json!(true)),
        Just(json!([])),
        Just(json!({})),
        Just(json!(["x", 1])),
        Just(json!([{}])),
        Just(json!({ "a": { "b": [null] } })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn no_object_makes_the_server_fail(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), wrong_value()), 120)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let world = World::with_everything().await;
            let seeds = seeds();
            for (which, place, value) in &damage {
                let (path, seed) = which.get(&seeds);
                let mut all = Vec::new();
                places(seed, String::new(), &mut all);
                let mut object = seed.clone();
                let pointer = place.get(&all);
                *object.pointer_mut(pointer).expect("a place in the object") = value.clone();
                let name = seed["metadata"]["name"].as_str().expect("a name");
                let one = format!("{path}/{name}");
                let patch = json!([{ "op": "replace", "path": pointer, "value": value }]);
                let answers = [
                    world.call("POST", path, object.clone()).await,
                    world.call("POST", path, seed.clone()).await,
                    world.call("PUT", &one, object.clone()).await,
                    world.patch(&one, MERGE, object.clone()).await,
                    world.patch(&one, STRATEGIC, object.clone()).await,
                    world.patch(&one, JSON_PATCH, patch.clone()).await,
                    world.patch(&format!("{one}?fieldManager=m"), APPLY, object.clone()).await,
                    world.patch(&format!("{one}/status"), MERGE, object.clone()).await,
                    world.patch(&format!("{one}/scale"), MERGE, object.clone()).await,
                    world.delete(&one, object).await,
                ];
                for answer in answers {
                    assert!(answer.code < 500, "{path} {pointer} = {value}: {}", answer.body);
                }
            }
            world.server.shutdown().await;
        });
    }
}
