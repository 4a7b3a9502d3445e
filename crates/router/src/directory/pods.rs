//! The Pods that can be reached, by the Sandbox they belong to.

use std::collections::HashMap;

use kube::core::ObjectMeta;

use super::Key;
use super::objects::{Pod, is_pool_member, key, ready};
use super::watch::Table;
use crate::dial::Target;

/// Ready Pods. The Sandbox's UID is the identity; its name is only a way to find the UID.
#[derive(Default)]
pub struct Pods {
    by_uid: HashMap<String, Target>,
    by_name: HashMap<Key, String>,
    /// Which Sandbox a Pod was last seen to belong to, so that a Pod that loses its owner is forgotten too.
    owners: HashMap<Key, Seen>,
}

struct Seen {
    pod_uid: String,
    sandbox_uid: String,
}

// === impl Pods ===

impl Pods {
    /// A UID counts only for the sandbox that the caller also names: rights are checked by name.
    pub fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<&Target> {
        let named = |target: &&Target| target.namespace == namespace && target.name == name;
        uid.and_then(|uid| self.by_uid.get(uid)).filter(named).or_else(|| {
            let uid = self.by_name.get(&(namespace.to_owned(), name.to_owned()))?;
            self.by_uid.get(uid)
        })
    }

    fn insert(&mut self, sandbox_uid: &str, target: Target, by_name: bool) {
        let name = (target.namespace.clone(), target.name.clone());
        if by_name {
            self.by_name.insert(name, sandbox_uid.to_owned());
        } else {
            self.unname(&name, sandbox_uid);
        }
        self.by_uid.insert(sandbox_uid.to_owned(), target);
    }

    /// Forgets the Pod `pod_uid` of a Sandbox. A late word about an old Pod does not touch the new one.
    fn forget(&mut self, pod_uid: &str, sandbox_uid: &str) {
        if self.by_uid.get(sandbox_uid).is_some_and(|target| target.pod_uid == pod_uid)
            && let Some(target) = self.by_uid.remove(sandbox_uid)
        {
            self.unname(&(target.namespace, target.name), sandbox_uid);
        }
    }

    /// Frees a name, unless it belongs to a newer Sandbox by now.
    fn unname(&mut self, name: &Key, sandbox_uid: &str) {
        if self.by_name.get(name).is_some_and(|holder| holder == sandbox_uid) {
            self.by_name.remove(name);
        }
    }
}

impl Table for Pods {
    type Object = Pod;

    fn apply(&mut self, pod: Pod) {
        let key = key(&pod.metadata);
        if let Some(seen) = self.owners.remove(&key) {
            self.forget(&seen.pod_uid, &seen.sandbox_uid);
        }
        let Some((sandbox_uid, target)) = reachable(&pod) else { return };
        let seen = Seen { pod_uid: target.pod_uid.clone(), sandbox_uid: sandbox_uid.clone() };
        self.owners.insert(key, seen);
        self.insert(&sandbox_uid, target, !is_pool_member(&pod.metadata));
    }

    fn remove(&mut self, pod: Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let key = key(&pod.metadata);
        if let Some(seen) = self.owners.get(&key).filter(|seen| seen.pod_uid == uid) {
            let sandbox_uid = seen.sandbox_uid.clone();
            self.owners.remove(&key);
            self.forget(uid, &sandbox_uid);
        }
    }
}

/// The Sandbox a Pod stands for and how to reach it; `None` for a Pod that is not Ready, is ending or is not a Sandbox's.
fn reachable(pod: &Pod) -> Option<(String, Target)> {
    let is_ready = ready(&pod.status.conditions).is_some_and(|condition| condition.status == "True");
    if !is_ready || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let (name, uid) = owner(&pod.metadata)?;
    let target = Target {
        namespace: pod.metadata.namespace.clone()?,
        name,
        pod_uid: pod.metadata.uid.clone()?,
        address: pod.status.pod_ip.as_deref()?.parse().ok()?,
    };
    Some((uid, target))
}

/// The name and UID of the Sandbox that controls an object. Older objects name an older version of the group.
fn owner(metadata: &ObjectMeta) -> Option<(String, String)> {
    let owner = metadata.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split('/').next().unwrap_or_default();
    (owner.kind == "Sandbox" && group == asb_types::GROUP).then(|| (owner.name.clone(), owner.uid.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::objects::test_pod;
    use super::*;
    use asb_types::key;

    fn table(pods: impl IntoIterator<Item = Pod>) -> Pods {
        let mut table = Pods::default();
        pods.into_iter().for_each(|pod| table.apply(pod));
        table
    }

    fn address(table: &Pods, name: &str, uid: Option<&str>) -> Option<String> {
        table.find("ns", name, uid).map(|target| target.address.to_string())
    }

    fn owned_by(patch: Value) -> Pod {
        let mut owner = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "web", "uid": "u1", "controller": true});
        owner.as_object_mut().unwrap().extend(patch.as_object().unwrap().clone());
        test_pod("web", "u1", json!({"metadata": {"ownerReferences": [owner]}}))
    }

    #[test]
    fn a_ready_pod_is_found_by_name_and_by_uid_in_its_own_namespace_only() {
        let table = table([test_pod("web", "u1", json!({}))]);
        assert_eq!(address(&table, "web", None).as_deref(), Some("10.0.0.5"));
        assert_eq!(address(&table, "web", Some("u1")).as_deref(), Some("10.0.0.5"));
        assert_eq!(address(&table, "web", Some("unknown")).as_deref(), Some("10.0.0.5"));
        assert_eq!(table.find("other", "web", Some("u1")), None);
    }

    #[test]
    fn a_uid_does_not_lead_to_a_sandbox_of_another_name() {
        let table = table([
            test_pod("web", "u1", json!({})),
            test_pod("db", "u2", json!({"status": {"podIP": "10.0.0.9"}})),
        ]);
        assert_eq!(address(&table, "web", Some("u2")).as_deref(), Some("10.0.0.5"));
        assert_eq!(address(&table, "nobody", Some("u2")), None);
    }

    #[test]
    fn only_pods_controlled_by_a_sandbox_count() {
        for patch in [
            json!({}),
            json!({"apiVersion": "agents.x-k8s.io/v1alpha1"}),
            json!({"apiVersion": "agents.x-k8s.io"}),
        ] {
            assert!(address(&table([owned_by(patch.clone())]), "web", None).is_some(), "{patch}");
        }
        for patch in [
            json!({"kind": "Deployment"}),
            json!({"apiVersion": "other.io/v1"}),
            json!({"apiVersion": "agents.x-k8s.io.evil/v1"}),
            json!({"controller": false}),
        ] {
            assert_eq!(address(&table([owned_by(patch.clone())]), "web", None), None, "{patch}");
        }
        let orphan = test_pod("web", "u1", json!({"metadata": {"ownerReferences": []}}));
        assert_eq!(address(&table([orphan]), "web", None), None);
    }

    #[test]
    fn a_pod_that_is_not_ready_or_ending_or_without_address_is_not_there() {
        for patch in [
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            json!({"status": {"conditions": []}}),
            json!({"status": {"podIP": null}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"metadata": {"ownerReferences": []}}),
        ] {
            let mut table = table([test_pod("web", "u1", json!({}))]);
            table.apply(test_pod("web", "u1", patch.clone()));
            assert_eq!(address(&table, "web", Some("u1")), None, "{patch}");
        }
    }

    #[test]
    fn a_new_address_replaces_the_old_one() {
        let moved = test_pod("web", "u1", json!({"status": {"podIP": "10.0.0.6"}}));
        assert_eq!(
            address(&table([test_pod("web", "u1", json!({})), moved]), "web", None).as_deref(),
            Some("10.0.0.6")
        );
    }

    #[test]
    fn an_unclaimed_pool_member_is_reachable_by_uid_only() {
        let member = |label: Value| test_pod("web", "u1", json!({"metadata": {"labels": label}}));
        let pooled = json!({key::SANDBOX_NAME_HASH: "1", key::WARM_POOL_SANDBOX: "pool"});
        let mut table = table([member(pooled.clone())]);
        assert_eq!(address(&table, "web", None), None);
        assert!(address(&table, "web", Some("u1")).is_some());
        table.apply(test_pod("web", "u1", json!({})));
        assert!(address(&table, "web", None).is_some(), "claimed");
        table.apply(member(pooled));
        assert_eq!(address(&table, "web", None), None, "back in the pool");
    }

    #[test]
    fn a_late_word_about_an_old_pod_does_not_touch_the_new_one() {
        let old = test_pod("web", "u1", json!({}));
        let new = test_pod("web", "u2", json!({"status": {"podIP": "10.0.0.7"}}));
        let mut table = table([old.clone(), new.clone()]);
        table.remove(old);
        assert_eq!(address(&table, "web", None).as_deref(), Some("10.0.0.7"));
        table.remove(new);
        assert_eq!(address(&table, "web", None), None);
        assert!(
            table.by_name.is_empty() && table.by_uid.is_empty() && table.owners.is_empty(),
            "nothing is left behind"
        );
    }
}
