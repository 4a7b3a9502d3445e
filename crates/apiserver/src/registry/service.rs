//! Services: defaults, checks, and the choice of an address for those that have one of their own.
//!
//! Which addresses are taken is found from the objects; nothing else is stored.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};

use super::rules::default;
use crate::names;
use crate::status::FieldError;

/// The addresses of Services: the last 64 thousand of 10.64.0.0/10, of which sandboxes have the others.
pub const SERVICE_RANGE: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 127, 0, 0), 16);
const SIZE: u32 = 1 << (32 - SERVICE_RANGE.1);
/// The first addresses, which are given last: they are for Services that name one.
const ON_REQUEST: u32 = 256;
/// The address of the API server on a cluster. No Service can have it here.
const API_SERVER: u32 = 1;

const NONE: &str = "None";
const ADDRESSES: &str = "spec.clusterIPs";

/// Why an address cannot be had, in kube-apiserver's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("provided IP is already allocated")]
    Taken,
    #[error("the provided network does not match the current range")]
    Outside,
    #[error("range is full")]
    Full,
}

/// Whether a Service has an address of its own: all but those with a name only.
pub(crate) fn needs_address(service: &Value) -> bool {
    let spec = &service["spec"];
    spec["type"] != "ExternalName" && spec["clusterIP"] != NONE
}

/// The address that is wanted, or a free one from `start` on.
pub(crate) fn choose(
    wanted: Option<&str>,
    taken: &HashSet<Ipv4Addr>,
    start: u32,
) -> Result<Ipv4Addr, Refused> {
    let first = u32::from(SERVICE_RANGE.0);
    // Neither the first nor the last of a block is anybody's.
    let free = |number: &u32| {
        (1..SIZE - 1).contains(number) && *number != API_SERVER && !taken.contains(&(first + number).into())
    };
    if let Some(wanted) = wanted {
        let number = wanted.parse::<Ipv4Addr>().ok().and_then(|it| u32::from(it).checked_sub(first));
        let number = number.filter(|number| (1..SIZE - 1).contains(number)).ok_or(Refused::Outside)?;
        return if free(&number) { Ok((first + number).into()) } else { Err(Refused::Taken) };
    }
    let others = SIZE - ON_REQUEST;
    let in_turn = (0..others).map(|step| ON_REQUEST + (start % others + step) % others);
    let number = in_turn.chain(0..ON_REQUEST).find(free).ok_or(Refused::Full)?;
    Ok((first + number).into())
}

pub(super) fn set_defaults(service: &mut Value) {
    let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else { return };
    spec.entry("type").or_insert(json!("ClusterIP"));
    spec.entry("sessionAffinity").or_insert(json!("None"));
    if spec["sessionAffinity"] == "ClientIP" {
        let timeout = spec.get("sessionAffinityConfig").map(|it| &it["clientIP"]["timeoutSeconds"]);
        if timeout.is_none_or(Value::is_null) {
            spec.insert(
                "sessionAffinityConfig".to_owned(),
                json!({ "clientIP": { "timeoutSeconds": 10800 } }),
            );
        }
    } else {
        spec.remove("sessionAffinityConfig");
    }
    if spec["type"] != "ExternalName" {
        spec.entry("internalTrafficPolicy").or_insert(json!("Cluster"));
        spec.entry("ipFamilies").or_insert(json!(["IPv4"]));
        spec.entry("ipFamilyPolicy").or_insert(json!("SingleStack"));
        if let Some(address) = spec.get("clusterIP").filter(|it| *it != "").cloned() {
            spec.entry("clusterIPs").or_insert(json!([address]));
        }
    }
    if matches!(spec["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
        spec.entry("externalTrafficPolicy").or_insert(json!("Cluster"));
    }
    if spec["type"] == "LoadBalancer" {
        spec.entry("allocateLoadBalancerNodePorts").or_insert(json!(true));
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        default(port, "protocol", json!("TCP"));
        if let Some(target) = port.get("port").cloned() {
            if port["targetPort"] == 0 || port["targetPort"] == "" {
                port["targetPort"] = Value::Null;
            }
            default(port, "targetPort", target);
        }
    }
}

/// Keeps what the server has given to a Service when its owner writes it again without that, and takes it back when the
/// Service becomes one without an address.
pub(super) fn keep_assigned(new: &mut Value, old: &Value) {
    let external = |service: &Value| service["spec"]["type"] == "ExternalName";
    let (was, is) = (external(old), external(new));
    let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) else { return };
    // Who changes one of the two fields means both.
    let address = spec.get("clusterIP").filter(|it| *it != "" && **it != old["spec"]["clusterIP"]).cloned();
    if let Some(address) = address.filter(|_| spec.get("clusterIPs") == Some(&old["spec"]["clusterIPs"])) {
        spec.insert("clusterIPs".to_owned(), json!([address]));
    }
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
        let known = &old["spec"][field];
        let unset = spec.get(field).is_none_or(|it| it.is_null() || *it == "" || *it == json!([]));
        let unset =
            unset && (field != "clusterIPs" || spec.get("clusterIP") == Some(&old["spec"]["clusterIP"]));
        if is && !was && spec.get(field) == Some(known) {
            spec.remove(field);
        } else if !is && !was && unset && !known.is_null() {
            spec.insert(field.to_owned(), known.clone());
        }
    }
}

pub(super) fn validate(service: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &service["spec"];
    one_of(spec, "type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], errors);
    one_of(spec, "sessionAffinity", &["ClientIP", "None"], errors);
    validate_ports(spec, errors);
    for (key, value) in spec["selector"].as_object().into_iter().flatten() {
        if let Some(wrong) = names::label_key(key) {
            errors.push(FieldError::invalid("spec.selector", &key.as_str().into(), wrong));
        }
        if let Some(wrong) = names::label_value(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid("spec.selector", value, wrong));
        }
    }
    if spec["type"] == "ExternalName" {
        let name = spec["externalName"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(FieldError::required("spec.externalName", ""));
        } else if let Some(wrong) = names::Rule::Subdomain.check(name.strip_suffix('.').unwrap_or(name)) {
            errors.push(FieldError::invalid("spec.externalName", &spec["externalName"], wrong));
        }
        if !list(&spec["clusterIPs"]).is_empty()
            || spec["clusterIP"].as_str().is_some_and(|it| !it.is_empty())
        {
            errors.push(FieldError::forbidden(ADDRESSES, "may not be set for ExternalName services"));
        }
        return;
    }
    validate_addresses(spec, errors);
    validate_families(spec, errors);
    if let Some(old) = old.map(|old| &old["spec"])
        && old["type"] != "ExternalName"
        && let Some(address) = list(&old["clusterIPs"]).first()
        && list(&spec["clusterIPs"]).first() != Some(address)
    {
        let path = format!("{ADDRESSES}[0]");
        errors.push(FieldError::invalid(path, &spec["clusterIPs"], "may not change once set"));
    }
}

fn validate_ports(spec: &Value, errors: &mut Vec<FieldError>) {
    let ports = list(&spec["ports"]);
    let portless = spec["clusterIP"] == NONE || spec["type"] == "ExternalName";
    if ports.is_empty() && !portless {
        errors.push(FieldError::required("spec.ports", ""));
    }
    let is_port = |value: &Value| value.as_i64().is_some_and(|port| (1..=65535).contains(&port));
    let (mut called, mut numbers) = (HashSet::new(), HashSet::new());
    for (at, port) in ports.iter().enumerate() {
        let path = |field: &str| format!("spec.ports[{at}].{field}");
        let name = port["name"].as_str().unwrap_or_default();
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(path("name"), ""));
        } else if !name.is_empty() && !called.insert(name) {
            errors.push(FieldError::duplicate(path("name"), &port["name"]));
        }
        let range = "must be between 1 and 65535, inclusive";
        if !is_port(&port["port"]) {
            errors.push(FieldError::invalid(path("port"), &port["port"], range));
        }
        if port["targetPort"].is_number() && !is_port(&port["targetPort"]) {
            errors.push(FieldError::invalid(path("targetPort"), &port["targetPort"], range));
        }
        if let Some(target) = port["targetPort"].as_str() {
            let wrong = names::port(target).into_iter();
            errors.extend(wrong.map(|why| FieldError::invalid(path("targetPort"), &port["targetPort"], why)));
        }
        if !numbers.insert((port["port"].as_i64(), port["protocol"].as_str())) {
            let twice = json!({ "protocol": port["protocol"], "port": port["port"] });
            errors.push(FieldError::duplicate(format!("spec.ports[{at}]"), &twice));
        }
        if spec["type"] == "ClusterIP" && port["nodePort"].as_i64().is_some_and(|port| port != 0) {
            let why = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(path("nodePort"), why));
        }
        let supported = ["SCTP", "TCP", "UDP"].map(Value::from);
        if !supported.contains(&port["protocol"]) {
            errors.push(FieldError::unsupported(path("protocol"), &port["protocol"], &supported));
        }
    }
}

fn validate_addresses(spec: &Value, errors: &mut Vec<FieldError>) {
    let given = &spec["clusterIPs"];
    let (first, all) = (spec["clusterIP"].as_str().unwrap_or_default(), list(given));
    match all.first() {
        Some(_) if first.is_empty() => {
            let why = "must be empty when `clusterIP` is not specified";
            errors.push(FieldError::invalid(ADDRESSES, given, why));
        }
        Some(other) if *other != first => {
            errors.push(FieldError::invalid(ADDRESSES, given, "first value must match `clusterIP`"));
        }
        _ => {}
    }
    if all.len() > 1 {
        let why = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(ADDRESSES, given, why));
    }
    for (at, address) in all.iter().enumerate().filter(|(_, address)| **address != NONE) {
        let path = format!("{ADDRESSES}[{at}]");
        match address.as_str().unwrap_or_default().parse() {
            Ok(IpAddr::V4(_)) => {}
            Ok(IpAddr::V6(_)) => {
                errors.push(FieldError::invalid(path, given, "IPv6 is not configured on this cluster"));
            }
            Err(_) => {
                let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                errors.push(FieldError::invalid(path, address, why));
            }
        }
    }
}

fn validate_families(spec: &Value, errors: &mut Vec<FieldError>) {
    one_of(spec, "ipFamilyPolicy", &["PreferDualStack", "RequireDualStack", "SingleStack"], errors);
    let selectorless = spec["selector"].as_object().is_none_or(serde_json::Map::is_empty);
    if spec["clusterIP"] == NONE && selectorless {
        return; // Its addresses are written by users, who choose their families.
    }
    if spec["ipFamilyPolicy"] == "RequireDualStack" {
        let why = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid("spec.ipFamilyPolicy", &spec["ipFamilyPolicy"], why));
    }
    for (at, family) in list(&spec["ipFamilies"]).iter().enumerate().filter(|(_, it)| **it != "IPv4") {
        let path = format!("spec.ipFamilies[{at}]");
        errors.push(match family == "IPv6" {
            true => FieldError::invalid(path, family, "not configured on this cluster"),
            false => FieldError::unsupported(path, family, &["IPv4", "IPv6"].map(Value::from)),
        });
    }
}

fn one_of(spec: &Value, field: &str, supported: &[&str], errors: &mut Vec<FieldError>) {
    let value = &spec[field];
    if !value.is_null() && !supported.iter().any(|it| value == it) {
        let supported: Vec<Value> = supported.iter().map(|it| (*it).into()).collect();
        errors.push(FieldError::unsupported(format!("spec.{field}"), value, &supported));
    }
}

/// Warns of parts of a Service that have no effect here.
pub(super) fn warnings(service: &Value) -> Vec<String> {
    let kind = service["spec"]["type"].as_str().unwrap_or_default();
    let unused = matches!(kind, "NodePort" | "LoadBalancer");
    let warning =
        || format!("spec.type: {kind} opens no port of this machine; sandboxes reach it like a ClusterIP");
    unused.then(warning).into_iter().collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_free_ones_and_those_that_are_asked_for() {
        let mut taken = HashSet::new();
        let mut give = |wanted, start| {
            let given = choose(wanted, &taken, start)?;
            taken.insert(given);
            Ok(given)
        };
        assert_eq!(give(None, 0), Ok(address("10.127.1.0")));
        assert_eq!(give(None, 0), Ok(address("10.127.1.1")), "the next one");
        assert_eq!(give(Some("10.127.0.10"), 0), Ok(address("10.127.0.10")));
        assert_eq!(give(Some("10.127.0.10"), 0), Err(Refused::Taken));
        assert_eq!(give(Some("10.127.0.1"), 0), Err(Refused::Taken), "a cluster's API server");
        for outside in ["10.126.255.255", "10.127.0.0", "10.127.255.255", "10.128.0.1", "1.2.3.4", "x"] {
            assert_eq!(give(Some(outside), 0), Err(Refused::Outside), "{outside}");
        }
        assert_eq!(give(None, SIZE - ON_REQUEST - 2), Ok(address("10.127.255.254")));
        assert_eq!(give(None, SIZE - ON_REQUEST - 2), Ok(address("10.127.1.2")), "wraps around");
    }

    #[test]
    fn range_has_an_end() {
        let first = u32::from(SERVICE_RANGE.0);
        let mut taken: HashSet<Ipv4Addr> = (first + ON_REQUEST..first + SIZE).map(Ipv4Addr::from).collect();
        assert_eq!(choose(None, &taken, 77), Ok(address("10.127.0.2")), "then those on request");
        taken.extend((first..first + ON_REQUEST).map(Ipv4Addr::from));
        assert_eq!(choose(None, &taken, 77), Err(Refused::Full));
    }
}
