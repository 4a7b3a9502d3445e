//! When Pods have to leave a node because of its taints.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use crate::pod::Pod;
use crate::taint::{Stay, Taint, stay};

/// Pods whose time on the node is limited, with the moment when it is over.
#[derive(Debug, Default)]
pub struct Evictions {
    due: HashMap<Box<str>, Timestamp>,
}

/// What is to be done now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Pods that have to go.
    pub evicted: Vec<Box<str>>,
    /// Pods that may stay after all.
    pub spared: Vec<Box<str>>,
    /// When to look again.
    pub next: Option<Timestamp>,
}

impl Evictions {
    /// Looks at the Pods that are on the node. The time of a Pod counts from the moment when it was first seen with the taint.
    pub fn look<'a>(
        &mut self,
        pods: impl IntoIterator<Item = &'a Pod>,
        taints: &[Taint],
        now: Timestamp,
    ) -> Due {
        let mut found = Due::default();
        let mut seen = HashSet::new();
        for pod in pods {
            let uid = pod.uid();
            seen.insert(uid);
            let due = match stay(pod.tolerations(), taints) {
                Stay::Forever => {
                    if self.due.remove(uid).is_some() {
                        found.spared.push(uid.into());
                    }
                    continue;
                }
                Stay::For(time) => *self.due.entry(uid.into()).or_insert(now + time),
                Stay::Not => now,
            };
            if due <= now {
                found.evicted.push(uid.into());
            } else {
                found.next = Some(found.next.map_or(due, |next| next.min(due)));
            }
        }
        self.due.retain(|uid, _| seen.contains(&**uid));
        found
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::node::Node;

    fn pod(uid: &str, seconds: Value) -> Pod {
        let toleration =
            json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let tolerations = if seconds == json!("none") { json!([]) } else { json!([toleration]) };
        serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": {"tolerations": tolerations}}))
            .unwrap()
    }

    fn uids(all: &[&str]) -> Vec<Box<str>> {
        all.iter().map(|uid| (*uid).into()).collect()
    }

    #[test]
    fn pods_leave_when_their_time_is_over_and_stay_when_the_taint_goes() {
        let node: Node =
            serde_json::from_value(json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}))
                .unwrap();
        let at = |seconds: u64| Timestamp::UNIX_EPOCH + Duration::from_secs(seconds);
        let pods = [
            pod("now", json!("none")),
            pod("soon", json!(10)),
            pod("later", json!(60)),
            pod("never", Value::Null),
        ];
        let mut evictions = Evictions::default();
        let first = evictions.look(&pods, node.taints(), at(0));
        assert_eq!(first, Due { evicted: uids(&["now"]), spared: vec![], next: Some(at(10)) });
        let early = evictions.look(&pods[1..], node.taints(), at(9));
        assert_eq!(
            early,
            Due { next: Some(at(10)), ..Due::default() },
            "the time counts from the first look"
        );
        let due = evictions.look(&pods[1..], node.taints(), at(10));
        assert_eq!(due, Due { evicted: uids(&["soon"]), spared: vec![], next: Some(at(60)) });
        let without = evictions.look(&pods[2..], &[], at(20));
        assert_eq!(without, Due { spared: uids(&["later"]), ..Due::default() });
        let again = evictions.look(&pods[2..], node.taints(), at(30));
        assert_eq!(again.next, Some(at(90)), "and begins anew with another taint");
    }

    #[test]
    fn a_pod_that_tolerates_a_taint_for_ages_stays() {
        let node = json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}});
        let node: Node = serde_json::from_value(node).unwrap();
        let due = Evictions::default().look(&[pod("p", json!(i64::MAX))], node.taints(), Timestamp::now());
        assert!(due.evicted.is_empty() && due.next.is_some(), "{due:?}");
    }
}
