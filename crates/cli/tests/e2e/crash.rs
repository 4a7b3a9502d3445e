//! kill -9 of the engine under write load: no acknowledged write is lost.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::engine::Engine;

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
