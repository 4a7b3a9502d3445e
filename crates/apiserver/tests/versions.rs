//! Our kinds in both versions: one object, seen and changed at either.

mod common;
use common::*;
use serde_json::{Value, json};

const ALPHA: &str = "/apis/agents.x-k8s.io/v1alpha1/namespaces/default/sandboxes";
const BETA: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
const CLAIMS_ALPHA: &str = "/apis/extensions.agents.x-k8s.io/v1alpha1/namespaces/default/sandboxclaims";
const CLAIMS_BETA: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxclaims";

fn sandbox(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"podTemplate": {"spec": {"containers": [{"name": "main"}]}}}})
}

fn warnings(answer: &Answer) -> Vec<&str> {
    answer.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok()).collect()
}

#[tokio::test]
async fn an_object_made_at_one_version_is_seen_at_the_other() {
    let world = World::with_our_kinds().await;
    let made = world.create(ALPHA, sandbox("a")).await;
    assert_eq!(made["apiVersion"], "agents.x-k8s.io/v1alpha1");
    assert_eq!((&made["spec"]["replicas"], &made["spec"]["operatingMode"]), (&json!(1), &Value::Null));
    let stored = world.get(&format!("{BETA}/a")).await.body;
    assert_eq!(stored["apiVersion"], "agents.x-k8s.io/v1beta1");
    assert_eq!(
        (&stored["spec"]["operatingMode"], &stored["spec"]["replicas"]),
        (&json!("Running"), &Value::Null)
    );
    assert_eq!(stored["metadata"]["uid"], made["metadata"]["uid"]);

    world.create(BETA, sandbox("b")).await;
    for (path, version) in [(ALPHA, "v1alpha1"), (BETA, "v1beta1")] {
        let list = world.get(path).await.body;
        let versions: Vec<_> =
            list["items"].as_array().unwrap().iter().map(|item| &item["apiVersion"]).collect();
        assert_eq!(versions, [&json!(format!("agents.x-k8s.io/{version}")); 2]);
        assert_eq!(list["apiVersion"], format!("agents.x-k8s.io/{version}"));
    }
}

#[tokio::test]
async fn defaults_of_the_stored_version_are_set_whatever_the_version_of_the_request() {
    let world = World::with_our_kinds().await;
    let templates =
        |version| format!("/apis/extensions.agents.x-k8s.io/{version}/namespaces/default/sandboxtemplates");
    world.create(&templates("v1alpha1"), sandbox("t")).await;
    let stored = world.get(&format!("{}/t", templates("v1beta1"))).await.body;
    assert_eq!(stored["spec"]["volumeClaimTemplatesPolicy"], "Disallowed");
}

#[tokio::test]
async fn a_watch_tells_in_its_own_version() {
    let world = World::with_our_kinds().await;
    let mut old = world.watch(&format!("{ALPHA}?watch=true")).await;
    let mut new = world.watch(&format!("{BETA}?watch=true")).await;
    world.create(BETA, sandbox("a")).await;
    assert_eq!(old.next().await.unwrap()["object"]["spec"]["replicas"], 1);
    assert_eq!(new.next().await.unwrap()["object"]["spec"]["operatingMode"], "Running");
    world.patch(&format!("{ALPHA}/a"), MERGE, json!({"spec": {"replicas": 0}})).await;
    assert_eq!(old.next().await.unwrap()["object"]["spec"]["replicas"], 0);
    assert_eq!(new.next().await.unwrap()["object"]["spec"]["operatingMode"], "Suspended");
    world.delete(&format!("{ALPHA}/a"), Value::Null).await;
    assert_eq!(old.next().await.unwrap()["object"]["apiVersion"], "agents.x-k8s.io/v1alpha1");
    assert_eq!(new.next().await.unwrap()["type"], "DELETED");
}

#[tokio::test]
async fn a_change_at_v1alpha1_keeps_what_it_cannot_show() {
    let world = World::with_our_kinds().await;
    let volumes = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    let claim = json!({"metadata": {"name": "c"}, "spec": {"warmPoolRef": {"name": "p"}, "volumeClaimTemplates": volumes}});
    world.create(CLAIMS_BETA, claim).await;
    let mut shown = world.get(&format!("{CLAIMS_ALPHA}/c")).await.body;
    shown["spec"]["lifecycle"] = json!({"shutdownPolicy": "Delete"});
    let answer = world.call("PUT", &format!("{CLAIMS_ALPHA}/c"), shown).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    let stored = world.get(&format!("{CLAIMS_BETA}/c")).await.body;
    assert_eq!(stored["spec"]["volumeClaimTemplates"], volumes);
    assert_eq!(stored["spec"]["lifecycle"]["shutdownPolicy"], "Delete");
    assert_eq!(stored["metadata"]["generation"], 2);
}

#[tokio::test]
async fn status_and_scale_work_at_v1alpha1() {
    let world = World::with_our_kinds().await;
    world.create(ALPHA, sandbox("a")).await;
    let status = json!({"status": {"nodeName": "n", "selector": "a=b"}});
    world.patch(&format!("{BETA}/a/status"), MERGE, status).await;
    let scale = world.get(&format!("{ALPHA}/a/scale")).await.body;
    assert_eq!(scale["spec"]["replicas"], 1);
    assert_eq!(scale["status"], json!({"replicas": 1, "selector": "a=b"}));
    world.patch(&format!("{ALPHA}/a/status"), MERGE, json!({"status": {"service": "s"}})).await;
    let answer = world.patch(&format!("{ALPHA}/a/scale"), MERGE, json!({"spec": {"replicas": 0}})).await;
    assert_eq!((answer.code, &answer.body["spec"]["replicas"]), (200, &json!(0)), "{}", answer.body);
    let stored = world.get(&format!("{BETA}/a")).await.body;
    assert_eq!(stored["spec"]["operatingMode"], "Suspended");
    assert_eq!(stored["status"], json!({"nodeName": "n", "selector": "a=b", "service": "s"}));
    assert_eq!(world.get(&format!("{BETA}/a/scale")).await.code, 404, "v1beta1 has no scale");
}

#[tokio::test]
async fn an_object_is_checked_by_the_schema_of_the_requests_version() {
    let world = World::with_our_kinds().await;
    let mut wrong = sandbox("a");
    wrong["spec"]["replicas"] = 2.into();
    let answer = world.call("POST", ALPHA, wrong.clone()).await;
    assert_eq!((answer.code, &answer.body["details"]["causes"][0]["field"]), (422, &json!("spec.replicas")));
    let pruned = world.create(BETA, wrong).await;
    assert!(pruned["spec"]["replicas"].is_null(), "v1beta1 does not know the field");

    let volumes = json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}]}});
    let refused = world.patch(&format!("{BETA}/a"), MERGE, volumes.clone()).await;
    assert!(refused.body["message"].as_str().unwrap().contains("volumeClaimTemplates is immutable"));
    assert_eq!(
        world.patch(&format!("{ALPHA}/a"), MERGE, volumes).await.code,
        200,
        "only v1beta1 has that rule"
    );
}

#[tokio::test]
async fn a_note_that_is_wrong_is_refused_and_a_state_that_is_wrong_is_ignored() {
    let world = World::with_our_kinds().await;
    let mut wrong = sandbox("a");
    wrong["metadata"]["annotations"] = json!({"api.agents.x-k8s.io/v1beta1-sandbox-state": "x"});
    let answer = world.call("POST", ALPHA, wrong).await;
    assert_eq!(
        (answer.code, &answer.body["details"]["causes"][0]["field"]),
        (422, &json!("metadata.annotations"))
    );
    let mut odd = sandbox("b");
    odd["metadata"]["annotations"] = json!({"api.agents.x-k8s.io/v1alpha1-sandbox-state": "x"});
    world.create(BETA, odd).await;
    assert_eq!(world.get(ALPHA).await.body["items"][0]["spec"]["replicas"], 1);
}

#[tokio::test]
async fn users_of_the_old_version_are_warned() {
    let world = World::with_our_kinds().await;
    let text = "agents.x-k8s.io/v1alpha1 Sandbox is deprecated; use agents.x-k8s.io/v1beta1 Sandbox instead";
    let warning = format!("299 - \"{text}\"");
    let made = world.call("POST", ALPHA, sandbox("a")).await;
    assert_eq!(warnings(&made), [&warning]);
    for path in [ALPHA.to_owned(), format!("{ALPHA}/a"), format!("{ALPHA}/a/scale"), format!("{ALPHA}/none")]
    {
        assert_eq!(warnings(&world.get(&path).await), [&warning], "{path}");
    }
    assert!(warnings(&world.get(BETA).await).is_empty());
}

#[tokio::test]
async fn both_versions_are_discovered_and_the_new_one_is_preferred() {
    let world = World::with_our_kinds().await;
    let group = world.get("/apis/extensions.agents.x-k8s.io").await.body;
    assert_eq!(group["preferredVersion"]["version"], "v1beta1");
    assert_eq!(group["versions"][1]["version"], "v1alpha1");
    let resources = world.get("/apis/agents.x-k8s.io/v1alpha1").await.body;
    let names: Vec<_> =
        resources["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["sandboxes", "sandboxes/status", "sandboxes/scale"]);
    let document = world.get("/openapi/v3/apis/agents.x-k8s.io/v1alpha1").await.body;
    let model = &document["components"]["schemas"]["io.x-k8s.agents.v1alpha1.Sandbox"];
    assert_eq!(model["properties"]["spec"]["properties"]["replicas"]["default"], 1);
}

#[tokio::test]
async fn a_table_has_the_columns_of_its_version() {
    let world = World::with_our_kinds().await;
    world.create(BETA, sandbox("a")).await;
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    for (path, columns) in [(BETA, vec!["Name", "Ready", "Reason", "Age"]), (ALPHA, vec!["Name", "Age"])] {
        let table = world.send("GET", path, JSON, Vec::new(), accept).await.body;
        let names: Vec<_> =
            table["columnDefinitions"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
        assert_eq!(names, columns);
    }
}

#[tokio::test]
async fn what_an_owner_of_the_old_version_owns_goes_with_it() {
    let world = World::with_our_kinds().await;
    let owner = world.create(ALPHA, sandbox("a")).await;
    world.create(MAPS, owned_by(config_map("m"), &owner, true)).await;
    world.delete(&format!("{BETA}/a"), Value::Null).await;
    world.eventually(&format!("{MAPS}/m"), 404).await;
}
