//! How many Sandboxes there are, of which sort; read off the shared caches at every scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use asb_controllers::Caches;
use asb_controllers::object::{controller_of, is_kind};
use asb_types::condition::{self, reason};
use asb_types::{EXTENSIONS_GROUP, Sandbox, WarmPool, key};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

pub struct Fleet(pub Arc<Caches>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct Sort {
    namespace: String,
    ready_condition: &'static str,
    expired: &'static str,
    launch_type: &'static str,
    sandbox_template: String,
    owned_by: &'static str,
    created_by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pool {
    namespace: String,
    warmpool_name: String,
}

impl Collector for Fleet {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut sorts = BTreeMap::<Sort, i64>::new();
        for sandbox in self.0.sandboxes.all() {
            *sorts.entry(sort(&sandbox)).or_default() += 1;
        }
        let mut family =
            encoder.encode_descriptor("agent_sandboxes", "Sandboxes by sort", None, MetricType::Gauge)?;
        for (sort, count) in &sorts {
            ConstGauge::new(*count).encode(family.encode_family(sort)?)?;
        }
        let name = "agent_sandbox_warmpool_size";
        let mut family =
            encoder.encode_descriptor(name, "Members of a warm pool", None, MetricType::Gauge)?;
        for pool in self.0.pools.all() {
            ConstGauge::new(members(&pool)).encode(family.encode_family(&label(&pool))?)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fleet")
    }
}

fn sort(sandbox: &Sandbox) -> Sort {
    let label = |key| sandbox.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let ready = sandbox.status.as_ref().and_then(|s| condition::get(&s.conditions, condition::READY));
    let truth = |is| if is { "true" } else { "false" };
    let template = sandbox.metadata.annotations.as_ref().and_then(|notes| notes.get(key::TEMPLATE_REF));
    Sort {
        namespace: sandbox.metadata.namespace.clone().unwrap_or_default(),
        ready_condition: truth(ready.is_some_and(|ready| ready.status == "True")),
        expired: truth(ready.is_some_and(|ready| ready.reason == reason::SANDBOX_EXPIRED)),
        launch_type: if label(key::LAUNCH_TYPE).is_some_and(|kind| kind == "warm") { "warm" } else { "cold" },
        sandbox_template: template.filter(|name| !name.is_empty()).map_or("unknown", |name| name).to_owned(),
        owned_by: owner(sandbox),
        created_by: key::normalized_creator(label(key::CREATED_BY).map_or("", |creator| creator)).to_owned(),
    }
}

fn owner(sandbox: &Sandbox) -> &'static str {
    let kinds = ["SandboxClaim", "SandboxWarmPool"];
    let owner = controller_of(sandbox);
    let kind =
        kinds.into_iter().find(|kind| owner.is_some_and(|owner| is_kind(owner, EXTENSIONS_GROUP, kind)));
    kind.unwrap_or("None")
}

fn label(pool: &WarmPool) -> Pool {
    let meta = pool.metadata.clone();
    Pool { namespace: meta.namespace.unwrap_or_default(), warmpool_name: meta.name.unwrap_or_default() }
}

fn members(pool: &WarmPool) -> i64 {
    pool.status.as_ref().map_or(0, |status| i64::from(status.replicas))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sandbox(meta: Value, ready: Option<(&str, &str)>) -> Sandbox {
        let conditions: Vec<Value> = ready
            .into_iter()
            .map(|(status, reason)| {
                json!({"type": "Ready", "status": status, "reason": reason, "message": "",
                       "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": meta,
            "spec": {"podTemplate": {"spec": {"containers": []}}},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn owned_by(api_version: &str, kind: &str) -> Value {
        json!({"namespace": "ns", "name": "s", "ownerReferences": [
            {"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": true}]})
    }

    /// MG-36, MG-37
    #[test]
    fn labels_tell_what_is_known_and_nothing_else() {
        let plain = sort(&sandbox(json!({"namespace": "ns", "name": "s"}), None));
        let expected = Sort {
            namespace: "ns".to_owned(),
            ready_condition: "false",
            expired: "false",
            launch_type: "cold",
            sandbox_template: "unknown".to_owned(),
            owned_by: "None",
            created_by: "unknown".to_owned(),
        };
        assert_eq!(plain, expected);

        let meta = json!({"namespace": "ns", "name": "s",
            "labels": {key::LAUNCH_TYPE: "warm", key::CREATED_BY: "go-client"},
            "annotations": {key::TEMPLATE_REF: "python"}});
        let warm = sort(&sandbox(meta, Some(("True", "DependenciesReady"))));
        assert_eq!((warm.ready_condition, warm.launch_type), ("true", "warm"));
        assert_eq!((warm.sandbox_template.as_str(), warm.created_by.as_str()), ("python", "go-client"));

        let meta = json!({"namespace": "ns", "name": "s", "labels": {key::CREATED_BY: "<script>"}});
        let expired = sort(&sandbox(meta, Some(("False", "SandboxExpired"))));
        assert_eq!((expired.ready_condition, expired.expired), ("false", "true"));
        assert_eq!(expired.created_by, "unknown");
    }

    /// MG-37, MG-39
    #[test]
    fn owner_is_matched_by_group_and_kind_in_any_version() {
        for (api_version, kind, expected) in [
            ("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim", "SandboxClaim"),
            ("extensions.agents.x-k8s.io/v1alpha1", "SandboxWarmPool", "SandboxWarmPool"),
            ("extensions.agents.x-k8s.io/v1beta1", "Deployment", "None"),
            ("apps/v1", "SandboxClaim", "None"),
        ] {
            let sandbox = sandbox(owned_by(api_version, kind), None);
            assert_eq!(sort(&sandbox).owned_by, expected, "{api_version} {kind}");
        }
    }
}
