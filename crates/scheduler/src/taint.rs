//! Taints of a node, and tolerations of a Pod.

use std::time::Duration;

use serde::Deserialize;

const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";
/// The longest limited stay in seconds, 68 years: the time at which it ends can always be computed.
const LONGEST_STAY: u64 = i32::MAX as u64;
/// What stands for a node that is cordoned.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    key: String,
    value: String,
    effect: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Toleration {
    key: String,
    operator: String,
    value: String,
    effect: String,
    toleration_seconds: Option<i64>,
}

/// How long a Pod may stay on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    Forever,
    For(Duration),
    Not,
}

impl Taint {
    /// Whether Pods that do not tolerate it have to leave.
    pub(crate) fn evicts(&self) -> bool {
        self.effect == NO_EXECUTE
    }

    /// Whether Pods that do not tolerate it may not come.
    pub(crate) fn repels(&self) -> bool {
        self.effect == NO_SCHEDULE || self.evicts()
    }

    pub(crate) fn cordon() -> Self {
        Self { key: UNSCHEDULABLE.to_owned(), value: String::new(), effect: NO_SCHEDULE.to_owned() }
    }
}

impl Toleration {
    fn covers(&self, taint: &Taint) -> bool {
        let same = |own: &str, other: &str| own.is_empty() || own == other;
        same(&self.effect, &taint.effect)
            && same(&self.key, &taint.key)
            && match &*self.operator {
                "" | "Equal" => self.value == taint.value,
                operator => operator == "Exists",
            }
    }
}

/// Whether one of the tolerations covers the taint.
pub(crate) fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|toleration| toleration.covers(taint))
}

/// How long a Pod with these tolerations stays on a node with these taints, from the moment when it is asked.
pub fn stay(tolerations: &[Toleration], taints: &[Taint]) -> Stay {
    let mut seconds = Vec::new();
    for taint in taints.iter().filter(|taint| taint.evicts()) {
        // The first that covers the taint counts, as on a cluster.
        match tolerations.iter().find(|toleration| toleration.covers(taint)) {
            None => return Stay::Not,
            Some(toleration) => seconds.extend(toleration.toleration_seconds),
        }
    }
    match seconds.into_iter().min() {
        None => Stay::Forever,
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds @ 1..) => Stay::For(Duration::from_secs(seconds.min(LONGEST_STAY))),
            _ => Stay::Not,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn taint(text: &str) -> Taint {
        let (pair, effect) = text.split_once(':').unwrap();
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Taint { key: key.into(), value: value.into(), effect: effect.into() }
    }

    fn tolerations(list: Value) -> Vec<Toleration> {
        serde_json::from_value(list).unwrap()
    }

    #[test]
    fn a_toleration_covers_a_taint_by_key_value_and_effect() {
        for (toleration, taint_text, covered) in [
            (json!({"key": "a", "value": "b"}), "a=b:NoSchedule", true),
            (
                json!({"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}),
                "a=b:NoSchedule",
                true,
            ),
            (json!({"key": "a", "value": "b", "effect": "NoExecute"}), "a=b:NoSchedule", false),
            (json!({"key": "a"}), "a=b:NoSchedule", false),
            (json!({"key": "a"}), "a:NoSchedule", true),
            (json!({"key": "a", "operator": "Exists"}), "a=b:NoExecute", true),
            (json!({"key": "b", "operator": "Exists"}), "a=b:NoExecute", false),
            (json!({"operator": "Exists"}), "a=b:NoExecute", true),
            (json!({"operator": "Exists", "effect": "NoSchedule"}), "a=b:NoExecute", false),
            (json!({"key": "a", "operator": "Gt", "value": "1"}), "a=2:NoSchedule", false),
        ] {
            let covers = tolerates(&tolerations(json!([toleration])), &taint(taint_text));
            assert_eq!(covers, covered, "{toleration} {taint_text}");
        }
    }

    #[test]
    fn a_pod_stays_as_long_as_the_shortest_of_the_tolerations_that_it_needs() {
        let patient = |key: &str, seconds: i64| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let always = |key: &str| json!({"key": key, "operator": "Exists"});
        let (a, b) = (taint("a:NoExecute"), taint("b:NoExecute"));
        for (list, taints, expected) in [
            (json!([]), vec![], Stay::Forever),
            (json!([]), vec![taint("a:NoSchedule")], Stay::Forever),
            (json!([]), vec![a.clone()], Stay::Not),
            (json!([always("a")]), vec![a.clone()], Stay::Forever),
            (json!([always("a")]), vec![a.clone(), b.clone()], Stay::Not),
            (
                json!([patient("a", 30), always("b")]),
                vec![a.clone(), b.clone()],
                Stay::For(Duration::from_secs(30)),
            ),
            (
                json!([patient("a", 30), patient("b", 20)]),
                vec![a.clone(), b.clone()],
                Stay::For(Duration::from_secs(20)),
            ),
            (
                json!([patient("a", 30), patient("b", 20)]),
                vec![a.clone()],
                Stay::For(Duration::from_secs(30)),
            ),
            (json!([patient("a", 0)]), vec![a.clone()], Stay::Not),
            (json!([patient("a", -5)]), vec![a.clone()], Stay::Not),
            (json!([always("a"), patient("a", 5)]), vec![a], Stay::Forever),
        ] {
            assert_eq!(stay(&tolerations(list.clone()), &taints), expected, "{list} {taints:?}");
        }
    }
}
