//! What tells, before volumes are copied and after, which of them are whole. Pure, but for [`View::now`].

use asb_apiserver::backup::Stored;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;

use super::adapt::is_kept_here;
use crate::commands::volume::users;

pub struct View {
    pods: Vec<Pod>,
    claims: Vec<PersistentVolumeClaim>,
    volumes: Vec<PersistentVolume>,
}

impl View {
    /// The objects that were copied.
    pub fn of(objects: &[Stored]) -> Self {
        fn of<K: DeserializeOwned>(objects: &[Stored], prefix: &str) -> Vec<K> {
            let some = objects.iter().filter(|it| it.key.starts_with(prefix));
            some.filter_map(|it| serde_json::from_value(it.object.clone()).ok()).collect()
        }
        Self {
            pods: of(objects, "pods/"),
            claims: of(objects, "persistentvolumeclaims/"),
            volumes: of(objects, "persistentvolumes/"),
        }
    }

    pub async fn now(client: Client) -> Result<Self, kube::Error> {
        let all = ListParams::default();
        Ok(Self {
            pods: Api::all(client.clone()).list(&all).await?.items,
            claims: Api::all(client.clone()).list(&all).await?.items,
            volumes: Api::all(client).list(&all).await?.items,
        })
    }

    /// The volumes that have a directory of the engine.
    pub fn kept_here(&self) -> impl Iterator<Item = &str> {
        self.volumes.iter().filter(|it| is_kept_here(it)).filter_map(|it| it.metadata.name.as_deref())
    }

    /// Whether a Pod has a volume in use.
    pub fn uses(&self, volume: &str) -> bool {
        let of = |claim: &&PersistentVolumeClaim| {
            claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) == Some(volume)
        };
        self.claims.iter().filter(of).any(|claim| !users(claim, &self.pods).is_empty())
    }

    /// Whether the engine may have begun to remove a volume of this view by the time of a later one.
    pub fn has_lost(&self, volume: &str, later: &Self) -> bool {
        let find = |view: &Self| view.volumes.iter().find(|it| it.name_any() == volume).cloned();
        let (Some(before), Some(after)) = (find(self), find(later)) else { return true };
        if before.metadata.uid != after.metadata.uid {
            return true;
        }
        let spec = after.spec.as_ref();
        let claim = |volume: &PersistentVolume| volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone();
        let has = |uid: &String| later.claims.iter().any(|it| it.metadata.uid.as_ref() == Some(uid));
        let is_removed =
            spec.is_some_and(|spec| spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete"));
        is_removed && claim(&before).or_else(|| claim(&after)).is_some_and(|uid| !has(&uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn view(objects: &[(&str, Value)]) -> View {
        let stored =
            |(key, object): &(&str, Value)| Stored { key: (*key).to_owned(), object: object.clone() };
        View::of(&objects.iter().map(stored).collect::<Vec<_>>())
    }

    fn volume(uid: &str, policy: &str) -> (&'static str, Value) {
        let spec = json!({"persistentVolumeReclaimPolicy": policy, "claimRef": {"uid": "c1"}});
        ("persistentvolumes//pvc-1", json!({"metadata": {"name": "pvc-1", "uid": uid}, "spec": spec}))
    }

    fn claim(uid: &str) -> (&'static str, Value) {
        let metadata = json!({"namespace": "default", "name": "data", "uid": uid});
        (
            "persistentvolumeclaims/default/data",
            json!({"metadata": metadata, "spec": {"volumeName": "pvc-1"}}),
        )
    }

    #[test]
    fn a_volume_is_lost_when_it_or_its_claim_is_gone_or_another() {
        let before = view(&[volume("v1", "Delete"), claim("c1")]);
        for (after, lost) in [
            (vec![volume("v1", "Delete"), claim("c1")], false),
            (vec![volume("v1", "Retain")], false),
            (vec![volume("v1", "Delete")], true),
            (vec![volume("v1", "Delete"), claim("c2")], true),
            (vec![volume("v2", "Delete"), claim("c1")], true),
            (vec![claim("c1")], true),
        ] {
            assert_eq!(before.has_lost("pvc-1", &view(&after)), lost, "{after:?}");
        }
    }

    #[test]
    fn a_volume_is_in_use_while_a_pod_that_has_not_ended_has_its_claim() {
        let pod = |phase: &str| {
            let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
            let metadata = json!({"namespace": "default", "name": "web"});
            let pod = json!({"metadata": metadata, "spec": {"containers": [], "volumes": volumes}, "status": {"phase": phase}});
            ("pods/default/web", pod)
        };
        assert!(view(&[claim("c1"), pod("Running")]).uses("pvc-1"));
        assert!(!view(&[claim("c1"), pod("Failed")]).uses("pvc-1"));
        assert!(!view(&[claim("c1"), pod("Running")]).uses("pvc-2"));
    }
}
