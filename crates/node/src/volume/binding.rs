//! Which volume belongs to which claim, and what becomes of a volume after its claim. Pure.
//!
//! ```text
//! Available ─ a claim that fits, or that names it ─► Bound ─ the claim is gone ─┬ Retain ─► Released ─ claimRef removed ─► Available
//!                                                                               └ Delete ─► removed, data first
//! ```

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use super::size;
use crate::pod::quantity::bytes;

/// Marks the volumes that this node has made.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub const PROVISIONER: &str = "asb/local";

/// What is to be done with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Its phase is this one.
    Phase(Phase),
    /// Its data, and then its object, are removed.
    Remove,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Available,
    Bound,
    Released,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Available => "Available",
            Self::Bound => "Bound",
            Self::Released => "Released",
        }
    }
}

/// What is to be done with `volume`, when `has_claim` says whether a claim of that UID exists.
///
/// Only a volume that this node has made is ever removed, and only if its policy says so in as many words.
pub fn next(volume: &PersistentVolume, has_claim: impl Fn(&str) -> bool) -> Next {
    let spec = volume.spec.as_ref();
    let claim = spec.and_then(|spec| spec.claim_ref.as_ref()).and_then(|claim| claim.uid.as_deref());
    let Some(claim) = claim.filter(|uid| !uid.is_empty()) else { return Next::Phase(Phase::Available) };
    if has_claim(claim) {
        return Next::Phase(Phase::Bound);
    }
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    match policy {
        Some("Delete") if is_ours(volume) => Next::Remove,
        _ => Next::Phase(Phase::Released),
    }
}

/// Whether this node has made the volume. Earlier versions did not mark theirs.
pub fn is_ours(volume: &PersistentVolume) -> bool {
    let marked = volume.annotations().get(PROVISIONED_BY).map(String::as_str);
    let named = volume.name_any().starts_with("pvc-");
    let class = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    marked.map_or(named && class == Some(super::STORAGE_CLASS), |marked| marked == PROVISIONER)
}

/// Whether the volume may be bound to this claim: it is reserved for it, or for nobody.
pub fn admits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reserved) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else { return true };
    let same = |given: &Option<String>, own: &Option<String>| given == own;
    let uid = reserved.uid.as_ref().filter(|uid| !uid.is_empty());
    same(&reserved.namespace, &claim.metadata.namespace)
        && same(&reserved.name, &claim.metadata.name)
        && uid.is_none_or(|uid| Some(uid) == claim.metadata.uid.as_ref())
}

/// The volume for a claim that names none: one that is reserved for it, else the smallest that fits.
pub fn choose<'a>(
    claim: &PersistentVolumeClaim,
    class: &str,
    volumes: &'a [PersistentVolume],
) -> Option<&'a PersistentVolume> {
    let free = |volume: &&PersistentVolume| {
        volume.metadata.deletion_timestamp.is_none() && admits(volume, claim) && fits(volume, claim, class)
    };
    let reserved = |volume: &PersistentVolume| volume.spec.as_ref().is_some_and(|it| it.claim_ref.is_some());
    volumes.iter().filter(free).min_by_key(|volume| (!reserved(volume), capacity(volume)))
}

fn fits(volume: &PersistentVolume, claim: &PersistentVolumeClaim, class: &str) -> bool {
    let (Some(has), Some(wants)) = (&volume.spec, &claim.spec) else { return false };
    let modes = has.access_modes.iter().flatten().collect::<Vec<_>>();
    let block = |mode: &Option<String>| mode.as_deref() == Some("Block");
    let labels = wants.selector.as_ref().and_then(|selector| selector.match_labels.as_ref());
    // Expressions are matched by no volume rather than by the wrong one.
    let plain =
        wants.selector.as_ref().is_none_or(|it| it.match_expressions.as_ref().is_none_or(Vec::is_empty));
    plain
        && has.storage_class_name.as_deref().unwrap_or_default() == class
        && wants.access_modes.iter().flatten().all(|mode| modes.contains(&mode))
        && block(&has.volume_mode) == block(&wants.volume_mode)
        && labels.into_iter().flatten().all(|(key, value)| volume.labels().get(key) == Some(value))
        && capacity(volume) >= bytes(&size::asked(claim))
}

fn capacity(volume: &PersistentVolume) -> Option<u64> {
    let capacity: &Quantity = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
    bytes(capacity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(name: &str, patch: Value) -> PersistentVolume {
        let mut volume = json!({
            "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
            "spec": {
                "storageClassName": "local", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        });
        json_patch::merge(&mut volume, &patch);
        serde_json::from_value(volume).unwrap()
    }

    fn claim(patch: Value) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"name": "data", "namespace": "team", "uid": "u1"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        json_patch::merge(&mut claim, &patch);
        serde_json::from_value(claim).unwrap()
    }

    fn bound(policy: &str) -> Value {
        json!({"spec": {"persistentVolumeReclaimPolicy": policy, "claimRef": {"uid": "u1"}}})
    }

    #[test]
    fn a_volume_is_removed_only_if_it_is_ours_its_claim_is_gone_and_its_policy_is_delete() {
        let foreign = json!({"metadata": {"annotations": {PROVISIONED_BY: "example.com/disks"}}});
        let unmarked = json!({"metadata": {"annotations": null}});
        let with = |name: &str, parts: &[&Value]| {
            let mut with = json!(volume(name, json!({})));
            parts.iter().for_each(|part| json_patch::merge(&mut with, part));
            serde_json::from_value(with).unwrap()
        };
        for (volume, exists, expected) in [
            (with("v", &[&bound("Delete")]), true, Next::Phase(Phase::Bound)),
            (with("v", &[&bound("Delete")]), false, Next::Remove),
            (with("v", &[&bound("Retain")]), false, Next::Phase(Phase::Released)),
            (with("v", &[&bound("Recycle")]), false, Next::Phase(Phase::Released)),
            (with("v", &[&bound("")]), false, Next::Phase(Phase::Released)),
            (with("v", &[&bound("Delete"), &foreign]), false, Next::Phase(Phase::Released)),
            (with("v", &[&bound("Delete"), &unmarked]), false, Next::Phase(Phase::Released)),
            (with("pvc-u1", &[&bound("Delete"), &unmarked]), false, Next::Remove),
            (with("v", &[&json!({"spec": {"claimRef": null}})]), false, Next::Phase(Phase::Available)),
            (with("v", &[&json!({"spec": {"claimRef": {"uid": ""}}})]), false, Next::Phase(Phase::Available)),
        ] {
            assert_eq!(next(&volume, |_| exists), expected, "{volume:?}");
        }
    }

    #[test]
    fn a_volume_admits_the_claim_it_is_reserved_for_and_no_other() {
        let reserved = |by: Value| volume("v", json!({"spec": {"claimRef": by}}));
        let own = claim(json!({}));
        for (reference, admitted) in [
            (Value::Null, true),
            (json!({"namespace": "team", "name": "data"}), true),
            (json!({"namespace": "team", "name": "data", "uid": "u1"}), true),
            (json!({"namespace": "team", "name": "data", "uid": "u0"}), false),
            (json!({"namespace": "other", "name": "data"}), false),
            (json!({"namespace": "team", "name": "other"}), false),
        ] {
            assert_eq!(admits(&reserved(reference.clone()), &own), admitted, "{reference}");
        }
    }

    #[test]
    fn the_smallest_volume_that_fits_is_chosen_and_a_reserved_one_before_it() {
        let sized = |name: &str, size: &str| volume(name, json!({"spec": {"capacity": {"storage": size}}}));
        let volumes = [sized("small", "512Mi"), sized("large", "4Gi"), sized("right", "1Gi")];
        let chosen =
            |volumes: &[PersistentVolume], claim| choose(&claim, "local", volumes).map(|it| it.name_any());
        assert_eq!(chosen(&volumes, claim(json!({}))).as_deref(), Some("right"));
        let mine = json!({"spec": {"capacity": {"storage": "8Gi"}, "claimRef": {"namespace": "team", "name": "data"}}});
        let with_mine: Vec<_> = volumes.iter().cloned().chain([volume("mine", mine)]).collect();
        assert_eq!(chosen(&with_mine, claim(json!({}))).as_deref(), Some("mine"));
        for (what, patch) in [
            ("more than any has", json!({"spec": {"resources": {"requests": {"storage": "5Gi"}}}})),
            ("another mode", json!({"spec": {"accessModes": ["ReadWriteMany"]}})),
            ("a block device", json!({"spec": {"volumeMode": "Block"}})),
            ("labels", json!({"spec": {"selector": {"matchLabels": {"disk": "fast"}}}})),
        ] {
            assert_eq!(chosen(&volumes, claim(patch)), None, "{what}");
        }
        assert_eq!(choose(&claim(json!({})), "other", &volumes), None, "another class");
        let going = volume("going", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        assert_eq!(chosen(&[going], claim(json!({}))), None, "one that is being deleted");
    }
}
