//! Keeps the index true to the API.

use std::fmt::Debug;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::core::NamespaceResourceScope;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;

use super::index::Index;
use super::objects::{Pod, Sandbox};
use super::{Directory, Hold, Key};
use crate::observe::Observe;

/// The running watches; dropping it ends them.
#[must_use]
pub struct Watching {
    _tasks: JoinSet<()>,
}

/// A kind that the index is kept from.
trait Indexed: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static {
    fn apply(self, index: &mut Index) -> Vec<Key>;
    fn remove(self, index: &mut Index) -> Vec<Key>;
    fn replace(listed: Vec<Self>, index: &mut Index) -> Vec<Key>;
}

impl Indexed for Pod {
    fn apply(self, index: &mut Index) -> Vec<Key> {
        index.apply_pod(self)
    }
    fn remove(self, index: &mut Index) -> Vec<Key> {
        index.remove_pod(&self)
    }
    fn replace(listed: Vec<Self>, index: &mut Index) -> Vec<Key> {
        index.replace_pods(listed)
    }
}

impl Indexed for Sandbox {
    fn apply(self, index: &mut Index) -> Vec<Key> {
        index.apply_sandbox(self)
    }
    fn remove(self, index: &mut Index) -> Vec<Key> {
        index.remove_sandbox(&self)
    }
    fn replace(listed: Vec<Self>, index: &mut Index) -> Vec<Key> {
        index.replace_sandboxes(listed)
    }
}

/// Starts the watches. Returns when everything that exists has been seen once, or fails after `timeout`.
pub async fn watch(
    client: Client,
    namespace: Option<&str>,
    hold: Hold,
    by_address: bool,
    timeout: Duration,
    observe: Observe,
) -> io::Result<(Arc<Directory>, Watching)> {
    let index = if by_address { Index::with_unique_addresses() } else { Index::default() };
    let directory = Arc::new(Directory::new(hold, index, observe));
    let mut tasks = JoinSet::new();
    let (pods_synced, mut pods) = channel::channel(false);
    let (sandboxes_synced, mut sandboxes) = channel::channel(false);
    let of_sandboxes = watcher::Config::default().labels(asb_types::key::SANDBOX_NAME_HASH);
    tasks.spawn(follow::<Pod>(api(client.clone(), namespace), of_sandboxes, directory.clone(), pods_synced));
    tasks.spawn(follow::<Sandbox>(
        api(client, namespace),
        watcher::Config::default(),
        directory.clone(),
        sandboxes_synced,
    ));
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

fn api<K>(client: Client, namespace: Option<&str>) -> Api<K>
where
    K: Indexed + Resource<Scope = NamespaceResourceScope>,
{
    match namespace {
        None => Api::all(client),
        Some(namespace) => Api::namespaced(client, namespace),
    }
}

/// Feeds one kind's events into the index, for ever. While the API server is away the index stays as it is.
async fn follow<K: Indexed>(
    api: Api<K>,
    config: watcher::Config,
    directory: Arc<Directory>,
    synced: channel::Sender<bool>,
) {
    let kind = K::kind(&());
    let mut events = pin!(watcher(api, config).default_backoff());
    // A new list is gathered here and takes effect at once, so that no request sees half of one.
    let mut listed = Vec::new();
    let mut failing = false;
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%kind, error = &error as &dyn std::error::Error, "watch interrupted; serving from what is known");
                }
                continue;
            }
        };
        if std::mem::take(&mut failing) {
            tracing::info!(%kind, "watch works again");
        }
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => listed.push(object),
            Event::InitDone => {
                let listed = std::mem::take(&mut listed);
                directory.change(|index| K::replace(listed, index));
                synced.send_replace(true);
            }
            Event::Apply(object) => directory.change(|index| object.apply(index)),
            Event::Delete(object) => directory.change(|index| object.remove(index)),
        }
    }
}

async fn is_true(flag: &mut channel::Receiver<bool>) -> bool {
    flag.wait_for(|done| *done).await.is_ok()
}
