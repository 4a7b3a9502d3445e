//! Amounts of resources: what a Pod asks for, and what a node can give.

use std::collections::BTreeMap;

use asb_types::Quantity;
use serde::Deserialize;
use serde_json::Value;

use crate::pod::{Container, Spec};

/// Quantities by the name of a resource, as objects have them.
pub(crate) type Amounts = BTreeMap<String, Value>;

/// Processors in thousandths, everything else in bytes or pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    pub cpu: i64,
    pub memory: i64,
    pub storage: i64,
    /// Resources that are not built in, by name.
    pub others: BTreeMap<Box<str>, i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Requirements {
    pub requests: Amounts,
}

impl Resources {
    pub(crate) fn of(amounts: &Amounts) -> Self {
        let mut resources = Self::default();
        for (name, value) in amounts {
            let quantity = Quantity::of(value).unwrap_or_default();
            match name.as_str() {
                "cpu" => resources.cpu = quantity.thousandths(),
                "memory" => resources.memory = quantity.whole(),
                "ephemeral-storage" => resources.storage = quantity.whole(),
                other => _ = resources.others.insert(other.into(), quantity.whole()),
            }
        }
        resources
    }

    /// What a Pod asks for: its containers and sidecars together, or what its init containers need if that is more.
    pub(crate) fn requested(spec: &Spec) -> Self {
        let of = |container: &Container| Self::of(&container.resources.requests);
        let mut running = Self::default();
        spec.containers.iter().for_each(|container| running.add(&of(container)));
        // Each init container runs beside the sidecars that come before it.
        let (mut sidecars, mut starting) = (Self::default(), Self::default());
        for container in &spec.init_containers {
            let own = of(container);
            if container.restart_policy.as_deref() == Some("Always") {
                running.add(&own);
                sidecars.add(&own);
                starting.raise(&sidecars);
            } else {
                let mut with_sidecars = own;
                with_sidecars.add(&sidecars);
                starting.raise(&with_sidecars);
            }
        }
        running.raise(&starting);
        // What is asked for the Pod as a whole stands for what its containers ask for.
        let whole = Self::of(&spec.resources.requests);
        for name in spec.resources.requests.keys() {
            match name.as_str() {
                "cpu" => running.cpu = whole.cpu,
                "memory" => running.memory = whole.memory,
                _ => {}
            }
        }
        running.add(&Self::of(&spec.overhead));
        running
    }

    pub fn add(&mut self, other: &Self) {
        self.merge(other, i64::saturating_add);
    }

    pub fn subtract(&mut self, other: &Self) {
        self.merge(other, i64::saturating_sub);
        self.others.retain(|_, amount| *amount != 0);
    }

    fn raise(&mut self, other: &Self) {
        self.merge(other, i64::max);
    }

    fn merge(&mut self, other: &Self, with: impl Fn(i64, i64) -> i64) {
        self.cpu = with(self.cpu, other.cpu);
        self.memory = with(self.memory, other.memory);
        self.storage = with(self.storage, other.storage);
        for (name, amount) in &other.others {
            let own = self.others.entry(name.clone()).or_default();
            *own = with(*own, *amount);
        }
    }

    /// Every resource that is asked for, by name, with what there is and what of it is taken.
    pub(crate) fn against<'a>(
        &'a self,
        has: &'a Self,
        used: &'a Self,
    ) -> impl Iterator<Item = Demand<'a>> + 'a {
        let built_in = [
            ("cpu", self.cpu, used.cpu, has.cpu),
            ("memory", self.memory, used.memory, has.memory),
            ("ephemeral-storage", self.storage, used.storage, has.storage),
        ];
        let of = |map: &BTreeMap<Box<str>, i64>, name: &str| map.get(name).copied().unwrap_or(0);
        let others = self.others.iter().map(move |(name, requested)| {
            (&**name, *requested, of(&used.others, name), of(&has.others, name))
        });
        let all = built_in.into_iter().chain(others);
        all.filter(|(_, requested, ..)| *requested > 0).map(|(resource, requested, used, capacity)| Demand {
            resource,
            requested,
            used,
            capacity,
        })
    }
}

/// What is asked for of one resource, beside what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand<'a> {
    pub resource: &'a str,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Demand<'_> {
    pub fn is_met(&self) -> bool {
        self.requested <= self.capacity.saturating_sub(self.used)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn requested(spec: Value) -> Resources {
        Resources::requested(&serde_json::from_value(spec).unwrap())
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    fn sidecar(cpu: &str, memory: &str) -> Value {
        let mut container = container(cpu, memory);
        container["restartPolicy"] = json!("Always");
        container
    }

    /// The cases of the scheduler's own tests, and of KEP-753.
    #[test]
    fn init_containers_sidecars_and_overhead_count_as_the_scheduler_counts_them() {
        let main = || container("100m", "100");
        for (what, spec, cpu, memory) in [
            ("nothing", json!({"containers": [{"name": "c"}]}), 0, 0),
            ("a sum", json!({"containers": [main(), main()]}), 200, 200),
            (
                "an init container that needs more",
                json!({"containers": [main()], "initContainers": [container("1", "5"), container("20m", "300")]}),
                1000,
                300,
            ),
            (
                "a sidecar adds to the containers",
                json!({"containers": [main()], "initContainers": [sidecar("50m", "10")]}),
                150,
                110,
            ),
            (
                "an init container runs beside the sidecars before it alone",
                json!({"containers": [main()],
                       "initContainers": [sidecar("50m", "10"), container("500m", "5"), sidecar("200m", "10")]}),
                550,
                120,
            ),
            (
                "overhead comes on top",
                json!({"containers": [main()], "overhead": {"cpu": "10m", "memory": "1Ki"}}),
                110,
                1124,
            ),
            (
                "the Pod's own requests stand for those of its containers",
                json!({"containers": [main()], "resources": {"requests": {"cpu": "2"}}}),
                2000,
                100,
            ),
        ] {
            let requested = requested(spec);
            assert_eq!((requested.cpu, requested.memory), (cpu, memory), "{what}");
        }
    }

    #[test]
    fn a_demand_is_met_by_what_is_left() {
        let asked = Resources::of(
            &serde_json::from_value(json!({"cpu": "1", "memory": "0", "example.com/gpu": 2})).unwrap(),
        );
        let has = Resources::of(&serde_json::from_value(json!({"cpu": 2, "memory": "1Gi"})).unwrap());
        let used = Resources { cpu: 1000, ..Resources::default() };
        let found: Vec<_> =
            asked.against(&has, &used).map(|demand| (demand.resource, demand.is_met())).collect();
        assert_eq!(found, [("cpu", true), ("example.com/gpu", false)], "what is not asked for is no demand");
    }

    fn amounts() -> impl Strategy<Value = Resources> {
        let others = proptest::collection::btree_map("[ab]", 1_i64..1000, 0..2);
        (0_i64..1000, 0_i64..1000, 0_i64..1000, others).prop_map(|(cpu, memory, storage, others)| Resources {
            cpu,
            memory,
            storage,
            others: others.into_iter().map(|(name, amount)| (name.into(), amount)).collect(),
        })
    }

    proptest! {
        #[test]
        fn what_is_added_can_be_taken_back(all in proptest::collection::vec(amounts(), 0..8)) {
            let mut sum = Resources::default();
            all.iter().for_each(|amount| sum.add(amount));
            all.iter().rev().for_each(|amount| sum.subtract(amount));
            prop_assert_eq!(sum, Resources::default());
        }
    }
}
