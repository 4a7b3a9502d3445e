//! kill -9 of the engine under write load: no acknowledged write is lost. And stops in the middle of a deletion.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::engine::{Engine, kubectl, stdout};

const KILLS: usize = 50;
const WRITERS: usize = 4;
/// Acknowledged writes between two kills: each kill hits an engine that is writing.
const BETWEEN: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_kills_under_load_lose_no_acknowledged_write() {
    let mut engine = Engine::start();
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    let count = Arc::new(AtomicUsize::new(0));
    for _ in 0..KILLS {
        let client = engine.client().await;
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| tokio::spawn(write(client.clone(), acknowledged.clone(), count.clone(), stop.clone())))
            .collect();
        let goal = count.load(Ordering::Relaxed) + BETWEEN;
        while count.load(Ordering::Relaxed) < goal {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        engine.kill();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.expect("a writer does not panic");
        }
        engine.restart();
    }
    let maps: Api<ConfigMap> = Api::namespaced(engine.client().await, "default");
    let found: BTreeSet<_> =
        maps.list(&ListParams::default()).await.unwrap().iter().map(|map| map.name_any()).collect();
    let acknowledged = acknowledged.lock().unwrap();
    assert!(acknowledged.len() >= KILLS * BETWEEN);
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(
        lost.is_empty(),
        "{} of {} acknowledged writes are lost: {lost:?}",
        lost.len(),
        acknowledged.len()
    );
    engine.stop();
}

/// Creates objects until the engine is killed; remembers those that were acknowledged.
async fn write(
    client: kube::Client,
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    count: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
) {
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    while !stop.load(Ordering::Relaxed) {
        let map = serde_json::from_value(json!({"metadata": {"generateName": "write-"}})).unwrap();
        let Ok(created) = maps.create(&PostParams::default(), &map).await else { return };
        acknowledged.lock().unwrap().insert(created.name_any());
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Deleting without grace takes the Pod object away at once: the engine may be told to stop before its node has looked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandbox_deleted_just_before_the_engine_stops_is_gone_with_it() {
    for _ in 0..5 {
        let engine = Engine::start();
        let pods: Api<Pod> = Api::namespaced(engine.client().await, "default");
        let pod = json!({
            "metadata": {"name": "brief"},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "host", "command": ["sleep", "1000"]}],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let running = await_condition(pods.clone(), "brief", conditions::is_pod_running());
        tokio::time::timeout(Duration::from_secs(30), running).await.unwrap().unwrap();
        pods.delete("brief", &DeleteParams::default().grace_period(0)).await.unwrap();
        engine.stop(); // which looks for traces
    }
}

#[test]
fn copies_of_the_kubeconfig_and_of_the_routers_address_stay_true() {
    let mut engine = Engine::start();
    let copy = tempfile::tempdir().unwrap();
    let copied = copy.path().join("config");
    std::fs::copy(engine.kubeconfig(), &copied).unwrap();
    let before = engine.info.clone();
    engine.kill();
    engine.restart();
    assert_eq!((&engine.info["api"], &engine.info["router"]), (&before["api"], &before["router"]));
    stdout(&kubectl(&copied, &["get", "namespaces"], ""));

    engine.kill();
    let address = before["api"].as_str().unwrap().trim_start_matches("https://").to_owned();
    let taken = std::net::TcpListener::bind(&address).unwrap();
    engine.restart();
    assert_ne!(engine.info["api"], before["api"], "another one when it is taken");
    assert_eq!(engine.info["router"], before["router"]);
    stdout(&engine.kubectl(&["get", "namespaces"]));
    drop(taken);
    engine.stop();
}
