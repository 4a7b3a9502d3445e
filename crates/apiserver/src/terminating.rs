//! Why a namespace that is being deleted is still there: conditions in its status, in Kubernetes' words.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::ops::{Api, now};
use crate::registry::Target;
use crate::store::{Entry, WriteError};

/// Writes what keeps the namespace, unless its status says so already.
pub(crate) fn report(api: &Api, target: &Target, entry: &Arc<Entry>) -> Result<(), WriteError> {
    let (kinds, finalizers) = left(api, &entry.meta.name);
    let namespace = entry.parse();
    let old = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let conditions: Vec<Value> = conditions(&kinds, &finalizers)
        .into_iter()
        .map(|(kind, status, reason, message)| {
            let before = old.iter().find(|condition| condition["type"] == kind);
            let since = before.filter(|it| it["status"] == status).map(|it| it["lastTransitionTime"].clone());
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": since.unwrap_or_else(|| now().into()),
            })
        })
        .collect();
    if conditions == old {
        return Ok(());
    }
    api.amend(target, entry, |namespace| namespace["status"]["conditions"] = conditions.into()).map(drop)
}

/// How many objects of each kind are left, and how many of them wait for each finalizer.
fn left(api: &Api, namespace: &str) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let (mut kinds, mut finalizers) = (BTreeMap::new(), BTreeMap::new());
    let prefix = format!("{namespace}/");
    for collection in api.store.collections() {
        for entry in api.store.list(&collection, &prefix).entries {
            *kinds.entry(collection.to_string()).or_default() += 1;
            for finalizer in &entry.meta.finalizers {
                *finalizers.entry(finalizer.to_string()).or_default() += 1;
            }
        }
    }
    (kinds, finalizers)
}

type Condition = (&'static str, &'static str, &'static str, String);

fn conditions(kinds: &BTreeMap<String, usize>, finalizers: &BTreeMap<String, usize>) -> [Condition; 5] {
    let fine = |kind, reason, message: &str| (kind, "False", reason, message.to_owned());
    let list = |counts: &BTreeMap<String, usize>, form: fn(&str, usize) -> String| {
        counts.iter().map(|(name, count)| form(name, *count)).collect::<Vec<_>>().join(", ")
    };
    let remaining = list(kinds, |name, count| format!("{name} has {count} resource instances"));
    let waiting = list(finalizers, |name, count| format!("{name} in {count} resource instances"));
    [
        fine(
            "NamespaceDeletionDiscoveryFailure",
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        fine(
            "NamespaceDeletionGroupVersionParsingFailure",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        fine(
            "NamespaceDeletionContentFailure",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        match remaining.is_empty() {
            true => fine("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
            false => (
                "NamespaceContentRemaining",
                "True",
                "SomeResourcesRemain",
                format!("Some resources are remaining: {remaining}"),
            ),
        },
        match waiting.is_empty() {
            true => fine(
                "NamespaceFinalizersRemaining",
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            ),
            false => (
                "NamespaceFinalizersRemaining",
                "True",
                "SomeFinalizersRemain",
                format!("Some content in the namespace has finalizers remaining: {waiting}"),
            ),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_name_what_is_left() {
        let kinds = [("configmaps".to_owned(), 1), ("gadgets.example.com".to_owned(), 2)].into();
        let shown = conditions(&kinds, &[("example.com/hold".to_owned(), 2)].into());
        assert_eq!(
            shown[3].3,
            "Some resources are remaining: configmaps has 1 resource instances, gadgets.example.com has 2 resource instances"
        );
        assert_eq!(
            shown[4].3,
            "Some content in the namespace has finalizers remaining: example.com/hold in 2 resource instances"
        );
        assert!(
            conditions(&BTreeMap::new(), &BTreeMap::new()).iter().all(|(_, status, ..)| *status == "False")
        );
    }
}
