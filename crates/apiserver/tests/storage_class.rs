//! The default StorageClass is written on claims that name none.

mod common;
use common::*;
use serde_json::{Value, json};

const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

fn class(name: &str, is_default: &str) -> Value {
    json!({ "metadata": { "name": name, "annotations": { DEFAULT: is_default } }, "provisioner": "asb/local" })
}

fn claim(name: &str, class: Value) -> Value {
    let mut spec =
        json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } });
    if !class.is_null() {
        spec["storageClassName"] = class;
    }
    json!({ "metadata": { "name": name }, "spec": spec })
}

async fn class_of(world: &World, name: &str) -> Value {
    world.get(&format!("{CLAIMS}/{name}")).await.body["spec"]["storageClassName"].clone()
}

#[tokio::test]
async fn claims_get_the_default_class_when_they_are_made() {
    let world = World::new().await;
    world.create(CLASSES, class("other", "false")).await;
    world.create(CLASSES, class("first", "true")).await;
    assert_eq!(world.create(CLAIMS, claim("plain", Value::Null)).await["spec"]["storageClassName"], "first");
    assert_eq!(world.create(CLAIMS, claim("none", json!(""))).await["spec"]["storageClassName"], "");
    assert_eq!(
        world.create(CLAIMS, claim("named", json!("other"))).await["spec"]["storageClassName"],
        "other"
    );
}

#[tokio::test]
async fn claims_that_were_there_first_get_it_later_and_only_once() {
    let world = World::new().await;
    world.create(CLAIMS, claim("plain", Value::Null)).await;
    world.create(CLAIMS, claim("none", json!(""))).await;
    let mut bound = claim("bound", Value::Null);
    bound["spec"]["volumeName"] = "v".into();
    world.create(CLAIMS, bound).await;
    assert_eq!(class_of(&world, "plain").await, Value::Null);
    world.create(CLASSES, class("local", "false")).await;
    let mark = json!({ "metadata": { "annotations": { DEFAULT: "true" } } });
    world.patch(&format!("{CLASSES}/local"), MERGE, mark).await;
    world.eventually_that(&format!("{CLAIMS}/plain"), |it| it["spec"]["storageClassName"] == "local").await;
    world.create(CLASSES, class("another", "true")).await;
    // Two changes of classes later, the first one has been answered.
    world.create(CLAIMS, claim("later", Value::Null)).await;
    assert_eq!(class_of(&world, "plain").await, "local");
    assert_eq!(class_of(&world, "none").await, "");
    assert_eq!(class_of(&world, "bound").await, Value::Null);
}
