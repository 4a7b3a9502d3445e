//! How long claims take, and how they are served. Names, labels and buckets are an interface: dashboards use them.

use asb_types::{Claim, Sandbox, condition, key};
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Milliseconds.
const STARTUP: [f64; 15] = [
    100.0, 250.0, 500.0, 750.0, 1000.0, 1250.0, 1500.0, 2000.0, 2500.0, 5000.0, 10_000.0, 30_000.0, 60_000.0,
    120_000.0, 240_000.0,
];
const CREATION: [f64; 14] = [
    50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 30_000.0, 60_000.0, 120_000.0, 240_000.0,
    300_000.0, 600_000.0,
];
const UNKNOWN_TEMPLATE: &str = "__unknown__";

#[derive(Debug)]
pub struct ClaimMetrics {
    /// From the first sight of an admission webhook to Ready.
    startup: Family<Start, Histogram, fn() -> Histogram>,
    /// From the first sight of this controller to Ready.
    controller_startup: Family<Start, Histogram, fn() -> Histogram>,
    /// From the client's request to Ready.
    client_startup: Family<Start, Histogram, fn() -> Histogram>,
    /// From the creation of the Sandbox to its being Ready.
    creation: Family<Creation, Histogram, fn() -> Histogram>,
    created: Family<Served, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Start {
    launch_type: String,
    sandbox_template: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Creation {
    namespace: String,
    launch_type: String,
    sandbox_template: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Served {
    namespace: String,
    sandbox_template: String,
    launch_type: String,
    warmpool_name: String,
    pod_condition: String,
    created_by: String,
}

impl Default for ClaimMetrics {
    fn default() -> Self {
        let startup = || Family::new_with_constructor((|| Histogram::new(STARTUP)) as fn() -> Histogram);
        Self {
            startup: startup(),
            controller_startup: startup(),
            client_startup: startup(),
            creation: Family::new_with_constructor(|| Histogram::new(CREATION)),
            created: Family::default(),
        }
    }
}

impl ClaimMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let histograms = [
            ("agent_sandbox_claim_startup_latency_ms", "From admission of a claim to Ready", &self.startup),
            (
                "agent_sandbox_claim_controller_startup_latency_ms",
                "From the controller's first sight of a claim to Ready",
                &self.controller_startup,
            ),
            (
                "agent_sandbox_client_claim_startup_latency_ms",
                "From the client's request of a claim to Ready",
                &self.client_startup,
            ),
        ];
        for (name, help, family) in histograms {
            registry.register(name, help, family.clone());
        }
        let help = "From the creation of a Sandbox to its being Ready";
        registry.register("agent_sandbox_creation_latency_ms", help, self.creation.clone());
        // The registry itself appends `_total`.
        registry.register("agent_sandbox_claim_creation", "Claims that got a Sandbox", self.created.clone());
    }

    /// A claim got this Sandbox, as it was then; `pool` is the one that gave it or could not.
    pub fn served(&self, sandbox: &Sandbox, pool: &str) {
        let labels = Served {
            namespace: sandbox.metadata.namespace.clone().unwrap_or_default(),
            sandbox_template: template(sandbox),
            launch_type: launch_type(sandbox).to_owned(),
            warmpool_name: pool.to_owned(),
            pod_condition: if sandbox.is_ready() { "ready" } else { "not_ready" }.to_owned(),
            created_by: key::normalized_creator(sandbox.label(key::CREATED_BY).unwrap_or_default())
                .to_owned(),
        };
        self.created.get_or_create(&labels).inc();
    }

    /// A claim is Ready for the first time. `seen` is when this controller first saw it.
    pub fn started(&self, claim: &Claim, sandbox: &Sandbox, seen: Timestamp, now: Timestamp) {
        let (launch_type, template) = (launch_type(sandbox).to_owned(), template(sandbox));
        let labels = Start { launch_type: launch_type.clone(), sandbox_template: template.clone() };
        let noted =
            |key: &str| -> Option<Timestamp> { claim.metadata.annotations.as_ref()?.get(key)?.parse().ok() };
        let observe = |family: &Family<_, Histogram, fn() -> Histogram>, since: Option<Timestamp>| {
            if let Some(taken) = since.and_then(|since| milliseconds(since, now)) {
                family.get_or_create(&labels).observe(taken);
            }
        };
        observe(&self.startup, noted(key::WEBHOOK_FIRST_OBSERVED_AT));
        observe(&self.controller_startup, noted(key::CONTROLLER_FIRST_OBSERVED_AT).or(Some(seen)));
        observe(&self.client_startup, noted(key::CLIENT_FIRST_REQUESTED_AT));

        let born = sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let ready = sandbox.condition(condition::READY).map(|ready| ready.last_transition_time.0);
        if let Some(taken) = born.zip(ready).and_then(|(born, ready)| milliseconds(born, ready)) {
            let namespace = sandbox.metadata.namespace.clone().unwrap_or_default();
            let labels = Creation { namespace, launch_type, sandbox_template: template };
            self.creation.get_or_create(&labels).observe(taken);
        }
    }
}

/// `None` if the end lies before the beginning: another clock wrote one of them.
fn milliseconds(since: Timestamp, until: Timestamp) -> Option<f64> {
    let taken = until.duration_since(since);
    (!taken.is_negative()).then(|| taken.as_secs_f64() * 1000.0)
}

fn launch_type(sandbox: &Sandbox) -> &str {
    if sandbox.label(key::LAUNCH_TYPE) == Some("warm") { "warm" } else { "cold" }
}

fn template(sandbox: &Sandbox) -> String {
    let notes = sandbox.metadata.annotations.as_ref();
    notes.and_then(|notes| notes.get(key::TEMPLATE_REF)).map_or(UNKNOWN_TEMPLATE, String::as_str).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn claim(annotations: Value) -> Claim {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns", "annotations": annotations},
            "spec": {"warmPoolRef": {"name": "p"}},
        }))
        .unwrap()
    }

    fn sandbox(metadata: Value) -> Sandbox {
        let mut object = json!({
            "metadata": {"name": "s", "namespace": "ns", "creationTimestamp": at(0).to_string()},
            "spec": {"podTemplate": {"spec": {}}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "",
                "lastTransitionTime": at(2).to_string()}]},
        });
        json_patch::merge(&mut object["metadata"], &metadata);
        serde_json::from_value(object).unwrap()
    }

    fn told(act: impl Fn(&ClaimMetrics)) -> String {
        let metrics = ClaimMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        act(&metrics);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    /// MG-30, MG-34, MG-36
    #[test]
    fn every_latency_is_told_from_its_own_beginning() {
        let notes = json!({
            key::WEBHOOK_FIRST_OBSERVED_AT: "1970-01-01T00:00:09.5Z",
            key::CLIENT_FIRST_REQUESTED_AT: "1970-01-01T00:00:08.75Z",
        });
        let warm = json!({"labels": {key::LAUNCH_TYPE: "warm"}, "annotations": {key::TEMPLATE_REF: "web"}});
        let text =
            told(|metrics| metrics.started(&claim(notes.clone()), &sandbox(warm.clone()), at(9), at(10)));
        let labels = "{launch_type=\"warm\",sandbox_template=\"web\"}";
        for line in [
            format!("agent_sandbox_claim_startup_latency_ms_sum{labels} 500.0"),
            format!("agent_sandbox_claim_controller_startup_latency_ms_sum{labels} 1000.0"),
            format!("agent_sandbox_client_claim_startup_latency_ms_sum{labels} 1250.0"),
            "agent_sandbox_creation_latency_ms_sum{namespace=\"ns\",launch_type=\"warm\",sandbox_template=\"web\"} 2000.0".to_owned(),
            "agent_sandbox_claim_startup_latency_ms_bucket{le=\"750.0\",launch_type=\"warm\",sandbox_template=\"web\"} 1".to_owned(),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    /// MG-30, MG-34: what is missing, in the future or not a time is left out; the rest is told
    #[test]
    fn times_that_make_no_sense_are_left_out() {
        for notes in [
            json!({}),
            json!({key::WEBHOOK_FIRST_OBSERVED_AT: at(60).to_string(), key::CLIENT_FIRST_REQUESTED_AT: at(60).to_string()}),
            json!({key::WEBHOOK_FIRST_OBSERVED_AT: "soon", key::CLIENT_FIRST_REQUESTED_AT: "1700000000"}),
        ] {
            let text =
                told(|metrics| metrics.started(&claim(notes.clone()), &sandbox(json!({})), at(9), at(10)));
            assert!(!text.contains("claim_startup_latency_ms_sum"), "{notes}: {text}");
            let line = "claim_controller_startup_latency_ms_sum{launch_type=\"cold\",sandbox_template=\"__unknown__\"} 1000.0";
            assert!(text.contains(line), "{notes}: {text}");
        }
    }

    /// MG-35, MG-36
    #[test]
    fn counter_says_how_a_claim_was_served() {
        let warm = json!({"labels": {key::LAUNCH_TYPE: "warm", key::CREATED_BY: "evil\n"}, "annotations": {key::TEMPLATE_REF: "web"}});
        let text = told(|metrics| metrics.served(&sandbox(warm.clone()), "pool"));
        let line = "agent_sandbox_claim_creation_total{namespace=\"ns\",sandbox_template=\"web\",launch_type=\"warm\",\
                    warmpool_name=\"pool\",pod_condition=\"ready\",created_by=\"unknown\"} 1";
        assert!(text.contains(line), "{text}");
    }
}
