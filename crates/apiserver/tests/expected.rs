//! What people expect of Kubernetes, tried with kubectl: kinds that this machine does not run, descriptions, identities.

mod common;
use common::served::Served;
use common::*;
use serde_json::{Value, json};

const ABSENT: [(&str, &str, &str); 6] = [
    ("apps/v1", "Deployment", "Deployments"),
    ("apps/v1", "ReplicaSet", "ReplicaSets"),
    ("apps/v1", "StatefulSet", "StatefulSets"),
    ("apps/v1", "DaemonSet", "DaemonSets"),
    ("batch/v1", "Job", "Jobs"),
    ("batch/v1", "CronJob", "CronJobs"),
];

fn workload(api_version: &str, kind: &str) -> Value {
    let template = json!({ "metadata": { "labels": { "app": "x" } },
        "spec": { "containers": [{ "name": "main", "image": "app:1" }] } });
    json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "x" },
        "spec": { "selector": { "matchLabels": { "app": "x" } }, "template": template } })
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_a_kind_that_is_not_run_here_says_what_to_use() {
    let served = Served::new().await;
    for (api_version, kind, kinds) in ABSENT {
        let file = served.write("absent.json", &workload(api_version, kind));
        let sentence = format!("this machine has no {kinds}: ");
        for arguments in [
            vec!["apply", "-f", &file],
            vec!["create", "-f", &file],
            vec!["apply", "--server-side", "-f", &file],
            vec!["apply", "--dry-run=server", "-f", &file],
        ] {
            let refused = served.refused(&arguments);
            assert!(refused.contains(&sentence), "{arguments:?}: {refused}");
            assert!(
                !refused.contains("--validate=false") && !refused.contains("no matches for kind"),
                "{refused}"
            );
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
    }
    for arguments in [
        vec!["create", "deployment", "x", "--image=y"],
        vec!["create", "job", "x", "--image=y"],
        vec!["create", "cronjob", "x", "--image=y", "--schedule=* * * * *"],
    ] {
        let refused = served.refused(&arguments);
        assert!(refused.contains("this machine has no") && refused.contains("asb run"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_that_are_not_run_here_are_empty() {
    let served = Served::new().await;
    for kinds in ["deployments", "jobs", "statefulsets.apps", "cj", "ingresses"] {
        let output = served.try_kubectl(&["get", kinds]);
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && shown.contains("No resources found"), "{shown}");
        assert!(shown.contains("Warning: this machine has no"), "{shown}");
    }
    assert!(served.refused(&["get", "deployment", "x"]).contains("deployments.apps \"x\" not found"));
    assert!(served.refused(&["delete", "deployment", "x"]).contains("deployments.apps \"x\" not found"));
    served.kubectl(&["run", "p", "--image=app:1"]);
    let all = served.kubectl(&["get", "all"]);
    assert!(all.contains("pod/p") && !all.contains("deployment"), "{all}");
    assert!(!served.kubectl(&["api-resources", "--verbs=create"]).contains("deployments"));
    assert!(served.kubectl(&["explain", "deployment"]).contains("this machine has no Deployments"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_kind_is_called_unknown() {
    let served = Served::new().await;
    for (api_version, kind) in
        [("example.org/v1", "Unheard"), ("v1", "Unheard"), ("policy/v1", "PodDisruptionBudget")]
    {
        let file = served.write("unknown.json", &workload(api_version, kind));
        for command in ["apply", "create"] {
            let refused = served.refused(&[command, "-f", &file]);
            assert!(
                refused.contains(&format!("no matches for kind \"{kind}\" in version \"{api_version}\"")),
                "{refused}"
            );
            assert!(!refused.contains("--validate=false"), "{refused}");
        }
    }
    let document = served.world.get("/openapi/v2").await.body;
    assert_eq!(document["swagger"], "2.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_built_in_kinds_are_explained() {
    let served = Served::new().await;
    for (path, wanted) in [
        ("pod", "Containers that run together"),
        ("pod.spec", "activeDeadlineSeconds"),
        ("pod.spec.containers.livenessProbe", "restarts the container"),
        ("service.spec.ports", "Ports of the Service"),
        ("networkpolicy.spec.egress", "Connections from the Pods that are allowed"),
        ("pvc.spec.accessModes", "ReadWriteOnce"),
        ("secret", "no more than 1 MiB"),
        ("node", "this machine"),
    ] {
        let shown = served.kubectl(&["explain", path]);
        let plain = shown.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
        assert!(plain.contains(&wanted.to_lowercase()), "{path}: {shown}");
        assert!(!shown.contains("<empty>"), "{path}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn applied_lists_of_built_in_kinds_merge_by_key() {
    let served = Served::new().await;
    let mut service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
        "spec": { "ports": [{ "name": "a", "port": 80 }, { "name": "b", "port": 81 }] } });
    let file = served.write("service.json", &service);
    served.kubectl(&["apply", "-f", &file]);
    served.kubectl(&["patch", "svc", "s", "-p", r#"{"spec":{"ports":[{"name":"c","port":82}]}}"#]);
    service["spec"]["ports"].as_array_mut().expect("ports").remove(1);
    served.write("service.json", &service);
    served.kubectl(&["apply", "-f", &file]);
    let ports = served.kubectl(&["get", "svc", "s", "-o", "jsonpath={.spec.ports[*].name}"]);
    assert_eq!(ports.split(' ').collect::<std::collections::BTreeSet<_>>(), ["a", "c"].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_projected_token_can_be_described() {
    let served = Served::new().await;
    let mut object = pod("p");
    object["apiVersion"] = "v1".into();
    object["kind"] = "Pod".into();
    object["spec"]["volumes"] = json!([
        { "name": "token", "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } },
            { "downwardAPI": { "items": [{ "path": "n", "fieldRef": { "fieldPath": "metadata.name" } }] } }] } },
        { "name": "path", "hostPath": { "path": "/tmp" } }]);
    let file = served.write("pod.json", &object);
    served.kubectl(&["apply", "-f", &file]);
    let shown = served.kubectl(&["describe", "pod", "p"]);
    assert!(shown.contains("3600") && shown.contains("HostPathType"), "{shown}");
    let revision = ["get", "pod", "p", "-o", "jsonpath={.metadata.resourceVersion}"];
    let before = served.kubectl(&revision);
    served.kubectl(&["apply", "-f", &file]);
    assert_eq!(served.kubectl(&revision), before, "the defaults come back the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_the_pull_secrets_of_its_account() {
    let served = Served::new().await;
    let login = r#"{"imagePullSecrets": [{"name": "login"}]}"#;
    served.kubectl(&["patch", "serviceaccount", "default", "-p", login]);
    let mut object = pod("p");
    object["apiVersion"] = "v1".into();
    object["kind"] = "Pod".into();
    served.kubectl(&["apply", "-f", &served.write("pod.json", &object)]);
    let fields = "jsonpath={.spec.serviceAccountName} {.spec.imagePullSecrets[*].name}";
    assert_eq!(served.kubectl(&["get", "pod", "p", "-o", fields]), "default login");
    object["metadata"]["name"] = "q".into();
    object["spec"]["imagePullSecrets"] = json!([{ "name": "own" }]);
    object["spec"]["serviceAccountName"] = "missing".into();
    let refused = served.refused(&["apply", "-f", &served.write("q.json", &object)]);
    assert!(refused.contains(r#"serviceaccount "missing" not found"#), "{refused}");
    served.kubectl(&["create", "serviceaccount", "missing"]);
    served.kubectl(&["apply", "-f", &served.write("q.json", &object)]);
    assert_eq!(served.kubectl(&["get", "pod", "q", "-o", fields]), "missing own");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_told_who_they_are_and_what_they_may_do() {
    let served = Served::new().await;
    let shown = served.kubectl(&["auth", "whoami"]);
    assert!(shown.contains("agent-sandbox") && shown.contains("system:masters"), "{shown}");
    let shown = served.kubectl(&["auth", "can-i", "--list"]);
    assert!(shown.contains("*.*") && shown.contains("[*]"), "{shown}");
    assert_eq!(served.kubectl(&["auth", "can-i", "delete", "pods"]).trim(), "yes");
    let refused = served.refused(&["create", "token", "default"]);
    assert!(refused.contains("this API server gives no tokens to ServiceAccounts"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_namespace_has_a_default_account() {
    let served = Served::new().await;
    let world = &served.world;
    for namespace in ["default", "kube-system", "agent-sandbox-system"] {
        assert_eq!(
            world.get(&format!("/api/v1/namespaces/{namespace}/serviceaccounts/default")).await.code,
            200
        );
    }
    world.create("/api/v1/namespaces", json!({ "metadata": { "name": "team" } })).await;
    let account = "/api/v1/namespaces/team/serviceaccounts/default";
    world.eventually(account, 200).await;
    let mut events = world.watch("/api/v1/namespaces/team/serviceaccounts?watch=true").await;
    assert_eq!(events.line().await, "ADDED default");
    world.delete(account, json!(null)).await;
    assert_eq!(events.line().await, "DELETED default");
    assert_eq!(events.line().await, "ADDED default", "it comes back");
    world.delete("/api/v1/namespaces/team", json!(null)).await;
    world.eventually("/api/v1/namespaces/team", 404).await;
    assert_eq!(world.get(account).await.code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_an_earlier_version_did_not_make_is_made() {
    let world = World::new().await;
    let before = world.get("/api/v1/serviceaccounts").await.body["metadata"]["resourceVersion"].clone();
    let world = world.reopen().await;
    let accounts = world.get("/api/v1/serviceaccounts").await.body;
    assert_eq!(accounts["items"].as_array().map(Vec::len), Some(3));
    assert_eq!(accounts["metadata"]["resourceVersion"], before, "a restart writes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_found_by_the_object_they_are_about() {
    let served = Served::new().await;
    served.kubectl(&["run", "p", "--image=app:1"]);
    let event = |name: &str, kind: &str, version: &str, about: &str| {
        json!({ "metadata": { "name": name }, "reason": name, "message": "hello", "type": "Normal",
            "lastTimestamp": "2026-01-01T00:00:00Z",
            "involvedObject": { "apiVersion": version, "kind": kind, "name": about, "namespace": "default" } })
    };
    let events = "/api/v1/namespaces/default/events";
    served.world.create(events, event("mine", "Pod", "v1", "p")).await;
    served.world.create(events, event("other", "Pod", "v1", "q")).await;
    served.world.create(events, event("gadget", "Gadget", "example.com/v1", "p")).await;
    let shown = served.kubectl(&["events", "--for", "pod/p"]);
    assert!(shown.contains("mine") && !shown.contains("other") && !shown.contains("gadget"), "{shown}");
    let shown = served.kubectl(&["events", "--for", "gadget/p"]);
    assert!(shown.contains("gadget") && !shown.contains("mine"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_prunes_what_is_left_out() {
    let served = Served::new().await;
    let map = |name: &str| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "a": "b" },
            "metadata": { "name": name, "labels": { "app": "x" } } })
    };
    let list = |items: Vec<Value>| json!({ "apiVersion": "v1", "kind": "List", "items": items });
    let file = served.write("list.json", &list(vec![map("a"), map("b")]));
    let prune = ["apply", "--prune", "-l", "app=x", "-f", &file];
    served.kubectl(&prune);
    served.write("list.json", &list(vec![map("a")]));
    let shown = served.kubectl(&prune);
    assert!(shown.contains("configmap/b pruned") && shown.contains("configmap/a unchanged"), "{shown}");
    assert!(served.refused(&["get", "configmap", "b"]).contains("not found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_say_which_fields_select() {
    let served = Served::new().await;
    let mut crd = gadgets();
    crd["spec"]["versions"][0]["selectableFields"] =
        json!([{ "jsonPath": ".spec.mode" }, { "jsonPath": ".spec.size" }]);
    let file = served.write("crd.json", &crd);
    served.kubectl(&["replace", "-f", &file]);
    for (name, mode, size) in [("a", "Running", 1), ("b", "Suspended", 1), ("c", "Suspended", 2)] {
        let mut object = gadget(name);
        object["spec"]["mode"] = mode.into();
        object["spec"]["size"] = size.into();
        served.world.create(GADGETS, object).await;
    }
    let names = |selector: &str| {
        served
            .kubectl(&["get", "gd", "-o", "name", "--field-selector", selector])
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(names("spec.mode=Suspended"), ["gadget.example.com/b", "gadget.example.com/c"]);
    assert_eq!(names("spec.mode=Suspended,spec.size!=1,metadata.name=c"), ["gadget.example.com/c"]);
    assert!(
        served
            .refused(&["get", "gd", "--field-selector", "spec.tags=x"])
            .contains("field label not supported: spec.tags")
    );
    let mut events =
        served.world.watch(&format!("{GADGETS}?watch=true&fieldSelector=spec.mode%3DRunning")).await;
    assert_eq!(events.line().await, "ADDED a");
    served.world.patch(&format!("{GADGETS}/b"), MERGE, json!({ "spec": { "mode": "Running" } })).await;
    assert_eq!(events.line().await, "ADDED b", "it came into the selection");
    served.world.patch(&format!("{GADGETS}/a"), MERGE, json!({ "spec": { "mode": "Suspended" } })).await;
    assert_eq!(events.line().await, "DELETED a", "it left the selection");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_copied_for_debugging() {
    let served = Served::new().await;
    let mut object = pod("p");
    object["apiVersion"] = "v1".into();
    object["kind"] = "Pod".into();
    object["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "500m" } });
    object["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80 }]);
    object["spec"]["volumes"] = json!([{ "name": "v", "emptyDir": { "sizeLimit": "1Mi" } }]);
    served.kubectl(&["apply", "-f", &served.write("pod.json", &object)]);
    served.kubectl(&["debug", "p", "--copy-to=q", "--image=busybox", "-c", "debugger"]);
    let (original, copy) = (
        served.world.get(&format!("{PODS}/p")).await.body,
        served.world.get(&format!("{PODS}/q")).await.body,
    );
    assert_eq!(
        copy["spec"]["containers"][0], original["spec"]["containers"][0],
        "the protobuf says the same"
    );
    assert_eq!(copy["spec"]["volumes"], original["spec"]["volumes"]);
    assert_eq!(copy["spec"]["containers"][1]["name"], "debugger");
    assert_eq!(copy["spec"]["containers"][1]["image"], "busybox");
}
