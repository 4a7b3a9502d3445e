//! Which volume belongs to which claim, and what becomes of a volume after its claim. Pure.
//!
//! ```text
//!     ▲ never while a claim has it: then it is bound to that claim again
//! Available ─ a claim that fits, or that names it ─► Bound ─ the claim is gone ─┬ Retain ─► Released ─ claimRef removed ─► Available
//!                                                                               └ Delete ─► removed, data first
//! ```

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::size;
use crate::pod::quantity::bytes;

/// Marks the volumes that this node has made.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub const PROVISIONER: &str = "asb/local";

/// What is to be done with a volume.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next<'a> {
    /// Its phase is this one.
    Phase(Phase),
    /// Its `claimRef` names this claim again. The claim is bound to it and has its data.
    Rebind(&'a PersistentVolumeClaim),
    /// Its data, and then its object, are removed.
    Remove,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Available,
    Bound,
    Released,
    /// Its removal failed.
    Failed,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Available => "Available",
            Self::Bound => "Bound",
            Self::Released => "Released",
            Self::Failed => "Failed",
        }
    }
}

/// The claims that exist.
#[derive(Debug, Default)]
pub struct Claims<'a> {
    uids: HashSet<&'a str>,
    /// By the name of the volume that a claim has.
    holders: HashMap<&'a str, &'a PersistentVolumeClaim>,
}

impl<'a> Claims<'a> {
    pub fn new(all: &'a [PersistentVolumeClaim]) -> Self {
        let mut claims = Self::default();
        for claim in all {
            claims.uids.extend(claim.metadata.uid.as_deref());
            let Some(volume) = volume_of(claim) else { continue };
            let known = claims.holders.entry(volume).or_insert(claim);
            if precedence(claim, volume) < precedence(known, volume) {
                *known = claim;
            }
        }
        claims
    }

    /// The claim that is or was bound to the volume of this name: the volume has its data, whatever the volume's
    /// `claimRef` says.
    pub fn holder(&self, volume: &str) -> Option<&'a PersistentVolumeClaim> {
        self.holders.get(volume).copied()
    }
}

/// The volume that a claim has or has lost. One that was only asked for does not count.
fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    matches!(phase(claim), Some("Bound" | "Lost")).then_some(claim.spec.as_ref()?.volume_name.as_deref()?)
}

/// Of several claims with one volume, the least is served: the one that it was made for, else the oldest.
fn precedence<'a>(claim: &'a PersistentVolumeClaim, volume: &str) -> impl Ord + use<'a> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (volume.strip_prefix("pvc-") != Some(uid), phase(claim) != Some("Bound"), created, uid)
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

/// The UID of the claim that a volume is bound to.
pub fn claim_uid(volume: &PersistentVolume) -> Option<&str> {
    let uid = volume.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref()?;
    (!uid.is_empty()).then_some(uid)
}

/// Whether both objects say that the claim has the volume.
pub fn are_bound(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    phase(claim) == Some("Bound")
        && claim_uid(volume).is_some_and(|uid| claim.metadata.uid.as_deref() == Some(uid))
}

/// What is to be done with `volume`.
///
/// Only a volume that this node has made is ever removed, only if its policy says so in as many words, and never while a
/// claim has it. For the same reason a volume that a claim has is never `Available`.
pub fn next<'a>(volume: &PersistentVolume, claims: &Claims<'a>) -> Next<'a> {
    match (claim_uid(volume), claims.holder(&volume.name_any())) {
        (Some(uid), _) if claims.uids.contains(uid) => Next::Phase(Phase::Bound),
        (None, Some(holder)) if admits(volume, holder) => Next::Rebind(holder),
        (_, Some(_)) => Next::Phase(Phase::Released),
        (None, None) => Next::Phase(Phase::Available),
        (Some(_), None) => {
            let spec = volume.spec.as_ref();
            match spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) {
                Some("Delete") if is_ours(volume) => Next::Remove,
                _ => Next::Phase(Phase::Released),
            }
        }
    }
}

/// Whether this node has made the volume. Earlier versions did not mark theirs.
pub fn is_ours(volume: &PersistentVolume) -> bool {
    let marked = volume.annotations().get(PROVISIONED_BY).map(String::as_str);
    let named = volume.name_any().starts_with("pvc-");
    let class = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    marked.map_or(named && class == Some(super::STORAGE_CLASS), |marked| marked == PROVISIONER)
}

/// Whether the volume may be bound to this claim: it is reserved for this claim, or not reserved.
pub fn admits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reserved) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else { return true };
    let same = |given: &Option<String>, own: &Option<String>| given == own;
    let uid = reserved.uid.as_ref().filter(|uid| !uid.is_empty());
    same(&reserved.namespace, &claim.metadata.namespace)
        && same(&reserved.name, &claim.metadata.name)
        && uid.is_none_or(|uid| Some(uid) == claim.metadata.uid.as_ref())
}

/// The name of the volume that is made for a claim.
pub fn made_for(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// What a volume says of the claim that has it.
pub fn claim_ref(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
        "name": claim.metadata.name, "uid": claim.metadata.uid,
    })
}

/// The patch that binds a volume to a claim, if the volume has not changed since it was read.
pub fn reference(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Value {
    json!({
        "metadata": {"uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version},
        "spec": {"claimRef": claim_ref(claim)},
    })
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
            let claims = if exists { vec![claim(json!({}))] } else { Vec::new() };
            assert_eq!(next(&volume, &Claims::new(&claims)), expected, "{volume:?}");
        }
    }

    /// A claim that has a volume.
    fn holder(uid: &str, phase: &str) -> PersistentVolumeClaim {
        let has = json!({"spec": {"volumeName": "v"}, "status": {"phase": phase}});
        claim(json_merge(has, json!({"metadata": {"uid": uid}})))
    }

    fn json_merge(mut into: Value, patch: Value) -> Value {
        json_patch::merge(&mut into, &patch);
        into
    }

    #[test]
    fn a_volume_that_a_claim_has_is_neither_removed_nor_given_to_another_claim() {
        let reserved = |by: Value| {
            volume("v", json!({"spec": {"persistentVolumeReclaimPolicy": "Delete", "claimRef": by}}))
        };
        for phase in ["Bound", "Lost"] {
            let claims = [holder("u1", phase)];
            let next = |by: Value| next(&reserved(by), &Claims::new(&claims));
            let again = Next::Rebind(&claims[0]);
            assert_eq!(next(Value::Null), again, "claimRef was removed, or the volume was created again");
            assert_eq!(next(json!({"namespace": "team", "name": "data"})), again);
            let kept = Next::Phase(Phase::Released);
            assert_eq!(next(json!({"namespace": "team", "name": "other"})), kept, "reserved for another");
            assert_eq!(next(json!({"name": "other", "uid": "gone"})), kept, "another had it and is gone");
            assert_eq!(next(json!({"uid": "u1"})), Next::Phase(Phase::Bound));
        }
        // A claim that only asks for the volume has no data in it.
        let asks = [holder("u1", "Pending")];
        assert_eq!(next(&reserved(Value::Null), &Claims::new(&asks)), Next::Phase(Phase::Available));
    }

    #[test]
    fn of_two_claims_with_one_volume_the_one_that_it_was_made_for_is_served() {
        let named = |uid: &str, volume: &str, created: &str| {
            let with = json!({"metadata": {"creationTimestamp": created}, "spec": {"volumeName": volume}});
            let merged = json_merge(json!(holder(uid, "Bound")), with);
            serde_json::from_value::<PersistentVolumeClaim>(merged).unwrap()
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        for (volume, first, second, served) in [
            ("pvc-b", named("a", "pvc-b", early), named("b", "pvc-b", late), "b"),
            ("v", named("a", "v", late), named("b", "v", early), "b"),
        ] {
            for claims in [[first.clone(), second.clone()], [second, first]] {
                let uid = Claims::new(&claims).holder(volume).unwrap().metadata.uid.clone();
                assert_eq!(uid.as_deref(), Some(served));
            }
        }
    }

    #[test]
    fn a_claim_has_a_volume_only_if_both_say_so() {
        let of = |uid: &str| volume("v", json!({"spec": {"claimRef": {"uid": uid}}}));
        assert!(are_bound(&of("u1"), &holder("u1", "Bound")));
        assert!(!are_bound(&of("u2"), &holder("u1", "Bound")));
        assert!(!are_bound(&of(""), &holder("", "Bound")));
        assert!(!are_bound(&volume("v", json!({})), &holder("u1", "Bound")));
        assert!(!are_bound(&of("u1"), &holder("u1", "Pending")));
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
