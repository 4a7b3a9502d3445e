//! The class of a claim that names none: the default StorageClass, when the claim is created or, if there was none then,
//! as soon as there is one. `storageClassName: ""` asks for no class, and keeps it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::background;
use crate::ops::{Api, Part, WriteOptions};
use crate::protection::CLAIMS;
use crate::registry::Target;
use crate::status::ApiError;
use crate::store::{Change, Entry};

const CLASSES: &str = "storageclasses.storage.k8s.io";
/// The pause before claims are completed again after a write that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// Either makes a class the default one; the second is the older name.
const DEFAULT: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
/// Names the class of a claim in the oldest manifests.
const OLD_FIELD: &str = "volume.beta.kubernetes.io/storage-class";

/// Writes the default class on a claim that is about to be created.
pub(crate) fn fill(api: &Api, target: &Target, object: &mut Value) {
    if target.resource.is("", CLAIMS)
        && wants_default(object)
        && let Some(class) = default(api)
    {
        object["spec"]["storageClassName"] = class.into();
    }
}

/// Looks once more after a claim without a class was created: a default class that was made since [`fill`] may have been given to
/// all claims before this one was there.
pub(crate) fn fill_created(api: &Api, target: &Target, entry: &Entry) {
    if !target.resource.is("", CLAIMS) || !wants_default(&entry.parse()) {
        return;
    }
    if let Some(class) = default(api)
        && let Err(error) = give(api, target, entry, &class)
    {
        warn(entry, &error);
    }
}

/// Whether the claim leaves the choice of its class to the server.
fn wants_default(claim: &Value) -> bool {
    claim["spec"].is_object()
        && claim["spec"]["storageClassName"].is_null()
        && claim["metadata"]["annotations"][OLD_FIELD].is_null()
}

/// The newest of the default classes; of several that are as new, the first by name.
fn default(api: &Api) -> Option<String> {
    let classes = api.store.list(CLASSES, "").entries;
    let classes: Vec<Value> = classes.iter().map(|class| class.parse()).collect();
    newest_default(&classes).map(str::to_owned)
}

fn newest_default(classes: &[Value]) -> Option<&str> {
    let made = |class: &Value| class["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
    let name = |class: &Value| class["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let defaults = classes.iter().filter(|class| is_default(class));
    let newest = defaults.max_by(|a, b| made(a).cmp(&made(b)).then_with(|| name(b).cmp(&name(a))));
    newest.and_then(|class| class["metadata"]["name"].as_str())
}

fn is_default(class: &Value) -> bool {
    DEFAULT.iter().any(|annotation| class["metadata"]["annotations"][*annotation] == "true")
}

/// Tells when there may be a default class for claims that have none.
pub(crate) fn tap(changed: UnboundedSender<()>) -> impl Fn(&Arc<Change>) {
    move |change: &Arc<Change>| {
        if *change.key.collection == *CLASSES && !change.deleted {
            let _ = changed.send(());
        }
    }
}

/// Gives claims their class until the server stops. Starts by looking at all of them.
pub(crate) async fn run(api: Arc<Api>, mut changed: UnboundedReceiver<()>) {
    loop {
        let completed = background::step("default StorageClass", async { complete(&api) }).await;
        tokio::select! {
            () = api.stopping.cancelled() => return,
            () = tokio::time::sleep(AGAIN), if completed == Some(false) => {}
            change = changed.recv() => if change.is_none() { return },
        }
    }
}

/// Gives the default class to every claim that has none. Returns `false` if it has to be tried again.
fn complete(api: &Api) -> bool {
    let (Some(target), Some(class)) = (api.registry.find("", "v1", CLAIMS), default(api)) else {
        return true;
    };
    let mut completed = true;
    for entry in api.store.list(CLAIMS, "").entries {
        let claim = entry.parse();
        if entry.meta.deleting || !wants_default(&claim) || is_bound(&claim) {
            continue;
        }
        if let Err(error) = give(api, &target, &entry, &class) {
            completed &= error.code < 500;
            warn(&entry, &error);
        }
    }
    completed
}

fn warn(entry: &Entry, error: &ApiError) {
    let (namespace, name) = (&*entry.meta.namespace, &*entry.meta.name);
    tracing::warn!(namespace, claim = name, error = error.message, "claim not given the default class");
}

fn give(api: &Api, target: &Target, entry: &Entry, class: &str) -> Result<(), ApiError> {
    let step = |claim: &Value| {
        let mut claim = claim.clone();
        if wants_default(&claim) && !is_bound(&claim) {
            claim["spec"]["storageClassName"] = class.into();
        }
        Ok(claim)
    };
    let (namespace, name) = (&entry.meta.namespace, &entry.meta.name);
    api.change(target, namespace, name, Part::Main, &WriteOptions::default(), None, step).map(drop)
}

/// A claim that has or names a volume takes the class of that.
fn is_bound(claim: &Value) -> bool {
    claim["spec"]["volumeName"].as_str().is_some_and(|volume| !volume.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_newest_default_class_is_chosen() {
        let class = |name: &str, made: &str, annotation: &str, value: &str| json!({"metadata": {"name": name, "creationTimestamp": made, "annotations": {annotation: value}}});
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        for (classes, expected) in [
            (vec![], None),
            (vec![class("a", old, DEFAULT[0], "false"), class("b", old, "other", "true")], None),
            (vec![class("a", old, DEFAULT[0], "true"), class("b", new, DEFAULT[0], "true")], Some("b")),
            (vec![class("a", new, DEFAULT[1], "true"), class("b", old, DEFAULT[0], "true")], Some("a")),
            (vec![class("b", old, DEFAULT[0], "true"), class("a", old, DEFAULT[0], "true")], Some("a")),
        ] {
            assert_eq!(newest_default(&classes), expected, "{classes:?}");
        }
    }

    #[test]
    fn only_a_claim_that_says_nothing_gets_the_default() {
        for (claim, expected) in [
            (json!({"spec": {}}), true),
            (json!({"spec": {"storageClassName": null}}), true),
            (json!({"spec": {"storageClassName": ""}}), false),
            (json!({"spec": {"storageClassName": "fast"}}), false),
            (json!({"spec": {}, "metadata": {"annotations": {OLD_FIELD: "fast"}}}), false),
            (json!({}), false),
        ] {
            assert_eq!(wants_default(&claim), expected, "{claim}");
        }
    }
}
