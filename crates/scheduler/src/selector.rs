//! Selectors of labels, as Pods write them.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Requirement {
    pub key: String,
    pub operator: String,
    pub values: Vec<String>,
}

/// Selects everything when it is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct LabelSelector {
    pub match_labels: Labels,
    pub match_expressions: Vec<Requirement>,
}

impl Requirement {
    /// Whether a label with this value, or none, is what is required. An operator that is not known is met by nothing.
    pub fn accepts(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|one| one == value);
        let compared = |wanted: fn(&i64, &i64) -> bool| {
            let bound = self.values.first().and_then(|bound| bound.parse().ok());
            value
                .and_then(|value| value.parse().ok())
                .zip(bound)
                .is_some_and(|(value, bound)| wanted(&value, &bound))
        };
        match &*self.operator {
            "In" => value.is_some_and(listed),
            "NotIn" => !value.is_some_and(listed),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => compared(i64::gt),
            "Lt" => compared(i64::lt),
            _ => false,
        }
    }
}

impl LabelSelector {
    pub fn selects(&self, labels: &Labels) -> bool {
        includes(labels, &self.match_labels)
            && self.match_expressions.iter().all(|it| it.accepts(labels.get(&it.key).map(String::as_str)))
    }
}

/// Whether `labels` has all of `wanted`.
pub(crate) fn includes(labels: &Labels, wanted: &Labels) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_operator_means_what_it_means_on_a_cluster() {
        let some = Some("5");
        for (operator, values, value, accepted) in [
            ("In", json!(["4", "5"]), some, true),
            ("In", json!(["4"]), some, false),
            ("In", json!(["4"]), None, false),
            ("NotIn", json!(["4"]), some, true),
            ("NotIn", json!(["5"]), some, false),
            ("NotIn", json!(["5"]), None, true),
            ("Exists", json!([]), some, true),
            ("Exists", json!([]), None, false),
            ("DoesNotExist", json!([]), some, false),
            ("DoesNotExist", json!([]), None, true),
            ("Gt", json!(["4"]), some, true),
            ("Gt", json!(["5"]), some, false),
            ("Gt", json!(["4"]), Some("many"), false),
            ("Gt", json!(["4"]), None, false),
            ("Lt", json!(["6"]), some, true),
            ("Lt", json!(["-6"]), some, false),
            ("Lt", json!(["few"]), some, false),
            ("Near", json!(["5"]), some, false),
        ] {
            let requirement: Requirement =
                serde_json::from_value(json!({"key": "k", "operator": operator, "values": values})).unwrap();
            assert_eq!(requirement.accepts(value), accepted, "{operator} {values} {value:?}");
        }
    }

    #[test]
    fn an_empty_selector_selects_everything() {
        let selects = |selector: Value, labels: Value| {
            let selector: LabelSelector = serde_json::from_value(selector).unwrap();
            selector.selects(&serde_json::from_value(labels).unwrap())
        };
        assert!(selects(json!({}), json!({})));
        assert!(selects(json!({"matchLabels": {"a": "b"}}), json!({"a": "b", "c": "d"})));
        assert!(!selects(json!({"matchLabels": {"a": "b"}}), json!({"a": "c"})));
        let expressions = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist"}]});
        assert!(selects(expressions.clone(), json!({"a": ""})));
        assert!(!selects(expressions, json!({"a": "", "b": ""})));
    }
}
