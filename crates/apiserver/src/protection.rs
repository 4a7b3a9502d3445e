//! Storage object in use protection: a claim stays while a Pod uses it, a volume while a claim is bound to it and until its data
//! is removed, if it is to be removed.
//!
//! Both get a finalizer when they are created, as on a cluster. It is removed here once the object is being deleted and
//! nothing uses it any more; until then `kubectl` shows it as `Terminating`.

use asb_types::volume;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::ops::{Api, storage_error};
use crate::registry::{PODS, Resource, Target};
use crate::status::ApiError;
use crate::store::{Entry, Key};

pub(crate) const CLAIMS: &str = "persistentvolumeclaims";
pub(crate) const VOLUMES: &str = "persistentvolumes";

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";

/// The finalizer that objects of a kind are created with.
pub(crate) fn finalizer(resource: &Resource) -> Option<&'static str> {
    match (&*resource.group, &*resource.plural) {
        ("", CLAIMS) => Some(CLAIM_FINALIZER),
        ("", VOLUMES) => Some(volume::VOLUME_PROTECTION),
        _ => None,
    }
}

/// Adds a finalizer, unless the object has it.
pub(crate) fn add_finalizer(meta: &mut Value, finalizer: &str) {
    match meta["finalizers"].as_array_mut() {
        Some(list) if list.iter().any(|known| known == finalizer) => {}
        Some(list) => list.push(finalizer.into()),
        None => meta["finalizers"] = json!([finalizer]),
    }
}

/// The finalizer that an object which is being deleted no longer needs, because nothing uses it.
pub(crate) fn released(api: &Api, target: &Target, entry: &Entry) -> Option<&'static str> {
    let finalizer = finalizer(&target.resource)?;
    let protected = entry.meta.finalizers.iter().any(|known| **known == *finalizer);
    let used = || match &*target.resource.plural {
        CLAIMS => is_used(api, entry),
        _ => is_needed(&entry.parse()),
    };
    (protected && !used()).then_some(finalizer)
}

/// Whether something needs the object of a volume. The node finds the data that it has to remove by the object, also after a
/// crash: it removes the finalizer itself when the data is gone.
fn is_needed(entry: &Value) -> bool {
    match entry["status"]["phase"].as_str() {
        Some("Bound") => true,
        Some("Released" | "Failed") => volume::is_removed(entry),
        _ => false,
    }
}

/// Whether a Pod that has a node names the claim. A Pod that has ended still counts, as on a cluster. A Pod that came too late
/// does not: the node refuses to start it.
fn is_used(api: &Api, entry: &Entry) -> bool {
    let claim = entry.parse();
    let pods = api.store.list(PODS, &format!("{}/", entry.meta.namespace)).entries;
    // Few Pods name the claim, and parsing a Pod costs far more than searching its text. The name is a DNS subdomain: JSON
    // escapes nothing in it.
    let name = format!("\"{}\"", entry.meta.name);
    pods.iter().any(|pod| mentions(pod, &name) && uses(&pod.parse(), &claim))
}

fn mentions(entry: &Entry, text: &str) -> bool {
    std::str::from_utf8(&entry.bytes).is_ok_and(|json| json.contains(text))
}

fn uses(pod: &Value, claim: &Value) -> bool {
    let spec = &pod["spec"];
    let name = &claim["metadata"]["name"];
    let time = |object: &Value, field: &str| object["metadata"][field].as_str()?.parse::<Timestamp>().ok();
    let (created, deleted) = (time(pod, "creationTimestamp"), time(claim, "deletionTimestamp"));
    spec["nodeName"].as_str().is_some_and(|node| !node.is_empty())
        && !volume::came_too_late(created, deleted, &pod["status"])
        && claim_names(pod).any(|claim| *name == claim)
}

/// The names of the claims in the volumes of a Pod.
fn claim_names(pod: &Value) -> impl Iterator<Item = &str> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}

/// The claims that a Pod names: those to look at when it has gone.
pub(crate) fn claims_of(pod: &Entry) -> Vec<Key> {
    if !mentions(pod, "\"claimName\"") {
        return Vec::new();
    }
    let collection = CLAIMS.into();
    claim_names(&pod.parse()).map(|name| Key::new(&collection, &pod.meta.namespace, name)).collect()
}

/// Protects an object that an earlier version of this server has stored without its finalizer.
pub(crate) fn protect(api: &Api, target: &Target, key: &Key) -> Result<(), ApiError> {
    let Some(finalizer) = finalizer(&target.resource) else { return Ok(()) };
    let protected = api.amend_current(target, key, |object| {
        let meta = &mut object["metadata"];
        let has = meta["finalizers"].as_array().is_some_and(|list| list.iter().any(|it| it == finalizer));
        let lacks = !has && meta["deletionTimestamp"].is_null();
        if lacks {
            add_finalizer(meta, finalizer);
        }
        lacks
    });
    protected.map_err(storage_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Draft;

    #[test]
    fn a_pod_on_a_node_uses_the_claims_of_its_volumes_unless_it_came_too_late() {
        let claim =
            |name: &str| json!({"metadata": {"name": name, "deletionTimestamp": "2026-01-01T00:00:05Z"}});
        let pod = |node: Value, created: &str| {
            let volumes =
                json!([{"name": "a"}, {"name": "b", "persistentVolumeClaim": {"claimName": "data"}}]);
            json!({"metadata": {"creationTimestamp": created}, "spec": {"nodeName": node, "volumes": volumes}})
        };
        let (before, same, after) = ("2026-01-01T00:00:04Z", "2026-01-01T00:00:05Z", "2026-01-01T00:00:06Z");
        for (pod, name, used) in [
            (pod(json!("here"), before), "data", true),
            (pod(json!("here"), before), "other", false),
            (pod(json!(""), before), "data", false),
            (pod(Value::Null, before), "data", false),
            (pod(json!("here"), same), "data", true),
            (pod(json!("here"), after), "data", false),
        ] {
            assert_eq!(uses(&pod, &claim(name)), used, "{pod} {name}");
        }
        let mut running = pod(json!("here"), after);
        running["status"] = json!({"phase": "Running"});
        assert!(uses(&running, &claim("data")), "the clock was set back after it was created");
    }

    #[test]
    fn a_volume_is_needed_until_it_is_released_and_its_data_removed() {
        let volume = |phase: &str, policy: &str| {
            json!({
                "metadata": {"name": "pvc-1", "annotations": {"pv.kubernetes.io/provisioned-by": "asb/local"}},
                "spec": {"persistentVolumeReclaimPolicy": policy}, "status": {"phase": phase},
            })
        };
        for (phase, policy, needed) in [
            ("Bound", "Retain", true),
            ("Bound", "Delete", true),
            ("Released", "Delete", true),
            ("Released", "Retain", false),
            ("Failed", "Delete", true),
            ("Failed", "Retain", false),
            ("Available", "Delete", false),
        ] {
            assert_eq!(is_needed(&volume(phase, policy)), needed, "{phase} {policy}");
        }
    }

    #[test]
    fn the_claims_of_a_pod_are_those_of_its_volumes() {
        let volumes = json!([{"name": "a"}, {"name": "b", "persistentVolumeClaim": {"claimName": "data"}}]);
        let entry = |spec: Value| {
            let pod = json!({"metadata": {"namespace": "ns", "name": "p"}, "spec": spec});
            Draft::of(&pod, &[]).preview(1)
        };
        let with = entry(json!({"volumes": volumes}));
        assert_eq!(claims_of(&with), [Key::new(&CLAIMS.into(), "ns", "data")]);
        assert!(claims_of(&entry(json!({}))).is_empty());
        assert!(mentions(&with, "\"data\"") && !mentions(&with, "\"dat\""));
    }

    #[test]
    fn a_finalizer_is_added_once_and_beside_others() {
        let mut meta = json!({});
        add_finalizer(&mut meta, "a");
        add_finalizer(&mut meta, "a");
        add_finalizer(&mut meta, "b");
        assert_eq!(meta["finalizers"], json!(["a", "b"]));
    }
}
