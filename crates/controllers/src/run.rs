//! All controllers at once; and the two loops of each: watch into a cache, and work off a queue.

use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::cache::{Cache, Change};
use crate::caches::Caches;
use crate::object::Key;
use crate::queue::{Outcome, Queue};
use crate::{Config, claim, sandbox, template, warm_pool};

/// Runs all controllers until they are asked to stop, or the future is dropped, on caches that somebody
/// else feeds.
pub async fn all(client: Client, caches: Arc<Caches>, config: Config) {
    tokio::join!(
        sandbox::run(client.clone(), caches.clone(), config.clone()),
        template::run(client.clone(), caches.clone(), config.clone()),
        warm_pool::run(client.clone(), caches.clone(), config.clone()),
        claim::run(client, caches, config),
    );
}

/// Feeds a cache from a watch, for ever.
pub async fn watch<K>(api: Api<K>, cache: &Cache<K>, namespace: &str)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = watcher::Config { label_selector: cache.label().map(str::to_owned), ..Default::default() };
    let mut events = watcher(api, config).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => cache.observe(namespace, event),
            Err(error) => {
                let kind = K::kind(&());
                tracing::warn!(%kind, error = &error as &dyn std::error::Error, "watch interrupted");
            }
        }
    }
}

/// Works off a queue, until the controllers are asked to stop.
pub async fn work<W>(queue: &Queue<Key>, reconcile: impl Fn(Key) -> W)
where
    W: Future<Output = Outcome>,
{
    while let Some(key) = queue.next().await {
        // A panic is a bug, but one object must not stop the others.
        let outcome = AssertUnwindSafe(reconcile(key.clone())).catch_unwind().await;
        queue.finish(key, outcome.unwrap_or(Outcome::Failed));
    }
}

/// A listener that asks for a look at whatever a changed object concerned before and concerns now.
pub fn waker<K>(queue: &Arc<Queue<Key>>, concerned: fn(&K) -> Option<Key>) -> impl Fn(&Change<K>) + use<K> {
    let queue = queue.clone();
    move |change| change.sides().filter_map(|object| concerned(object)).for_each(|key| queue.add(key))
}

/// Has that many workers at work until all have ended, which they do when asked to.
pub async fn workers<W>(count: usize, work: impl Fn() -> W)
where
    W: Future<Output = ()> + Send + 'static,
{
    // Dropped with this future, and with it every worker.
    let mut workers: JoinSet<()> = (0..count).map(|_| work()).collect();
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a worker ended early");
        }
    }
}
