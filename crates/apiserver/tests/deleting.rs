//! Finalizers, grace periods, owners, namespaces and definitions.

mod common;
use common::*;
use serde_json::json;

#[tokio::test]
async fn a_finalizer_holds_an_object_until_it_is_removed() {
    let world = World::new().await;
    let mut object = gadget("a");
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.create(GADGETS, object).await;
    let path = format!("{GADGETS}/a");
    let deleted = world.delete(&path, json!(null)).await.body;
    assert!(deleted["metadata"]["deletionTimestamp"].is_string());
    let added = world
        .patch(
            &path,
            MERGE,
            json!({ "metadata": { "finalizers": ["example.com/hold", "example.com/more"] } }),
        )
        .await;
    assert_eq!(added.code, 422, "no new finalizers on a dying object");
    world.patch(&path, MERGE, json!({ "metadata": { "finalizers": null } })).await;
    assert_eq!(world.get(&path).await.code, 404);
}

#[tokio::test]
async fn a_bound_pod_is_given_time_and_an_unbound_one_is_not() {
    let world = World::new().await;
    world.create(PODS, pod("unbound")).await;
    assert_eq!(world.delete(&format!("{PODS}/unbound"), json!(null)).await.body["kind"], "Pod");
    assert_eq!(world.get(&format!("{PODS}/unbound")).await.code, 404);
    let mut bound = pod("bound");
    bound["spec"]["nodeName"] = "node".into();
    world.create(PODS, bound).await;
    let path = format!("{PODS}/bound");
    let marked = world.delete(&path, json!(null)).await.body;
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter = world.delete(&path, json!({ "gracePeriodSeconds": 5 })).await.body;
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    world.patch(&format!("{path}/status"), MERGE, json!({ "status": { "phase": "Running" } })).await;
    assert_eq!(world.get(&path).await.code, 200, "a status write does not end it");
    world.delete(&path, json!({ "gracePeriodSeconds": 0 })).await;
    assert_eq!(world.get(&path).await.code, 404);
}

#[tokio::test]
async fn a_huge_grace_period_does_not_stop_the_garbage_collector() {
    let world = World::new().await;
    let owner = world.create(GADGETS, gadget("owner")).await;
    let mut patient = owned_by(pod("patient"), &owner, false);
    patient["spec"]["nodeName"] = "node".into();
    patient["spec"]["terminationGracePeriodSeconds"] = i64::MAX.into();
    world.create(PODS, patient).await;
    world.delete(&format!("{GADGETS}/owner"), json!(null)).await;
    let path = format!("{PODS}/patient");
    world.eventually_that(&path, |pod| pod["metadata"]["deletionTimestamp"].is_string()).await;
    let other = world.create(GADGETS, gadget("other")).await;
    world.create(MAPS, owned_by(config_map("dependent"), &other, false)).await;
    world.delete(&format!("{GADGETS}/other"), json!(null)).await;
    world.eventually(&format!("{MAPS}/dependent"), 404).await;
}

#[tokio::test]
async fn preconditions_guard_a_deletion() {
    let world = World::new().await;
    let made = world.create(MAPS, config_map("a")).await;
    let path = format!("{MAPS}/a");
    let wrong = world.delete(&path, json!({ "preconditions": { "uid": "other" } })).await;
    assert_eq!((wrong.code, wrong.body["reason"].as_str()), (409, Some("Conflict")));
    let stale = world.delete(&path, json!({ "preconditions": { "resourceVersion": "1" } })).await;
    assert_eq!(stale.code, 409);
    let right = json!({ "preconditions": { "uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"] } });
    assert_eq!(world.delete(&path, right).await.code, 200);
}

#[tokio::test]
async fn dependents_follow_their_owner() {
    let world = World::new().await;
    let owner = world.create(GADGETS, gadget("owner")).await;
    let middle = world.create(MAPS, owned_by(config_map("middle"), &owner, false)).await;
    let mut middle_ref = middle.clone();
    middle_ref["apiVersion"] = "v1".into();
    middle_ref["kind"] = "ConfigMap".into();
    world.create(PODS, owned_by(pod("leaf"), &middle_ref, false)).await;
    world.create(MAPS, config_map("unrelated")).await;
    world.delete(&format!("{GADGETS}/owner"), json!(null)).await;
    world.eventually(&format!("{MAPS}/middle"), 404).await;
    world.eventually(&format!("{PODS}/leaf"), 404).await;
    assert_eq!(world.get(&format!("{MAPS}/unrelated")).await.code, 200);
}

#[tokio::test]
async fn a_dependent_of_nobody_is_collected_and_one_with_another_owner_stays() {
    let world = World::new().await;
    let ghost = json!({ "apiVersion": "example.com/v1", "kind": "Gadget", "metadata": { "name": "x", "uid": "no-such-uid" } });
    world.create(MAPS, owned_by(config_map("orphan"), &ghost, false)).await;
    world.eventually(&format!("{MAPS}/orphan"), 404).await;
    let living = world.create(GADGETS, gadget("living")).await;
    let dying = world.create(GADGETS, gadget("dying")).await;
    let mut shared = owned_by(config_map("shared"), &living, false);
    let second = owned_by(config_map(""), &dying, false)["metadata"]["ownerReferences"][0].clone();
    shared["metadata"]["ownerReferences"].as_array_mut().expect("a list").push(second);
    world.create(MAPS, shared).await;
    let mut events = world.watch(&format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Dshared")).await;
    assert_eq!(events.line().await, "ADDED shared");
    world.delete(&format!("{GADGETS}/dying"), json!(null)).await;
    let event = events.next().await.expect("an event");
    assert_eq!(event["type"], "MODIFIED", "it only loses the reference");
    assert_eq!(event["object"]["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_foreground_deletion_waits_for_what_blocks_it() {
    let world = World::new().await;
    let owner = world.create(GADGETS, gadget("owner")).await;
    let mut held = owned_by(config_map("held"), &owner, true);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.create(MAPS, held).await;
    let mut events = world.watch(&format!("{MAPS}?watch=true")).await;
    assert_eq!(events.line().await, "ADDED held");
    let answer =
        world.delete(&format!("{GADGETS}/owner"), json!({ "propagationPolicy": "Foreground" })).await.body;
    assert_eq!(answer["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    assert_eq!(events.line().await, "MODIFIED held", "the dependent is being deleted");
    assert_eq!(world.get(&format!("{GADGETS}/owner")).await.code, 200, "the owner waits");
    world.patch(&format!("{MAPS}/held"), MERGE, json!({ "metadata": { "finalizers": null } })).await;
    world.eventually(&format!("{GADGETS}/owner"), 404).await;
}

#[tokio::test]
async fn an_orphaning_deletion_leaves_dependents_without_an_owner() {
    let world = World::new().await;
    let owner = world.create(GADGETS, gadget("owner")).await;
    world.create(MAPS, owned_by(config_map("kept"), &owner, true)).await;
    world.delete(&format!("{GADGETS}/owner"), json!({ "propagationPolicy": "Orphan" })).await;
    world.eventually(&format!("{GADGETS}/owner"), 404).await;
    let kept = world.get(&format!("{MAPS}/kept")).await.body;
    assert!(kept["metadata"]["ownerReferences"].is_null(), "{kept}");
}

#[tokio::test]
async fn a_namespace_takes_its_content_with_it() {
    let world = World::new().await;
    let spaces = "/api/v1/namespaces";
    world.create(spaces, json!({ "metadata": { "name": "team" } })).await;
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = "node".into();
    world.create(&format!("{spaces}/team/pods"), bound).await;
    world.create(&format!("{spaces}/team/configmaps"), config_map("c")).await;
    world.create("/apis/example.com/v1/namespaces/team/gadgets", gadget("g")).await;
    let answer = world.delete(&format!("{spaces}/team"), json!(null)).await.body;
    assert_eq!(answer["status"]["phase"], "Terminating");
    let refused = world.call("POST", &format!("{spaces}/team/configmaps"), config_map("late")).await;
    assert_eq!((refused.code, refused.body["reason"].as_str()), (403, Some("Forbidden")));
    let pod = format!("{spaces}/team/pods/p");
    world.eventually_that(&pod, |pod| pod["metadata"]["deletionTimestamp"].is_string()).await;
    assert_eq!(world.get(&format!("{spaces}/team")).await.code, 200, "the Pod's node has not finished");
    world.delete(&pod, json!({ "gracePeriodSeconds": 0 })).await;
    world.eventually(&format!("{spaces}/team"), 404).await;
    assert_eq!(world.get("/apis/example.com/v1/namespaces/team/gadgets/g").await.code, 404);
    assert_eq!(world.get(&format!("{spaces}/team/configmaps/c")).await.code, 404);
}

#[tokio::test]
async fn a_namespace_keeps_its_network_policies_until_its_last_pod_is_gone() {
    let world = World::new().await;
    let team = "/api/v1/namespaces/team";
    let policies = "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies";
    world.create("/api/v1/namespaces", json!({ "metadata": { "name": "team" } })).await;
    let deny =
        json!({ "metadata": { "name": "deny" }, "spec": { "podSelector": {}, "policyTypes": ["Egress"] } });
    world.create(policies, deny).await;
    world.create(&format!("{team}/configmaps"), config_map("c")).await;
    for name in ["one", "two"] {
        let mut bound = pod(name);
        bound["spec"]["nodeName"] = "node".into();
        world.create(&format!("{team}/pods"), bound).await;
    }
    world.delete(team, json!(null)).await;
    // The status is written after a look at everything in the namespace.
    let says = |left: &'static str| {
        move |namespace: &serde_json::Value| {
            let conditions = namespace["status"]["conditions"].as_array();
            conditions
                .into_iter()
                .flatten()
                .any(|it| it["message"].as_str().is_some_and(|it| it.contains(left)))
        }
    };
    for (gone, left) in [("one", "pods has 2 resource instances"), ("two", "pods has 1 resource instances")] {
        world.eventually_that(team, says(left)).await;
        assert_eq!(world.get(&format!("{policies}/deny")).await.code, 200);
        assert_eq!(world.get(&format!("{team}/configmaps/c")).await.code, 200);
        world.delete(&format!("{team}/pods/{gone}"), json!({ "gracePeriodSeconds": 0 })).await;
    }
    world.eventually(team, 404).await;
    assert_eq!(world.get(&format!("{policies}/deny")).await.code, 404);
}

#[tokio::test]
async fn a_definition_takes_its_objects_with_it_and_can_come_back() {
    let world = World::new().await;
    let mut held = gadget("a");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.create(GADGETS, held).await;
    world.delete(&format!("{CRDS}/gadgets.example.com"), json!(null)).await;
    assert_eq!(world.call("POST", GADGETS, gadget("late")).await.code, 405, "nothing new while it goes");
    world.patch(&format!("{GADGETS}/a"), MERGE, json!({ "metadata": { "finalizers": null } })).await;
    world.eventually(&format!("{CRDS}/gadgets.example.com"), 404).await;
    assert_eq!(world.get(GADGETS).await.code, 404, "the kind is not served any more");
    let again = world.create(CRDS, gadgets()).await;
    let established = again["status"]["conditions"].as_array().expect("conditions");
    assert!(established.iter().any(|c| c["type"] == "Established" && c["status"] == "True"));
    assert_eq!(world.get(GADGETS).await.body["items"], json!([]), "served at once, and empty");
}

#[tokio::test]
async fn collections_are_deleted_by_selector() {
    let world = World::new().await;
    for (name, app) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut object = config_map(name);
        object["metadata"]["labels"] = json!({ "app": app });
        world.create(MAPS, object).await;
    }
    assert_eq!(world.delete(&format!("{MAPS}?labelSelector=app%3Dx"), json!(null)).await.code, 200);
    let left = world.get(MAPS).await.body;
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(left["items"][0]["metadata"]["name"], "c");
}

#[tokio::test]
async fn work_left_by_an_earlier_run_is_finished() {
    let world = World::new().await;
    let owner = world.create(GADGETS, gadget("owner")).await;
    let mut held = owned_by(config_map("held"), &owner, true);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.create(MAPS, held).await;
    world.delete(&format!("{GADGETS}/owner"), json!({ "propagationPolicy": "Foreground" })).await;
    let world = world.reopen().await;
    world.patch(&format!("{MAPS}/held"), MERGE, json!({ "metadata": { "finalizers": null } })).await;
    world.eventually(&format!("{MAPS}/held"), 404).await;
    world.eventually(&format!("{GADGETS}/owner"), 404).await;
}

#[tokio::test]
async fn the_namespaces_that_must_stay_cannot_be_deleted() {
    let world = World::new().await;
    let spaces = "/api/v1/namespaces";
    world.create(spaces, json!({ "metadata": { "name": "kube-public" } })).await;
    world.create(MAPS, config_map("kept")).await;
    for name in ["default", "kube-system", "kube-public"] {
        for query in ["", "?dryRun=All", "?gracePeriodSeconds=0", "?propagationPolicy=Foreground"] {
            let refused = world.delete(&format!("{spaces}/{name}{query}"), json!(null)).await;
            assert_eq!((refused.code, refused.body["reason"].as_str()), (403, Some("Forbidden")), "{query}");
            let message = format!("namespaces \"{name}\" is forbidden: this namespace may not be deleted");
            assert_eq!(refused.body["message"], message);
        }
        let kept = world.get(&format!("{spaces}/{name}")).await.body;
        assert_eq!(kept["status"]["phase"], "Active");
        assert!(kept["metadata"]["deletionTimestamp"].is_null());
    }
    assert_eq!(world.delete(spaces, json!(null)).await.code, 405, "as in kube-apiserver");
    assert_eq!(world.get(&format!("{MAPS}/kept")).await.code, 200);
    let discovered = world.get("/api/v1").await.body;
    let resources = discovered["resources"].as_array().expect("resources");
    let spaces = resources.iter().find(|resource| resource["name"] == "namespaces").expect("namespaces");
    assert!(!spaces["verbs"].as_array().expect("verbs").contains(&json!("deletecollection")));
}

#[tokio::test]
async fn a_namespace_says_what_keeps_it() {
    let world = World::new().await;
    let spaces = "/api/v1/namespaces";
    world.create(spaces, json!({ "metadata": { "name": "team" } })).await;
    let mut held = config_map("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.create(&format!("{spaces}/team/configmaps"), held).await;
    let mut events = world.watch(&format!("{spaces}?watch=true&fieldSelector=metadata.name%3Dteam")).await;
    assert_eq!(events.line().await, "ADDED team");
    world.delete(&format!("{spaces}/team"), json!(null)).await;
    let conditions = loop {
        let event = events.next().await.expect("the watch goes on");
        let conditions = event["object"]["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|condition| {
            condition["message"] == "Some resources are remaining: configmaps has 1 resource instances"
        }) {
            break conditions;
        }
    };
    let status = |kind: &str| conditions.iter().find(|it| it["type"] == kind).map(|it| it["status"].clone());
    assert_eq!(status("NamespaceContentRemaining"), Some(json!("True")));
    assert_eq!(status("NamespaceFinalizersRemaining"), Some(json!("True")));
    assert_eq!(status("NamespaceDeletionContentFailure"), Some(json!("False")));
    let finalizers = conditions.iter().find(|it| it["type"] == "NamespaceFinalizersRemaining");
    assert_eq!(
        finalizers.expect("a condition")["message"],
        "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
    );
    world
        .patch(
            &format!("{spaces}/team/configmaps/held"),
            MERGE,
            json!({ "metadata": { "finalizers": null } }),
        )
        .await;
    world.eventually(&format!("{spaces}/team"), 404).await;
}
