//! EndpointSlices and Endpoints of Services: written behind the changes of Pods, and removed with the Service.

mod common;
use common::*;
use serde_json::{Value, json};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

fn service(name: &str, spec: Value) -> Value {
    json!({ "metadata": { "name": name, "labels": { "team": "a" } }, "spec": spec })
}

fn web() -> Value {
    json!({ "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80, "targetPort": "web" }] })
}

/// A Pod of the Service `web` that has an address, and is ready or not.
async fn running(world: &World, name: &str, address: &str, ready: bool) {
    let mut pod = pod(name);
    pod["metadata"]["labels"] = json!({ "app": "web" });
    pod["spec"]["nodeName"] = "node".into();
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "web", "containerPort": 8080 }]);
    world.create(PODS, pod).await;
    set_status(world, name, address, ready).await;
}

async fn set_status(world: &World, name: &str, address: &str, ready: bool) {
    let conditions = json!([{ "type": "Ready", "status": if ready { "True" } else { "False" } }]);
    let status = json!({ "status": { "phase": "Running", "podIP": address, "conditions": conditions } });
    assert_eq!(world.patch(&format!("{PODS}/{name}/status"), MERGE, status).await.code, 200);
}

/// The slices of a Service, once they are as wanted.
async fn slices(world: &World, service: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let path = format!("{SLICES}?labelSelector=kubernetes.io/service-name={service}");
    let items = |list: &Value| list["items"].as_array().cloned().unwrap_or_default();
    world.eventually_that(&path, |list| wanted(&items(list))).await;
    items(&world.get(&path).await.body)
}

/// `name ready serving terminating` of every endpoint.
fn told(slice: &Value) -> Vec<String> {
    let of = |endpoint: &Value| {
        let (name, it) =
            (endpoint["targetRef"]["name"].as_str().unwrap_or_default(), &endpoint["conditions"]);
        format!("{name} {} {} {}", it["ready"], it["serving"], it["terminating"])
    };
    slice["endpoints"].as_array().into_iter().flatten().map(of).collect()
}

#[tokio::test]
async fn endpoints_follow_pods_and_go_with_their_service() {
    let world = World::new().await;
    let made = world.create(SERVICES, service("web", web())).await;
    running(&world, "one", "10.88.0.2", true).await;
    running(&world, "two", "10.88.0.3", false).await;
    let all = slices(&world, "web", |all| all.len() == 1 && told(&all[0]).len() == 2).await;
    let slice = &all[0];
    assert_eq!(told(slice), ["one true true false", "two false false false"]);
    assert_eq!(slice["ports"], json!([{ "name": "http", "port": 8080, "protocol": "TCP" }]));
    assert_eq!(
        (&slice["addressType"], &slice["endpoints"][0]["addresses"]),
        (&json!("IPv4"), &json!(["10.88.0.2"]))
    );
    assert_eq!(slice["endpoints"][0]["nodeName"], "node");
    let labels = json!({
        "team": "a", "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    });
    assert_eq!(slice["metadata"]["labels"], labels);
    assert!(slice["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("web-")));
    let owner = &slice["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&made["metadata"]["uid"], &json!(true)));

    let one = format!("{ENDPOINTS}/web");
    world.eventually_that(&one, |it| it["subsets"][0]["notReadyAddresses"][0]["ip"] == "10.88.0.3").await;
    let endpoints = world.get(&one).await.body;
    let subset = &endpoints["subsets"][0];
    assert_eq!(subset["addresses"][0]["targetRef"]["name"], "one");
    assert_eq!(subset["ports"], json!([{ "name": "http", "port": 8080, "protocol": "TCP" }]));
    assert_eq!(endpoints["metadata"]["labels"]["endpoints.kubernetes.io/managed-by"], "endpoint-controller");

    set_status(&world, "two", "10.88.0.3", true).await;
    let name = slice["metadata"]["name"].clone();
    let all = slices(&world, "web", |all| told(&all[0]).contains(&"two true true false".to_owned())).await;
    assert_eq!((all.len(), &all[0]["metadata"]["name"]), (1, &name), "the slice is changed, not made again");
    world.delete(&format!("{PODS}/one"), json!({ "gracePeriodSeconds": 0 })).await;
    slices(&world, "web", |all| told(&all[0]) == ["two true true false"]).await;

    world.delete(&format!("{SERVICES}/web"), Value::Null).await;
    world.eventually(&one, 404).await;
    slices(&world, "web", <[Value]>::is_empty).await;
}

#[tokio::test]
async fn headless_services_need_no_ports_and_publish_who_is_not_ready() {
    let world = World::new().await;
    let spec = json!({ "clusterIP": "None", "selector": { "app": "web" }, "publishNotReadyAddresses": true });
    world.create(SERVICES, service("web", spec)).await;
    running(&world, "one", "10.88.0.2", false).await;
    let all = slices(&world, "web", |all| all.len() == 1 && told(&all[0]).len() == 1).await;
    assert_eq!(told(&all[0]), ["one true false false"]);
    assert_eq!(
        (&all[0]["ports"], &all[0]["metadata"]["labels"]["service.kubernetes.io/headless"]),
        (&json!([]), &json!(""))
    );
    world
        .eventually_that(&format!("{ENDPOINTS}/web"), |it| {
            it["subsets"][0]["addresses"][0]["ip"] == "10.88.0.2"
        })
        .await;
    let endpoints = world.get(&format!("{ENDPOINTS}/web")).await.body;
    assert_eq!(endpoints["subsets"][0]["ports"], Value::Null);
}

#[tokio::test]
async fn what_users_wrote_is_left_alone() {
    let world = World::new().await;
    world.create(SERVICES, service("own", json!({ "ports": [{ "port": 80 }] }))).await;
    let subsets =
        json!([{ "addresses": [{ "ip": "192.0.2.1" }], "ports": [{ "port": 80, "protocol": "TCP" }] }]);
    world.create(ENDPOINTS, json!({ "metadata": { "name": "own" }, "subsets": subsets })).await;
    let slice = json!({
        "metadata": { "name": "own-1", "labels": { "kubernetes.io/service-name": "own" } },
        "addressType": "IPv4", "endpoints": [{ "addresses": ["192.0.2.1"] }], "ports": [],
    });
    let slice = world.create(SLICES, slice).await;
    // Another Service is through, and so would this one be.
    world.create(SERVICES, service("web", web())).await;
    slices(&world, "web", |all| all.len() == 1).await;
    world.delete(&format!("{SERVICES}/own"), Value::Null).await;
    world.delete(&format!("{SERVICES}/web"), Value::Null).await;
    world.eventually(&format!("{ENDPOINTS}/web"), 404).await;
    assert_eq!(world.get(&format!("{ENDPOINTS}/own")).await.body["subsets"], subsets);
    let kept = world.get(&format!("{SLICES}/own-1")).await.body;
    assert_eq!(kept["metadata"]["resourceVersion"], slice["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn what_is_removed_or_changed_is_put_right_and_nothing_is_written_twice() {
    let world = World::new().await;
    world.create(SERVICES, service("web", web())).await;
    running(&world, "one", "10.88.0.2", true).await;
    let full = |all: &[Value]| all.len() == 1 && told(&all[0]).len() == 1;
    let all = slices(&world, "web", full).await;
    let name = all[0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    world.delete(&format!("{SLICES}/{name}"), Value::Null).await;
    world.delete(&format!("{ENDPOINTS}/web"), Value::Null).await;
    slices(&world, "web", |all| full(all) && all[0]["metadata"]["name"] != *name).await;
    world.eventually(&format!("{ENDPOINTS}/web"), 200).await;

    let world = world.reopen().await;
    let before = slices(&world, "web", full).await;
    // Nothing about the Pod that a Service tells of.
    let note = json!({ "metadata": { "annotations": { "note": "1" } } });
    assert_eq!(world.patch(&format!("{PODS}/one"), MERGE, note).await.code, 200);
    world.create(SERVICES, service("later", web())).await;
    slices(&world, "later", full).await;
    let after = slices(&world, "web", full).await;
    assert_eq!(before[0]["metadata"]["resourceVersion"], after[0]["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn pods_with_other_ports_are_in_slices_of_their_own_and_share_subsets_where_they_can() {
    let world = World::new().await;
    let mut spec = web();
    let fixed = json!({ "name": "fixed", "port": 90, "targetPort": 9090 });
    spec["ports"] = json!([spec["ports"][0], fixed]);
    world.create(SERVICES, service("web", spec)).await;
    running(&world, "one", "10.88.0.2", true).await;
    let mut other = pod("two");
    other["metadata"]["labels"] = json!({ "app": "web" });
    world.create(PODS, other).await;
    set_status(&world, "two", "10.88.0.3", true).await;
    let all = slices(&world, "web", |all| all.len() == 2).await;
    let mut ports: Vec<_> = all.iter().map(|slice| slice["ports"].as_array().map_or(0, Vec::len)).collect();
    ports.sort_unstable();
    assert_eq!(ports, [1, 2]);
    world
        .eventually_that(&format!("{ENDPOINTS}/web"), |it| it["subsets"].as_array().map(Vec::len) == Some(2))
        .await;
    let endpoints = world.get(&format!("{ENDPOINTS}/web")).await.body;
    let of = |subset: &Value| {
        (subset["addresses"].as_array().map_or(0, Vec::len), subset["ports"][0]["name"].clone())
    };
    assert_eq!(of(&endpoints["subsets"][0]), (1, json!("http")));
    assert_eq!(of(&endpoints["subsets"][1]), (2, json!("fixed")));
}
