//! NetworkPolicies: defaults and checks. A typo that is accepted here opens or closes a network silently.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::field::{Errors, Field};
use super::rules::default;
use crate::status::FieldError;

const TYPES: [&str; 2] = ["Ingress", "Egress"];
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
/// The directions: the list of rules, and the list of peers of a rule.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];
const CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

pub(super) fn set_defaults(policy: &mut Value) {
    default(policy, "spec", json!({}));
    let Some(spec) = policy.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    // A policy without a selector is for every Pod of its namespace.
    default(spec, "podSelector", json!({}));
    let some = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    if spec["policyTypes"].is_null() || spec["policyTypes"] == json!([]) {
        let both = some(&spec["egress"]);
        spec["policyTypes"] = if both { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
    }
    for (direction, _) in DIRECTIONS {
        for rule in spec.get_mut(direction).and_then(Value::as_array_mut).into_iter().flatten() {
            for port in rule.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                default(port, "protocol", json!("TCP"));
            }
        }
    }
}

pub(super) fn validate(policy: &Value, errors: &mut Errors) {
    let root = Field::root(policy);
    let spec = root.get("spec");
    spec.get("podSelector").selector(errors);
    for (direction, peers) in DIRECTIONS {
        for rule in spec.get(direction).items() {
            rule.get("ports").items().for_each(|it| port(&it, errors));
            rule.get(peers).items().for_each(|it| peer(&it, errors));
        }
    }
    let types = spec.get("policyTypes");
    if types.items().count() > TYPES.len() {
        return types.invalid("may not specify more than two policyTypes", errors);
    }
    types.items().for_each(|it| it.one_of(&TYPES, errors));
}

fn port(port: &Field<'_, '_>, errors: &mut Errors) {
    port.get("protocol").one_of(&PROTOCOLS, errors);
    let (first, last) = (port.get("port"), port.get("endPort"));
    if first.is_given() {
        first.port(errors);
    }
    let Some(end) = last.value.as_i64() else { return };
    match first.value {
        Value::Null => last.invalid("may not be specified when `port` is not specified", errors),
        Value::String(_) => last.invalid("may not be specified when `port` is non-numeric", errors),
        number => {
            if number.as_i64().is_some_and(|start| end < start) {
                last.with(number).invalid("must be greater than or equal to `port`", errors);
            }
            last.port(errors);
        }
    }
}

fn peer(peer: &Field<'_, '_>, errors: &mut Errors) {
    let block = peer.get("ipBlock");
    let selectors = [peer.get("podSelector").value, peer.get("namespaceSelector").value];
    let given = selectors.iter().filter(|selector| !selector.is_null()).count();
    peer.get("podSelector").selector(errors);
    peer.get("namespaceSelector").selector(errors);
    if block.is_given() {
        check_block(&block, errors);
        if given > 0 {
            peer.forbidden("may not specify both ipBlock and another peer", errors);
        }
    } else if given == 0 {
        peer.missing("must specify a peer", errors);
    }
}

fn check_block(block: &Field<'_, '_>, errors: &mut Errors) {
    let cidr = block.get("cidr");
    if !cidr.required(errors) {
        return;
    }
    let Some(whole) = check_cidr(&cidr, errors) else { return };
    for except in block.get("except").items() {
        let Some(part) = check_cidr(&except, errors) else { continue };
        if !whole.strictly_contains(part) {
            except.invalid("must be a strict subset of `cidr`", errors);
        }
    }
}

/// Reports what is wrong with a block of addresses, and returns it if it can be told which one is meant.
fn check_cidr(field: &Field<'_, '_>, errors: &mut Errors) -> Option<Block> {
    let Some((block, exact)) = Block::parse(field.text()) else {
        errors.push(FieldError::invalid(field.path(), field.value, CIDR));
        return None;
    };
    if !exact {
        field.invalid("must not have leading 0s in IP or prefix length", errors);
    } else if matches!(block.address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        field.invalid("must not have an IPv4-mapped IPv6 address", errors);
    } else if block.bits() & !block.mask() != 0 {
        field.invalid("must not have bits set beyond the prefix length", errors);
    }
    Some(block)
}

#[derive(Debug, Clone, Copy)]
struct Block {
    address: IpAddr,
    prefix: u32,
}

impl Block {
    /// Also tells whether the text has no leading zeros, which some programs read as octal.
    fn parse(text: &str) -> Option<(Self, bool)> {
        let (address, prefix) = text.split_once('/')?;
        if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let plain: Vec<String> = address.split('.').map(without_zeros).collect();
        let plain = if address.contains(':') { address.to_owned() } else { plain.join(".") };
        let block = Self { address: plain.parse().ok()?, prefix: prefix.parse().ok()? };
        let exact = plain == address && without_zeros(prefix) == prefix;
        (block.prefix <= block.width()).then_some((block, exact))
    }

    fn width(self) -> u32 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    fn bits(self) -> u128 {
        match self.address {
            IpAddr::V4(v4) => u32::from(v4).into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }

    /// The bits that all addresses of the block share.
    fn mask(self) -> u128 {
        let all = u128::MAX >> (128 - self.width());
        all & !(all.checked_shr(self.prefix).unwrap_or(0))
    }

    fn strictly_contains(self, other: Self) -> bool {
        self.width() == other.width()
            && self.prefix < other.prefix
            && self.bits() & self.mask() == other.bits() & self.mask()
    }
}

fn without_zeros(digits: &str) -> String {
    let kept = digits.trim_start_matches('0');
    if kept.is_empty() && !digits.is_empty() { "0".to_owned() } else { kept.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(spec: Value) -> Vec<String> {
        let mut policy = json!({ "spec": spec });
        set_defaults(&mut policy);
        let mut errors = Errors::new();
        validate(&policy, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn block(block: Value) -> Vec<String> {
        errors(json!({ "egress": [{ "to": [{ "ipBlock": block }] }] }))
    }

    fn port(port: Value) -> Vec<String> {
        errors(json!({ "ingress": [{ "ports": [port] }] }))
    }

    #[test]
    fn defaults_are_those_of_kubernetes() {
        let mut policy = json!({ "spec": { "egress": [{ "ports": [{ "port": 53 }] }] } });
        set_defaults(&mut policy);
        assert_eq!(
            policy["spec"],
            json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                "egress": [{ "ports": [{ "port": 53, "protocol": "TCP" }] }] })
        );
        let mut empty = json!({ "spec": { "egress": [], "policyTypes": [] } });
        set_defaults(&mut empty);
        assert_eq!(empty["spec"]["policyTypes"], json!(["Ingress"]));
    }

    #[test]
    fn blocks_of_addresses_are_checked() {
        let at = "spec.egress[0].to[0].ipBlock";
        for (given, wanted) in [
            (json!({}), format!("{at}.cidr: Required value")),
            (json!({ "cidr": "1.2.3.4/99" }), format!("{at}.cidr: Invalid value: \"1.2.3.4/99\": {CIDR}")),
            (json!({ "cidr": "10.0.0.0" }), format!("{at}.cidr: Invalid value: \"10.0.0.0\": {CIDR}")),
            (json!({ "cidr": "10.0.0.0/-1" }), format!("{at}.cidr: Invalid value: \"10.0.0.0/-1\": {CIDR}")),
            (
                json!({ "cidr": "10.0.0.1/8" }),
                format!(
                    "{at}.cidr: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length"
                ),
            ),
            (
                json!({ "cidr": "010.0.0.0/8" }),
                format!(
                    "{at}.cidr: Invalid value: \"010.0.0.0/8\": must not have leading 0s in IP or prefix length"
                ),
            ),
            (
                json!({ "cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"] }),
                format!("{at}.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`"),
            ),
            (
                json!({ "cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"] }),
                format!("{at}.except[0]: Invalid value: \"10.0.0.0/8\": must be a strict subset of `cidr`"),
            ),
            (
                json!({ "cidr": "10.0.0.0/8", "except": ["fd00::/16"] }),
                format!("{at}.except[0]: Invalid value: \"fd00::/16\": must be a strict subset of `cidr`"),
            ),
        ] {
            assert_eq!(block(given.clone()), [wanted], "{given}");
        }
        for right in [
            json!({ "cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "169.254.169.254/32"] }),
            json!({ "cidr": "::/0", "except": ["fd00::/8"] }),
            json!({ "cidr": "1.2.3.4/32" }),
        ] {
            assert!(block(right.clone()).is_empty(), "{right}");
        }
    }

    #[test]
    fn peers_types_and_ports_are_checked() {
        let peer = |peer: Value| errors(json!({ "ingress": [{ "from": [peer] }] }));
        assert_eq!(peer(json!({})), ["spec.ingress[0].from[0]: Required value: must specify a peer"]);
        assert_eq!(
            peer(json!({ "podSelector": {}, "ipBlock": { "cidr": "1.2.3.4/32" } })),
            ["spec.ingress[0].from[0]: Forbidden: may not specify both ipBlock and another peer"]
        );
        assert_eq!(
            errors(json!({ "policyTypes": ["egress"] })),
            ["spec.policyTypes[0]: Unsupported value: \"egress\": supported values: \"Ingress\", \"Egress\""]
        );
        let at = "spec.ingress[0].ports[0]";
        for (given, wanted) in [
            (json!({ "port": 0 }), "port: Invalid value: 0: must be between 1 and 65535, inclusive"),
            (
                json!({ "port": 80, "protocol": "tcp" }),
                "protocol: Unsupported value: \"tcp\": supported values: \"TCP\", \"UDP\", \"SCTP\"",
            ),
            (
                json!({ "port": 80, "endPort": 79 }),
                "endPort: Invalid value: 80: must be greater than or equal to `port`",
            ),
            (
                json!({ "endPort": 79 }),
                "endPort: Invalid value: 79: may not be specified when `port` is not specified",
            ),
            (
                json!({ "port": "http", "endPort": 79 }),
                "endPort: Invalid value: 79: may not be specified when `port` is non-numeric",
            ),
        ] {
            assert_eq!(port(given.clone()), [format!("{at}.{wanted}")], "{given}");
        }
        assert!(port(json!({ "port": 80, "endPort": 90 })).is_empty() && port(json!({})).is_empty());
    }
}
