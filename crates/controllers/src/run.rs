//! All controllers at once; and the two loops of each: watch into a cache, and work off a queue.

use std::fmt::Debug;
use std::panic::AssertUnwindSafe;

use futures::{FutureExt, StreamExt};
use kube::core::NamespaceResourceScope;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::cache::Cache;
use crate::object::Key;
use crate::queue::{Outcome, Queue};
use crate::{Config, sandbox, template, warm_pool};

/// Runs all controllers until the future is dropped. `ready` is called once the caches of all are complete.
pub async fn all(client: Client, config: Config, ready: impl FnOnce()) {
    let (sandboxes_ready, sandboxes) = oneshot::channel();
    let (templates_ready, templates) = oneshot::channel();
    let (pools_ready, pools) = oneshot::channel();
    // A sender that nobody waits for any more needs no answer.
    let announce = async {
        if tokio::try_join!(sandboxes, templates, pools).is_ok() {
            ready();
        }
    };
    tokio::join!(
        sandbox::run(client.clone(), config.clone(), || _ = sandboxes_ready.send(())),
        template::run(client.clone(), config.clone(), || _ = templates_ready.send(())),
        warm_pool::run(client, config, || _ = pools_ready.send(())),
        announce,
    );
}

/// The API of one namespace, or of all.
pub fn scope<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Feeds a cache from a watch, for ever, and shows every object that changed to `wake`.
pub async fn watch<K>(api: Api<K>, cache: &Cache<K>, wake: impl Fn(&K))
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => cache.observe(event).iter().for_each(|object| wake(object)),
            Err(error) => {
                let kind = K::kind(&());
                tracing::warn!(%kind, error = &error as &dyn std::error::Error, "watch interrupted");
            }
        }
    }
}

/// Works off a queue, for ever.
pub async fn work<W>(queue: &Queue<Key>, reconcile: impl Fn(Key) -> W)
where
    W: Future<Output = Outcome>,
{
    loop {
        let key = queue.next().await;
        // A panic is a bug, but one object must not stop the others.
        let outcome = AssertUnwindSafe(reconcile(key.clone())).catch_unwind().await;
        queue.finish(key, outcome.unwrap_or(Outcome::Failed));
    }
}
