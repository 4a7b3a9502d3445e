//! Sandboxes and their Pods, as one pure table.
//!
//! The Sandbox decides: its controller says whether a claim has it, its spec whether it should run. Its Pod only says
//! where it is. A Pod's labels follow later and are asked only when no Sandbox of that name is known, as for Pods that
//! another controller made.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::objects::{Pod, Sandbox, controller, is_labelled_pool_member, key, ready};
use super::{Found, Key};
use crate::address::Address;
use crate::dial::Target;

/// Reasons of a Ready condition that will not change by waiting.
const FINAL: [&str; 5] =
    ["PodFailed", "PodSucceeded", "InvalidConfiguration", "SandboxExpired", "ClaimExpired"];

#[derive(Default)]
pub struct Index {
    /// By namespace, then name: a look-up by two `&str` allocates nothing.
    sandboxes: HashMap<String, HashMap<String, Known>>,
    /// Pods that can be reached, by their namespace and the name of their Sandbox; the one that was seen last is the
    /// last. The UID alone is no key: owner references are not validated, so a Pod can name any Sandbox of any namespace.
    pods: HashMap<String, HashMap<String, Vec<Reachable>>>,
    /// The Sandbox that each reachable Pod belongs to, by the Pod's own name.
    owners: HashMap<Key, Owner>,
    /// The Pod that has each address, when the router dials addresses.
    addresses: Option<HashMap<IpAddr, Holder>>,
}

/// A Sandbox object.
struct Known {
    uid: String,
    is_unclaimed: bool,
    /// What [`Index::lookup`] answers while there is no Pod, or [`Found::Suspended`] whatever Pod there is.
    otherwise: Found,
}

struct Reachable {
    sandbox_uid: String,
    target: Arc<Target>,
    is_unclaimed: bool,
}

/// The Pod of a Sandbox.
struct Owner {
    pod_uid: Arc<str>,
    /// The name of the Sandbox; its namespace is the Pod's.
    sandbox: String,
    address: IpAddr,
}

/// The Pod that an address leads to.
struct Holder {
    pod: Key,
    created: Option<Time>,
}

// === impl Index ===

impl Index {
    /// An index in which no two Pods have the same address.
    ///
    /// A network gives the address of a Pod that has ended to another one, and the API may report the end later than
    /// the new Pod's readiness, e.g. when a node was lost.
    pub fn with_unique_addresses() -> Self {
        Self { addresses: Some(HashMap::new()), ..Self::default() }
    }

    pub fn lookup(&self, address: &Address) -> Found {
        // A UID counts only together with the name: rights are checked by name.
        let is_other = |uid: &str| address.uid.as_deref().is_some_and(|asked| asked != uid);
        let sandbox = self.sandboxes.get(&address.namespace).and_then(|names| names.get(&address.name));
        let pods = self.pods.get(&address.namespace).and_then(|names| names.get(&address.name));
        let mut pods = pods.into_iter().flatten().rev();
        if let Some(sandbox) = sandbox {
            if is_other(&sandbox.uid) {
                return Found::Unknown;
            }
            if sandbox.is_unclaimed && address.uid.is_none() {
                return Found::Unclaimed;
            }
            return match (&sandbox.otherwise, pods.find(|pod| pod.sandbox_uid == sandbox.uid)) {
                (Found::Suspended, _) | (_, None) => sandbox.otherwise.clone(),
                (_, Some(pod)) => Found::Ready(pod.target.clone()),
            };
        }
        match pods.next() {
            None => Found::Unknown,
            Some(pod) if is_other(&pod.sandbox_uid) => Found::Unknown,
            Some(pod) if pod.is_unclaimed && address.uid.is_none() => Found::Unclaimed,
            Some(pod) => Found::Ready(pod.target.clone()),
        }
    }

    /// Whether the Pod of `target` can still be reached there.
    pub fn is_current(&self, target: &Target) -> bool {
        let pods = self.pods.get(&target.namespace).and_then(|names| names.get(&target.name));
        pods.into_iter().flatten().any(|pod| *pod.target == *target)
    }

    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.sandboxes.contains_key(namespace) || self.pods.contains_key(namespace)
    }

    /// Returns the Sandboxes for which [`Index::lookup`] may answer something else now, as all changes do.
    pub fn apply_sandbox(&mut self, sandbox: Sandbox) -> Vec<Key> {
        let key = key(&sandbox.metadata);
        let known = Known {
            is_unclaimed: is_unclaimed(&sandbox),
            otherwise: without_pod(&sandbox),
            uid: sandbox.metadata.uid.unwrap_or_default(),
        };
        self.sandboxes.entry(key.0.clone()).or_default().insert(key.1.clone(), known);
        vec![key]
    }

    pub fn remove_sandbox(&mut self, sandbox: &Sandbox) -> Vec<Key> {
        let key = key(&sandbox.metadata);
        let uid = sandbox.metadata.uid.as_deref().unwrap_or_default();
        if let Some(names) = self.sandboxes.get_mut(&key.0) {
            if names.get(&key.1).is_some_and(|known| known.uid == uid) {
                names.remove(&key.1);
            }
            if names.is_empty() {
                self.sandboxes.remove(&key.0);
            }
        }
        vec![key]
    }

    pub fn apply_pod(&mut self, pod: Pod) -> Vec<Key> {
        let key = key(&pod.metadata);
        let mut touched = self.forget_pod(&key, None);
        let Some((sandbox_uid, target)) = reachable(&pod) else { return touched };
        match self.take_address(&key, &pod, target.address) {
            Some(others) => touched.extend(others),
            None => return touched,
        }
        let sandbox = (target.namespace.clone(), target.name.clone());
        let owner =
            Owner { pod_uid: target.pod_uid.clone(), sandbox: sandbox.1.clone(), address: target.address };
        self.owners.insert(key, owner);
        let is_unclaimed = is_labelled_pool_member(&pod.metadata);
        let pods = self.pods.entry(sandbox.0.clone()).or_default().entry(sandbox.1.clone()).or_default();
        pods.push(Reachable { sandbox_uid, target: Arc::new(target), is_unclaimed });
        touched.push(sandbox);
        touched
    }

    pub fn remove_pod(&mut self, pod: &Pod) -> Vec<Key> {
        self.forget_pod(&key(&pod.metadata), pod.metadata.uid.as_deref())
    }

    /// Replaces all Sandboxes by a new list.
    pub fn replace_sandboxes(&mut self, sandboxes: Vec<Sandbox>) -> Vec<Key> {
        let mut touched: Vec<Key> = keys(&self.sandboxes);
        self.sandboxes.clear();
        touched.extend(sandboxes.into_iter().flat_map(|sandbox| self.apply_sandbox(sandbox)));
        touched
    }

    /// Replaces all Pods by a new list.
    pub fn replace_pods(&mut self, pods: Vec<Pod>) -> Vec<Key> {
        let mut touched: Vec<Key> = keys(&self.pods);
        self.pods.clear();
        self.owners.clear();
        self.addresses.as_mut().map(HashMap::clear);
        touched.extend(pods.into_iter().flat_map(|pod| self.apply_pod(pod)));
        touched
    }

    /// Gives an address to a Pod and takes it from the Pod that had it; returns the Sandboxes that can no longer be
    /// reached there, or `None` when a younger Pod has the address.
    fn take_address(&mut self, key: &Key, pod: &Pod, address: IpAddr) -> Option<Vec<Key>> {
        // Pods on the host's network have its address in common.
        let Some(addresses) = self.addresses.as_mut().filter(|_| !pod.spec.host_network) else {
            return Some(Vec::new());
        };
        let created = pod.metadata.creation_timestamp.clone();
        if addresses.get(&address).is_some_and(|holder| holder.created > created) {
            return None;
        }
        let before = addresses.insert(address, Holder { pod: key.clone(), created });
        let lost = before.map(|holder| self.forget_pod(&holder.pod, None));
        Some(lost.unwrap_or_default())
    }

    /// Forgets the Pod of that name, if it has this UID. A late event of an old Pod does not touch the new one.
    fn forget_pod(&mut self, key: &Key, uid: Option<&str>) -> Vec<Key> {
        let is_it = |owner: &Owner| uid.is_none_or(|uid| uid == &*owner.pod_uid);
        if !self.owners.get(key).is_some_and(is_it) {
            return Vec::new();
        }
        let Some(owner) = self.owners.remove(key) else { return Vec::new() };
        if let Some(addresses) = &mut self.addresses
            && addresses.get(&owner.address).is_some_and(|holder| holder.pod == *key)
        {
            addresses.remove(&owner.address);
        }
        let sandbox = (key.0.clone(), owner.sandbox);
        if let Some(names) = self.pods.get_mut(&sandbox.0) {
            if let Some(pods) = names.get_mut(&sandbox.1) {
                pods.retain(|pod| pod.target.pod_uid != owner.pod_uid);
                if pods.is_empty() {
                    names.remove(&sandbox.1);
                }
            }
            if names.is_empty() {
                self.pods.remove(&sandbox.0);
            }
        }
        vec![sandbox]
    }
}

fn keys<T>(nested: &HashMap<String, HashMap<String, T>>) -> Vec<Key> {
    let of = |(namespace, names): (&String, &HashMap<String, T>)| {
        names.keys().map(|name| (namespace.clone(), name.clone())).collect::<Vec<_>>()
    };
    nested.iter().flat_map(of).collect()
}

/// A pool controls it: no claim has it yet. The owner reference changes in the same write that gives it to a claim.
fn is_unclaimed(sandbox: &Sandbox) -> bool {
    controller(&sandbox.metadata, asb_types::EXTENSIONS_GROUP, "SandboxWarmPool").is_some()
}

fn without_pod(sandbox: &Sandbox) -> Found {
    if sandbox.spec.operating_mode.as_deref() == Some("Suspended") {
        return Found::Suspended;
    }
    let condition = ready(&sandbox.status.conditions).filter(|condition| condition.status != "True");
    Found::NotReady {
        message: condition.map(|condition| condition.message.clone()).unwrap_or_default(),
        is_final: condition.is_some_and(|condition| FINAL.contains(&condition.reason.as_str())),
    }
}

/// The UID of the Sandbox that controls a Pod, and where the Pod is; `None` for a Pod that is not Ready, is ending or has
/// ended.
fn reachable(pod: &Pod) -> Option<(String, Target)> {
    let is_ready = ready(&pod.status.conditions).is_some_and(|condition| condition.status == "True");
    // The Pod garbage collector and other evictions set the phase and leave the conditions as they are.
    let has_ended = matches!(pod.status.phase.as_deref(), Some("Failed" | "Succeeded"));
    if !is_ready || has_ended || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let owner = controller(&pod.metadata, asb_types::GROUP, "Sandbox")?;
    let target = Target {
        namespace: pod.metadata.namespace.clone()?,
        name: owner.name.clone(),
        pod_uid: pod.metadata.uid.as_deref()?.into(),
        address: pod.status.pod_ip.as_deref()?.parse().ok()?,
    };
    Some((owner.uid.clone(), target))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::objects::{test_pod, test_sandbox};
    use super::*;

    fn index(pods: impl IntoIterator<Item = Pod>) -> Index {
        let mut index = Index::default();
        pods.into_iter().for_each(|pod| drop(index.apply_pod(pod)));
        index
    }

    fn lookup(index: &Index, namespace: &str, name: &str, uid: Option<&str>) -> Found {
        index.lookup(&Address { uid: uid.map(str::to_owned), ..Address::new(namespace, name, 8888) })
    }

    fn address(index: &Index, name: &str, uid: Option<&str>) -> Option<String> {
        match lookup(index, "ns", name, uid) {
            Found::Ready(target) => Some(target.address.to_string()),
            _ => None,
        }
    }

    fn pool() -> Value {
        json!({"metadata": {"ownerReferences": [{
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "p", "controller": true,
        }]}})
    }

    #[test]
    fn a_ready_pod_is_found_by_name_and_by_uid_in_its_own_namespace_only() {
        let index = index([test_pod("web", "u1", json!({}))]);
        assert_eq!(address(&index, "web", None).as_deref(), Some("10.0.0.5"));
        assert_eq!(address(&index, "web", Some("u1")).as_deref(), Some("10.0.0.5"));
        assert_eq!(address(&index, "web", Some("unknown")), None);
        assert_eq!(lookup(&index, "other", "web", Some("u1")), Found::Unknown);
    }

    #[test]
    fn a_uid_does_not_lead_to_a_sandbox_of_another_name() {
        let index = index([
            test_pod("web", "u1", json!({})),
            test_pod("db", "u2", json!({"status": {"podIP": "10.0.0.9"}})),
        ]);
        assert_eq!(address(&index, "web", Some("u2")), None);
        assert_eq!(address(&index, "unknown", Some("u2")), None);
    }

    #[test]
    fn a_uid_finds_no_other_sandbox_of_the_name() {
        let mut index = index([test_pod("web", "u1", json!({}))]);
        for _ in 0..2 {
            for (uid, found) in [(Some("u1"), true), (Some("old"), false), (None, true)] {
                assert_eq!(address(&index, "web", uid).is_some(), found, "{uid:?}");
            }
            // The same when the Sandbox is known too.
            index.apply_sandbox(test_sandbox("web", "u1", json!({})));
        }
        index.apply_sandbox(test_sandbox("web", "u2", json!({})));
        assert_eq!(lookup(&index, "ns", "web", Some("u1")), Found::Unknown, "replaced");
    }

    #[test]
    fn a_pod_of_another_namespace_or_name_never_stands_for_a_sandbox() {
        let sandbox = || test_sandbox("web", "u1", json!({}));
        let own = || test_pod("web", "u1", json!({}));
        // Owner references are not validated by the API server: anyone who may create Pods can write any UID.
        let foreign = test_pod(
            "web",
            "u1",
            json!({"metadata": {"namespace": "evil", "uid": "evil"}, "status": {"podIP": "10.6.6.6"}}),
        );
        let misnamed = {
            let mut pod = test_pod(
                "web",
                "u1",
                json!({"metadata": {"name": "evil", "uid": "evil"}, "status": {"podIP": "10.6.6.6"}}),
            );
            pod.metadata
                .owner_references
                .iter_mut()
                .flatten()
                .for_each(|owner| owner.name = "evil".to_owned());
            pod
        };
        for evil in [foreign, misnamed] {
            let mut alone = index([evil.clone()]);
            alone.apply_sandbox(sandbox());
            assert_eq!(address(&alone, "web", None), None);
            assert_eq!(address(&alone, "web", Some("u1")), None);
            let mut index = index([own(), evil.clone()]);
            index.apply_sandbox(sandbox());
            assert_eq!(address(&index, "web", None).as_deref(), Some("10.0.0.5"));
            index.remove_pod(&evil);
            assert_eq!(address(&index, "web", None).as_deref(), Some("10.0.0.5"), "nor does its end");
            index.remove_pod(&own());
            assert!(index.pods.is_empty() && index.owners.is_empty());
        }
    }

    #[test]
    fn an_address_belongs_to_the_pod_that_was_seen_with_it_last() {
        let mut index = Index::with_unique_addresses();
        index.apply_pod(test_pod("old", "u1", json!({})));
        let touched = index.apply_pod(test_pod("new", "u2", json!({})));
        assert_eq!(touched, [("ns".to_owned(), "old".to_owned()), ("ns".to_owned(), "new".to_owned())]);
        assert_eq!(address(&index, "old", None), None, "its Pod cannot have this address any more");
        assert!(address(&index, "new", None).is_some());
        // The end of the Pod that lost the address takes nothing from the one that has it.
        index.remove_pod(&test_pod("old", "u1", json!({})));
        assert!(address(&index, "new", None).is_some());
        let host = json!({"spec": {"hostNetwork": true}});
        index.apply_pod(test_pod("third", "u3", host.clone()));
        index.apply_pod(test_pod("fourth", "u4", host));
        for name in ["new", "third", "fourth"] {
            assert!(
                address(&index, name, None).is_some(),
                "{name}: Pods on the host's network share its address"
            );
        }
        let created =
            |second: u8| json!({"metadata": {"creationTimestamp": format!("2026-01-01T00:00:0{second}Z")}});
        index.replace_pods(vec![test_pod("a", "u1", created(2)), test_pod("b", "u2", created(1))]);
        assert!(
            address(&index, "a", None).is_some() && address(&index, "b", None).is_none(),
            "a list has no order"
        );
        index.remove_pod(&test_pod("a", "u1", json!({})));
        assert!(index.addresses.is_some_and(|addresses| addresses.is_empty()), "nothing is left behind");
    }

    #[test]
    fn a_pod_that_has_ended_has_no_address_whatever_its_conditions_say() {
        for phase in ["Failed", "Succeeded"] {
            let index = index([test_pod("web", "u1", json!({"status": {"phase": phase}}))]);
            assert_eq!(address(&index, "web", None), None, "{phase}");
        }
        assert!(
            address(&index([test_pod("web", "u1", json!({"status": {"phase": "Running"}}))]), "web", None)
                .is_some()
        );
    }

    #[test]
    fn only_pods_controlled_by_a_sandbox_count() {
        let owned_by = |patch: Value| {
            let mut owner = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "web", "uid": "u1", "controller": true});
            owner.as_object_mut().unwrap().extend(patch.as_object().unwrap().clone());
            test_pod("web", "u1", json!({"metadata": {"ownerReferences": [owner]}}))
        };
        assert!(
            address(&index([owned_by(json!({"apiVersion": "agents.x-k8s.io/v1alpha1"}))]), "web", None)
                .is_some()
        );
        assert!(address(&index([owned_by(json!({"apiVersion": "agents.x-k8s.io"}))]), "web", None).is_some());
        for other in [
            json!({"kind": "Deployment"}),
            json!({"apiVersion": "other.io/v1"}),
            json!({"controller": false}),
        ] {
            assert_eq!(address(&index([owned_by(other.clone())]), "web", None), None, "{other}");
        }
    }

    #[test]
    fn a_pod_counts_while_it_is_ready_has_an_address_and_is_not_being_deleted() {
        for patch in [
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            json!({"status": {"conditions": []}}),
            json!({"status": {"podIP": null}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        ] {
            let mut index = index([test_pod("web", "u1", json!({}))]);
            assert!(address(&index, "web", None).is_some());
            assert_eq!(
                index.apply_pod(test_pod("web", "u1", patch.clone())).len(),
                1,
                "held requests look again"
            );
            assert_eq!(address(&index, "web", None), None, "{patch}");
        }
        let mut moved = index([test_pod("web", "u1", json!({}))]);
        moved.apply_pod(test_pod("web", "u1", json!({"status": {"podIP": "10.0.0.8"}})));
        assert_eq!(address(&moved, "web", None).as_deref(), Some("10.0.0.8"));
    }

    #[test]
    fn the_controller_of_a_sandbox_decides_whether_it_is_claimed_not_the_labels_of_its_pod() {
        let labelled = json!({"metadata": {"labels": {"agents.x-k8s.io/warm-pool-sandbox": "x"}}});
        let mut index = index([test_pod("web", "u1", labelled)]);
        assert_eq!(lookup(&index, "ns", "web", None), Found::Unclaimed, "only the Pod is known");
        index.apply_sandbox(test_sandbox("web", "u1", pool()));
        assert_eq!(lookup(&index, "ns", "web", None), Found::Unclaimed);
        assert!(address(&index, "web", Some("u1")).is_some(), "by UID it can be reached");
        index.apply_sandbox(test_sandbox("web", "u1", json!({})));
        assert!(address(&index, "web", None).is_some(), "claimed, though its Pod has the old label");
        index.apply_sandbox(test_sandbox("web", "u1", pool()));
        assert_eq!(lookup(&index, "ns", "web", None), Found::Unclaimed, "back in the pool");
    }

    #[test]
    fn a_sandbox_that_shall_be_suspended_is_not_reached_through_a_pod_that_still_runs() {
        let mut index = index([test_pod("web", "u1", json!({}))]);
        index.apply_sandbox(test_sandbox("web", "u1", json!({"spec": {"operatingMode": "Suspended"}})));
        assert_eq!(lookup(&index, "ns", "web", None), Found::Suspended);
    }

    #[test]
    fn a_recreated_sandbox_is_not_served_by_the_pod_of_the_old_one() {
        let mut index = index([test_pod("web", "u1", json!({}))]);
        index.apply_sandbox(test_sandbox("web", "u1", json!({})));
        index.remove_sandbox(&test_sandbox("web", "u1", json!({})));
        index.apply_sandbox(test_sandbox("web", "u2", json!({})));
        assert!(matches!(lookup(&index, "ns", "web", None), Found::NotReady { .. }));
        index.remove_sandbox(&test_sandbox("web", "u1", json!({})));
        assert!(matches!(lookup(&index, "ns", "web", None), Found::NotReady { .. }), "a late event");
        index.apply_pod(test_pod("web", "u2", json!({"status": {"podIP": "10.0.0.7"}})));
        assert_eq!(address(&index, "web", None).as_deref(), Some("10.0.0.7"));
    }

    #[test]
    fn a_late_event_of_an_old_pod_does_not_touch_the_new_one() {
        let old = test_pod("web", "u1", json!({}));
        let new = test_pod("web", "u2", json!({"status": {"podIP": "10.0.0.7"}}));
        let mut index = index([old.clone(), new.clone()]);
        assert_eq!(index.remove_pod(&old), []);
        assert_eq!(address(&index, "web", None).as_deref(), Some("10.0.0.7"));
        index.remove_pod(&new);
        assert_eq!(lookup(&index, "ns", "web", None), Found::Unknown);
        assert!(index.pods.is_empty() && index.owners.is_empty(), "nothing is left behind");
        assert!(!index.has_namespace("ns"));
    }

    #[test]
    fn a_new_list_replaces_the_old_one_and_wakes_requests_for_both() {
        let mut index = index([test_pod("old", "u1", json!({}))]);
        let touched = index.replace_pods(vec![test_pod("new", "u2", json!({}))]);
        assert_eq!(touched.iter().map(|key| key.1.as_str()).collect::<Vec<_>>(), ["old", "new"]);
        assert_eq!(address(&index, "old", None), None);
        assert!(address(&index, "new", None).is_some());
        index.replace_sandboxes(vec![test_sandbox("new", "u2", json!({}))]);
        assert!(index.replace_sandboxes(Vec::new()).contains(&("ns".to_owned(), "new".to_owned())));
    }

    #[test]
    fn a_message_is_kept_only_while_the_sandbox_is_not_ready() {
        let mut index = Index::default();
        let condition = |status: &str, reason: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status, "message": "why", "reason": reason}]}});
        for (status, reason, message, is_final) in [
            ("False", "DependenciesNotReady", "why", false),
            ("True", "x", "", false),
            ("False", "PodFailed", "why", true),
        ] {
            index.apply_sandbox(test_sandbox("web", "u1", condition(status, reason)));
            let wanted = Found::NotReady { message: message.to_owned(), is_final };
            assert_eq!(lookup(&index, "ns", "web", None), wanted);
        }
    }
}
