//! Garbage collection: dependents follow their owners, content follows its namespace or definition, and storage that is
//! deleted stays until it is no longer in use.
//!
//! ```text
//! store change ─► hint ─► look at the object as it is now ─► delete · drop dangling owners · drop a finalizer
//! ```
//!
//! A hint only says where to look. Every decision is made on the current state and guarded by uid and revision,
//! so hints may repeat or come late.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::background;
use crate::ops::{ATTEMPTS, Api, DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use crate::protection::{self, PODS};
use crate::registry::crd::CLEANUP_FINALIZER;
use crate::registry::{DEFINITIONS, Target};
use crate::store::{Change, Entry, Key, WriteError};
use crate::terminating;

const TASK: &str = "garbage collection";
const NAMESPACES: &str = "namespaces";
/// Events are kept this long after they were last seen, and this many at most.
const EVENT_HOURS: i64 = 1;
const EVENTS: usize = 10_000;
const EVENT_SWEEP: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) enum Hint {
    /// Its owners may be gone.
    Owned(Key),
    /// It waits for something before it can go.
    Deleting(Key),
    Gone(Arc<Entry>, Arc<str>),
}

/// Tells the collector about changes that may concern it.
pub(crate) fn tap(hints: UnboundedSender<Hint>) -> impl Fn(&Arc<Change>) {
    move |change: &Arc<Change>| {
        let meta = &change.entry.meta;
        if change.deleted {
            let _ = hints.send(Hint::Gone(change.entry.clone(), change.key.collection.clone()));
        } else if meta.deleting {
            let _ = hints.send(Hint::Deleting(change.key.clone()));
        } else if !meta.owners.is_empty() {
            let before = change.previous.as_ref().map_or(0, |previous| previous.meta.owners.len());
            let changed = change.previous.as_ref().is_none_or(|previous| {
                before != meta.owners.len()
                    || previous.meta.owners.iter().zip(&meta.owners).any(|(a, b)| a.uid != b.uid)
            });
            if changed {
                let _ = hints.send(Hint::Owned(change.key.clone()));
            }
        }
    }
}

/// Works until the server stops. Starts by looking at everything: hints of an earlier run are lost.
pub(crate) async fn run(api: Arc<Api>, mut hints: UnboundedReceiver<Hint>) {
    for collection in api.store.collections() {
        for entry in api.store.list(&collection, "").entries {
            background::step(TASK, found(&api, &collection, &entry)).await;
        }
    }
    let mut sweep = tokio::time::interval(EVENT_SWEEP);
    loop {
        let hint = tokio::select! {
            () = api.stopping.cancelled() => return,
            _ = sweep.tick() => {
                background::step(TASK, expire_events(&api)).await;
                continue;
            }
            hint = hints.recv() => hint,
        };
        let Some(hint) = hint else { return };
        background::step(TASK, handle(&api, hint)).await;
    }
}

/// Looks at an object that is there at the start.
async fn found(api: &Api, collection: &Arc<str>, entry: &Arc<Entry>) {
    let key = Key::new(collection, &entry.meta.namespace, &entry.meta.name);
    if entry.meta.deleting {
        return deleting(api, &key).await;
    }
    if let Some(target) = api.registry.stored_in(collection) {
        protection::protect(api, &target, entry);
    }
    if !entry.meta.owners.is_empty() {
        owned(api, &key).await;
    }
}

async fn expire_events(api: &Api) {
    let Some(target) = api.registry.stored_in("events") else { return };
    let mut entries = api.store.list("events", "").entries;
    entries.sort_by_key(|entry| entry.revision);
    let excess = entries.len().saturating_sub(EVENTS);
    let horizon = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(EVENT_HOURS);
    let target = &target;
    let old =
        entries.into_iter().enumerate().filter(|(at, entry)| *at < excess || last_seen(entry) < horizon);
    each(
        old.map(|(_, entry)| entry).collect(),
        |entry| async move { delete(api, target, &entry, None).await },
    )
    .await;
}

fn last_seen(entry: &Entry) -> jiff::Timestamp {
    let event = entry.parse();
    [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["eventTime"],
        &event["metadata"]["creationTimestamp"],
    ]
    .into_iter()
    .filter_map(|time| time.as_str()?.parse().ok())
    .max()
    .unwrap_or(jiff::Timestamp::MIN)
}

async fn handle(api: &Api, hint: Hint) {
    match hint {
        Hint::Owned(key) => owned(api, &key).await,
        Hint::Deleting(key) => deleting(api, &key).await,
        Hint::Gone(entry, collection) => gone(api, &entry, &collection).await,
    }
}

async fn gone(api: &Api, entry: &Entry, collection: &Arc<str>) {
    each(api.store.dependents(&entry.meta.uid), |key| async move { owned(api, &key).await }).await;
    for owner in &entry.meta.owners {
        if let Some((key, owner)) = api.store.find(&owner.uid)
            && owner.meta.deleting
        {
            deleting(api, &key).await;
        }
    }
    if **collection == *PODS {
        // Only the claims that this Pod used may have become unused.
        each(protection::claims_of(entry), |key| async move { deleting(api, &key).await }).await;
    }
    let waiting = [
        (NAMESPACES, &*entry.meta.namespace, !entry.meta.namespace.is_empty()),
        (DEFINITIONS, &**collection, true),
    ];
    for (holder, name, relevant) in waiting {
        let key = Key::new(&holder.into(), "", name);
        if relevant && api.store.get(&key).is_some_and(|holder| holder.meta.deleting) {
            deleting(api, &key).await;
        }
    }
}

/// Deletes an object none of whose owners is left, and drops references to owners that are not.
async fn owned(api: &Api, key: &Key) {
    let (Some(target), Some(entry)) = (api.registry.stored_in(&key.collection), api.store.get(key)) else {
        return;
    };
    let (mut living, mut lost, mut waiting) = (0, Vec::new(), false);
    for owner in &entry.meta.owners {
        match api.store.find(&owner.uid) {
            Some((_, found))
                if !found.meta.namespace.is_empty() && found.meta.namespace != entry.meta.namespace =>
            {
                lost.push(owner.uid.clone());
            }
            Some((_, found))
                if found.meta.deleting && found.meta.finalizers.iter().any(|f| **f == *FOREGROUND) =>
            {
                waiting = true;
                lost.push(owner.uid.clone());
            }
            Some(_) => living += 1,
            None => lost.push(owner.uid.clone()),
        }
    }
    if lost.is_empty() {
        return;
    }
    if living > 0 {
        let kept = |owner: &Value| !lost.iter().any(|uid| owner["uid"] == **uid);
        disown(api, key, kept).await;
    } else if !entry.meta.deleting {
        let cascade = waiting && !api.store.dependents(&entry.meta.uid).is_empty();
        let propagation = if cascade { Propagation::Foreground } else { Propagation::Background };
        // An object that asked for orphaning or waiting keeps what it asked for.
        let asked = entry.meta.finalizers.iter().any(|f| **f == *FOREGROUND || **f == *ORPHAN);
        delete(api, &target, &entry, (!asked).then_some(propagation)).await;
    }
}

/// Moves an object that is being deleted one step on.
async fn deleting(api: &Api, key: &Key) {
    let (Some(target), Some(entry)) = (api.registry.stored_in(&key.collection), api.store.get(key)) else {
        return;
    };
    if !entry.meta.deleting {
        return;
    }
    match &*key.collection {
        NAMESPACES => return empty_namespace(api, &target, &entry).await,
        DEFINITIONS => return empty_definition(api, &target, &entry).await,
        _ => {}
    }
    if let Some(finalizer) = protection::released(api, &target, &entry) {
        // The write is a hint of its own: whatever else holds the object is looked at then.
        return drop_finalizer(api, &target, &entry, finalizer).await;
    }
    let has = |name: &str| entry.meta.finalizers.iter().any(|finalizer| **finalizer == *name);
    let dependents = api.store.dependents(&entry.meta.uid);
    if has(ORPHAN) {
        let uid = &entry.meta.uid;
        each(dependents, |key| async move {
            disown(api, &key, |owner| owner["uid"] != **uid).await;
        })
        .await;
        if api.store.dependents(uid).is_empty() {
            drop_finalizer(api, &target, &entry, ORPHAN).await;
        }
    } else if has(FOREGROUND) {
        each(dependents, |key| async move { owned(api, &key).await }).await;
        let blocked = api.store.dependents(&entry.meta.uid).iter().any(|key| {
            api.store.get(key).is_some_and(|dependent| {
                dependent.meta.owners.iter().any(|owner| owner.uid == entry.meta.uid && owner.blocks_deletion)
            })
        });
        if !blocked {
            drop_finalizer(api, &target, &entry, FOREGROUND).await;
        }
    }
}

/// Deletes what is in a namespace: Pods first, and nothing else before the last of them is gone. A Pod that still runs keeps
/// the NetworkPolicies that confine it and the objects that it needs, as on a cluster (`OrderedNamespaceDeletion`).
async fn empty_namespace(api: &Api, target: &Target, entry: &Arc<Entry>) {
    let prefix = format!("{}/", entry.meta.name);
    if let Some(pods) = api.registry.stored_in(PODS) {
        empty(api, &pods, &prefix).await;
    }
    // Every Pod that goes is a hint, and leads here again.
    let collections = if api.store.is_empty(PODS, &prefix) { api.store.collections() } else { Vec::new() };
    for collection in collections {
        if let Some(target) = api.registry.stored_in(&collection) {
            empty(api, &target, &prefix).await;
        }
    }
    let left = api.store.collections().iter().any(|collection| !api.store.is_empty(collection, &prefix));
    if !left {
        let _ = api.amend(target, entry, |namespace| namespace["spec"]["finalizers"] = Value::Array(vec![]));
    } else {
        terminating::report(api, target, entry);
    }
}

async fn empty_definition(api: &Api, target: &Target, entry: &Arc<Entry>) {
    if let Some(served) = api.registry.stored_in(&entry.meta.name) {
        empty(api, &served, "").await;
    }
    if api.store.is_empty(&entry.meta.name, "") {
        drop_finalizer(api, target, entry, CLEANUP_FINALIZER).await;
    }
}

async fn empty(api: &Api, target: &Target, prefix: &str) {
    let entries = api.store.list(&target.resource.collection, prefix).entries;
    each(entries, |entry| async move {
        if !entry.meta.deleting {
            delete(api, target, &entry, None).await;
        }
    })
    .await;
}

async fn delete(api: &Api, target: &Target, entry: &Entry, propagation: Option<Propagation>) {
    let options =
        DeleteOptions { propagation, uid: Some(entry.meta.uid.to_string()), ..DeleteOptions::default() };
    if let Err(error) = api.delete(target, &entry.meta.namespace, &entry.meta.name, &options)
        && !matches!(error.code, 404 | 409)
    {
        tracing::warn!(kind = %target.resource.kind, name = %entry.meta.name, error = error.message, "could not collect an object");
    }
}

async fn drop_finalizer(api: &Api, target: &Target, entry: &Arc<Entry>, name: &str) {
    // Somebody else writing in between is fine: that write is a hint of its own.
    let _ = api.amend(target, entry, |object| retain(object, "finalizers", |finalizer| finalizer != name));
}

/// Drops owner references, against other writers if need be: no later hint would come back to it.
async fn disown(api: &Api, key: &Key, keep: impl Fn(&Value) -> bool) {
    let Some(target) = api.registry.stored_in(&key.collection) else { return };
    for _ in 0..ATTEMPTS {
        let Some(entry) = api.store.get(key) else { return };
        let amended = api.amend(&target, &entry, |object| retain(object, "ownerReferences", &keep));
        if !matches!(amended, Err(WriteError::Conflict)) {
            return;
        }
    }
}

fn retain(object: &mut Value, field: &str, keep: impl Fn(&Value) -> bool) {
    let Some(list) = object["metadata"][field].as_array_mut() else { return };
    list.retain(keep);
    if list.is_empty()
        && let Some(meta) = object["metadata"].as_object_mut()
    {
        meta.remove(field);
    }
}

/// Does all of it, and lets others have their turn in between.
async fn each<T, F: Future<Output = ()>>(items: Vec<T>, work: impl Fn(T) -> F) {
    for item in items {
        work(item).await;
        tokio::task::consume_budget().await;
    }
}
