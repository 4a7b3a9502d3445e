//! `pods/ephemeralcontainers`: containers are added to a Pod that runs, and nothing else of it changes.

mod common;
use common::*;
use serde_json::{Value, json};

fn debug(name: &str) -> Value {
    json!({ "name": name, "image": "tools", "stdin": true, "targetContainerName": "main" })
}

fn message(answer: &Answer) -> String {
    answer.body["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn containers_are_added_by_every_kind_of_write() {
    let world = World::new().await;
    world.create(PODS, pod("web")).await;
    let path = format!("{PODS}/web/ephemeralcontainers");
    let patch = json!({ "metadata": { "labels": { "x": "y" } }, "spec": { "hostname": "h", "ephemeralContainers": [debug("one")] } });
    let added = world.patch(&path, STRATEGIC, patch).await;
    assert_eq!(added.code, 200, "{}", added.body);
    let spec = &added.body["spec"];
    assert_eq!(
        (&spec["hostname"], &added.body["metadata"]["labels"]),
        (&Value::Null, &Value::Null),
        "and nothing else"
    );
    let container = &spec["ephemeralContainers"][0];
    assert_eq!(
        (&container["imagePullPolicy"], &container["terminationMessagePolicy"]),
        (&json!("Always"), &json!("File"))
    );
    assert_eq!(added.body["metadata"]["generation"], 2);

    let second = json!({ "spec": { "ephemeralContainers": [debug("two")] } });
    assert_eq!(world.patch(&path, STRATEGIC, second).await.code, 200);
    let mut object = world.get(&path).await.body;
    let third = debug("three");
    object["spec"]["ephemeralContainers"].as_array_mut().expect("a list").insert(0, third);
    let replaced = world.call("PUT", &path, object).await;
    assert_eq!(replaced.code, 200, "{}", replaced.body);
    let names: Vec<_> = replaced.body["spec"]["ephemeralContainers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|it| it["name"].clone())
        .collect();
    assert_eq!(names, ["one", "two", "three"], "those that were there keep their places");
    assert_eq!(world.get(&format!("{PODS}/web")).await.body["spec"], replaced.body["spec"]);
}

#[tokio::test]
async fn what_is_no_addition_is_refused() {
    let world = World::new().await;
    world.create(PODS, pod("web")).await;
    let path = format!("{PODS}/web/ephemeralcontainers");
    let add = |container: Value| json!({ "spec": { "ephemeralContainers": [container] } });
    assert_eq!(world.patch(&path, STRATEGIC, add(debug("one"))).await.code, 200);
    let with = |field: &str, value: Value| {
        let mut container = debug("two");
        container[field] = value;
        add(container)
    };
    let probe = json!({ "exec": { "command": ["true"] } });
    for (patch, said) in [
        (
            with("ports", json!([{ "containerPort": 80 }])),
            "spec.ephemeralContainers[1].ports: Forbidden: cannot be set for an Ephemeral Container",
        ),
        (with("livenessProbe", probe), "livenessProbe: Forbidden: cannot be set"),
        (with("resources", json!({ "limits": { "cpu": "1" } })), "resources: Forbidden: cannot be set"),
        (
            with("targetContainerName", json!("gone")),
            "spec.ephemeralContainers[1].targetContainerName: Not found",
        ),
        (with("name", json!("main")), "spec.ephemeralContainers[1].name: Duplicate value"),
        (
            add(json!({ "name": "one", "image": "other" })),
            "existing ephemeral containers \"one\" may not be changed",
        ),
    ] {
        let refused = world.patch(&path, STRATEGIC, patch).await;
        assert!(refused.code == 422 && message(&refused).contains(said), "{said}: {}", refused.body);
    }
    let none = json!({ "spec": { "ephemeralContainers": null } });
    let refused = world.patch(&path, MERGE, none).await;
    assert!(
        message(&refused).contains("existing ephemeral containers \"one\" may not be removed"),
        "{}",
        refused.body
    );
    let elsewhere = world.patch(&format!("{PODS}/web"), STRATEGIC, add(debug("two"))).await;
    assert!(message(&elsewhere).contains("pod updates may not change fields"), "{}", elsewhere.body);
    let mut early = pod("early");
    early["spec"]["ephemeralContainers"] = json!([debug("one")]);
    let refused = world.call("POST", PODS, early).await;
    assert!(
        message(&refused).contains("spec.ephemeralContainers: Forbidden: cannot be set on create"),
        "{}",
        refused.body
    );
    assert_eq!(world.call("DELETE", &path, Value::Null).await.code, 405);
}
