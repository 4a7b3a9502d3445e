//! Claims and volumes that are in use stay, whoever deletes them.

mod common;
use common::*;
use serde_json::{Value, json};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const NAMESPACES: &str = "/api/v1/namespaces";

fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    })
}

fn volume(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}, "hostPath": {"path": "/none"}},
    })
}

/// A Pod that has a node and uses the claim of its name.
fn user(name: &str, claim: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = "node".into();
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    pod
}

async fn force_delete(world: &World, pod: &str) {
    world.delete(&format!("{PODS}/{pod}"), json!({"gracePeriodSeconds": 0})).await;
    world.eventually(&format!("{PODS}/{pod}"), 404).await;
}

#[tokio::test]
async fn a_claim_that_a_pod_uses_stays_until_the_last_pod_is_gone() {
    let world = World::new().await;
    let made = world.create(CLAIMS, claim("data")).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    world.create(PODS, user("one", "data")).await;
    world.create(PODS, user("two", "data")).await;
    world.create(PODS, user("other", "unrelated")).await;
    let path = format!("{CLAIMS}/data");
    let marked = world.delete(&path, json!(null)).await.body;
    assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    force_delete(&world, "one").await;
    world.patch(&path, MERGE, json!({"metadata": {"labels": {"touched": "yes"}}})).await;
    assert_eq!(world.get(&path).await.code, 200, "another Pod uses it");
    force_delete(&world, "two").await;
    world.eventually(&path, 404).await;
}

#[tokio::test]
async fn a_claim_that_no_pod_on_a_node_uses_goes_at_once() {
    let world = World::new().await;
    world.create(CLAIMS, claim("data")).await;
    let mut waiting = user("waiting", "data");
    waiting["spec"]["nodeName"] = Value::Null;
    world.create(PODS, waiting).await;
    world.delete(&format!("{CLAIMS}/data"), json!(null)).await;
    world.eventually(&format!("{CLAIMS}/data"), 404).await;
}

#[tokio::test]
async fn a_pod_that_has_ended_still_holds_its_claim() {
    let world = World::new().await;
    world.create(CLAIMS, claim("data")).await;
    world.create(PODS, user("ended", "data")).await;
    let status = json!({"status": {"phase": "Succeeded"}});
    world.patch(&format!("{PODS}/ended/status"), MERGE, status).await;
    let path = format!("{CLAIMS}/data");
    world.delete(&path, json!(null)).await;
    world.create(MAPS, config_map("later")).await;
    assert_eq!(world.get(&path).await.code, 200);
    force_delete(&world, "ended").await;
    world.eventually(&path, 404).await;
}

#[tokio::test]
async fn a_volume_that_is_bound_stays_until_it_is_released() {
    let world = World::new().await;
    let made = world.create(VOLUMES, volume("disk")).await;
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    let path = format!("{VOLUMES}/disk");
    world.patch(&format!("{path}/status"), MERGE, json!({"status": {"phase": "Bound"}})).await;
    world.delete(&path, json!(null)).await;
    assert!(world.get(&path).await.body["metadata"]["deletionTimestamp"].is_string());
    world.patch(&format!("{path}/status"), MERGE, json!({"status": {"phase": "Released"}})).await;
    world.eventually(&path, 404).await;
}

#[tokio::test]
async fn a_volume_whose_data_the_node_removes_stays_until_the_node_lets_it_go() {
    let world = World::new().await;
    let mut disk = volume("pvc-1");
    disk["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": "asb/local"});
    disk["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
    world.create(VOLUMES, disk).await;
    let path = format!("{VOLUMES}/pvc-1");
    let status = format!("{path}/status");
    world.patch(&status, MERGE, json!({"status": {"phase": "Bound"}})).await;
    world.delete(&path, json!(null)).await;
    world.patch(&status, MERGE, json!({"status": {"phase": "Released"}})).await;
    // Another volume is let go meanwhile: the collector has looked at both.
    world.create(VOLUMES, volume("other")).await;
    world.delete(&format!("{VOLUMES}/other"), json!(null)).await;
    world.eventually(&format!("{VOLUMES}/other"), 404).await;
    let kept = world.get(&path).await.body;
    assert_eq!(kept["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    world.patch(&path, MERGE, json!({"metadata": {"finalizers": null}})).await;
    world.eventually(&path, 404).await;
}

#[tokio::test]
async fn a_namespace_that_is_deleted_waits_for_the_pods_that_use_its_claims() {
    let world = World::new().await;
    world.create(NAMESPACES, json!({"metadata": {"name": "team"}})).await;
    let claims = CLAIMS.replace("/default/", "/team/");
    let pods = PODS.replace("/default/", "/team/");
    world.create(&claims, claim("data")).await;
    world.create(&pods, user("user", "data")).await;
    world.delete(&format!("{NAMESPACES}/team"), json!(null)).await;
    // The Pod has its grace period; its node ends it.
    let path = format!("{pods}/user");
    world.eventually_that(&path, |pod| pod["metadata"]["deletionTimestamp"].is_string()).await;
    assert_eq!(world.get(&format!("{claims}/data")).await.code, 200);
    world.delete(&path, json!({"gracePeriodSeconds": 0})).await;
    world.eventually(&format!("{NAMESPACES}/team"), 404).await;
}

#[tokio::test]
async fn objects_of_an_earlier_version_are_protected_at_the_next_start() {
    let world = World::new().await;
    world.create(CLAIMS, claim("data")).await;
    world.create(VOLUMES, volume("disk")).await;
    for path in [format!("{CLAIMS}/data"), format!("{VOLUMES}/disk")] {
        world.patch(&path, MERGE, json!({"metadata": {"finalizers": null}})).await;
    }
    let world = world.reopen().await;
    for path in [format!("{CLAIMS}/data"), format!("{VOLUMES}/disk")] {
        world.eventually_that(&path, |it| it["metadata"]["finalizers"][0].is_string()).await;
    }
}
