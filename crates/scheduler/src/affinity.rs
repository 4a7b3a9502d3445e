//! Which nodes a Pod names: `nodeSelector` and required node affinity.

use serde::Deserialize;

use crate::node::Node;
use crate::pod::Spec;
use crate::selector::{Requirement, includes};

/// The only field of a node that can be asked for.
const NAME: &str = "metadata.name";

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeSelector {
    node_selector_terms: Vec<Term>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Term {
    match_expressions: Vec<Requirement>,
    match_fields: Vec<Requirement>,
}

impl Term {
    /// A term without requirements selects nothing.
    fn selects(&self, node: &Node) -> bool {
        let is_empty = self.match_expressions.is_empty() && self.match_fields.is_empty();
        let label = |key: &str| node.labels.get(key).map(String::as_str);
        !is_empty
            && self.match_expressions.iter().all(|it| it.accepts(label(&it.key)))
            && self.match_fields.iter().all(|it| of_name(it) && it.accepts(Some(&node.name)))
    }

    /// Whether the term can only be for nodes of other names.
    fn is_for_others(&self, node: &Node) -> bool {
        let named = |it: &Requirement| of_name(it) && it.operator == "In" && !it.accepts(Some(&node.name));
        self.match_fields.iter().any(named)
    }
}

fn of_name(requirement: &Requirement) -> bool {
    requirement.key == NAME
        && matches!(&*requirement.operator, "In" | "NotIn")
        && requirement.values.len() == 1
}

/// Whether the Pod can run on a node of these labels and this name.
pub(crate) fn selects(spec: &Spec, node: &Node) -> bool {
    let required = spec.affinity.node_affinity.required.as_ref();
    includes(&node.labels, &spec.node_selector)
        && required.is_none_or(|selector| selector.node_selector_terms.iter().any(|term| term.selects(node)))
}

/// Whether every term names other nodes. The scheduler sees that before it looks at any node, and says it in other words.
pub(crate) fn names_others(spec: &Spec, node: &Node) -> bool {
    let required = spec.affinity.node_affinity.required.as_ref();
    required.is_some_and(|selector| {
        let terms = &selector.node_selector_terms;
        !terms.is_empty() && terms.iter().all(|term| term.is_for_others(node))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: Value) -> (bool, bool) {
        let spec = serde_json::from_value(spec).unwrap();
        let node = json!({"metadata": {"name": "here", "labels": {"disk": "ssd", "size": "8"}}});
        let node: Node = serde_json::from_value(node).unwrap();
        (selects(&spec, &node), names_others(&spec, &node))
    }

    fn terms(terms: Value) -> Value {
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        json!({"affinity": {"nodeAffinity": required}})
    }

    #[test]
    fn node_is_chosen_by_labels_and_by_name() {
        let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        let name = |operator: &str, name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]});
        let (ssd, hdd) = (expression("disk", "In", json!(["ssd"])), expression("disk", "In", json!(["hdd"])));
        for (spec, expected) in [
            (json!({}), (true, false)),
            (json!({"nodeSelector": {"disk": "ssd"}}), (true, false)),
            (json!({"nodeSelector": {"disk": "ssd", "gpu": "yes"}}), (false, false)),
            (terms(json!([ssd])), (true, false)),
            (terms(json!([hdd])), (false, false)),
            (terms(json!([hdd, ssd])), (true, false)),
            (terms(json!([expression("size", "Gt", json!(["7"]))])), (true, false)),
            (terms(json!([expression("gpu", "DoesNotExist", json!([]))])), (true, false)),
            (terms(json!([{}])), (false, false)),
            (terms(json!([name("In", "here")])), (true, false)),
            (terms(json!([name("NotIn", "here")])), (false, false)),
            (terms(json!([name("In", "there")])), (false, true)),
            (terms(json!([name("In", "there"), ssd])), (true, false)),
        ] {
            assert_eq!(check(spec.clone()), expected, "{spec}");
        }
        let mut both = terms(json!([ssd]));
        both["nodeSelector"] = json!({"disk": "hdd"});
        assert_eq!(check(both), (false, false), "both have to hold");
    }
}
