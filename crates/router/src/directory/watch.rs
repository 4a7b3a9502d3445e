//! Keeps the tables true to the API.

use std::fmt::Debug;
use std::io;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;

use super::Directory;

/// Objects of one kind, as far as the router cares.
pub trait Table: Default + Send + Sync + 'static {
    type Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static;

    fn apply(&mut self, object: Self::Object);
    fn remove(&mut self, object: Self::Object);
}

/// The running watches; dropping it ends them.
pub struct Watching {
    _tasks: JoinSet<()>,
}

/// Starts the watches. Returns when everything that exists has been seen once, or fails after `timeout`.
pub async fn watch(client: Client, timeout: Duration) -> io::Result<(Arc<Directory>, Watching)> {
    let directory = Arc::new(Directory::default());
    let mut tasks = JoinSet::new();
    let (pods_synced, mut pods) = channel::channel(false);
    let (sandboxes_synced, mut sandboxes) = channel::channel(false);
    tasks.spawn({
        let (directory, client) = (directory.clone(), client.clone());
        async move {
            let config = watcher::Config::default().labels(asb_types::key::SANDBOX_NAME_HASH);
            follow(Api::all(client), config, &directory.pods, pods_synced).await;
        }
    });
    tasks.spawn({
        let directory = directory.clone();
        async move {
            follow(Api::all(client), watcher::Config::default(), &directory.sandboxes, sandboxes_synced)
                .await;
        }
    });
    let synced = async { tokio::join!(is_true(&mut pods), is_true(&mut sandboxes)) };
    match tokio::time::timeout(timeout, synced).await {
        Ok((true, true)) => Ok((directory, Watching { _tasks: tasks })),
        _ => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "Pods and Sandboxes could not be listed within {timeout:?}; may the router list and watch both?"
            ),
        )),
    }
}

/// Feeds one kind's events into its table, for ever. When the API is gone the table stays as it is.
async fn follow<T: Table>(
    api: Api<T::Object>,
    config: watcher::Config,
    table: &RwLock<T>,
    synced: channel::Sender<bool>,
) {
    let kind = T::Object::kind(&());
    let mut events = pin!(watcher(api, config).default_backoff());
    // A new list is gathered beside the table and put in its place at once, so that nobody ever sees half of one.
    let mut listed = T::default();
    let mut failing = false;
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%kind, error = %error, "watch interrupted; serving from what is known");
                }
                continue;
            }
        };
        if std::mem::take(&mut failing) {
            tracing::info!(%kind, "watch works again");
        }
        let known = || table.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Init => listed = T::default(),
            Event::InitApply(object) => listed.apply(object),
            Event::InitDone => {
                *known() = std::mem::take(&mut listed);
                synced.send_replace(true);
            }
            Event::Apply(object) => known().apply(object),
            Event::Delete(object) => known().remove(object),
        }
    }
}

async fn is_true(flag: &mut channel::Receiver<bool>) -> bool {
    flag.wait_for(|done| *done).await.is_ok()
}
