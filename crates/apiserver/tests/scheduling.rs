//! Pods that fit are bound when they are created; the others wait, say why, and are bound when they fit.

mod common;
use common::*;
use futures::future::join_all;
use serde_json::{Value, json};

const NODES: &str = "/api/v1/nodes";
const HERE: &str = "/api/v1/nodes/here";

/// A server whose only node has room for two processors and this many Pods.
async fn world(pods: u32) -> World {
    let world = World::with_node("here").await;
    let allocatable =
        json!({"cpu": "2", "memory": "4Gi", "ephemeral-storage": "10Gi", "pods": pods.to_string()});
    let node = json!({
        "metadata": {"name": "here", "labels": {"disk": "ssd"}},
        "status": {"capacity": allocatable, "allocatable": allocatable},
    });
    world.create(NODES, node).await;
    world
}

fn asking(name: &str, cpu: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    pod
}

fn scheduled(pod: &Value) -> &Value {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|it| it["type"] == "PodScheduled").unwrap_or(&Value::Null)
}

fn path(name: &str) -> String {
    format!("{PODS}/{name}")
}

fn is_bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"] == "here"
}

async fn bound(world: &World, name: &str) {
    world.eventually_that(&path(name), is_bound).await;
}

/// Waits until the Pod is told this reason.
async fn told(world: &World, name: &str, reason: &str) {
    let told = |pod: &Value| scheduled(pod)["message"].as_str().is_some_and(|it| it.contains(reason));
    world.eventually_that(&path(name), told).await;
    assert!(!is_bound(&world.get(&path(name)).await.body));
}

async fn force_delete(world: &World, name: &str) {
    world.delete(&path(name), json!({"gracePeriodSeconds": 0})).await;
    world.eventually(&path(name), 404).await;
}

async fn change_node(world: &World, patch: Value) {
    let answer = world.patch(HERE, MERGE, patch).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
}

#[tokio::test]
async fn a_pod_that_fits_is_bound_in_the_write_that_creates_it() {
    let world = world(10).await;
    let before = revision(&world.get(HERE).await.body);
    let created = world.create(PODS, asking("fits", "1")).await;
    assert!(is_bound(&created) && scheduled(&created).is_null());
    assert_eq!(revision(&created), before + 1);
}

#[tokio::test]
async fn a_pod_that_does_not_fit_waits_and_says_why_until_it_does() {
    let world = world(10).await;
    world.create(PODS, asking("first", "1500m")).await;
    let waiting = world.create(PODS, asking("second", "1")).await;
    assert!(waiting["spec"]["nodeName"].is_null() && waiting["status"]["phase"] == "Pending");
    let condition = scheduled(&waiting);
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("Unschedulable")));
    let why = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    assert_eq!((&condition["message"], &condition["observedGeneration"]), (&json!(why), &json!(1)));
    let events = "/api/v1/namespaces/default/events?fieldSelector=reason=FailedScheduling";
    let is_told = |list: &Value| {
        let event = &list["items"][0];
        event["message"] == why && event["type"] == "Warning" && event["involvedObject"]["name"] == "second"
    };
    world.eventually_that(events, is_told).await;

    force_delete(&world, "first").await;
    bound(&world, "second").await;
    let now = world.get(&path("second")).await.body;
    assert_eq!((&scheduled(&now)["status"], &scheduled(&now)["message"]), (&json!("True"), &Value::Null));
    assert_eq!(now["metadata"]["generation"], 1, "binding is no change of the spec's user");
}

#[tokio::test]
async fn a_pod_that_is_over_makes_room() {
    let world = world(10).await;
    world.create(PODS, asking("job", "2")).await;
    world.create(PODS, asking("next", "2")).await;
    told(&world, "next", "Insufficient cpu").await;
    let status = format!("{}/status", path("job"));
    world.patch(&status, MERGE, json!({"status": {"phase": "Succeeded"}})).await;
    bound(&world, "next").await;
}

#[tokio::test]
async fn pods_that_come_at_the_same_moment_never_share_the_last_place() {
    let world = world(20).await;
    let names: Vec<_> = (0..60).map(|number| format!("crowd-{number}")).collect();
    let created = join_all(names.iter().map(|name| world.create(PODS, asking(name, "150m")))).await;
    assert_eq!(created.iter().filter(|pod| is_bound(pod)).count(), 13, "13 times 150m are 1950m");
    for pod in created.iter().filter(|pod| is_bound(pod)).take(3) {
        force_delete(&world, pod["metadata"]["name"].as_str().unwrap()).await;
    }
    let list = |list: &Value| {
        let bound = list["items"].as_array().unwrap().iter().filter(|pod| is_bound(pod)).count();
        assert!(bound <= 13);
        bound == 13
    };
    world.eventually_that(PODS, list).await;
}

#[tokio::test]
async fn a_node_that_is_cordoned_or_tainted_or_labelled_otherwise_takes_no_new_pods() {
    let world = world(10).await;
    world.create(PODS, pod("old")).await;
    change_node(&world, json!({"spec": {"unschedulable": true}})).await;
    world.create(PODS, pod("new")).await;
    told(&world, "new", "1 node(s) were unschedulable").await;
    change_node(
        &world,
        json!({"spec": {"unschedulable": null, "taints": [{"key": "a", "effect": "NoSchedule"}]}}),
    )
    .await;
    told(&world, "new", "1 node(s) had untolerated taint(s)").await;
    let toleration =
        json!([{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "a", "operator": "Exists"}}]);
    assert_eq!(world.patch(&path("new"), JSON_PATCH, toleration).await.code, 200);
    bound(&world, "new").await;
    change_node(&world, json!({"spec": {"taints": null}})).await;
    let mut choosy = pod("choosy");
    choosy["spec"]["nodeSelector"] = json!({"disk": "hdd"});
    world.create(PODS, choosy).await;
    told(&world, "choosy", "didn't match Pod's node affinity/selector").await;
    change_node(&world, json!({"metadata": {"labels": {"disk": "hdd"}}})).await;
    bound(&world, "choosy").await;
    assert!(is_bound(&world.get(&path("old")).await.body), "who is there stays");
}

#[tokio::test]
async fn what_scheduling_cannot_read_is_refused_or_without_effect() {
    let world = world(10).await;
    let toleration =
        json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30.0});
    let mut vague = pod("vague");
    vague["spec"]["tolerations"] = json!([toleration]);
    let refused = world.call("POST", PODS, vague).await;
    let message = refused.body["message"].as_str().unwrap_or_default();
    assert!(refused.code == 400 && message.contains("tolerationSeconds"), "{message}");
    world.create(PODS, pod("fine")).await;
    let added = json!([{"op": "add", "path": "/spec/tolerations/-", "value": toleration}]);
    assert_eq!(world.patch(&path("fine"), JSON_PATCH, added).await.code, 400);
    world.patch(HERE, MERGE, json!({"spec": {"unschedulable": "true"}})).await;
    assert!(is_bound(&world.create(PODS, pod("next")).await), "the Node is what it was when it was readable");
}

#[tokio::test]
async fn what_waited_goes_on_waiting_after_a_restart_and_what_ran_goes_on() {
    let world = world(10).await;
    world.create(PODS, asking("runs", "2")).await;
    world.create(PODS, asking("waits", "1")).await;
    change_node(&world, json!({"spec": {"unschedulable": true}})).await;
    told(&world, "waits", "were unschedulable").await;
    let world = world.reopen_with_node("here").await;
    assert!(is_bound(&world.get(&path("runs")).await.body));
    told(&world, "waits", "were unschedulable").await;
    change_node(&world, json!({"spec": {"unschedulable": null}})).await;
    told(&world, "waits", "Insufficient cpu").await;
    let world = world.reopen_with_node("here").await;
    world.create(PODS, asking("more", "1")).await;
    told(&world, "more", "Insufficient cpu").await;
    force_delete(&world, "runs").await;
    bound(&world, "waits").await;
    bound(&world, "more").await;
}

#[tokio::test]
async fn a_pod_waits_for_a_node_that_has_not_registered_yet() {
    let world = World::with_node("here").await;
    world.create(PODS, pod("early")).await;
    told(&world, "early", "no nodes available to schedule pods").await;
    world
        .create(NODES, json!({"metadata": {"name": "other"}, "status": {"allocatable": {"pods": "9"}}}))
        .await;
    world
        .create(NODES, json!({"metadata": {"name": "here"}, "status": {"allocatable": {"pods": "9"}}}))
        .await;
    bound(&world, "early").await;
}

#[tokio::test]
async fn a_pod_with_gates_waits_for_them_to_be_removed() {
    let world = world(10).await;
    let mut gated = pod("gated");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/quota"}]);
    let mut bold = gated.clone();
    bold["spec"]["nodeName"] = "here".into();
    let refused = world.call("POST", PODS, bold).await;
    let why = "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared";
    assert!(refused.code == 422 && refused.body["message"].as_str().is_some_and(|it| it.contains(why)));
    let created = world.create(PODS, gated).await;
    assert_eq!(scheduled(&created)["reason"], "SchedulingGated");
    assert_eq!(scheduled(&created)["message"], "Scheduling is blocked due to non-empty scheduling gates");
    assert_eq!(
        world.patch(&path("gated"), MERGE, json!({"spec": {"schedulingGates": null}})).await.code,
        200
    );
    bound(&world, "gated").await;
}

#[tokio::test]
async fn a_dry_run_takes_no_place() {
    let world = world(1).await;
    for _ in 0..3 {
        let answer = world.call("POST", &format!("{PODS}?dryRun=All"), pod("never")).await;
        assert!(answer.code == 201 && is_bound(&answer.body), "{}", answer.body);
    }
    assert!(is_bound(&world.create(PODS, pod("real")).await));
    let again = world.call("POST", PODS, pod("real")).await;
    assert_eq!(again.code, 409);
    force_delete(&world, "real").await;
    assert!(is_bound(&world.create(PODS, pod("next")).await), "what was refused has no place either");
}

#[tokio::test]
async fn another_scheduler_binds_its_own_pods() {
    let world = world(10).await;
    let mut own = asking("own", "3");
    own["spec"]["schedulerName"] = "mine".into();
    let created = world.create(PODS, own.clone()).await;
    assert!(!is_bound(&created) && scheduled(&created).is_null());
    let binding = |kind: &str| {
        json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "own"}, "target": {"kind": kind, "name": "here"},
        })
    };
    let to = format!("{}/binding", path("own"));
    assert_eq!(world.call("POST", &to, binding("Pod")).await.code, 422);
    let patched = world.patch(&path("own"), MERGE, json!({"spec": {"nodeName": "here"}})).await;
    assert_eq!((patched.code, &patched.body["reason"]), (422, &json!("Invalid")), "only a binding binds");
    let answer = world.call("POST", &to, binding("Node")).await;
    assert_eq!((answer.code, &answer.body["status"]), (201, &json!("Success")), "{}", answer.body);
    let rejected = world.get(&path("own")).await.body;
    assert!(is_bound(&rejected) && rejected["status"]["phase"] == "Failed");
    assert_eq!(rejected["status"]["reason"], "OutOfcpu");
    let message =
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000";
    assert_eq!(rejected["status"]["message"], message);
    let answer = world.call("POST", &to, binding("Node")).await;
    let message =
        "Operation cannot be fulfilled on pods/binding \"own\": pod own is already assigned to node \"here\"";
    assert_eq!((answer.code, &answer.body["message"]), (409, &json!(message)));

    own = asking("small", "1");
    own["spec"]["schedulerName"] = "mine".into();
    world.create(PODS, own).await;
    let mut binding = binding("Node");
    binding["metadata"]["name"] = "small".into();
    assert_eq!(world.call("POST", &format!("{}/binding", path("small")), binding).await.code, 201);
    let pod = world.get(&path("small")).await.body;
    assert!(is_bound(&pod) && pod["status"]["phase"] == "Pending" && scheduled(&pod)["status"] == "True");
    world.create(PODS, asking("rest", "1500m")).await;
    told(&world, "rest", "Insufficient cpu").await;
}

#[tokio::test]
async fn a_pod_that_names_the_node_is_checked_as_a_kubelet_checks_it() {
    let world = world(1).await;
    change_node(&world, json!({"spec": {"unschedulable": true}})).await;
    let naming = |name: &str| {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = "here".into();
        pod
    };
    let fits = world.create(PODS, naming("fits")).await;
    assert_eq!(fits["status"]["phase"], "Pending", "a kubelet knows of no cordon");
    let late = world.create(PODS, naming("late")).await;
    assert_eq!(
        (&late["status"]["phase"], &late["status"]["reason"]),
        (&json!("Failed"), &json!("OutOfpods"))
    );
    let mut mirror = naming("mirror");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "engine"});
    assert_eq!(
        world.create(PODS, mirror).await["status"]["phase"],
        "Pending",
        "it runs whatever is said of it"
    );
}

#[tokio::test]
async fn pods_leave_a_node_whose_taint_they_do_not_tolerate() {
    let world = world(10).await;
    let tolerating = |name: &str, seconds: Value| {
        let mut pod = pod(name);
        pod["spec"]["tolerations"] = json!([{"key": "a", "operator": "Exists", "effect": "NoExecute"}]);
        if !seconds.is_null() {
            pod["spec"]["tolerations"][0]["tolerationSeconds"] = seconds;
        }
        pod
    };
    world.create(PODS, pod("leaves")).await;
    world.create(PODS, tolerating("soon", json!(1))).await;
    world.create(PODS, tolerating("later", json!(3600))).await;
    world.create(PODS, tolerating("ages", json!(i64::MAX))).await;
    world.create(PODS, tolerating("stays", Value::Null)).await;
    change_node(&world, json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}})).await;
    for name in ["leaves", "soon"] {
        let is_marked = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array();
            let marked = conditions.into_iter().flatten().any(|it| {
                it["reason"] == "DeletionByTaintManager"
                    && it["message"] == "Taint manager: deleting due to NoExecute taint"
            });
            pod["metadata"]["deletionTimestamp"].is_string() && marked
        };
        world.eventually_that(&path(name), is_marked).await;
    }
    let events = "/api/v1/namespaces/default/events?fieldSelector=reason=TaintManagerEviction";
    let says = |message: &'static str| {
        move |list: &Value| list["items"].as_array().unwrap().iter().any(|event| event["message"] == message)
    };
    world.eventually_that(events, says("Marking for deletion Pod default/leaves")).await;
    change_node(&world, json!({"spec": {"taints": null}})).await;
    world.eventually_that(events, says("Cancelling deletion of Pod default/later")).await;
    for name in ["later", "ages", "stays"] {
        assert!(world.get(&path(name)).await.body["metadata"]["deletionTimestamp"].is_null());
    }
}

#[tokio::test]
async fn a_pod_is_evicted_on_request() {
    let world = world(10).await;
    let created = world.create(PODS, pod("moved")).await;
    let eviction = |uid: &Value| {
        json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "moved", "namespace": "default"},
            "deleteOptions": {"preconditions": {"uid": uid}},
        })
    };
    let to = format!("{}/eviction", path("moved"));
    assert_eq!(world.call("POST", &to, eviction(&json!("another"))).await.code, 409);
    let untouched = world.get(&path("moved")).await.body;
    assert_eq!(revision(&untouched), revision(&created));
    let answer = world.call("POST", &format!("{to}?dryRun=All"), eviction(&created["metadata"]["uid"])).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    assert_eq!(revision(&world.get(&path("moved")).await.body), revision(&created));
    assert_eq!(world.call("POST", &to, eviction(&created["metadata"]["uid"])).await.code, 201);
    let pod = world.get(&path("moved")).await.body;
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
    let condition = &pod["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("DisruptionTarget"), &json!("EvictionByEvictionAPI"))
    );
    assert_eq!(world.call("POST", &format!("{PODS}/absent/eviction"), json!({})).await.code, 404);
}
