//! A copy of all objects is of one moment, and a server that begins with it has the same objects.

mod common;
use std::sync::atomic::{AtomicBool, Ordering};

use asb_apiserver::backup::{Head, Stored, restore};
use common::*;
use serde_json::json;

async fn copy(world: &World) -> (Head, Vec<Stored>) {
    let request = http::Request::get("/asb/v1/objects").body(axum::body::Body::empty()).expect("a request");
    let response = tower::ServiceExt::oneshot(world.server.router(), request).await.expect("an answer");
    let raw = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("a body");
    let mut lines = raw.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let head: Head = serde_json::from_slice(lines.next().expect("a head")).expect("a head");
    let objects: Vec<Stored> = lines.map(|line| serde_json::from_slice(line).expect("an object")).collect();
    assert_eq!(objects.len(), head.objects);
    (head, objects)
}

/// The number in the ConfigMap of this name.
fn number(objects: &[Stored], name: &str) -> u64 {
    let key = format!("configmaps/default/{name}");
    let found = objects.iter().find(|stored| stored.key == key).expect("it is there");
    found.object["data"]["number"].as_str().and_then(|text| text.parse().ok()).expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_made_while_others_write_is_of_one_moment() {
    let world = World::new().await;
    for name in ["first", "second"] {
        world.create(MAPS, json!({"metadata": {"name": name}, "data": {"number": "0"}})).await;
    }
    let done = AtomicBool::new(false);
    let writing = async {
        for number in 1.. {
            if done.load(Ordering::Relaxed) {
                return number;
            }
            for name in ["first", "second"] {
                let patch = json!({"data": {"number": number.to_string()}});
                world.patch(&format!("{MAPS}/{name}"), MERGE, patch).await;
            }
        }
        0
    };
    let copying = async {
        for _ in 0..200 {
            let (head, objects) = copy(&world).await;
            let (first, second) = (number(&objects, "first"), number(&objects, "second"));
            assert!(first == second || first == second + 1, "{first} and {second} were never there at once");
            assert!(objects.iter().all(|it| revision(&it.object) <= head.revision));
            tokio::task::yield_now().await;
        }
        done.store(true, Ordering::Relaxed);
    };
    let (written, ()) = tokio::join!(writing, copying);
    assert!(written > 1, "something was written meanwhile");
}

#[tokio::test]
async fn a_server_that_begins_with_a_copy_has_the_same_objects_and_goes_on_counting() {
    let world = World::new().await;
    let map = world.create(MAPS, config_map("kept")).await;
    let gadget = world.create(GADGETS, gadget("kept")).await;
    world.create(MAPS, config_map("gone")).await;
    world.delete(&format!("{MAPS}/gone"), json!(null)).await;
    let (head, objects) = copy(&world).await;

    let dir = tempfile::tempdir().expect("a directory");
    restore(dir.path(), head.revision, objects.into_iter()).expect("restored");
    let restored = World { server: open(dir.path()).await, dir };
    assert_eq!(restored.get(&format!("{MAPS}/kept")).await.body, map);
    assert_eq!(restored.get(&format!("{GADGETS}/kept")).await.body, gadget);
    assert_eq!(restored.get(&format!("{MAPS}/gone")).await.code, 404);
    let next = restored.create(MAPS, config_map("next")).await;
    assert!(revision(&next) > head.revision, "no revision is used twice");
    let restored = restored.reopen().await;
    assert_eq!(restored.get(&format!("{MAPS}/next")).await.body, next);
}

#[tokio::test]
async fn a_store_that_is_there_is_never_overwritten_and_nonsense_is_named() {
    let world = World::new().await;
    world.create(MAPS, config_map("kept")).await;
    let (head, objects) = copy(&world).await;
    let before = std::fs::read(world.dir.path().join("store.redb")).expect("readable").len();
    let error = restore(world.dir.path(), head.revision, objects.into_iter()).expect_err("refused");
    assert!(format!("{:?}", error).contains("exists already"), "{error:?}");
    assert_eq!(std::fs::read(world.dir.path().join("store.redb")).expect("readable").len(), before);
    for (key, object, message) in [
        ("configmaps", json!({}), "has no collection"),
        ("configmaps/default/a", json!({"metadata": {}}), "has no resourceVersion up to 5"),
        (
            "configmaps/default/a",
            json!({"metadata": {"resourceVersion": "6"}}),
            "has no resourceVersion up to 5",
        ),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let stored = Stored { key: key.to_owned(), object };
        let error = restore(dir.path(), 5, [stored].into_iter()).expect_err("refused");
        assert!(format!("{error:?}").contains(message), "{error:?}");
    }
}
