//! Garbage collection: dependents follow their owners, content follows its namespace or definition, and storage that is
//! deleted stays until it is no longer in use.
//!
//! ```text
//! store change ─► hint ─► look at the object as it is now ─► delete · drop dangling owners · drop a finalizer
//! ```
//!
//! A hint only says where to look. Every decision is made on the current state and guarded by uid and revision,
//! so hints may repeat or come late.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::background;
use crate::ops::{Api, DeleteOptions, FOREGROUND, ORPHAN, Propagation, storage_error};
use crate::protection;
use crate::registry::crd::CLEANUP_FINALIZER;
use crate::registry::{DEFINITIONS, NAMESPACES, PODS, Target};
use crate::status::ApiError;
use crate::store::{Change, Entry, Key, WriteError};
use crate::terminating;

const TASK: &str = "garbage collection";
/// Events are kept this long after they were last seen, and this many at most.
const EVENT_HOURS: i64 = 1;
const EVENTS: usize = 10_000;
const EVENT_SWEEP: Duration = Duration::from_secs(60);
/// The pause before a hint is followed again after a write that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// An error is one that may pass, as when the disk is full: the hint is followed again.
type Outcome = Result<(), ApiError>;

#[derive(Debug)]
pub(crate) enum Hint {
    /// It was there at the start.
    Found(Key),
    /// Its owners may be gone.
    Owned(Key),
    /// It waits for something before it can go.
    Deleting(Key),
    /// A namespace or definition that is being deleted, and may be empty.
    Emptied(Key),
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

/// What is left to do.
#[derive(Default)]
struct Backlog {
    /// Namespaces and definitions that may be empty by now. They are looked at when no other hint is left: once for all the
    /// objects that went, not once for each.
    holders: BTreeSet<Key>,
    failed: Failed,
}

/// Hints to follow again, because a write failed.
#[derive(Default)]
struct Failed {
    hints: Vec<Hint>,
    due: Option<Instant>,
}

impl Failed {
    fn add(&mut self, hint: Hint, error: &ApiError) {
        if self.hints.is_empty() {
            tracing::warn!(error = error.message, "garbage collection failed; it is tried again");
            self.due = Some(Instant::now() + AGAIN);
        }
        self.hints.push(hint);
    }

    /// Waits until the hints are due; for ever if there are none.
    async fn due(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    fn take(&mut self) -> Vec<Hint> {
        self.due = None;
        std::mem::take(&mut self.hints)
    }
}

/// Works until the server stops. Starts by looking at everything: hints of an earlier run are lost.
pub(crate) async fn run(api: Arc<Api>, mut hints: UnboundedReceiver<Hint>) {
    let mut backlog = Backlog::default();
    for collection in api.store.collections() {
        for entry in api.store.list(&collection, "").entries {
            let key = Key::new(&collection, &entry.meta.namespace, &entry.meta.name);
            follow(&api, Hint::Found(key), &mut backlog).await;
        }
    }
    let mut sweep = tokio::time::interval(EVENT_SWEEP);
    loop {
        if hints.is_empty()
            && let Some(holder) = backlog.holders.pop_first()
        {
            follow(&api, Hint::Emptied(holder), &mut backlog).await;
            continue;
        }
        let due = tokio::select! {
            () = api.stopping.cancelled() => return,
            _ = sweep.tick() => {
                background::step(TASK, expire_events(&api)).await;
                continue;
            }
            hint = hints.recv() => match hint {
                Some(hint) => vec![hint],
                None => return,
            },
            () = backlog.failed.due() => backlog.failed.take(),
        };
        for hint in due {
            follow(&api, hint, &mut backlog).await;
        }
    }
}

/// Follows a hint, and keeps it if a write fails. A hint that leads to a panic is dropped.
async fn follow(api: &Api, hint: Hint, backlog: &mut Backlog) {
    if let Some(Err(error)) = background::step(TASK, handle(api, &hint, &mut backlog.holders)).await {
        backlog.failed.add(hint, &error);
    }
}

/// Looks at an object that is there at the start.
async fn found(api: &Api, key: &Key) -> Outcome {
    let (Some(target), Some(entry)) = (api.registry.stored_in(&key.collection), api.store.get(key)) else {
        return Ok(());
    };
    if entry.meta.deleting {
        return deleting(api, key).await;
    }
    protection::protect(api, &target, key)?;
    owned(api, key).await
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
    let deleted =
        each(old.map(|(_, entry)| entry).collect(), |entry| async move { delete(api, target, &entry, None) });
    if let Err(error) = deleted.await {
        tracing::warn!(error = error.message, "old events not deleted");
    }
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

async fn handle(api: &Api, hint: &Hint, holders: &mut BTreeSet<Key>) -> Outcome {
    match hint {
        Hint::Deleting(key) if is_holder(key) => {
            holders.insert(key.clone());
            Ok(())
        }
        Hint::Emptied(key) => deleting(api, key).await,
        Hint::Found(key) => found(api, key).await,
        Hint::Owned(key) => owned(api, key).await,
        Hint::Deleting(key) => deleting(api, key).await,
        Hint::Gone(entry, collection) => gone(api, entry, collection, holders).await,
    }
}

/// Whether other objects are in this one.
fn is_holder(key: &Key) -> bool {
    matches!(&*key.collection, NAMESPACES | DEFINITIONS)
}

async fn gone(api: &Api, entry: &Entry, collection: &Arc<str>, holders: &mut BTreeSet<Key>) -> Outcome {
    each(api.store.dependents(&entry.meta.uid), |key| async move { owned(api, &key).await }).await?;
    for owner in &entry.meta.owners {
        if let Some((key, owner)) = api.store.find(&owner.uid)
            && owner.meta.deleting
        {
            deleting(api, &key).await?;
        }
    }
    if **collection == *PODS {
        // Only the claims that this Pod used may have become unused.
        each(protection::claims_of(entry), |key| async move { deleting(api, &key).await }).await?;
    }
    let waiting = [
        (NAMESPACES, &*entry.meta.namespace, !entry.meta.namespace.is_empty()),
        (DEFINITIONS, &**collection, true),
    ];
    for (holder, name, relevant) in waiting {
        let key = Key::new(&holder.into(), "", name);
        if relevant && api.store.get(&key).is_some_and(|holder| holder.meta.deleting) {
            holders.insert(key);
        }
    }
    Ok(())
}

/// Deletes an object none of whose owners is left, and drops references to owners that are not.
async fn owned(api: &Api, key: &Key) -> Outcome {
    let (Some(target), Some(entry)) = (api.registry.stored_in(&key.collection), api.store.get(key)) else {
        return Ok(());
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
        return Ok(());
    }
    if living > 0 {
        let kept = |owner: &Value| !lost.iter().any(|uid| owner["uid"] == **uid);
        disown(api, key, kept)?;
    } else if !entry.meta.deleting {
        let cascade = waiting && !api.store.dependents(&entry.meta.uid).is_empty();
        let propagation = if cascade { Propagation::Foreground } else { Propagation::Background };
        // An object that asked for orphaning or waiting keeps what it asked for.
        let asked = entry.meta.finalizers.iter().any(|f| **f == *FOREGROUND || **f == *ORPHAN);
        delete(api, &target, &entry, (!asked).then_some(propagation))?;
    }
    Ok(())
}

/// Moves an object that is being deleted one step on.
async fn deleting(api: &Api, key: &Key) -> Outcome {
    let (Some(target), Some(entry)) = (api.registry.stored_in(&key.collection), api.store.get(key)) else {
        return Ok(());
    };
    if !entry.meta.deleting {
        return Ok(());
    }
    match &*key.collection {
        NAMESPACES => return empty_namespace(api, &target, &entry).await,
        DEFINITIONS => return empty_definition(api, &target, &entry).await,
        _ => {}
    }
    if let Some(finalizer) = protection::released(api, &target, &entry) {
        // The write is a hint of its own: whatever else holds the object is looked at then.
        return drop_finalizer(api, &target, &entry, finalizer);
    }
    let has = |name: &str| entry.meta.finalizers.iter().any(|finalizer| **finalizer == *name);
    let dependents = api.store.dependents(&entry.meta.uid);
    if has(ORPHAN) {
        let uid = &entry.meta.uid;
        each(dependents, |key| async move { disown(api, &key, |owner| owner["uid"] != **uid) }).await?;
        if api.store.dependents(uid).is_empty() {
            drop_finalizer(api, &target, &entry, ORPHAN)?;
        }
    } else if has(FOREGROUND) {
        each(dependents, |key| async move { owned(api, &key).await }).await?;
        let blocked = api.store.dependents(&entry.meta.uid).iter().any(|key| {
            api.store.get(key).is_some_and(|dependent| {
                dependent.meta.owners.iter().any(|owner| owner.uid == entry.meta.uid && owner.blocks_deletion)
            })
        });
        if !blocked {
            drop_finalizer(api, &target, &entry, FOREGROUND)?;
        }
    }
    Ok(())
}

/// Deletes what is in a namespace: Pods first, and nothing else before the last of them is gone. A Pod that still runs keeps
/// the NetworkPolicies that confine it and the objects that it needs, as on a cluster (`OrderedNamespaceDeletion`).
async fn empty_namespace(api: &Api, target: &Target, entry: &Arc<Entry>) -> Outcome {
    let prefix = format!("{}/", entry.meta.name);
    if let Some(pods) = api.registry.stored_in(PODS) {
        empty(api, &pods, &prefix).await?;
    }
    // Every Pod that goes is a hint, and leads here again.
    let collections = if api.store.is_empty(PODS, &prefix) { api.store.collections() } else { Vec::new() };
    for collection in collections {
        if let Some(target) = api.registry.stored_in(&collection) {
            empty(api, &target, &prefix).await?;
        }
    }
    let left = api.store.collections().iter().any(|collection| !api.store.is_empty(collection, &prefix));
    if left {
        return written(terminating::report(api, target, entry));
    }
    let empty = |namespace: &mut Value| namespace["spec"]["finalizers"] = Value::Array(vec![]);
    written(api.amend(target, entry, empty).map(drop))
}

async fn empty_definition(api: &Api, target: &Target, entry: &Arc<Entry>) -> Outcome {
    if let Some(served) = api.registry.stored_in(&entry.meta.name) {
        empty(api, &served, "").await?;
    }
    match api.store.is_empty(&entry.meta.name, "") {
        true => drop_finalizer(api, target, entry, CLEANUP_FINALIZER),
        false => Ok(()),
    }
}

async fn empty(api: &Api, target: &Target, prefix: &str) -> Outcome {
    let entries = api.store.list(&target.resource.collection, prefix).entries;
    each(entries, |entry| async move {
        if entry.meta.deleting { Ok(()) } else { delete(api, target, &entry, None) }
    })
    .await
}

fn delete(api: &Api, target: &Target, entry: &Entry, propagation: Option<Propagation>) -> Outcome {
    let options =
        DeleteOptions { propagation, uid: Some(entry.meta.uid.to_string()), ..DeleteOptions::default() };
    match api.delete(target, &entry.meta.namespace, &entry.meta.name, &options) {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.code, 404 | 409) => Ok(()),
        Err(error) if error.code >= 500 => Err(error),
        Err(error) => {
            tracing::warn!(kind = %target.resource.kind, name = %entry.meta.name, error = error.message, "could not collect an object");
            Ok(())
        }
    }
}

fn drop_finalizer(api: &Api, target: &Target, entry: &Arc<Entry>, name: &str) -> Outcome {
    let keep = |finalizer: &Value| finalizer != name;
    written(api.amend(target, entry, |object| retain(object, "finalizers", keep)).map(drop))
}

/// The outcome of a write. A conflict is a write by another client, and so a hint of its own.
fn written(result: Result<(), WriteError>) -> Outcome {
    match result {
        Err(WriteError::Conflict) => Ok(()),
        other => other.map_err(storage_error),
    }
}

/// Drops owner references, against other writers if need be: no later hint would lead back to the object.
fn disown(api: &Api, key: &Key, keep: impl Fn(&Value) -> bool) -> Outcome {
    let Some(target) = api.registry.stored_in(&key.collection) else { return Ok(()) };
    let dropped = api.amend_current(&target, key, |object| {
        let owners = object["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len);
        retain(object, "ownerReferences", &keep);
        object["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len) != owners
    });
    dropped.map_err(storage_error)
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

/// Does all of it, and lets other tasks have their turn in between. The first error is returned when all is done.
async fn each<T, F: Future<Output = Outcome>>(items: Vec<T>, work: impl Fn(T) -> F) -> Outcome {
    let mut outcome = Ok(());
    for item in items {
        outcome = outcome.and(work(item).await);
        tokio::task::consume_budget().await;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::WriteOptions;
    use crate::protection::CLAIMS;
    use crate::{ApiServer, Config};
    use serde_json::json;

    #[tokio::test]
    async fn a_hint_whose_write_fails_is_followed_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = Config { data_dir: dir.path().to_owned(), crds: vec![], node_name: None };
        let api = ApiServer::open(config).await.expect("the server opens").api;
        // The collector's own look at everything comes before there is a claim.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let claims = api.registry.stored_in(CLAIMS).expect("a built-in kind");
        let claim = json!({
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
        });
        let made = api.create(&claims, "default", claim, &WriteOptions::default());
        let made = made.map_err(|error| error.message).expect("created").entry;
        let bare = |claim: &mut Value| claim["metadata"]["finalizers"] = json!([]);
        api.amend(&claims, &made, bare).expect("written");
        api.store.stop().await;
        let key = Key::new(&CLAIMS.into(), "default", "data");
        while api.amend(&claims, &api.store.get(&key).expect("there"), |_| ()).is_ok() {}
        let mut backlog = Backlog::default();
        follow(&api, Hint::Found(key), &mut backlog).await;
        let failed = &mut backlog.failed;
        assert!(matches!(failed.hints[..], [Hint::Found(_)]) && failed.due.is_some());
        assert!(failed.take().len() == 1 && failed.due.is_none());
    }
}
