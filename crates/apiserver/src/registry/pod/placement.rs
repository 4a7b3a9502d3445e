//! Checks of the fields of a Pod that say where it runs and what it finds there: tolerations, selectors, names, resolvers.

use std::net::IpAddr;

use super::super::field::{Errors, Field};
use crate::names::{self, Rule};
use crate::status::FieldError;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
const ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const MOST_NAMESERVERS: usize = 3;
const MOST_SEARCHES: usize = 32;

pub(super) fn check(spec: &Field<'_, '_>, errors: &mut Errors) {
    spec.get("restartPolicy").one_of(&["Always", "OnFailure", "Never"], errors);
    spec.get("dnsPolicy").one_of(&DNS_POLICIES, errors);
    spec.get("preemptionPolicy").one_of(&["PreemptLowerPriority", "Never"], errors);
    let os = spec.get("os");
    os.with(os.get("name").value).one_of(&["linux", "windows"], errors);
    spec.get("activeDeadlineSeconds").between(1, i64::from(i32::MAX), errors);
    let grace = spec.get("terminationGracePeriodSeconds");
    grace.not_negative(errors);
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
        let kind = gate.get("conditionType");
        if let Some(wrong) = names::label_key(kind.text()) {
            kind.invalid(wrong, errors);
        }
    }
    for gate in spec.get("schedulingGates").items() {
        let name = gate.with(gate.get("name").value);
        if let Some(wrong) = names::label_key(name.text()) {
            name.invalid(wrong, errors);
        }
    }
    node_affinity(&spec.get("affinity").get("nodeAffinity"), errors);
    for constraint in spec.get("topologySpreadConstraints").items() {
        constraint.get("topologyKey").required(errors);
        constraint.get("whenUnsatisfiable").one_of(&["DoNotSchedule", "ScheduleAnyway"], errors);
        let skew = constraint.get("maxSkew");
        if skew.value.as_i64().is_some_and(|skew| skew <= 0) {
            skew.invalid("must be greater than zero", errors);
        }
        constraint.get("labelSelector").selector(errors);
    }
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
    let required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution");
    if required.is_given() {
        let terms = required.get("nodeSelectorTerms");
        if terms.items().next().is_none() {
            terms.missing("must have at least one node selector term", errors);
        }
        terms.items().for_each(|term| node_term(&term, errors));
    }
    for preferred in affinity.get("preferredDuringSchedulingIgnoredDuringExecution").items() {
        let weight = preferred.get("weight");
        if weight.value.as_i64().is_none_or(|weight| !(1..=100).contains(&weight)) {
            weight.invalid("must be in the range 1-100", errors);
        }
        node_term(&preferred.get("preference"), errors);
    }
}

fn node_term(term: &Field<'_, '_>, errors: &mut Errors) {
    for requirement in term.get("matchExpressions").items() {
        let (operator, values) = (requirement.get("operator"), requirement.get("values"));
        let count = values.items().count();
        match operator.text() {
            "In" | "NotIn" if count == 0 => {
                values.missing("must be specified when `operator` is 'In' or 'NotIn'", errors);
            }
            "Exists" | "DoesNotExist" if count > 0 => {
                values
                    .forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'", errors);
            }
            "Gt" | "Lt" if count != 1 => {
                values.missing("must be specified single value when `operator` is 'Lt' or 'Gt'", errors);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            _ => operator.invalid("not a valid selector operator", errors),
        }
        let key = requirement.get("key");
        if let Some(wrong) = names::label_key(key.text()) {
            key.invalid(wrong, errors);
        }
    }
}
