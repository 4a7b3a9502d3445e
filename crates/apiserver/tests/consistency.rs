//! Lists and watches under concurrent writers: replaying a watch over a list always gives the next list.

mod common;
use common::*;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

#[derive(Debug, Clone)]
enum Step {
    Create(u8),
    Touch(u8, u8),
    Recolor(u8, bool),
    Delete(u8),
    /// Starts a follower, with or without the selector, as a list and a watch or as a streaming list.
    Follow {
        selected: bool,
        streaming: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..6u8;
    prop_oneof![
        3 => key.clone().prop_map(Step::Create),
        3 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Step::Touch(key, value)),
        2 => (key.clone(), any::<bool>()).prop_map(|(key, red)| Step::Recolor(key, red)),
        2 => key.prop_map(Step::Delete),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(selected, streaming)| Step::Follow { selected, streaming }),
    ]
}

type Objects = BTreeMap<String, Value>;
const SELECTOR: &str = "labelSelector=color%3Dred";
const LAST: &str = "zz-last";

async fn write(world: &World, step: &Step) {
    let path = |key: u8| format!("{MAPS}/k{key}");
    // Conflicts, misses and duplicates are part of the game.
    match step {
        Step::Create(key) => drop(world.call("POST", MAPS, config_map(&format!("k{key}"))).await),
        Step::Touch(key, value) => {
            drop(world.patch(&path(*key), MERGE, json!({ "data": { "key": value.to_string() } })).await);
        }
        Step::Recolor(key, red) => {
            let color = if *red { "red" } else { "blue" };
            drop(
                world
                    .patch(&path(*key), MERGE, json!({ "metadata": { "labels": { "color": color } } }))
                    .await,
            );
        }
        Step::Delete(key) => drop(world.delete(&path(*key), json!(null)).await),
        Step::Follow { .. } => {}
    }
}

/// Lists, then follows until the last object appears, and returns what the follower believes is there.
async fn follow(world: Arc<World>, selected: bool, streaming: bool) -> Objects {
    let selector = if selected { SELECTOR } else { "" };
    let mut objects = Objects::new();
    let mut seen = 0;
    let mut events = if streaming {
        let query =
            "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        world.watch(&format!("{MAPS}?{query}&{selector}")).await
    } else {
        let list = world.get(&format!("{MAPS}?{selector}")).await.body;
        seen = revision(&list);
        for item in list["items"].as_array().expect("items") {
            objects.insert(item["metadata"]["name"].as_str().expect("a name").to_owned(), item.clone());
        }
        if objects.contains_key(LAST) {
            return objects;
        }
        world.watch(&format!("{MAPS}?watch=true&resourceVersion={seen}&{selector}")).await
    };
    let mut initial = streaming;
    loop {
        let event = events.next().await.expect("the watch goes on");
        let (kind, object) = (event["type"].as_str().expect("a type"), event["object"].clone());
        if kind == "BOOKMARK" {
            initial = false;
            seen = seen.max(revision(&object));
            if objects.contains_key(LAST) {
                return objects;
            }
            continue;
        }
        if !initial {
            assert!(revision(&object) > seen, "an event came twice or out of order");
            seen = revision(&object);
        }
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let before = match kind {
            "DELETED" => objects.remove(&name),
            _ => objects.insert(name.clone(), object),
        };
        assert_eq!(before.is_some(), kind != "ADDED", "{kind} {name} does not fit what was told before");
        if name == LAST && !initial {
            return objects;
        }
    }
}

async fn run(scripts: Vec<Vec<Step>>) {
    let world = Arc::new(World::new().await);
    let writers: Vec<_> = scripts
        .into_iter()
        .map(|script| {
            let world = world.clone();
            tokio::spawn(async move {
                let mut followers = Vec::new();
                for step in &script {
                    write(&world, step).await;
                    if let Step::Follow { selected, streaming } = *step {
                        followers.push((selected, tokio::spawn(follow(world.clone(), selected, streaming))));
                    }
                }
                followers
            })
        })
        .collect();
    let mut followers = Vec::new();
    for writer in writers {
        followers.extend(writer.await.expect("the writer ends"));
    }
    let mut last = config_map(LAST);
    last["metadata"]["labels"] = json!({ "color": "red" });
    world.create(MAPS, last).await;
    for (selected, follower) in followers {
        let believed = follower.await.expect("the follower agrees with what it was told");
        let selector = if selected { SELECTOR } else { "" };
        let list = world.get(&format!("{MAPS}?{selector}")).await.body;
        let there: Objects = list["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|item| (item["metadata"]["name"].as_str().expect("a name").to_owned(), item.clone()))
            .collect();
        assert_eq!(believed, there);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_follower_always_ends_with_what_is_there(
        scripts in prop::collection::vec(prop::collection::vec(step(), 1..40), 2..6)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("a runtime");
        runtime.block_on(run(scripts));
    }
}
