//! The Pod spec that pools and claims make from a template: safe where the template does not say otherwise.
//!
//! A bare Sandbox is taken at its word; only what comes from a template is secured.

use asb_types::TemplateSpec;
use asb_types::template::NetworkPolicyManagement;
use serde_json::{Map, Value, json};

/// The default policy blocks the cluster's DNS, so names are resolved outside.
const PUBLIC_DNS: [&str; 2] = ["8.8.8.8", "1.1.1.1"];

/// The template's Pod spec with the defaults filled in. Nothing that it says is changed.
pub fn secured(template: &TemplateSpec) -> Map<String, Value> {
    let mut spec = Map::clone(&template.pod_template.spec);
    if absent(&spec, "automountServiceAccountToken") {
        spec.insert("automountServiceAccountToken".to_owned(), json!(false));
    }
    let default_policy = template.network_policy_management == NetworkPolicyManagement::Managed
        && template.network_policy.is_none();
    if default_policy && absent(&spec, "dnsPolicy") {
        spec.insert("dnsPolicy".to_owned(), json!("None"));
        spec.insert("dnsConfig".to_owned(), json!({"nameservers": PUBLIC_DNS}));
    }
    spec
}

fn absent(spec: &Map<String, Value>, field: &str) -> bool {
    spec.get(field).is_none_or(|value| value.is_null() || value == "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secured_from(spec: Value) -> Value {
        json!(secured(&serde_json::from_value(spec).unwrap()))
    }

    /// WP-12, WP-35
    #[test]
    fn token_is_not_mounted_unless_the_template_says_so() {
        for (said, wanted) in
            [(json!({}), false), (json!({"automountServiceAccountToken": null}), false)].into_iter().chain([
                (json!({"automountServiceAccountToken": false}), false),
                (json!({"automountServiceAccountToken": true}), true),
            ])
        {
            let spec = secured_from(json!({"podTemplate": {"spec": said}}));
            assert_eq!(spec["automountServiceAccountToken"], wanted, "{said}");
        }
    }

    /// WP-12, WP-35
    #[test]
    fn public_dns_comes_with_the_default_policy_only() {
        let public = json!({"nameservers": ["8.8.8.8", "1.1.1.1"]});
        let own = json!({"nameservers": ["9.9.9.9"]});
        let from = |extra: Value, pod: Value| {
            let mut spec = json!({"podTemplate": {"spec": pod}});
            json_patch::merge(&mut spec, &extra);
            let spec = secured_from(spec);
            (spec["dnsPolicy"].clone(), spec["dnsConfig"].clone())
        };
        let nothing = (Value::Null, Value::Null);
        assert_eq!(from(json!({}), json!({})), (json!("None"), public.clone()));
        assert_eq!(from(json!({}), json!({"dnsConfig": own})), (json!("None"), public), "replaced");
        assert_eq!(from(json!({"networkPolicyManagement": "Unmanaged"}), json!({})), nothing);
        assert_eq!(from(json!({"networkPolicy": {}}), json!({})), nothing);
        let said = json!({"dnsPolicy": "ClusterFirst", "dnsConfig": own});
        assert_eq!(from(json!({}), said), (json!("ClusterFirst"), own));
    }

    #[test]
    fn nothing_else_is_injected() {
        let spec = secured_from(json!({"podTemplate": {"spec": {"containers": [{"name": "main"}]}}}));
        let fields: Vec<_> = spec.as_object().unwrap().keys().cloned().collect();
        assert_eq!(fields, ["automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy"]);
    }
}
