//! The Sandbox controller on both API servers: the same stories, word for word.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use asb_testing::{World, both_servers, kubelet};
use asb_types::{Sandbox, condition};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod, Service};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

both_servers! {
    sandbox_gets_its_children_and_becomes_ready,
    quick_start_is_told_of_once,
    suspend_deletes_the_pod_and_resume_brings_it_back,
    deleted_pod_of_a_running_sandbox_comes_back,
    finished_pod_finishes_the_sandbox,
    failed_pod_is_made_again_with_its_volumes,
    expired_sandbox_is_torn_down_and_kept,
    expired_sandbox_is_deleted_when_it_says_so,
    deleting_a_sandbox_collects_its_children,
    pod_of_somebody_else_is_left_alone,
    second_pod_is_a_conflict_that_is_told_once,
    child_that_the_server_rejects_is_a_configuration_error,
    service_follows_the_spec,
    labels_of_the_template_reach_the_running_pod,
    volume_claim_templates_cannot_change,
    wrong_manifest_names_the_field,
    settled_sandbox_is_not_written_again,
    two_controllers_do_not_fight,
    names_with_the_same_hash_do_not_share_a_service,
}

fn sandbox(name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "host"}]}}},
    });
    json_patch::merge(&mut object["spec"], &spec);
    object
}

fn said<'a>(sandbox: &'a Sandbox, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let found = condition::get(&sandbox.status.as_ref()?.conditions, kind)?;
    Some((found.status.as_str(), found.reason.as_str(), found.message.as_str()))
}

fn ready(sandbox: &Sandbox) -> bool {
    said(sandbox, "Ready").is_some_and(|ready| ready.0 == "True")
}

fn reason(wanted: &'static str) -> impl Fn(&Sandbox) -> bool {
    move |sandbox| said(sandbox, "Ready").is_some_and(|ready| ready.1 == wanted)
}

fn seconds_from_now(seconds: i64) -> String {
    let time = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + seconds);
    time.expect("a time in range").to_string()
}

const CLAIMS: &str = r#"[{"metadata": {"name": "work"}, "spec": {
    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]"#;

fn claims() -> Value {
    serde_json::from_str(CLAIMS).unwrap()
}

/// SB-032, SB-033, SB-034, SB-038, SB-090
async fn sandbox_gets_its_children_and_becomes_ready(world: World) {
    let spec = json!({"service": true, "volumeClaimTemplates": claims(), "podTemplate": {
        "spec": {"containers": [{"name": "main", "image": "host", "ports": [{"containerPort": 8080}]}]},
    }});
    let created: Sandbox = world.create(sandbox("box", spec)).await;
    let sandbox = world.eventually("box", ready).await;
    let status = sandbox.status.clone().unwrap();
    assert_eq!(said(&sandbox, "Ready"), Some(("True", "DependenciesReady", "Pod is Ready; Service Exists")));
    assert_eq!(said(&sandbox, "Suspended"), Some(("False", "NotSuspended", "Sandbox is not suspended")));
    assert_eq!(said(&sandbox, "PodScheduled").unwrap().0, "True");
    assert_eq!(status.pod_ips, ["10.1.2.3"]);
    assert_eq!(status.node_name.as_deref(), Some(kubelet::NODE));
    assert_eq!(status.service.as_deref(), Some("box"));
    let fqdn = format!("box.{}.svc.cluster.local", world.namespace);
    assert_eq!(status.service_fqdn, Some(fqdn));

    let uid = created.metadata.uid.unwrap();
    let hash = asb_types::name::name_hash("box");
    let pod: Pod = world.get("box").await.expect("the Pod has the Sandbox's name");
    let claim: PersistentVolumeClaim = world.get("work-box").await.expect("the PVC is <template>-<sandbox>");
    let service: Service = world.get("box").await.expect("the Service has the Sandbox's name");
    for (what, labels, owners) in [
        ("Pod", pod.labels(), pod.owner_references()),
        ("PVC", claim.labels(), claim.owner_references()),
        ("Service", service.labels(), service.owner_references()),
    ] {
        assert_eq!(labels.get("agents.x-k8s.io/sandbox-name-hash"), Some(&hash), "{what}");
        assert_eq!((owners[0].uid.as_str(), owners[0].controller), (uid.as_str(), Some(true)), "{what}");
    }
    let spec = service.spec.unwrap();
    assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
    let port = &spec.ports.unwrap()[0];
    assert_eq!((port.name.as_deref(), port.port), (Some("p-8080-tcp"), 8080));
    let volumes = pod.spec.unwrap().volumes.unwrap();
    let volume =
        volumes.iter().find(|volume| volume.name == "work").expect("the claim is a volume of the Pod");
    assert_eq!(volume.persistent_volume_claim.as_ref().unwrap().claim_name, "work-box");
}

/// SB-120
async fn suspend_deletes_the_pod_and_resume_brings_it_back(world: World) {
    world.create::<Sandbox>(sandbox("box", json!({"volumeClaimTemplates": claims()}))).await;
    world.eventually("box", ready).await;
    let first: Pod = world.get("box").await.unwrap();
    let claim: PersistentVolumeClaim = world.get("work-box").await.unwrap();

    world.merge::<Sandbox>("box", json!({"spec": {"operatingMode": "Suspended"}})).await;
    let done = |sandbox: &Sandbox| said(sandbox, "Suspended").is_some_and(|it| it.0 == "True");
    let suspended = world.eventually("box", done).await;
    assert_eq!(said(&suspended, "Ready"), Some(("False", "SandboxSuspended", "Sandbox is suspended")));
    assert!(world.get::<Pod>("box").await.is_none());
    assert!(suspended.status.unwrap().pod_ips.is_empty());

    world.merge::<Sandbox>("box", json!({"spec": {"operatingMode": "Running"}})).await;
    let resumed = world.eventually("box", ready).await;
    assert_eq!(said(&resumed, "Suspended").unwrap().1, "NotSuspended");
    let second: Pod = world.get("box").await.unwrap();
    assert_ne!(first.uid(), second.uid());
    assert_eq!(
        world.get::<PersistentVolumeClaim>("work-box").await.unwrap().uid(),
        claim.uid(),
        "storage is kept"
    );
}

/// SB-121
async fn deleted_pod_of_a_running_sandbox_comes_back(world: World) {
    world.create::<Sandbox>(sandbox("box", json!({}))).await;
    world.eventually("box", ready).await;
    let suspended = |sandbox: &Sandbox| {
        condition::get(&sandbox.status.as_ref().unwrap().conditions, "Suspended").unwrap().clone()
    };
    let before = suspended(&world.get("box").await.unwrap());
    let first: Pod = world.get("box").await.unwrap();
    world.delete::<Pod>("box").await;
    let uid = first.uid();
    world.eventually("box", |pod: &Pod| pod.uid() != uid).await;
    let again = world.eventually("box", ready).await;
    assert_eq!(suspended(&again), before, "it was never suspended");
}

/// SB-014, SB-015
async fn finished_pod_finishes_the_sandbox(world: World) {
    for (phase, expected) in [("Failed", "PodFailed"), ("Succeeded", "PodSucceeded")] {
        let name = phase.to_lowercase();
        let template = json!({"podTemplate": {"metadata": {"annotations": {kubelet::PHASE: phase}}}});
        world.create::<Sandbox>(sandbox(&name, template)).await;
        let sandbox = world.eventually(&name, reason(expected)).await;
        assert_eq!(said(&sandbox, "Finished").map(|it| (it.0, it.1)), Some(("True", expected)));
    }
}

async fn failed_pod_is_made_again_with_its_volumes(world: World) {
    let spec = json!({
        "podFailurePolicy": "Recreate", "volumeClaimTemplates": claims(),
        "podTemplate": {"metadata": {"annotations": {kubelet::PHASE: "Failed"}}},
    });
    world.create::<Sandbox>(sandbox("box", spec)).await;
    let trying = world
        .eventually("box", |sandbox| said(sandbox, "Ready").is_some_and(|it| it.2.contains("failed once")))
        .await;
    assert_eq!(said(&trying, "Finished"), None, "another one is made");
    let first: Pod = world.get("box").await.unwrap();
    let volume: PersistentVolumeClaim = world.get("work-box").await.unwrap();

    let healthy = json!({"spec": {"podTemplate": {"metadata": {"annotations": {kubelet::PHASE: null}}}}});
    world.gone(&first).await;
    world.merge::<Sandbox>("box", healthy).await;
    world.eventually("box", ready).await;
    let again: PersistentVolumeClaim = world.get("work-box").await.unwrap();
    assert_eq!(again.metadata.uid, volume.metadata.uid, "the storage is the same");
}

/// SB-101, SB-106
async fn expired_sandbox_is_torn_down_and_kept(world: World) {
    world.create::<Sandbox>(sandbox("box", json!({"service": true, "volumeClaimTemplates": claims()}))).await;
    world.eventually("box", ready).await;
    let pod: Pod = world.get("box").await.unwrap();
    let service: Service = world.get("box").await.unwrap();
    world.merge::<Sandbox>("box", json!({"spec": {"shutdownTime": seconds_from_now(1)}})).await;
    world.gone(&pod).await;
    world.gone(&service).await;
    let cleared = |sandbox: &Sandbox| {
        reason("SandboxExpired")(sandbox)
            && sandbox.status.as_ref().is_some_and(|status| status.service.is_none())
    };
    let expired = world.eventually("box", cleared).await;
    assert_eq!(said(&expired, "Ready"), Some(("False", "SandboxExpired", "Sandbox has expired")));
    assert!(expired.status.unwrap().pod_ips.is_empty());
    assert!(world.get::<PersistentVolumeClaim>("work-box").await.is_some(), "expiry never takes storage");

    world.merge::<Sandbox>("box", json!({"spec": {"shutdownTime": null}})).await;
    world.eventually("box", ready).await;
}

async fn quick_start_is_told_of_once(world: World) {
    world.writes.take();
    let begun = std::time::Instant::now();
    world.create::<Sandbox>(sandbox("box", json!({}))).await;
    world.eventually("box", ready).await;
    let took = begun.elapsed();
    let told = world.writes.take()["PATCH sandboxes/status"];
    assert!(told == 1 || took.as_secs() >= 1, "{told} statuses within {took:?}");
}

/// SB-103
async fn expired_sandbox_is_deleted_when_it_says_so(world: World) {
    let created: Sandbox = world.create(sandbox("box", json!({"service": true}))).await;
    world.eventually("box", ready).await;
    world.writes.take();
    let end = json!({"shutdownTime": seconds_from_now(-1), "shutdownPolicy": "Delete"});
    world.merge::<Sandbox>("box", json!({"spec": end})).await;
    world.gone(&created).await;
    // Another one's story shows that the pass over the first has ended.
    world.create::<Sandbox>(sandbox("asleep", json!({"operatingMode": "Suspended"}))).await;
    world.eventually("asleep", reason("SandboxSuspended")).await;
    let writes = [("DELETE pods", 1), ("DELETE sandboxes", 1), ("DELETE services", 1)];
    let mut expected: std::collections::BTreeMap<_, _> =
        writes.map(|(write, count)| (write.to_owned(), count)).into();
    expected.insert("PATCH sandboxes/status".to_owned(), 2); // that it has expired, and the other one's
    assert_eq!(world.writes.take(), expected, "what is deleted needs no status");
}

async fn deleting_a_sandbox_collects_its_children(world: World) {
    world.create::<Sandbox>(sandbox("box", json!({"service": true, "volumeClaimTemplates": claims()}))).await;
    world.eventually("box", ready).await;
    let pod: Pod = world.get("box").await.unwrap();
    let service: Service = world.get("box").await.unwrap();
    let claim: PersistentVolumeClaim = world.get("work-box").await.unwrap();
    world.delete::<Sandbox>("box").await;
    world.gone(&pod).await;
    world.gone(&service).await;
    world.gone(&claim).await;
}

/// SB-050, SB-053
async fn pod_of_somebody_else_is_left_alone(world: World) {
    let pod: Pod = world
        .create(json!({"metadata": {"name": "box"}, "spec": {"containers": [{"name": "theirs", "image": "host"}]}}))
        .await;
    world.create::<Sandbox>(sandbox("box", json!({}))).await;
    let refused = world.eventually("box", reason("ReconcilerError")).await;
    let message = said(&refused, "Ready").unwrap().2;
    assert!(
        message.starts_with("Error seen: ") && message.contains("agents.x-k8s.io/adoptable"),
        "{message}"
    );
    let label = json!({"metadata": {"labels": {"agents.x-k8s.io/adoptable": "true"}}});
    world.merge::<Pod>("box", label).await;
    world.eventually("box", ready).await;
    let adopted: Pod = world.get("box").await.unwrap();
    assert_eq!(adopted.uid(), pod.uid(), "adopted, not replaced");
    assert_eq!(adopted.owner_references()[0].kind, "Sandbox");
}

async fn child_that_the_server_rejects_is_a_configuration_error(world: World) {
    let twice = json!({"podTemplate": {"spec": {"containers": [{"name": "UPPER", "image": "host"}]}}});
    world.create::<Sandbox>(sandbox("box", twice)).await;
    let refused = world.eventually("box", reason("InvalidConfiguration")).await;
    let message = said(&refused, "Ready").unwrap().2;
    assert!(message.contains("spec.containers[0].name"), "{message}");
}

/// SB-058, SB-059
async fn second_pod_is_a_conflict_that_is_told_once(world: World) {
    let created: Sandbox = world.create(sandbox("box", json!({}))).await;
    world.eventually("box", ready).await;
    let owner = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "box",
        "uid": created.uid(), "controller": true});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "second", "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "main", "image": "host"}]}});
    world.create::<Pod>(pod).await;
    let conflict = world.eventually("box", reason("MultiplePods")).await;
    // Another pass over the same conflict.
    world
        .merge::<Sandbox>("box", json!({"spec": {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}}))
        .await;
    let generation = conflict.metadata.generation;
    let seen = |sandbox: &Sandbox| {
        let ready = condition::get(&sandbox.status.as_ref().unwrap().conditions, "Ready").unwrap();
        ready.observed_generation > generation
    };
    world.eventually("box", seen).await;

    let events =
        watcher(world.api::<Event>(), watcher::Config::default()).default_backoff().applied_objects();
    let mut told = events
        .filter_map(async |event| event.ok().filter(|event| event.reason.as_deref() == Some("MultiplePods")))
        .boxed();
    let event = tokio::time::timeout(std::time::Duration::from_secs(30), told.next()).await.unwrap().unwrap();
    assert_eq!((event.type_.as_deref(), event.action.as_deref()), (Some("Warning"), Some("Reconciling")));
    assert_eq!(event.message.as_deref(), said(&conflict, "Ready").map(|said| said.2));
    let all = world.api::<Event>().list(&ListParams::default()).await.unwrap().items;
    assert_eq!(all.iter().filter(|event| event.reason.as_deref() == Some("MultiplePods")).count(), 1);
    assert_eq!(
        world.api::<Pod>().list(&ListParams::default()).await.unwrap().items.len(),
        2,
        "none is touched"
    );
}

/// SB-076, SB-081, SB-082
async fn service_follows_the_spec(world: World) {
    world.create::<Sandbox>(sandbox("box", json!({"service": true}))).await;
    world.eventually("box", ready).await;
    world.merge::<Service>("box", json!({"spec": {"selector": {"stray": "1"}}})).await;
    world
        .eventually("box", |service: &Service| {
            let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
            selector.len() == 1 && !selector.contains_key("stray")
        })
        .await;
    let service: Service = world.get("box").await.unwrap();
    world.merge::<Sandbox>("box", json!({"spec": {"service": false}})).await;
    world.gone(&service).await;
    let without = |sandbox: &Sandbox| sandbox.status.as_ref().is_some_and(|status| status.service.is_none());
    let sandbox = world.eventually("box", without).await;
    assert_eq!(said(&sandbox, "Ready").unwrap().2, "Pod is Ready");
}

/// SB-054
async fn labels_of_the_template_reach_the_running_pod(world: World) {
    let labelled = json!({"podTemplate": {"metadata": {"labels": {"app": "one", "gone": "soon"}}}});
    world.create::<Sandbox>(sandbox("box", labelled)).await;
    world.eventually("box", ready).await;
    let pod: Pod = world.get("box").await.unwrap();
    world.merge::<Pod>("box", json!({"metadata": {"labels": {"theirs": "1"}}})).await;
    let change = json!({"spec": {"podTemplate": {"metadata": {"labels": {"app": "two", "gone": null}}}}});
    world.merge::<Sandbox>("box", change).await;
    let changed =
        world.eventually("box", |pod: &Pod| pod.labels().get("app").is_some_and(|app| app == "two")).await;
    assert_eq!(changed.uid(), pod.uid());
    assert!(!changed.labels().contains_key("gone") && changed.labels().contains_key("theirs"));
}

/// SB-122
async fn volume_claim_templates_cannot_change(world: World) {
    world.create::<Sandbox>(sandbox("with", json!({"volumeClaimTemplates": claims()}))).await;
    world.create::<Sandbox>(sandbox("without", json!({}))).await;
    for (name, change) in [("with", Value::Null), ("without", claims())] {
        let patch = Patch::Merge(json!({"spec": {"volumeClaimTemplates": change}}));
        let refused = world.api::<Sandbox>().patch(name, &PatchParams::default(), &patch).await;
        let Err(kube::Error::Api(status)) = refused else { panic!("must be refused, got {refused:?}") };
        assert_eq!(status.code, 422);
        assert!(status.message.contains("volumeClaimTemplates is immutable"), "{}", status.message);
    }
}

async fn wrong_manifest_names_the_field(world: World) {
    let cases = [
        (json!({"operatingMode": "Sleeping"}), "spec.operatingMode"),
        (json!({"service": "yes"}), "spec.service"),
        (
            json!({"podTemplate": {"spec": {"containers": [{"image": "host"}]}}}),
            "spec.podTemplate.spec.containers[0].name",
        ),
        (json!({"shutdownTime": "tomorrow"}), "spec.shutdownTime"),
    ];
    let api: kube::Api<kube::core::DynamicObject> = kube::Api::namespaced_with(
        world.client.clone(),
        &world.namespace,
        &kube::core::ApiResource::erase::<Sandbox>(&()),
    );
    for (spec, field) in cases {
        let object = serde_json::from_value(sandbox("box", spec)).unwrap();
        let refused = api.create(&PostParams::default(), &object).await;
        let Err(kube::Error::Api(status)) = refused else { panic!("must be refused, got {refused:?}") };
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
        assert!(status.message.contains(field), "{:?} names {field}", status.message);
    }
}

/// Nothing that changes nothing: a ready Sandbox at rest is not touched, also not by a new controller.
async fn settled_sandbox_is_not_written_again(mut world: World) {
    world.create::<Sandbox>(sandbox("box", json!({"service": true}))).await;
    let settled = world.eventually("box", ready).await;
    let pod: Pod = world.get("box").await.unwrap();
    world.start_controller();
    // A second Sandbox that gets ready shows that the new controller has been through its caches.
    world.create::<Sandbox>(sandbox("other", json!({}))).await;
    world.eventually("other", ready).await;
    assert_eq!(world.get::<Sandbox>("box").await.unwrap().resource_version(), settled.resource_version());
    assert_eq!(world.get::<Pod>("box").await.unwrap().resource_version(), pod.resource_version());
}

async fn two_controllers_do_not_fight(mut world: World) {
    world.start_controller();
    for name in ["a", "b", "c", "d"] {
        world
            .create::<Sandbox>(sandbox(name, json!({"service": true, "volumeClaimTemplates": claims()})))
            .await;
    }
    for name in ["a", "b", "c", "d"] {
        world.eventually(name, ready).await;
    }
    let pods = world.api::<Pod>().list(&Default::default()).await.unwrap();
    assert_eq!(pods.items.len(), 4, "one Pod per Sandbox");
}

/// Weak spot 2 of the reference: whoever finds such a name gets the traffic of the other.
async fn names_with_the_same_hash_do_not_share_a_service(world: World) {
    let (first, second) = ("glbvs", "yacxa");
    assert_eq!(asb_types::name::name_hash(first), asb_types::name::name_hash(second));
    world.create::<Sandbox>(sandbox(first, json!({"service": true}))).await;
    world.eventually(first, ready).await;
    world.create::<Sandbox>(sandbox(second, json!({}))).await;
    let refused = world.eventually(second, reason("ReconcilerError")).await;
    let message = said(&refused, "Ready").unwrap().2;
    assert!(message.contains(first) && message.contains("choose another name"), "{message}");
    assert!(world.get::<Pod>(second).await.is_none(), "nothing of it can be reached as the first");
    world.merge::<Sandbox>(first, json!({"spec": {"service": false}})).await;
    world.eventually(second, ready).await;
}

/// A cluster may be newer than our schema of its Pods. What its API server does not know either, it drops from the Pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_of_a_newer_pod_are_kept_for_the_api_server_to_judge() {
    let world = World::kubernetes().await;
    let newer = json!({
        "fieldOfTomorrow": {"deep": [1]},
        "containers": [{"name": "main", "image": "host", "securityContext": {"shield": "up"}}],
    });
    let spec = json!({"podTemplate": {"spec": newer}, "notAField": 1});
    let object = serde_json::from_value(sandbox("box", spec)).unwrap();
    let api: kube::Api<kube::core::DynamicObject> = kube::Api::namespaced_with(
        world.client.clone(),
        &world.namespace,
        &kube::core::ApiResource::erase::<Sandbox>(&()),
    );
    let stored = api.create(&PostParams::default(), &object).await.unwrap();
    assert_eq!(stored.data["spec"]["podTemplate"]["spec"], newer);
    assert_eq!(stored.data["spec"].get("notAField"), None, "elsewhere unknown fields go, as ever");
    world.eventually("box", ready).await;
}

/// What Kubernetes' own scheduler says about a Pod reaches the user, and its choice is the one that counts. The
/// embedded server has no scheduler.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandbox_that_fits_on_no_node_says_why_and_starts_when_one_fits() {
    let world = World::kubernetes().await;
    let label = format!("test/{}", world.namespace);
    let picky = json!({"podTemplate": {"spec": {"nodeSelector": {label.as_str(): "here"}}}});
    world.create::<Sandbox>(sandbox("box", picky)).await;
    let unschedulable = |sandbox: &Sandbox| {
        said(sandbox, "PodScheduled").is_some_and(|it| (it.0, it.1) == ("False", "Unschedulable"))
    };
    let waiting = world.eventually("box", unschedulable).await;
    let message = said(&waiting, "PodScheduled").unwrap().2;
    assert!(message.starts_with("0/1 nodes are available"), "{message}");
    assert!(!ready(&waiting) && waiting.status.unwrap().node_name.is_none());

    let nodes: kube::Api<Node> = kube::Api::all(world.client.clone());
    let fits = Patch::Merge(json!({"metadata": {"labels": {label.as_str(): "here"}}}));
    nodes.patch(kubelet::NODE, &PatchParams::default(), &fits).await.unwrap();
    let started = world.eventually("box", ready).await;
    assert_eq!(said(&started, "PodScheduled").unwrap().0, "True");
    let events =
        watcher(world.api::<Event>(), watcher::Config::default()).default_backoff().applied_objects();
    let mut bound = events
        .filter_map(async |event| event.ok().filter(|event| event.reason.as_deref() == Some("Scheduled")))
        .boxed();
    let event =
        tokio::time::timeout(std::time::Duration::from_secs(30), bound.next()).await.unwrap().unwrap();
    assert_eq!(event.reporting_component.as_deref(), Some("default-scheduler"));
}
