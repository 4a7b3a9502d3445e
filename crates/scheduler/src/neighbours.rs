//! Which Pods can be on one node together: required affinity and anti-affinity between Pods, and hard spread constraints.
//!
//! With one node, a topology is that node if it has the topology's label, and nothing otherwise.

use serde::Deserialize;

use crate::node::Node;
use crate::pod::Pod;
use crate::selector::{LabelSelector, Labels, Requirement};

/// One required term of an affinity or anti-affinity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Term {
    topology_key: String,
    label_selector: Option<LabelSelector>,
    match_label_keys: Vec<String>,
    mismatch_label_keys: Vec<String>,
    namespaces: Vec<String>,
    namespace_selector: Option<LabelSelector>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Spread {
    max_skew: i64,
    min_domains: Option<i64>,
    topology_key: String,
    when_unsatisfiable: String,
    label_selector: Option<LabelSelector>,
    match_label_keys: Vec<String>,
}

/// A Pod as its neighbours see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neighbour<'a> {
    pub namespace: &'a str,
    pub labels: &'a Labels,
    /// It is on its way out.
    pub deleting: bool,
    /// What it does not want beside it.
    pub avoids: &'a [Rule],
}

/// A term with everything filled in that it takes from the Pod that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    topology_key: String,
    /// Nothing is selected without a selector.
    selector: Option<LabelSelector>,
    namespaces: Vec<String>,
    namespace_selector: Option<LabelSelector>,
}

/// What the rules of neighbours need to know beside the Pods themselves.
pub(crate) trait Surroundings {
    fn neighbours(&self) -> impl Iterator<Item = Neighbour<'_>>;
    /// Whether any of them does not want every neighbour.
    fn any_avoids(&self) -> bool;
    fn labels_of_namespace(&self, namespace: &str) -> Option<&Labels>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// No Pod on the node matches the Pod's required affinity.
    AffinityUnmet,
    /// A Pod on the node matches the Pod's required anti-affinity.
    AntiAffinity,
    /// The Pod matches the required anti-affinity of a Pod on the node.
    ExistingAntiAffinity,
    /// A hard spread constraint of the Pod would be violated.
    Spread,
    /// The node lacks the topology label of a hard spread constraint.
    SpreadWithoutLabel,
}

/// A selector that also asks for what the Pod itself has under some labels.
fn with_own(
    selector: Option<&LabelSelector>,
    pod: &Pod,
    keys: &[String],
    operator: &str,
) -> Option<LabelSelector> {
    let own = |key: &String| {
        let value = pod.metadata.labels.get(key)?.clone();
        Some(Requirement { key: key.clone(), operator: operator.to_owned(), values: vec![value] })
    };
    let mut selector = selector?.clone();
    selector.match_expressions.extend(keys.iter().filter_map(own));
    Some(selector)
}

impl Rule {
    fn of(term: &Term, pod: &Pod) -> Self {
        let selector = with_own(term.label_selector.as_ref(), pod, &term.match_label_keys, "In");
        let selector = with_own(selector.as_ref(), pod, &term.mismatch_label_keys, "NotIn");
        let mut namespaces = term.namespaces.clone();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(pod.metadata.namespace.to_string());
        }
        let namespace_selector = term.namespace_selector.clone();
        Self { topology_key: term.topology_key.clone(), selector, namespaces, namespace_selector }
    }

    /// The rules of all terms.
    pub fn all(terms: &[Term], pod: &Pod) -> Vec<Self> {
        terms.iter().map(|term| Self::of(term, pod)).collect()
    }

    fn selects(&self, namespace: &str, labels: &Labels, around: &impl Surroundings) -> bool {
        let by_labels = || {
            let found = around.labels_of_namespace(namespace);
            self.namespace_selector
                .as_ref()
                .zip(found)
                .is_some_and(|(selector, labels)| selector.selects(labels))
        };
        self.selector.as_ref().is_some_and(|selector| selector.selects(labels))
            && (self.namespaces.iter().any(|one| one == namespace) || by_labels())
    }
}

/// Whether the Pod's hard constraints let it come.
pub(crate) fn spread(pod: &Pod, node: &Node, around: &impl Surroundings) -> Result<(), Conflict> {
    let hard =
        || pod.spec.topology_spread_constraints.iter().filter(|it| it.when_unsatisfiable == "DoNotSchedule");
    if hard().any(|constraint| !node.labels.contains_key(&constraint.topology_key)) {
        return Err(Conflict::SpreadWithoutLabel);
    }
    let (namespace, labels) = (&*pod.metadata.namespace, &pod.metadata.labels);
    let fits = |constraint: &Spread| {
        // One domain has as many as the domain with the fewest, unless there should be more domains.
        if constraint.min_domains.is_none_or(|domains| domains <= 1) {
            return true;
        }
        let selector = with_own(constraint.label_selector.as_ref(), pod, &constraint.match_label_keys, "In");
        let Some(selector) = selector else { return true };
        let counts =
            |it: &Neighbour<'_>| it.namespace == namespace && !it.deleting && selector.selects(it.labels);
        let others = around.neighbours().filter(counts).count();
        let own = i64::from(selector.selects(labels));
        i64::try_from(others).unwrap_or(i64::MAX).saturating_add(own) <= constraint.max_skew
    };
    if hard().all(fits) { Ok(()) } else { Err(Conflict::Spread) }
}

/// Whether the Pod and those on the node want each other.
pub(crate) fn company(pod: &Pod, node: &Node, around: &impl Surroundings) -> Result<(), Conflict> {
    let (namespace, labels) = (&*pod.metadata.namespace, &pod.metadata.labels);
    let holds_here = |rule: &Rule| node.labels.contains_key(&rule.topology_key);
    let affinity = &pod.spec.affinity;
    let wanted = Rule::all(&affinity.pod_affinity.required, pod);
    if !wanted.is_empty() {
        let selected =
            |namespace: &str, labels: &Labels| wanted.iter().all(|it| it.selects(namespace, labels, around));
        let found = around.neighbours().any(|it| selected(it.namespace, it.labels));
        // The first of a group that wants to be together may come alone.
        if !wanted.iter().all(holds_here) || !(found || selected(namespace, labels)) {
            return Err(Conflict::AffinityUnmet);
        }
    }
    let unwanted = Rule::all(&affinity.pod_anti_affinity.required, pod);
    let mut unwanted = unwanted.iter().filter(|rule| holds_here(rule));
    if unwanted.any(|rule| around.neighbours().any(|it| rule.selects(it.namespace, it.labels, around))) {
        return Err(Conflict::AntiAffinity);
    }
    let avoided = |rule: &Rule| holds_here(rule) && rule.selects(namespace, labels, around);
    if around.any_avoids() && around.neighbours().any(|it| it.avoids.iter().any(avoided)) {
        return Err(Conflict::ExistingAntiAffinity);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    struct Around {
        pods: Vec<(Pod, Vec<Rule>)>,
        team: Labels,
    }

    impl Surroundings for Around {
        fn neighbours(&self) -> impl Iterator<Item = Neighbour<'_>> {
            self.pods.iter().map(|(pod, avoids)| Neighbour {
                namespace: &pod.metadata.namespace,
                labels: &pod.metadata.labels,
                deleting: pod.metadata.deletion_timestamp.is_some(),
                avoids,
            })
        }

        fn any_avoids(&self) -> bool {
            true
        }

        fn labels_of_namespace(&self, _: &str) -> Option<&Labels> {
            Some(&self.team)
        }
    }

    fn pod(app: &str, spec: Value) -> Pod {
        let metadata = json!({"namespace": "ns", "labels": {"app": app, "version": "1"}});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn check(pod: &Pod, others: &[Pod]) -> Result<(), Conflict> {
        let avoids = |pod: &Pod| Rule::all(&pod.spec.affinity.pod_anti_affinity.required, pod);
        let pods = others.iter().map(|pod| (pod.clone(), avoids(pod))).collect();
        let around = Around { pods, team: Labels::from([("team".to_owned(), "a".to_owned())]) };
        let node = json!({"metadata": {"name": "here", "labels": {"kubernetes.io/hostname": "here"}}});
        let node = serde_json::from_value(node).unwrap();
        spread(pod, &node, &around).and(company(pod, &node, &around))
    }

    fn affinity(kind: &str, app: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut term =
            json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}});
        change(&mut term);
        json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    }

    #[test]
    fn pods_come_beside_those_that_they_want() {
        let wants = |app: &str| pod("web", affinity("podAffinity", app, |_| ()));
        let plain = |app: &str| pod(app, json!({}));
        assert_eq!(check(&wants("db"), &[]), Err(Conflict::AffinityUnmet));
        assert_eq!(check(&wants("db"), &[plain("db")]), Ok(()));
        assert_eq!(check(&wants("web"), &[]), Ok(()), "the first of a group");
        let elsewhere = affinity("podAffinity", "db", |term| term["topologyKey"] = json!("zone"));
        assert_eq!(
            check(&pod("web", elsewhere), &[plain("db")]),
            Err(Conflict::AffinityUnmet),
            "the node is in no zone"
        );
        let other = affinity("podAffinity", "db", |term| term["namespaces"] = json!(["other"]));
        assert_eq!(check(&pod("web", other), &[plain("db")]), Err(Conflict::AffinityUnmet));
        let team = |team: &str| {
            affinity("podAffinity", "db", |term| {
                term["namespaceSelector"] = json!({"matchLabels": {"team": team}})
            })
        };
        assert_eq!(check(&pod("web", team("a")), &[plain("db")]), Ok(()));
        assert_eq!(check(&pod("web", team("b")), &[plain("db")]), Err(Conflict::AffinityUnmet));
        let same = affinity("podAffinity", "db", |term| term["matchLabelKeys"] = json!(["version"]));
        assert_eq!(check(&pod("web", same.clone()), &[plain("db")]), Ok(()));
        let mut next = plain("db");
        next.metadata.labels.insert("version".to_owned(), "2".to_owned());
        assert_eq!(check(&pod("web", same), &[next]), Err(Conflict::AffinityUnmet));
    }

    #[test]
    fn pods_stay_away_from_those_that_either_does_not_want() {
        let avoids = |app: &str| pod("web", affinity("podAntiAffinity", app, |_| ()));
        let plain = |app: &str| pod(app, json!({}));
        assert_eq!(check(&avoids("db"), &[plain("db")]), Err(Conflict::AntiAffinity));
        assert_eq!(check(&avoids("db"), &[plain("web")]), Ok(()));
        assert_eq!(check(&plain("db"), &[avoids("db")]), Err(Conflict::ExistingAntiAffinity));
        assert_eq!(check(&plain("web"), &[avoids("db")]), Ok(()));
        let elsewhere = affinity("podAntiAffinity", "db", |term| term["topologyKey"] = json!("zone"));
        assert_eq!(check(&pod("web", elsewhere), &[plain("db")]), Ok(()), "the node is in no zone");
    }

    #[test]
    fn one_node_spreads_nothing_unless_there_should_be_more() {
        let spread = |change: fn(&mut Value)| {
            let mut constraint = json!({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}});
            change(&mut constraint);
            pod("web", json!({"topologySpreadConstraints": [constraint]}))
        };
        let web = pod("web", json!({}));
        assert_eq!(check(&spread(|_| ()), &[web.clone(), web.clone()]), Ok(()));
        assert_eq!(
            check(&spread(|it| it["topologyKey"] = json!("zone")), &[]),
            Err(Conflict::SpreadWithoutLabel)
        );
        assert_eq!(check(&spread(|it| it["minDomains"] = json!(2)), &[]), Ok(()));
        let one = std::slice::from_ref(&web);
        assert_eq!(check(&spread(|it| it["minDomains"] = json!(2)), one), Err(Conflict::Spread));
        let soft = spread(|it| {
            (it["topologyKey"], it["whenUnsatisfiable"]) = (json!("zone"), json!("ScheduleAnyway"))
        });
        assert_eq!(check(&soft, one), Ok(()));
        let mut leaving = web;
        leaving.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(check(&spread(|it| it["minDomains"] = json!(2)), &[leaving]), Ok(()));
    }
}
