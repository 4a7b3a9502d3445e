//! The four kinds of patches.

mod common;
use common::*;
use serde_json::json;

#[tokio::test]
async fn json_patches_apply_and_test() {
    let world = World::new().await;
    world.create(GADGETS, gadget("a")).await;
    let path = format!("{GADGETS}/a");
    let patch = json!([{ "op": "test", "path": "/spec/size", "value": 1 }, { "op": "replace", "path": "/spec/size", "value": 2 }]);
    assert_eq!(world.patch(&path, JSON_PATCH, patch.clone()).await.body["spec"]["size"], 2);
    let failed = world.patch(&path, JSON_PATCH, patch).await;
    assert_eq!(failed.code, 422, "the test no longer holds");
}

#[tokio::test]
async fn a_resource_version_in_a_patch_is_a_lock() {
    let world = World::new().await;
    let made = world.create(GADGETS, gadget("a")).await;
    let path = format!("{GADGETS}/a");
    let patch = |size: i64| json!({ "metadata": { "resourceVersion": made["metadata"]["resourceVersion"] }, "spec": { "size": size } });
    assert_eq!(world.patch(&path, MERGE, patch(2)).await.code, 200);
    assert_eq!(world.patch(&path, MERGE, patch(3)).await.code, 409);
}

#[tokio::test]
async fn strategic_patches_merge_lists_of_built_in_kinds_only() {
    let world = World::new().await;
    world.create(PODS, pod("p")).await;
    let patch = json!({ "spec": { "containers": [{ "name": "main", "image": "app:2" }] } });
    let patched = world.patch(&format!("{PODS}/p"), STRATEGIC, patch).await.body;
    assert_eq!(patched["spec"]["containers"][0]["image"], "app:2");
    assert_eq!(patched["spec"]["containers"][0]["terminationMessagePath"], "/dev/termination-log");
    world.create(GADGETS, gadget("a")).await;
    let refused = world.patch(&format!("{GADGETS}/a"), STRATEGIC, json!({})).await;
    let message = refused.body["message"].as_str().unwrap_or_default();
    let (given, accepted) = message.split_once("accepted media types include: ").unwrap_or_default();
    assert_eq!((refused.code, given.contains(STRATEGIC)), (415, true), "{message}");
    assert!(accepted.contains(MERGE) && !accepted.contains(STRATEGIC), "{message}");
}

#[tokio::test]
async fn concurrent_patches_all_take_effect() {
    let world = World::new().await;
    world.create(MAPS, json!({ "metadata": { "name": "a" } })).await;
    let path = format!("{MAPS}/a");
    let patches = (0..32).map(|n| {
        let (world, path) = (&world, &path);
        async move { world.patch(path, MERGE, json!({ "data": { format!("k{n}"): "v" } })).await.code }
    });
    assert!(futures::future::join_all(patches).await.iter().all(|code| *code == 200));
    assert_eq!(world.get(&path).await.body["data"].as_object().map(|data| data.len()), Some(32));
}

#[tokio::test]
async fn apply_creates_merges_and_takes_back() {
    let world = World::new().await;
    let path = format!("{GADGETS}/a?fieldManager=me");
    let config = |ports: serde_json::Value, tags: serde_json::Value| {
        json!({ "apiVersion": "example.com/v1", "kind": "Gadget", "metadata": { "name": "a", "labels": { "l": "1" } },
            "spec": { "size": 1, "ports": ports, "tags": tags } })
    };
    let made = world
        .patch(
            &path,
            APPLY,
            config(json!([{ "name": "x", "port": 1 }, { "name": "y", "port": 2 }]), json!(["t"])),
        )
        .await;
    assert_eq!(made.code, 201, "{}", made.body);
    world
        .patch(
            &format!("{GADGETS}/a"),
            JSON_PATCH,
            json!([{ "op": "add", "path": "/spec/ports/-", "value": { "name": "z", "port": 3 } }]),
        )
        .await;
    let again =
        world.patch(&path, APPLY, config(json!([{ "name": "x", "port": 9 }]), json!(["u"]))).await.body;
    assert_eq!(
        again["spec"]["ports"],
        json!([{ "name": "x", "port": 9 }, { "name": "z", "port": 3 }]),
        "y was mine and is left out; z is another's"
    );
    assert_eq!(again["spec"]["tags"], json!(["u"]), "a plain list is one value");
    let managers = again["metadata"]["managedFields"].as_array().expect("managers");
    assert_eq!((managers.len(), &managers[0]["manager"]), (1, &json!("me")));
    let same =
        world.patch(&path, APPLY, config(json!([{ "name": "x", "port": 9 }]), json!(["u"]))).await.body;
    assert_eq!(revision(&same), revision(&again), "applying the same again writes nothing");
    assert_eq!(
        world.patch(&format!("{GADGETS}/a"), APPLY, gadget("a")).await.code,
        422,
        "a manager is needed"
    );
}

#[tokio::test]
async fn applying_the_same_port_again_does_not_double_it() {
    let world = World::new().await;
    let mut pod = pod("p");
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80 }]);
    world.create(PODS, pod.clone()).await;
    let applied = world.patch(&format!("{PODS}/p?fieldManager=m"), APPLY, pod).await;
    assert_eq!(applied.code, 200, "{}", applied.body);
    let ports = &applied.body["spec"]["containers"][0]["ports"];
    assert_eq!(*ports, json!([{ "containerPort": 80, "protocol": "TCP" }]));
}
