//! What a migration needs, decided per object. Pure.

use std::collections::BTreeSet;

use asb_types::conversion::SHADOW_POOL_PREFIX;
use asb_types::key;
use serde_json::{Value, json};

/// Longer names make no good labels.
const LONGEST_NAME: usize = 63;

/// The pools that claims of v1alpha1 will belong to at v1beta1, each as (namespace, name).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Pools for claims that name none, with the template of each.
    pub shadow: BTreeSet<(String, String)>,
    /// Pools that claims name; they must be there.
    pub named: BTreeSet<(String, String)>,
    /// Claims that cannot be migrated, and why.
    pub wrong: Vec<String>,
}

/// Which pools these claims, at v1alpha1, need.
pub fn needed<'a>(claims: impl Iterator<Item = &'a Value>) -> Needed {
    let mut needed = Needed::default();
    for claim in claims {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text(&claim["metadata"]["namespace"]), text(&claim["metadata"]["name"]));
        let template = text(&claim["spec"]["sandboxTemplateRef"]["name"]);
        let sandbox = text(&claim["status"]["sandbox"]["name"]);
        match &*text(&claim["spec"]["warmpool"]) {
            _ if template.is_empty() => {
                needed.wrong.push(format!("sandboxclaim {namespace}/{name} names no template"));
            }
            "" | "none" | "default" if !sandbox.is_empty() && sandbox != name => {}
            "" | "none" | "default" => {
                needed.shadow.insert((namespace, template));
            }
            pool => {
                needed.named.insert((namespace, pool.to_owned()));
            }
        }
    }
    needed
}

/// An empty pool at v1alpha1 that cold claims of a template can refer to.
pub fn shadow_pool(namespace: &str, template: &str) -> Result<Value, String> {
    let name = format!("{SHADOW_POOL_PREFIX}{template}");
    if name.len() > LONGEST_NAME {
        return Err(format!(
            "sandboxwarmpool {namespace}/{name}: the name is longer than {LONGEST_NAME} characters"
        ));
    }
    Ok(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": "SandboxWarmPool",
        "metadata": {"name": name, "namespace": namespace, "annotations": {
            key::MIGRATION_SHADOW: "true", key::MIGRATION_SOURCE_TEMPLATE: template,
        }},
        "spec": {"replicas": 0, "sandboxTemplateRef": {"name": template}},
    }))
}

/// Whether a pool was made by [`shadow_pool`].
pub fn is_shadow(pool: &Value) -> bool {
    pool["metadata"]["annotations"][key::MIGRATION_SHADOW] == "true"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, warmpool: &str, sandbox: &str) -> Value {
        json!({
            "metadata": {"namespace": "ns", "name": name}, "status": {"sandbox": {"name": sandbox}},
            "spec": {"sandboxTemplateRef": {"name": "t"}, "warmpool": warmpool},
        })
    }

    #[test]
    fn only_cold_claims_without_a_pool_need_a_shadow_pool() {
        let pair = |name: &str| BTreeSet::from([("ns".to_owned(), name.to_owned())]);
        for policy in ["", "none", "default"] {
            assert_eq!(needed([claim("c", policy, "")].iter()).shadow, pair("t"));
            assert_eq!(needed([claim("c", policy, "c"), claim("d", policy, "d")].iter()).shadow, pair("t"));
            assert_eq!(needed([claim("c", policy, "pool-abcde")].iter()), Needed::default());
        }
        assert_eq!(
            needed([claim("c", "pool", "")].iter()),
            Needed { named: pair("pool"), ..Needed::default() }
        );
    }

    #[test]
    fn a_claim_without_a_template_is_named() {
        let mut claim = claim("c", "pool", "");
        claim["spec"]["sandboxTemplateRef"] = Value::Null;
        assert_eq!(needed([claim].iter()).wrong, ["sandboxclaim ns/c names no template"]);
    }

    #[test]
    fn a_shadow_pool_is_empty_marked_and_not_too_long() {
        let pool = shadow_pool("ns", "t").unwrap();
        assert_eq!(
            (&pool["metadata"]["name"], &pool["spec"]["replicas"]),
            (&json!("shadow-pool-t"), &json!(0))
        );
        assert!(is_shadow(&pool));
        assert!(shadow_pool("ns", &"t".repeat(52)).is_err());
    }
}
