//! The webhook behind a real kube-apiserver.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use asb_types::crd;
use asb_webhook::certificate::{self, LIFE};
use common::*;
use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_seen_and_changed_at_both_versions() {
    let cluster = Cluster::start().await;
    let webhook = cluster.webhook(identity()).await;
    cluster.v1alpha1_is_served().await;

    let made = cluster.post(ALPHA, &sandbox("v1alpha1", "a")).await.expect("v1alpha1 is accepted");
    assert_eq!((&made["spec"]["replicas"], &made["status"]["replicas"]), (&json!(1), &json!(1)));
    let stored = cluster.get(&format!("{BETA}/a")).await.unwrap();
    assert_eq!(stored["spec"]["operatingMode"], "Running");

    let sandboxes = alpha_sandboxes(&cluster);
    let mut events = sandboxes.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    cluster.post(BETA, &sandbox("v1beta1", "b")).await.unwrap();
    let seen = loop {
        match events.next().await.expect("the watch goes on").expect("an event") {
            WatchEvent::Added(object) if object.name_any() == "b" => break object,
            _ => continue,
        }
    };
    assert_eq!(seen.data["spec"]["replicas"], 1);
    let list = cluster.get(ALPHA).await.unwrap();
    let replicas: Vec<_> =
        list["items"].as_array().unwrap().iter().map(|item| &item["spec"]["replicas"]).collect();
    assert_eq!(replicas, [1, 1]);

    cluster
        .merge(&format!("{ALPHA}/b"), json!({"spec": {"replicas": 0}}))
        .await
        .expect("a patch is accepted");
    cluster
        .merge(&format!("{ALPHA}/a/scale"), json!({"spec": {"replicas": 0}}))
        .await
        .expect("scale is there");
    for name in ["a", "b"] {
        assert_eq!(
            cluster.get(&format!("{BETA}/{name}")).await.unwrap()["spec"]["operatingMode"],
            "Suspended"
        );
    }

    let shown = kubectl(
        &cluster.kubernetes.kubeconfig,
        &["get", "sandboxes.v1alpha1.agents.x-k8s.io", "a", "-o", "jsonpath={.spec.replicas}"],
    );
    assert_eq!(shown, "0");

    webhook.abort();
    cluster
        .eventually("v1alpha1 needs the webhook", async || cluster.get(&format!("{ALPHA}/a")).await.is_err())
        .await;
    cluster.post(BETA, &sandbox("v1beta1", "c")).await.expect("v1beta1 does not need it");
    let running = json!({"spec": {"operatingMode": "Running"}});
    assert_eq!(
        cluster.merge(&format!("{BETA}/a"), running).await.unwrap()["spec"]["operatingMode"],
        "Running"
    );
}

/// MG-20, MG-22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_read_fails_while_replicas_renew_the_certificate() {
    let cluster = Cluster::start().await;
    let names = certificate::names(crd::WEBHOOK_SERVICE, crd::WEBHOOK_NAMESPACE, "cluster.local");
    let old =
        certificate::issue(&names, Timestamp::now() - SignedDuration::from_hours(300 * 24), LIFE).unwrap();
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), crd::WEBHOOK_NAMESPACE);
    let secret = json!({"metadata": {"name": asb_webhook::SECRET_NAME}, "type": "Opaque", "stringData": {
        "ca.crt": old.authorities, "tls.crt": old.certificate, "tls.key": old.key,
    }});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let certificate = async || {
        let secret = secrets.get(asb_webhook::SECRET_NAME).await.unwrap();
        String::from_utf8(secret.data.unwrap()["tls.crt"].0.clone()).unwrap()
    };

    let first = cluster.webhook(identity()).await;
    let second = cluster.replica(identity(), ([127, 0, 0, 1], 0).into()).await;
    cluster.v1alpha1_is_served().await;
    cluster.post(ALPHA, &sandbox("v1alpha1", "a")).await.expect("v1alpha1 is accepted");

    let (renewed, after) = (AtomicBool::new(false), AtomicUsize::new(0));
    let read = async || {
        while after.load(Ordering::Relaxed) < 200 {
            let path = format!("{ALPHA}/a");
            assert_eq!(cluster.get(&path).await.expect("no read fails")["spec"]["replicas"], 1);
            if renewed.load(Ordering::Relaxed) {
                after.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let wait = async {
        cluster
            .eventually("the certificate is renewed", async || certificate().await != old.certificate)
            .await;
        renewed.store(true, Ordering::Relaxed);
    };
    tokio::join!(wait, read(), read(), read());

    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sandboxes.agents.x-k8s.io";
    let bundle = cluster.get(definition);
    let bundle = bundle.await.unwrap()["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"].clone();
    assert!(
        bundle.as_str().is_some_and(|bundle| bundle.len() > old.authorities.len()),
        "both authorities are trusted"
    );
    first.abort();
    second.abort();
}

fn alpha_sandboxes(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: "agents.x-k8s.io".into(),
        version: "v1alpha1".into(),
        api_version: "agents.x-k8s.io/v1alpha1".into(),
        kind: "Sandbox".into(),
        plural: "sandboxes".into(),
    };
    Api::namespaced_with(cluster.client.clone(), "default", &kind)
}
