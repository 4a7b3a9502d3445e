//! Keeps the rules true while policies, namespaces and labels change.

use std::collections::HashSet;
use std::time::Duration;

use asb_network::Network;
use futures::StreamExt;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

use super::{Wires, key};

/// Changes come in bunches: a moment is waited for the rest of them.
const BUNCH: Duration = Duration::from_millis(10);
/// The pause before something that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs until it is dropped.
pub async fn run(client: &Client, wires: &Wires) {
    tokio::join!(
        policies(client, wires),
        namespaces(client, wires),
        services(client, wires),
        rules(wires),
        names(wires),
    );
}

async fn policies(client: &Client, wires: &Wires) {
    let mut listed = HashSet::new();
    follow(client, "NetworkPolicies", |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(policy) => {
            listed.insert(key(&policy));
            wires.note_policy(&policy, true);
        }
        Event::InitDone => wires.keep_policies(&listed),
        Event::Apply(policy) => wires.note_policy(&policy, true),
        Event::Delete(policy) => wires.note_policy(&policy, false),
    })
    .await;
}

async fn namespaces(client: &Client, wires: &Wires) {
    follow(client, "Namespaces", |event| match event {
        Event::InitApply(namespace) | Event::Apply(namespace) => wires.note_namespace(&namespace, true),
        Event::Delete(namespace) => wires.note_namespace(&namespace, false),
        Event::Init | Event::InitDone => {}
    })
    .await;
}

async fn services(client: &Client, wires: &Wires) {
    let mut listed = HashSet::new();
    follow(client, "Services", |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(service) => {
            listed.insert(key(&service));
            wires.note_service(&service, true);
        }
        Event::InitDone => wires.keep_services(&listed),
        Event::Apply(service) => wires.note_service(&service, true),
        Event::Delete(service) => wires.note_service(&service, false),
    })
    .await;
}

/// Hands on every event, for as long as it is polled.
async fn follow<K>(client: &Client, kind: &str, mut each: impl FnMut(Event<K>))
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + 'static,
    K: serde::de::DeserializeOwned,
{
    let mut events =
        watcher(Api::<K>::all(client.clone()), watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => each(event),
            Err(error) => tracing::warn!(kind, error = &error as &dyn std::error::Error, "watch interrupted"),
        }
    }
}

async fn names(wires: &Wires) {
    match &wires.resolver {
        Some(resolver) => resolver.lock().await.as_mut().await,
        None => std::future::pending().await,
    }
}

async fn rules(wires: &Wires) {
    let Ok(network) = &wires.network else { return std::future::pending().await };
    let removals = network.removals().inspect_err(|error| {
        tracing::warn!(%error, "rules that somebody removes will only come back with the next change");
    });
    let removed = async || match &removals {
        Ok(removals) => removals.next().await,
        Err(_) => std::future::pending().await,
    };
    loop {
        let done = tokio::select! {
            () = wires.changed.notified() => {
                tokio::time::sleep(BUNCH).await;
                wires.apply().await
            }
            () = removed() => network.blocking(Network::heal).await,
        };
        if let Err(error) = done {
            tracing::error!(error, "the rules of the network are not as they should be; trying again");
            wires.changed.notify_one();
            tokio::time::sleep(AGAIN).await;
        }
    }
}
