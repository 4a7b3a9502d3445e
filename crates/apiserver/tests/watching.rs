//! Watches: what they start with, what they tell, and when they end.

mod common;
use common::*;
use serde_json::json;

#[tokio::test]
async fn a_watch_from_a_list_tells_exactly_what_came_after() {
    let world = World::new().await;
    world.create(MAPS, config_map("before")).await;
    let list = world.get(MAPS).await.body;
    world.create(MAPS, config_map("after")).await;
    let mut events = world.watch(&format!("{MAPS}?watch=true&resourceVersion={}", revision(&list))).await;
    assert_eq!(events.line().await, "ADDED after");
    world.patch(&format!("{MAPS}/before"), MERGE, json!({ "data": { "x": "y" } })).await;
    assert_eq!(events.line().await, "MODIFIED before");
    world.delete(&format!("{MAPS}/before"), json!(null)).await;
    let gone = events.next().await.expect("an event");
    assert_eq!(gone["type"], "DELETED");
    assert!(revision(&gone["object"]) > revision(&list), "a deletion has a version of its own");
}

#[tokio::test]
async fn a_watch_without_a_version_starts_with_what_is_there() {
    let world = World::new().await;
    world.create(MAPS, config_map("a")).await;
    for query in ["watch=true", "watch=true&resourceVersion=0"] {
        let mut events = world.watch(&format!("{MAPS}?{query}")).await;
        assert_eq!(events.line().await, "ADDED a", "{query}");
    }
}

#[tokio::test]
async fn a_streaming_list_ends_with_its_bookmark() {
    let world = World::new().await;
    world.create(MAPS, config_map("a")).await;
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=";
    let mut events = world.watch(&format!("{MAPS}?{query}")).await;
    assert_eq!(events.line().await, "ADDED a");
    let end = events.next().await.expect("a bookmark");
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["kind"], "ConfigMap");
    world.create(MAPS, config_map("b")).await;
    assert_eq!(events.line().await, "ADDED b");
    let wrong = world.get(&format!("{MAPS}?watch=true&sendInitialEvents=true")).await;
    assert_eq!(wrong.code, 422);
}

#[tokio::test]
async fn an_object_that_stops_matching_is_gone_and_one_that_starts_is_new() {
    let world = World::new().await;
    let mut events = world.watch(&format!("{MAPS}?watch=true&labelSelector=color%3Dred")).await;
    world.create(MAPS, config_map("a")).await;
    let path = format!("{MAPS}/a");
    world.patch(&path, MERGE, json!({ "metadata": { "labels": { "color": "red" } } })).await;
    assert_eq!(events.line().await, "ADDED a");
    world.patch(&path, MERGE, json!({ "data": { "x": "1" } })).await;
    assert_eq!(events.line().await, "MODIFIED a");
    world.patch(&path, MERGE, json!({ "metadata": { "labels": { "color": "blue" } } })).await;
    assert_eq!(events.line().await, "DELETED a");
    world.delete(&path, json!(null)).await;
    world.create(MAPS, json!({ "metadata": { "name": "b", "labels": { "color": "red" } } })).await;
    assert_eq!(events.line().await, "ADDED b", "nothing is told about objects that do not match");
}

#[tokio::test]
async fn a_version_the_history_has_lost_is_gone() {
    let world = World::new().await;
    let old = revision(&world.create(MAPS, config_map("a")).await);
    let world = world.reopen().await;
    world.create(MAPS, config_map("b")).await;
    // A clean stop keeps the exact revision, so the version of the stop itself is still good.
    let answer = world.get(&format!("{MAPS}?watch=true&resourceVersion={}", old - 1)).await;
    assert_eq!((answer.code, answer.body["reason"].as_str()), (410, Some("Expired")));
    let ahead = world.get(&format!("{MAPS}?watch=true&resourceVersion=999999999")).await;
    assert_eq!((ahead.code, ahead.body["reason"].as_str()), (504, Some("Timeout")));
}

#[tokio::test]
async fn a_watcher_that_falls_behind_is_told_and_cut_off() {
    let world = World::new().await;
    let made = world.create(MAPS, config_map("a")).await;
    let path = format!("{MAPS}?watch=true&resourceVersion={}", revision(&made));
    let mut slow = world.watch(&path).await;
    // More than the history keeps, in bytes: each change is a quarter of a megabyte.
    for round in 0..40 {
        let big = format!("{round}{}", "x".repeat(256 << 10));
        assert_eq!(
            world.patch(&format!("{MAPS}/a"), MERGE, json!({ "data": { "big": big } })).await.code,
            200
        );
    }
    let event = slow.next().await.expect("an event");
    assert_eq!(
        (event["type"].as_str(), event["object"]["reason"].as_str()),
        (Some("ERROR"), Some("Expired"))
    );
    assert!(slow.next().await.is_none(), "the watch ends");
    assert_eq!(world.get(&path).await.code, 410);
}

#[tokio::test]
async fn a_watch_ends_at_its_timeout_with_a_bookmark() {
    let world = World::new().await;
    let mut events =
        world.watch(&format!("{MAPS}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true")).await;
    assert_eq!(events.next().await.expect("a bookmark")["type"], "BOOKMARK");
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn watches_of_a_new_kind_do_not_miss_its_first_object() {
    let world = World::new().await;
    let list = world.get(GADGETS).await.body;
    world.create(MAPS, config_map("noise")).await;
    let mut events = world.watch(&format!("{GADGETS}?watch=true&resourceVersion={}", revision(&list))).await;
    world.create(GADGETS, gadget("first")).await;
    assert_eq!(events.line().await, "ADDED first");
}

#[tokio::test]
async fn kube_watchers_follow_with_streaming_lists() {
    use futures::{StreamExt as _, TryStreamExt as _};
    use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
    use kube::runtime::{WatchStreamExt as _, watcher};
    let world = World::new().await;
    world.create(GADGETS, gadget("a")).await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Gadget"));
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let api: Api<DynamicObject> = Api::all_with(world.server.client("default"), &kind);
        let mut stream = watcher(api, config).applied_objects().boxed();
        let object = stream.try_next().await.expect("no error").expect("an object");
        assert_eq!(object.metadata.name.as_deref(), Some("a"));
    }
}
