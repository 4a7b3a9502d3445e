//! Addresses of Services: given, kept, refused and given back.

mod common;
use std::collections::BTreeSet;

use common::*;
use serde_json::{Value, json};

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "selector": { "app": name }, "ports": [{ "port": 80, "targetPort": "web" }] },
    })
}

fn with(name: &str, spec: Value) -> Value {
    let mut service = service(name);
    for (field, value) in spec.as_object().expect("fields") {
        service["spec"][field] = value.clone();
    }
    service
}

async fn refusal(world: &World, object: Value) -> String {
    let answer = world.call("POST", SERVICES, object).await;
    assert_eq!((answer.code, answer.body["reason"].as_str()), (422, Some("Invalid")), "{}", answer.body);
    answer.body["message"].as_str().expect("a message").to_owned()
}

fn address(object: &Value) -> String {
    object["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_service_gets_an_address_and_keeps_it() {
    let world = World::new().await;
    let made = world.create(SERVICES, service("web")).await;
    let spec = &made["spec"];
    assert!(address(&made).starts_with("10.127."), "{made}");
    assert_eq!(spec["clusterIPs"], json!([spec["clusterIP"]]));
    assert_eq!((&spec["ipFamilies"], &spec["ipFamilyPolicy"]), (&json!(["IPv4"]), &json!("SingleStack")));
    assert_eq!((&spec["type"], &spec["internalTrafficPolicy"]), (&json!("ClusterIP"), &json!("Cluster")));
    let path = format!("{SERVICES}/web");
    let replaced = world.call("PUT", &path, with("web", json!({ "sessionAffinity": "ClientIP" }))).await;
    assert_eq!((replaced.code, address(&replaced.body)), (200, address(&made)), "{}", replaced.body);
    let world = world.reopen().await;
    assert_eq!(address(&world.get(&path).await.body), address(&made));
    let found = world.get(&format!("{SERVICES}?fieldSelector=spec.clusterIP={}", address(&made))).await;
    assert_eq!(found.body["items"][0]["metadata"]["name"], "web");
}

#[tokio::test]
async fn an_address_is_never_given_twice_and_free_again_after_its_service() {
    let world = World::new().await;
    let wanted = json!({ "clusterIP": "10.127.0.10" });
    assert_eq!(address(&world.create(SERVICES, with("a", wanted.clone())).await), "10.127.0.10");
    let taken = "Service \"b\" is invalid: spec.clusterIPs: Invalid value: [\"10.127.0.10\"]: failed to allocate IP 10.127.0.10: provided IP is already allocated";
    assert_eq!(refusal(&world, with("b", wanted.clone())).await, taken);
    let world = world.reopen().await;
    assert_eq!(refusal(&world, with("b", wanted.clone())).await, taken, "found from the objects");
    world.delete(&format!("{SERVICES}/a"), Value::Null).await;
    assert_eq!(address(&world.create(SERVICES, with("b", wanted)).await), "10.127.0.10");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn services_that_are_made_at_the_same_time_have_addresses_of_their_own() {
    let world = std::sync::Arc::new(World::new().await);
    let making = (0..200).map(|at| {
        let world = world.clone();
        tokio::spawn(async move { address(&world.create(SERVICES, service(&format!("s{at}"))).await) })
    });
    let mut addresses = BTreeSet::new();
    for made in making.collect::<Vec<_>>() {
        addresses.insert(made.await.expect("made"));
    }
    assert_eq!(addresses.len(), 200);
}

#[tokio::test]
async fn addresses_that_cannot_be_had_are_refused_as_on_a_cluster() {
    let world = World::new().await;
    let cases = [
        (
            json!({ "clusterIP": "10.0.0.9" }),
            "spec.clusterIPs: Invalid value: [\"10.0.0.9\"]: failed to allocate IP 10.0.0.9: the provided network does not match the current range",
        ),
        (
            json!({ "clusterIP": "nonsense" }),
            "spec.clusterIPs[0]: Invalid value: \"nonsense\": must be a valid IP address",
        ),
        (json!({ "clusterIP": "fd00::1" }), "IPv6 is not configured on this cluster"),
        (json!({ "clusterIPs": ["10.127.0.9"] }), "must be empty when `clusterIP` is not specified"),
        (
            json!({ "clusterIP": "10.127.0.9", "clusterIPs": ["10.127.0.8"] }),
            "first value must match `clusterIP`",
        ),
        (
            json!({ "ipFamilyPolicy": "RequireDualStack" }),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            json!({ "ipFamilies": ["IPv6"] }),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (json!({ "type": "Other" }), "spec.type: Unsupported value: \"Other\""),
        (json!({ "ports": [{ "port": 1 }, { "port": 2 }] }), "spec.ports[0].name: Required value"),
        (
            json!({ "ports": [{ "port": 1, "protocol": "ICMP" }] }),
            "spec.ports[0].protocol: Unsupported value",
        ),
        (
            json!({ "ports": [{ "port": 1, "targetPort": "NOT" }] }),
            "spec.ports[0].targetPort: Invalid value: \"NOT\": must contain only alpha-numeric",
        ),
        (
            json!({ "ports": [{ "port": 1, "name": "a" }, { "port": 1, "name": "b" }] }),
            "spec.ports[1]: Duplicate value",
        ),
        (json!({ "type": "ExternalName" }), "spec.externalName: Required value"),
    ];
    for (spec, expected) in cases {
        let message = refusal(&world, with("x", spec.clone())).await;
        assert!(message.contains(expected), "{spec}: {message}");
    }
    let preferred = world.create(SERVICES, with("x", json!({ "ipFamilyPolicy": "PreferDualStack" }))).await;
    assert_eq!(preferred["spec"]["ipFamilies"], json!(["IPv4"]));
}

#[tokio::test]
async fn an_address_does_not_change() {
    let world = World::new().await;
    world.create(SERVICES, with("a", json!({ "clusterIP": "10.127.0.10" }))).await;
    let path = format!("{SERVICES}/a");
    for change in [json!({ "clusterIP": "10.127.0.11" }), json!({ "clusterIP": "None" })] {
        let patched = world.patch(&path, MERGE, json!({ "spec": change.clone() })).await;
        let message = patched.body["message"].as_str().unwrap_or_default();
        assert_eq!(patched.code, 422, "{}", patched.body);
        assert!(
            message.contains("spec.clusterIPs[0]: Invalid value")
                && message.contains("may not change once set"),
            "{message}"
        );
        let put = world.call("PUT", &path, with("a", change)).await;
        assert_eq!(put.code, 422, "{}", put.body);
    }
    let headless = world.create(SERVICES, with("h", json!({ "clusterIP": "None" }))).await;
    assert_eq!((address(&headless).as_str(), &headless["spec"]["clusterIPs"]), ("None", &json!(["None"])));
}

#[tokio::test]
async fn a_service_that_becomes_a_name_gives_its_address_back() {
    let world = World::new().await;
    let path = format!("{SERVICES}/a");
    world.create(SERVICES, with("a", json!({ "clusterIP": "10.127.0.10" }))).await;
    let external = json!({ "spec": { "type": "ExternalName", "externalName": "example.com" } });
    let patched = world.patch(&path, MERGE, external).await;
    assert_eq!((patched.code, address(&patched.body)), (200, String::new()), "{}", patched.body);
    world.create(SERVICES, with("b", json!({ "clusterIP": "10.127.0.10" }))).await;
    let back =
        world.patch(&path, MERGE, json!({ "spec": { "type": "ClusterIP", "externalName": null } })).await;
    assert_eq!(back.code, 200, "{}", back.body);
    assert!(address(&back.body).starts_with("10.127.") && address(&back.body) != "10.127.0.10");
}

#[tokio::test]
async fn node_ports_and_load_balancers_have_an_address_and_a_warning() {
    let world = World::new().await;
    for kind in ["NodePort", "LoadBalancer"] {
        let name = kind.to_lowercase();
        let answer = world.call("POST", SERVICES, with(&name, json!({ "type": kind }))).await;
        assert!(address(&answer.body).starts_with("10.127."), "{}", answer.body);
        let warning = answer.headers["warning"].to_str().expect("text");
        assert!(warning.contains(kind) && warning.contains("opens no port of this machine"), "{warning}");
    }
}
