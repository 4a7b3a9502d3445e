//! Selection by labels.

use std::collections::BTreeMap;

use serde::Serialize;

pub type Labels = BTreeMap<String, String>;

/// All of its demands must hold; one without any selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Selector {
    pub labels: Labels,
    pub expressions: Vec<Expression>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Expression {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    pub fn selects(&self, labels: &Labels) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.expressions.iter().all(|expression| expression.holds(labels))
    }
}

impl Expression {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_demand_must_hold() {
        let labels: Labels = [("app".to_owned(), "web".to_owned())].into();
        let holds = |operator, key: &str, values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            Expression { key: key.to_owned(), operator, values }.holds(&labels)
        };
        assert!(holds(Operator::In, "app", &["db", "web"]) && !holds(Operator::In, "app", &["db"]));
        assert!(!holds(Operator::In, "tier", &["web"]));
        assert!(holds(Operator::NotIn, "tier", &["web"]) && !holds(Operator::NotIn, "app", &["web"]));
        assert!(holds(Operator::Exists, "app", &[]) && !holds(Operator::Exists, "tier", &[]));
        assert!(holds(Operator::DoesNotExist, "tier", &[]) && !holds(Operator::DoesNotExist, "app", &[]));
        assert!(Selector::default().selects(&Labels::new()));
        let both = Selector {
            labels: labels.clone(),
            expressions: vec![Expression { key: "tier".into(), operator: Operator::Exists, values: vec![] }],
        };
        assert!(!both.selects(&labels));
    }
}
