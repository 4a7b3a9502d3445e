//! What a Pod may take of the disk, and whether it took more: the kubelet's rules and words. Pure.

use std::collections::BTreeMap;

use asb_runtime::tree::{DEEPEST, Size};
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::container::{Role, Slot};
use crate::pod::quantity::{binary, bytes};

pub const RESOURCE: &str = "ephemeral-storage";

/// A limit, and how its owner wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    pub bytes: u64,
    pub text: String,
}

/// The limits of a Pod. Those that cannot be read are none: such a Pod never started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// By name: root and log.
    pub containers: BTreeMap<String, Limit>,
    /// By name: directories on disk that go with the Pod.
    pub volumes: BTreeMap<String, Limit>,
    /// All of that together.
    pub pod: Option<Limit>,
}

/// What a Pod takes; volumes by the names of their directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    pub containers: BTreeMap<String, Size>,
    pub volumes: BTreeMap<String, Size>,
}

impl Limits {
    pub fn of(pod: &Pod) -> Self {
        let containers: BTreeMap<_, _> = Slot::all(pod)
            .into_iter()
            .filter_map(|slot| {
                let container = slot.of(pod)?;
                Some((container.name.clone(), of_container(container)?))
            })
            .collect();
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let on_disk = volumes.filter_map(|volume| {
            let source =
                volume.empty_dir.as_ref().filter(|it| it.medium.as_deref().unwrap_or_default().is_empty())?;
            Some((volume.name.clone(), limit(source.size_limit.as_ref()?)?))
        });
        Self { volumes: on_disk.collect(), pod: of_pod(pod, &containers), containers }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Which limit a Pod exceeds, as the kubelet says it.
    pub fn exceeded(&self, usage: &Usage) -> Option<String> {
        let over = |limit: &Limit, size: &Size| size.bytes > limit.bytes;
        let deep = format!("directories are nested deeper than {DEEPEST} levels and cannot be measured. ");
        for (name, limit) in &self.volumes {
            match usage.volumes.get(name) {
                Some(size) if over(limit, size) => {
                    return Some(format!(
                        "Usage of EmptyDir volume {name:?} exceeds the limit {:?}. ",
                        limit.text
                    ));
                }
                Some(size) if size.too_deep => return Some(format!("EmptyDir volume {name:?}: {deep}")),
                _ => {}
            }
        }
        let total = usage.total();
        if let Some(limit) = &self.pod
            && over(limit, &total)
        {
            return Some(format!(
                "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
                limit.text
            ));
        }
        for (name, limit) in &self.containers {
            if usage.containers.get(name).is_some_and(|size| over(limit, size)) {
                let text = &limit.text;
                return Some(format!(
                    "Container {name} exceeded its local ephemeral storage limit {text:?}. "
                ));
            }
        }
        (self.pod.is_some() && total.too_deep).then(|| format!("Pod ephemeral local storage: {deep}"))
    }
}

impl Usage {
    pub fn total(&self) -> Size {
        let mut total = Size::default();
        self.containers.values().chain(self.volumes.values()).for_each(|size| total += *size);
        total
    }
}

/// What containers ask for, by name.
pub fn requests(pod: &Pod) -> BTreeMap<String, u64> {
    let of = |slot: Slot| {
        let container = slot.of(pod)?;
        let asked = container.resources.as_ref()?.requests.as_ref()?.get(RESOURCE)?;
        Some((container.name.clone(), bytes(asked)?))
    };
    Slot::all(pod).into_iter().filter_map(of).collect()
}

fn of_container(container: &Container) -> Option<Limit> {
    limit(container.resources.as_ref()?.limits.as_ref()?.get(RESOURCE)?)
}

/// What all containers that run at the same time may take, counting those that have a limit.
fn of_pod(pod: &Pod, limits: &BTreeMap<String, Limit>) -> Option<Limit> {
    let of = |slot: &Slot| slot.of(pod).and_then(|container| limits.get(&container.name));
    let (inits, together): (Vec<_>, Vec<_>) =
        Slot::all(pod).into_iter().partition(|slot| slot.role(pod) == Role::Init);
    let together: Vec<_> = together.iter().filter_map(of).collect();
    let sum = together.iter().fold(0u64, |sum, limit| sum.saturating_add(limit.bytes));
    let largest = inits.iter().filter_map(of).max_by_key(|limit| limit.bytes);
    match (&together[..], largest) {
        (_, Some(largest)) if largest.bytes > sum => Some(largest.clone()),
        ([], None) => None,
        ([only], _) => Some((*only).clone()),
        _ => Some(Limit { bytes: sum, text: binary(sum) }),
    }
}

fn limit(quantity: &Quantity) -> Option<Limit> {
    let bytes = bytes(quantity).filter(|bytes| *bytes > 0)?;
    Some(Limit { bytes, text: quantity.0.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(name: &str, limit: &str) -> Value {
        json!({"name": name, "resources": {"limits": {RESOURCE: limit}}})
    }

    fn limits(spec: Value) -> Limits {
        Limits::of(&serde_json::from_value(json!({"spec": spec})).unwrap())
    }

    fn size(bytes: u64) -> Size {
        Size { bytes, ..Size::default() }
    }

    fn usage(containers: &[(&str, u64)], volumes: &[(&str, u64)]) -> Usage {
        let sizes = |all: &[(&str, u64)]| -> BTreeMap<_, _> {
            all.iter().map(|(name, it)| ((*name).to_owned(), size(*it))).collect()
        };
        Usage { containers: sizes(containers), volumes: sizes(volumes) }
    }

    #[test]
    fn what_runs_together_adds_up_and_an_init_container_may_need_more() {
        let of = |spec| limits(spec).pod.map(|limit| (limit.bytes, limit.text));
        assert_eq!(of(json!({"containers": [{"name": "a"}]})), None);
        assert_eq!(of(json!({"containers": [container("a", "1G")]})), Some((1_000_000_000, "1G".to_owned())));
        let two = json!([container("a", "1Mi"), container("b", "2Mi"), {"name": "c"}]);
        assert_eq!(of(json!({"containers": two})), Some((3 << 20, "3Mi".to_owned())));
        let init = json!({"containers": two, "initContainers": [container("i", "4Mi")]});
        assert_eq!(of(init), Some((4 << 20, "4Mi".to_owned())));
    }

    #[test]
    fn a_pod_without_limits_is_not_measured() {
        let memory = json!([{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]);
        assert!(limits(json!({"containers": [{"name": "a"}], "volumes": memory})).is_empty());
        let disk = json!([{"name": "d", "emptyDir": {"sizeLimit": "1Mi"}}]);
        assert!(!limits(json!({"containers": [{"name": "a"}], "volumes": disk})).is_empty());
    }

    #[test]
    fn who_takes_more_than_a_limit_is_told_which_as_the_kubelet_says_it() {
        let limits = limits(json!({
            "containers": [container("a", "1Mi"), container("b", "2Mi")],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
        }));
        let told = |containers: &[(&str, u64)], volumes: &[(&str, u64)]| {
            limits.exceeded(&usage(containers, volumes)).unwrap_or_default()
        };
        assert_eq!(told(&[("a", 1 << 20), ("b", 1 << 20)], &[("v", 1 << 20)]), "", "up to the limit is fine");
        assert_eq!(
            told(&[], &[("v", (1 << 20) + 1)]),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
        );
        assert_eq!(
            told(&[("a", 3 << 19)], &[]),
            "Container a exceeded its local ephemeral storage limit \"1Mi\". "
        );
        let total = "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ";
        assert_eq!(
            told(&[("b", 2 << 20)], &[("other", 2 << 20)]),
            total,
            "volumes without a limit count too"
        );
    }

    #[test]
    fn what_cannot_be_measured_is_over_any_limit() {
        let deep = Size { too_deep: true, ..Size::default() };
        let usage = Usage { containers: [("a".to_owned(), deep)].into(), ..Usage::default() };
        let some = limits(json!({"containers": [container("a", "1Mi")]}));
        assert!(some.exceeded(&usage).unwrap().contains("nested deeper than 256 levels"));
        assert_eq!(limits(json!({"containers": [{"name": "a"}]})).exceeded(&usage), None);
    }
}
