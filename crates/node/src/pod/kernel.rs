//! The kernel that containers of one Pod share, under a runtime that brings one: a sandbox that runs nothing itself.
//!
//! It has the Pod's network and lives as long as any container may start again, so that a container that does finds
//! address and neighbours as it left them. A Pod with one container needs none: its own kernel is the Pod's.

use asb_runtime::{Kernel, Limits, Process, RootFs, Sandbox, SandboxId, Spec, driver, powers};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::container::{Role, Slot};
use super::ids;
use super::spec::{LABEL_ALONE, LABEL_POD, LABEL_POD_UID, Refusal, hostname, limits};
use super::start::Place;
use crate::node::uid;

/// Whether containers of the Pod have to share a kernel.
pub fn is_needed(pod: &Pod, driver: driver::Name) -> bool {
    driver == driver::Name::Gvisor && Slot::all(pod).len() > 1
}

/// Whether a sandbox is the kernel of its Pod, and none of its containers.
pub fn is_one(sandbox: &Sandbox) -> bool {
    sandbox.spec().kernel == Kernel::Shared
}

/// The kernel of a Pod that is at `place`.
pub fn spec(pod: &Pod, driver: driver::Name, place: &Place, default_memory: u64) -> Result<Spec, Refusal> {
    let id = SandboxId::new(format!("{}-kernel", uid(pod)))
        .map_err(|error| Refusal::new("InvalidUID", format!("metadata.uid: {error}")))?;
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let alone = place.alone.then(|| (LABEL_ALONE, String::new()));
    let labels = [(LABEL_POD, name), (LABEL_POD_UID, uid(pod))].into_iter().chain(alone);
    Ok(Spec {
        id,
        driver,
        kernel: Kernel::Shared,
        hostname: hostname(pod),
        root: RootFs { layers: Vec::new(), host_dirs: Vec::new() },
        read_only_root: true,
        capabilities: Default::default(),
        privileged: false,
        mounts: Vec::new(),
        memory_dirs: Vec::new(),
        extra_ids: ids::extra(pod, powers::here())?,
        beside: None,
        process: Process::idle(),
        limits: limits_of_all(pod, default_memory)?,
        address: Some(place.address),
        network: false, // the runtime says so where it is true
        resolv_conf: None,
        hosts: None,
        last_words: None,
        labels: labels.map(|(label, value)| (label.to_owned(), value)).collect(),
    })
}

/// What all containers may use that can run at the same time: the main ones and sidecars or, before those, one after
/// the other, each init container beside the sidecars that began before it.
fn limits_of_all(pod: &Pod, default_memory: u64) -> Result<Limits, Refusal> {
    let mut stay: Option<Limits> = None;
    let mut most: Option<Limits> = None;
    for slot in Slot::all(pod) {
        let Some(container) = slot.of(pod) else { continue };
        let one = limits(slot, container, default_memory)?;
        let with = stay.map_or(one, |others| join(others, one, u64::saturating_add));
        if slot.role(pod) != Role::Init {
            stay = Some(with);
        }
        most = Some(most.map_or(with, |most| join(most, with, u64::max)));
    }
    most.ok_or_else(|| Refusal::new("InvalidPod", "spec.containers: at least one is required"))
}

fn join(one: Limits, other: Limits, numbers: fn(u64, u64) -> u64) -> Limits {
    let small = |a: u32, b: u32| u32::try_from(numbers(a.into(), b.into())).unwrap_or(u32::MAX);
    Limits {
        memory_bytes: one.memory_bytes.zip(other.memory_bytes).map(|(a, b)| numbers(a, b)),
        cpu_millis: one.cpu_millis.zip(other.cpu_millis).map(|(a, b)| small(a, b)),
        // Those who ask for nothing take what is left.
        cpu_share_millis: match (one.cpu_share_millis, other.cpu_share_millis) {
            (Some(a), Some(b)) => Some(small(a, b)),
            (a, b) => a.or(b),
        },
        pids: small(one.pids, other.pids),
        log_bytes: one.log_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(name: &str, memory: &str, cpu: Option<&str>) -> Value {
        json!({"name": name, "resources": {"limits": {"memory": memory, "cpu": cpu.unwrap_or("1")}}})
    }

    fn pod(inits: Value, containers: Value) -> Pod {
        let spec = json!({"initContainers": inits, "containers": containers});
        serde_json::from_value(json!({"metadata": {"uid": "u", "name": "box"}, "spec": spec})).unwrap()
    }

    #[test]
    fn kernel_may_use_what_all_may_that_run_at_the_same_time() {
        let mut sidecar = container("proxy", "10", None);
        sidecar["restartPolicy"] = json!("Always");
        let mains = json!([container("a", "100", Some("500m")), container("b", "200", Some("250m"))]);
        let of = |inits: Value| limits_of_all(&pod(inits, mains.clone()), 1 << 30).unwrap();
        assert_eq!((of(json!([])).memory_bytes, of(json!([])).cpu_millis), (Some(300), Some(750)));
        assert_eq!(of(json!([sidecar])).memory_bytes, Some(310));
        let large = container("init", "1000", None);
        assert_eq!(of(json!([large, sidecar])).memory_bytes, Some(1000));
        assert_eq!(of(json!([sidecar, large])).memory_bytes, Some(1010));
    }

    #[test]
    fn only_several_containers_under_a_kernel_of_their_own_need_one() {
        let one = pod(json!([]), json!([{"name": "a"}]));
        let two = pod(json!([{"name": "i"}]), json!([{"name": "a"}]));
        assert!(!is_needed(&one, driver::Name::Gvisor));
        assert!(is_needed(&two, driver::Name::Gvisor));
        assert!(!is_needed(&two, driver::Name::Crun));
    }
}
