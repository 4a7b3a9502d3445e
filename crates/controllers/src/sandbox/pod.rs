//! The Pod of a Sandbox: what it should be when made, and which of its metadata follows the template.

use std::collections::{BTreeMap, BTreeSet};

use asb_types::{EXTENSIONS_GROUP, Sandbox, TemplateMetadata, key};
use serde_json::{Map, Value, json};

use super::child::{self, Adoption};
use super::volume;
use crate::object::{Pod, controller_of, is_kind};

type Strings = BTreeMap<String, String>;

/// The Pod of a Sandbox that has none.
pub fn desired(sandbox: &Sandbox) -> Value {
    let name = sandbox.metadata.name.as_deref().unwrap_or_default();
    let mut metadata = child::metadata(sandbox, name);
    let (labels, annotations) = desired_metadata(sandbox);
    metadata["labels"] = json!(labels);
    if !annotations.is_empty() {
        metadata["annotations"] = json!(annotations);
    }
    let mut spec = Map::clone(&sandbox.spec.pod_template.spec);
    volume::mount(sandbox, &mut spec);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// The merge patch that brings the metadata of an existing Pod in line, adopting it if it may be.
///
/// The spec of a Pod that exists is never changed. Labels and annotations that others added stay.
pub fn reconcile(sandbox: &Sandbox, pod: &Pod) -> Result<Option<Value>, String> {
    let adoption = child::adoption(sandbox, pod)?;
    let (labels, annotations) = desired_metadata(sandbox);
    let mut patch = Map::new();
    if let Adoption::Adopt(owners) = adoption {
        patch.insert("ownerReferences".to_owned(), json!(owners));
    }
    let empty = Strings::new();
    let found = pod.metadata.labels.as_ref().unwrap_or(&empty);
    let notes = pod.metadata.annotations.as_ref().unwrap_or(&empty);
    let ours = [key::WARM_POOL_SANDBOX, key::TEMPLATE_REF_HASH, key::CREATED_BY, key::CLAIM_UID];
    let once = propagated(notes, key::PROPAGATED_LABELS).filter(|label| *label != key::SANDBOX_NAME_HASH);
    let changes = difference(found, &labels, once.chain(ours));
    if !changes.is_empty() {
        patch.insert("labels".to_owned(), Value::Object(changes));
    }
    let lists = [key::PROPAGATED_LABELS, key::PROPAGATED_ANNOTATIONS];
    let once = propagated(notes, key::PROPAGATED_ANNOTATIONS);
    let changes = difference(notes, &annotations, once.chain(lists));
    if !changes.is_empty() {
        patch.insert("annotations".to_owned(), Value::Object(changes));
    }
    Ok((!patch.is_empty()).then(|| json!({"metadata": patch})))
}

/// Labels and annotations that the Pod should have, from the template and from the Sandbox itself.
fn desired_metadata(sandbox: &Sandbox) -> (Strings, Strings) {
    let template = sandbox.spec.pod_template.metadata.clone().unwrap_or_default();
    let in_pool =
        controller_of(sandbox).is_some_and(|owner| is_kind(owner, EXTENSIONS_GROUP, "SandboxWarmPool"));
    let (mut labels, mut annotations) = reaching(template, in_pool);
    let lists = [(key::PROPAGATED_LABELS, join(&labels)), (key::PROPAGATED_ANNOTATIONS, join(&annotations))];
    annotations
        .extend(lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(key, list)| (key.into(), list)));
    labels.insert(key::SANDBOX_NAME_HASH.to_owned(), child::hash(sandbox));
    labels.extend(extension_labels(sandbox));
    (labels, annotations)
}

/// What of a Pod template's labels and annotations reaches the Pod.
///
/// Ours never do. That a Pod may be evicted, which a pool says of every member, ends with the pool's control of it;
/// so a claim can take a member without touching its spec.
pub fn reaching(template: TemplateMetadata, in_pool: bool) -> (Strings, Strings) {
    let TemplateMetadata { mut labels, mut annotations, .. } = template;
    let of_a_pool = labels.contains_key(key::WARM_POOL_SANDBOX);
    if of_a_pool && !in_pool && annotations.get(key::SAFE_TO_EVICT).is_some_and(|value| value == "true") {
        annotations.remove(key::SAFE_TO_EVICT);
    }
    labels.retain(|key, _| !key::is_reserved_label(key));
    annotations.retain(|key, _| !key::is_reserved_annotation(key));
    (labels, annotations)
}

/// Labels that follow from who made the Sandbox.
fn extension_labels(sandbox: &Sandbox) -> Strings {
    let value = |key: &str| {
        let labels = sandbox.metadata.labels.as_ref()?;
        labels.get(key).filter(|value| !value.is_empty()).cloned()
    };
    let owner =
        controller_of(sandbox).filter(|owner| owner.api_version.starts_with(&format!("{EXTENSIONS_GROUP}/")));
    let owner_is = |kind: &str| owner.is_some_and(|owner| owner.kind == kind);
    let mut labels = Strings::new();
    let mut set =
        |key: &str, value: Option<String>| labels.extend(value.map(|value| (key.to_owned(), value)));
    set(key::WARM_POOL_SANDBOX, value(key::WARM_POOL_SANDBOX).filter(|_| owner_is("SandboxWarmPool")));
    set(key::TEMPLATE_REF_HASH, value(key::TEMPLATE_REF_HASH).filter(|_| owner.is_some()));
    set(key::CLAIM_UID, value(key::CLAIM_UID).filter(|_| owner_is("SandboxClaim")));
    set(key::CREATED_BY, value(key::CREATED_BY).map(|creator| key::normalized_creator(&creator).to_owned()));
    labels
}

/// What a merge patch must say so that `found` has all of `wanted` and none of the rest of `managed`.
fn difference<'a>(
    found: &Strings,
    wanted: &Strings,
    managed: impl Iterator<Item = &'a str>,
) -> Map<String, Value> {
    let managed: BTreeSet<&str> = managed.collect();
    let set = wanted
        .iter()
        .filter(|(key, value)| found.get(*key) != Some(value))
        .map(|(k, v)| (k.clone(), json!(v)));
    let unset = managed.into_iter().filter(|key| found.contains_key(*key) && !wanted.contains_key(*key));
    set.chain(unset.map(|key| (key.to_owned(), Value::Null))).collect()
}

/// The keys that an earlier pass copied from the template.
fn propagated<'a>(annotations: &'a Strings, list: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let list = annotations.get(list).map_or("", String::as_str);
    list.split(',').filter(|key| !key.is_empty())
}

fn join(map: &Strings) -> String {
    map.keys().map(String::as_str).collect::<Vec<_>>().join(",")
}
