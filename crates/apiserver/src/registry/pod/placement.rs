//! Checks of the fields of a Pod that say where it runs and what it finds there: tolerations, selectors, names, resolvers.

use std::collections::HashSet;
use std::net::IpAddr;

use super::super::field::{Errors, Field, Operators};
use crate::names::{self, Rule};
use crate::status::FieldError;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
const ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const MOST_NAMESERVERS: usize = 3;
const MOST_SEARCHES: usize = 32;

pub(super) fn check(spec: &Field<'_, '_>, errors: &mut Errors) {
    spec.get("restartPolicy").one_of(&["Always", "OnFailure", "Never"], errors);
    spec.get("dnsPolicy").one_of(&DNS_POLICIES, errors);
    spec.get("preemptionPolicy").one_of(&["PreemptLowerPriority", "Never"], errors);
    let os = spec.get("os");
    os.with(os.get("name").value).one_of(&["linux", "windows"], errors);
    spec.get("activeDeadlineSeconds").between(1, i64::from(i32::MAX), errors);
    for field in ["hostname", "subdomain"] {
        spec.get(field).named(Rule::Label, errors);
    }
    for field in ["serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"] {
        spec.get(field).named(Rule::Subdomain, errors);
    }
    let selector = spec.get("nodeSelector");
    for (key, value) in selector.entries() {
        if let Some(wrong) = names::label_key(key) {
            errors.push(FieldError::invalid(selector.path(), &key.into(), wrong));
        }
        if let Some(wrong) = names::label_value(value.text()) {
            errors.push(FieldError::invalid(selector.path(), value.value, wrong));
        }
    }
    spec.get("tolerations").items().for_each(|it| toleration(&it, errors));
    resolver(spec, errors);
    for alias in spec.get("hostAliases").items() {
        address(&alias.get("ip"), errors);
        alias.get("hostnames").items().for_each(|name| name.named(Rule::Subdomain, errors));
    }
    for gate in spec.get("readinessGates").items() {
        gate.get("conditionType").label_key(errors);
    }
    let mut gates = HashSet::new();
    for gate in spec.get("schedulingGates").items() {
        let name = gate.with(gate.get("name").value);
        name.label_key(errors);
        if !gates.insert(name.text()) {
            name.duplicate(errors);
        }
    }
    let affinity = spec.get("affinity");
    node_affinity(&affinity.get("nodeAffinity"), errors);
    pod_affinity(&affinity.get("podAffinity"), errors);
    pod_affinity(&affinity.get("podAntiAffinity"), errors);
    spread(&spec.get("topologySpreadConstraints"), errors);
}

fn toleration(toleration: &Field<'_, '_>, errors: &mut Errors) {
    let (key, operator) = (toleration.get("key"), toleration.get("operator"));
    let (value, effect) = (toleration.get("value"), toleration.get("effect"));
    if let Some(wrong) = Some(key.text()).filter(|key| !key.is_empty()).and_then(names::label_key) {
        key.invalid(wrong, errors);
    }
    if key.text().is_empty() && operator.text() != "Exists" {
        let why =
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.push(FieldError::invalid(operator.path(), &operator.text().into(), why));
    }
    if toleration.get("tolerationSeconds").is_given() && effect.text() != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(FieldError::invalid(effect.path(), &effect.text().into(), why));
    }
    match operator.text() {
        "" | "Equal" => {
            if let Some(wrong) = names::label_value(value.text()) {
                operator.with(value.value).invalid(wrong, errors);
            }
        }
        "Exists" if !value.text().is_empty() => {
            operator.with(value.value).invalid("value must be empty when `operator` is 'Exists'", errors);
        }
        _ => operator.one_of(&["Equal", "Exists"], errors),
    }
    if !effect.text().is_empty() {
        effect.one_of(&EFFECTS, errors);
    }
}

/// `dnsConfig`, which `dnsPolicy: None` needs.
fn resolver(spec: &Field<'_, '_>, errors: &mut Errors) {
    let config = spec.get("dnsConfig");
    let (servers, searches) = (config.get("nameservers"), config.get("searches"));
    if spec.get("dnsPolicy").text() == "None" {
        if !config.is_given() {
            return config.missing("must provide `dnsConfig` when `dnsPolicy` is None", errors);
        }
        if servers.items().next().is_none() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return servers.missing(why, errors);
        }
    }
    if servers.items().count() > MOST_NAMESERVERS {
        servers.invalid(format!("must not have more than {MOST_NAMESERVERS} nameservers"), errors);
    }
    servers.items().for_each(|server| address(&server, errors));
    if searches.items().count() > MOST_SEARCHES {
        searches.invalid(format!("must not have more than {MOST_SEARCHES} search paths"), errors);
    }
    for option in config.get("options").items() {
        if option.get("name").text().is_empty() {
            option.missing("must not be empty", errors);
        }
    }
}

fn address(address: &Field<'_, '_>, errors: &mut Errors) {
    if address.text().parse::<IpAddr>().is_err() {
        address.invalid(ADDRESS, errors);
    }
}

fn node_affinity(affinity: &Field<'_, '_>, errors: &mut Errors) {
    let required = affinity.get(REQUIRED);
    if required.is_given() {
        let terms = required.get("nodeSelectorTerms");
        if terms.items().next().is_none() {
            terms.missing("must have at least one node selector term", errors);
        }
        for term in terms.items() {
            node_term(&term, errors);
            for requirement in term.get("matchExpressions").items() {
                requirement.get("values").items().for_each(|value| value.label_value(errors));
            }
        }
    }
    for preferred in affinity.get(PREFERRED).items() {
        weight(&preferred, errors);
        node_term(&preferred.get("preference"), errors);
    }
}

fn weight(preferred: &Field<'_, '_>, errors: &mut Errors) {
    let weight = preferred.get("weight");
    let number = weight.value.as_i64().unwrap_or_default();
    if !(1..=100).contains(&number) {
        weight.with(&number.into()).invalid("must be in the range 1-100", errors);
    }
}

fn node_term(term: &Field<'_, '_>, errors: &mut Errors) {
    for requirement in term.get("matchExpressions").items() {
        requirement.requirement(Operators::Nodes, errors);
    }
    for requirement in term.get("matchFields").items() {
        let (key, operator, values) =
            (requirement.get("key"), requirement.get("operator"), requirement.get("values"));
        match operator.text() {
            "In" | "NotIn" if values.items().count() != 1 => {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                values.missing(why, errors);
            }
            "In" | "NotIn" => {}
            _ => operator.with(&operator.text().into()).invalid("not a valid selector operator", errors),
        }
        match key.text() {
            "metadata.name" => values.items().for_each(|value| value.named(Rule::Subdomain, errors)),
            other => key.with(&other.into()).invalid("not a valid field selector key", errors),
        }
    }
}

/// `podAffinity` and `podAntiAffinity` have the same fields.
fn pod_affinity(affinity: &Field<'_, '_>, errors: &mut Errors) {
    affinity.get(REQUIRED).items().for_each(|term| pod_term(&term, errors));
    for preferred in affinity.get(PREFERRED).items() {
        weight(&preferred, errors);
        pod_term(&preferred.get("podAffinityTerm"), errors);
    }
}

fn pod_term(term: &Field<'_, '_>, errors: &mut Errors) {
    term.get("labelSelector").selector(errors);
    term.get("namespaceSelector").selector(errors);
    for name in term.get("namespaces").items() {
        if let Some(wrong) = Rule::Label.check(name.text()) {
            // kube-apiserver names the field like this.
            term.get("namespace").with(name.value).invalid(wrong, errors);
        }
    }
    label_keys(term, errors);
    topology_key(term, errors);
    term.get("topologyKey").label_key(errors);
}

/// Keys whose values are those of the Pod itself: in no selector, and not both to match and to differ.
fn label_keys(term: &Field<'_, '_>, errors: &mut Errors) {
    let selector = term.get("labelSelector");
    for name in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = term.get(name);
        if keys.items().next().is_some() && !selector.is_given() {
            keys.forbidden("must not be specified when labelSelector is not set", errors);
        } else {
            keys.items().for_each(|key| key.label_key(errors));
        }
    }
    let differ = term.get("mismatchLabelKeys");
    for key in term.get("matchLabelKeys").items() {
        if differ.items().any(|other| other.text() == key.text()) {
            key.invalid("exists in both matchLabelKeys and mismatchLabelKeys", errors);
        }
    }
}

fn topology_key(term: &Field<'_, '_>, errors: &mut Errors) {
    let key = term.get("topologyKey");
    if key.text().is_empty() {
        key.missing("can not be empty", errors);
    }
}

fn spread(constraints: &Field<'_, '_>, errors: &mut Errors) {
    for (at, constraint) in constraints.items().enumerate() {
        let skew = constraint.get("maxSkew");
        positive(&skew, skew.value.as_i64().unwrap_or_default(), errors);
        topology_key(&constraint, errors);
        let action = constraint.get("whenUnsatisfiable");
        action.with(&action.text().into()).one_of(&["DoNotSchedule", "ScheduleAnyway"], errors);
        let kind = |constraint: &Field<'_, '_>| {
            [
                constraint.get("topologyKey").text().to_owned(),
                constraint.get("whenUnsatisfiable").text().to_owned(),
            ]
        };
        let own = kind(&constraint);
        if constraints.items().skip(at + 1).any(|other| kind(&other) == own) {
            let both = format!("{{{}}}", own.join(", ")).into();
            constraint.get("{topologyKey, whenUnsatisfiable}").with(&both).duplicate(errors);
        }
        let domains = constraint.get("minDomains");
        if let Some(number) = domains.value.as_i64() {
            positive(&domains, number, errors);
            if action.text() != "DoNotSchedule" {
                let action = action.text();
                let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                domains.invalid(why, errors);
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.get(policy).one_of(&["Honor", "Ignore"], errors);
        }
        label_keys(&constraint, errors);
        constraint.get("labelSelector").selector(errors);
    }
}

fn positive(field: &Field<'_, '_>, number: i64, errors: &mut Errors) {
    if number <= 0 {
        field.with(&number.into()).invalid("must be greater than zero", errors);
    }
}
