//! Creating, reading, changing and listing objects.

mod common;
use common::*;
use serde_json::json;

#[tokio::test]
async fn a_created_object_has_identity_and_is_found_again() {
    let world = World::new().await;
    let made = world.create(GADGETS, gadget("one")).await;
    assert!(made["metadata"]["uid"].as_str().is_some_and(|uid| uid.len() == 36));
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(made["spec"]["mode"], "Running", "defaults come from the schema");
    assert_eq!(world.get(&format!("{GADGETS}/one")).await.body, made);
    let again = world.call("POST", GADGETS, gadget("one")).await;
    assert_eq!((again.code, again.body["reason"].as_str()), (409, Some("AlreadyExists")));
    assert_eq!(again.body["message"], "gadgets.example.com \"one\" already exists");
}

#[tokio::test]
async fn names_are_generated() {
    let world = World::new().await;
    let made = world.create(MAPS, json!({ "metadata": { "generateName": "job-" } })).await;
    let name = made["metadata"]["name"].as_str().expect("a name");
    assert!(name.starts_with("job-") && name.len() == 9, "{name}");
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let world = World::new().await;
    let answer = world.call("POST", &format!("{MAPS}?dryRun=All"), config_map("a")).await;
    assert_eq!(answer.code, 201);
    assert_eq!(world.get(&format!("{MAPS}/a")).await.code, 404);
    world.create(MAPS, config_map("a")).await;
    let answer = world.call("DELETE", &format!("{MAPS}/a?dryRun=All"), json!(null)).await;
    assert_eq!(answer.code, 200);
    assert_eq!(world.get(&format!("{MAPS}/a")).await.code, 200);
}

#[tokio::test]
async fn an_update_from_an_old_version_conflicts() {
    let world = World::new().await;
    let first = world.create(GADGETS, gadget("a")).await;
    let mut second = first.clone();
    second["spec"]["size"] = 2.into();
    let path = format!("{GADGETS}/a");
    let updated = world.call("PUT", &path, second.clone()).await;
    assert_eq!((updated.code, updated.body["metadata"]["generation"].as_i64()), (200, Some(2)));
    let stale = world.call("PUT", &path, first).await;
    assert_eq!((stale.code, stale.body["reason"].as_str()), (409, Some("Conflict")));
    second["metadata"].as_object_mut().expect("an object").remove("resourceVersion");
    let unlocked = world.call("PUT", &path, second).await;
    assert_eq!(unlocked.code, 422, "custom resources need a resourceVersion: {}", unlocked.body);
}

#[tokio::test]
async fn a_write_that_changes_nothing_keeps_the_version() {
    let world = World::new().await;
    let made = world.create(GADGETS, gadget("a")).await;
    let put = world.call("PUT", &format!("{GADGETS}/a"), made.clone()).await;
    assert_eq!(put.body, made);
    let patched = world.patch(&format!("{GADGETS}/a"), MERGE, json!({ "spec": { "size": 1 } })).await;
    assert_eq!(patched.body, made);
    assert_eq!(
        world.get(GADGETS).await.body["metadata"]["resourceVersion"],
        made["metadata"]["resourceVersion"]
    );
}

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    let world = World::new().await;
    let mut object = gadget("a");
    object["status"] = json!({ "phase": "lies" });
    let mut made = world.create(GADGETS, object).await;
    assert!(made["status"].is_null(), "a creator does not set the status");
    made["status"] = json!({ "phase": "Ready" });
    made["spec"]["size"] = 5.into();
    let status = world.call("PUT", &format!("{GADGETS}/a/status"), made).await.body;
    assert_eq!(
        (status["spec"]["size"].as_i64(), status["status"]["phase"].as_str()),
        (Some(1), Some("Ready"))
    );
    assert_eq!(status["metadata"]["generation"], 1, "a status write is not a new generation");
    let patched = world
        .patch(
            &format!("{GADGETS}/a"),
            MERGE,
            json!({ "spec": { "size": 7 }, "status": { "phase": "Gone" } }),
        )
        .await
        .body;
    assert_eq!(
        (patched["spec"]["size"].as_i64(), patched["status"]["phase"].as_str()),
        (Some(7), Some("Ready"))
    );
    assert_eq!(patched["metadata"]["generation"], 2);
    world.create(PODS, pod("p")).await;
    let pod = world
        .patch(&format!("{PODS}/p/status"), STRATEGIC, json!({ "status": { "phase": "Running" } }))
        .await;
    assert_eq!(pod.body["status"], json!({ "phase": "Running", "qosClass": "BestEffort" }));
}

#[tokio::test]
async fn scale_reads_and_sets_the_replicas() {
    let world = World::new().await;
    world.create(GADGETS, gadget("a")).await;
    world
        .patch(
            &format!("{GADGETS}/a/status"),
            MERGE,
            json!({ "status": { "replicas": 3, "selector": "a=b" } }),
        )
        .await;
    let path = format!("{GADGETS}/a/scale");
    let scale = world.get(&path).await.body;
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(1)));
    assert_eq!(scale["status"], json!({ "replicas": 3, "selector": "a=b" }));
    let mut wanted = scale.clone();
    wanted["spec"]["replicas"] = 4.into();
    assert_eq!(world.call("PUT", &path, wanted.clone()).await.body["spec"]["replicas"], 4);
    assert_eq!(world.call("PUT", &path, wanted).await.code, 409, "the scale carries the object's version");
    assert_eq!(
        world.patch(&path, MERGE, json!({ "spec": { "replicas": 0 } })).await.body["spec"]["replicas"],
        0
    );
    assert_eq!(world.patch(&path, MERGE, json!({ "spec": { "replicas": -1 } })).await.code, 422);
    assert_eq!(world.get(&format!("{GADGETS}/a")).await.body["spec"]["replicas"], 0);
}

#[tokio::test]
async fn lists_select_by_label_and_field() {
    let world = World::new().await;
    for (name, app, node) in [("a", "web", "n1"), ("b", "web", "n2"), ("c", "db", "n1")] {
        let mut pod = pod(name);
        pod["metadata"]["labels"] = json!({ "app": app });
        pod["spec"]["nodeName"] = node.into();
        world.create(PODS, pod).await;
    }
    for (query, want) in [
        ("labelSelector=app%3Dweb", vec!["a", "b"]),
        ("labelSelector=app%20in%20(db)", vec!["c"]),
        ("labelSelector=!app", vec![]),
        ("fieldSelector=spec.nodeName%3Dn1", vec!["a", "c"]),
        ("fieldSelector=metadata.name!%3Da,status.phase%3DPending&labelSelector=app!%3Ddb", vec!["b"]),
    ] {
        let list = world.get(&format!("/api/v1/pods?{query}")).await.body;
        let names: Vec<_> =
            list["items"].as_array().expect("items").iter().map(|p| p["metadata"]["name"].clone()).collect();
        assert_eq!(names, want, "{query}");
    }
    assert_eq!(world.get("/api/v1/pods?fieldSelector=spec.color%3Dred").await.code, 400);
}

#[tokio::test]
async fn pages_show_one_moment_even_while_objects_change() {
    let world = World::new().await;
    for name in ["a", "b", "c", "d", "e"] {
        world.create(MAPS, config_map(name)).await;
    }
    let first = world.get(&format!("{MAPS}?limit=2")).await.body;
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    world.delete(&format!("{MAPS}/d"), json!(null)).await;
    world.create(MAPS, config_map("cc")).await;
    let mut names = vec![];
    let mut page = first;
    loop {
        names.extend(page["items"].as_array().expect("items").iter().map(|m| m["metadata"]["name"].clone()));
        let Some(token) = page["metadata"]["continue"].as_str().map(str::to_owned) else { break };
        page = world.get(&format!("{MAPS}?limit=2&continue={token}")).await.body;
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"], "later pages are of the first page's moment");
    assert_eq!(world.get(&format!("{MAPS}?continue=nonsense")).await.code, 400);
}

#[tokio::test]
async fn a_missing_namespace_is_named() {
    let world = World::new().await;
    let answer = world.call("POST", "/api/v1/namespaces/nowhere/configmaps", config_map("a")).await;
    assert_eq!(
        (answer.code, answer.body["message"].as_str()),
        (404, Some("namespaces \"nowhere\" not found"))
    );
}

#[tokio::test]
async fn events_are_one_object_with_two_faces() {
    let world = World::new().await;
    let event = json!({ "metadata": { "name": "e" }, "involvedObject": { "kind": "Pod", "name": "p", "namespace": "default" },
        "reason": "Started", "message": "hello", "type": "Normal", "count": 2 });
    world.create("/api/v1/namespaces/default/events", event).await;
    let new = world.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.body;
    assert_eq!((&new["note"], &new["regarding"]["name"]), (&json!("hello"), &json!("p")));
    assert_eq!(new["apiVersion"], "events.k8s.io/v1");
    let mut second =
        json!({ "metadata": { "name": "f" }, "regarding": { "kind": "Pod", "name": "q" }, "note": "bye" });
    second["reason"] = "Stopped".into();
    world.create("/apis/events.k8s.io/v1/namespaces/default/events", second).await;
    let found = world.get("/api/v1/events?fieldSelector=involvedObject.name%3Dq").await.body;
    assert_eq!(found["items"][0]["message"], "bye");
    assert_eq!(found["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn unsupported_bodies_are_refused_by_kind_and_size() {
    let world = World::new().await;
    let unknown = b"k8s\0\x0a\x0b\x0a\x02v1\x12\x05Thing\x12\x00".to_vec();
    for (body, code, reason) in
        [(unknown, 415, "UnsupportedMediaType"), (b"k8s\0".to_vec(), 400, "BadRequest")]
    {
        let answer = world.send("POST", PODS, "application/vnd.kubernetes.protobuf", body, JSON).await;
        assert_eq!((answer.code, answer.body["reason"].as_str()), (code, Some(reason)));
    }
    let large = world.send("POST", MAPS, JSON, vec![b' '; (3 << 20) + 1], JSON).await;
    assert_eq!(large.code, 413);
    let yaml = b"metadata:\n  name: from-yaml\ndata:\n  a: b\n".to_vec();
    assert_eq!(world.send("POST", MAPS, "application/yaml", yaml, JSON).await.code, 201);
    assert_eq!(world.call("PATCH", &format!("{MAPS}/from-yaml"), json!({})).await.code, 415);
    assert_eq!(world.get("/apis/nothing.io/v1/things").await.code, 404);
    assert_eq!(world.call("PUT", MAPS, json!({})).await.code, 405);
}

#[tokio::test]
async fn tables_show_printer_columns() {
    let world = World::new().await;
    world.create(GADGETS, gadget("a")).await;
    world
        .patch(
            &format!("{GADGETS}/a/status"),
            MERGE,
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }),
        )
        .await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let answer = world.send("GET", GADGETS, JSON, vec![], table).await.body;
    assert_eq!(answer["kind"], "Table");
    assert_eq!(answer["rows"][0]["cells"][0], "a");
    assert_eq!(answer["rows"][0]["cells"][1], "True");
    assert_eq!(answer["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let answer = world.send("GET", GADGETS, JSON, vec![], partial).await.body;
    assert_eq!(answer["kind"], "PartialObjectMetadataList");
    assert!(answer["items"][0]["spec"].is_null());
}

#[tokio::test]
async fn kube_clients_work_in_process() {
    use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
    let world = World::new().await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Gadget"));
    let api: Api<DynamicObject> = Api::default_namespaced_with(world.server.client("default"), &kind);
    let object: DynamicObject = serde_json::from_value(gadget("a")).expect("a gadget");
    api.create(&PostParams::default(), &object).await.expect("created");
    assert_eq!(api.list(&ListParams::default()).await.expect("listed").items.len(), 1);
    let error = api.get("b").await.expect_err("not there");
    assert!(matches!(error, kube::Error::Api(status) if status.is_not_found()));
}
