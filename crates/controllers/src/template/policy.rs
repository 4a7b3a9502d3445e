//! The rules of a template's NetworkPolicy, and when two spellings of them mean the same.

use asb_types::{Template, key};
use serde_json::{Map, Value, json};

use super::plan::ref_hash;

/// The rules for the Pods made from a template: its own, else the secure default.
pub fn spec(template: &Template, router_namespace: &str) -> Map<String, Value> {
    let mut spec = match &template.spec.network_policy {
        Some(rules) => rules.clone(),
        None => secure_default(router_namespace),
    };
    spec.retain(|field, _| matches!(field.as_str(), "ingress" | "egress"));
    let selector = json!({"matchLabels": {key::TEMPLATE_REF_HASH: ref_hash(template)}});
    spec.insert("podSelector".to_owned(), selector);
    spec.insert("policyTypes".to_owned(), json!(["Ingress", "Egress"]));
    spec
}

/// Whether two specs mean the same: what the API server fills in or leaves out makes no difference.
pub fn same(found: &Map<String, Value>, wanted: &Map<String, Value>) -> bool {
    canonical(&json!(found)) == canonical(&json!(wanted))
}

/// In: the router and nobody else. Out: public addresses only, so neither the cluster (its DNS included)
/// nor the cloud's metadata service.
fn secure_default(router_namespace: &str) -> Map<String, Value> {
    let router = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": router_namespace}},
        "podSelector": {"matchLabels": {"app": "sandbox-router"}},
    });
    let ipv4 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"];
    let ipv6 = ["fc00::/7", "fe80::/10"];
    let public = json!([
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ipv4}},
        {"ipBlock": {"cidr": "::/0", "except": ipv6}},
    ]);
    let rules = [("ingress", json!([{"from": [router]}])), ("egress", json!([{"to": public}]))];
    rules.into_iter().map(|(direction, rules)| (direction.to_owned(), rules)).collect()
}

/// One spelling for each meaning: no empty lists, no nulls, every port with its protocol.
///
/// Empty objects stay: an empty selector selects everything, an absent one nothing.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(canonical).collect(),
        Value::Object(fields) => {
            let mut kept: Map<_, _> = fields
                .iter()
                .filter(|(field, value)| !means_nothing(field, value))
                .map(|(field, value)| (field.clone(), canonical(value)))
                .collect();
            if let Some(Value::Array(ports)) = kept.get_mut("ports") {
                for port in ports.iter_mut().filter_map(Value::as_object_mut) {
                    port.entry("protocol").or_insert_with(|| json!("TCP"));
                }
            }
            Value::Object(kept)
        }
        plain => plain.clone(),
    }
}

fn means_nothing(field: &str, value: &Value) -> bool {
    let empty_map = || field == "matchLabels" && value.as_object().is_some_and(Map::is_empty);
    value.is_null() || value.as_array().is_some_and(Vec::is_empty) || empty_map()
}
