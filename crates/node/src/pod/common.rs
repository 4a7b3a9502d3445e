//! What the containers of a Pod share beyond its network and its files: IPC, `/dev/shm`, volumes in memory and ids.
//!
//! One more sandbox has it, which only idles: the kubelet's "pause" container. It also holds the Pod's network namespace, so
//! both outlive the containers. It is there only when somebody could tell the difference.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use asb_runtime::driver::Name;
use asb_runtime::{MemoryDir, Sandbox, SandboxId, Spec, powers};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;

use super::adopt;
use super::container::{Role, Slot};
use super::groups;
use super::ids;
use super::plan::Doing;
use super::quantity::bytes;
use super::spec::{LABEL_ALONE, LABEL_COMMON, LABEL_POD, LABEL_POD_UID, Refusal, hostname};
use super::start::Place;
use super::volumes::{Medium, Prepared};
use super::watch::finished;
use super::worker::Worker;
use crate::node::{Node, uid};

/// After the Pod's UID, in the id of its sandbox.
const SUFFIX: &str = "-pod";

/// Whether a sandbox is what containers of a Pod share. `pod_uid` is that of its Pod.
pub fn is(sandbox: &Sandbox, pod_uid: &str) -> bool {
    sandbox.id().as_str().strip_suffix(SUFFIX) == Some(pod_uid)
}

/// Tells one from another of the same Pod.
pub fn stamp(common: &Sandbox) -> String {
    common.started_at().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

/// Whether a Pod needs it: several containers do, and volumes in memory that a container finds again when it is restarted.
pub fn is_needed(pod: &Pod, volumes: &BTreeMap<String, Prepared>, driver: Name) -> bool {
    let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    let in_memory = volumes.values().any(|volume| matches!(volume.medium, Medium::Memory(_)));
    // gVisor's containers share IPC by the kernel that they share.
    driver != Name::Gvisor && (Slot::all(pod).len() > 1 || in_memory && policy != Some("Never"))
}

/// Under gVisor nothing holds a volume in memory but the one container that it is for.
pub fn refuse_shared_memory(
    pod: &Pod,
    volumes: &BTreeMap<String, Prepared>,
    driver: Name,
) -> Result<(), Refusal> {
    let users = |name: &str| {
        let mounts = |slot: &Slot| {
            slot.of(pod)
                .into_iter()
                .flat_map(|it| it.volume_mounts.iter().flatten())
                .any(|it| it.name == name)
        };
        Slot::all(pod).iter().filter(|slot| mounts(slot)).count()
    };
    let shared =
        |(name, volume): &(&String, &Prepared)| matches!(volume.medium, Medium::Memory(_)) && users(name) > 1;
    match volumes.iter().find(shared) {
        Some((name, _)) if driver == Name::Gvisor => {
            let message = format!(
                "spec.volumes: {name:?}: emptyDir.medium: several containers cannot share memory under gvisor; leave the medium out"
            );
            Err(Refusal::new("Unsupported", message))
        }
        _ => Ok(()),
    }
}

/// Starts it in the Pod's network.
pub async fn start(
    node: &Node,
    pod: &Pod,
    place: &Place,
    volumes: &BTreeMap<String, Prepared>,
) -> Result<Sandbox, Refusal> {
    let runtime = &node.shared.runtime;
    let uid = uid(pod);
    let id = SandboxId::new(format!("{uid}{SUFFIX}"))
        .map_err(|error| Refusal::new("InvalidUID", format!("metadata.uid: {error}")))?;
    let memory = memory_dirs(pod, volumes, node.shared.ceiling.memory)?;
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let alone = place.alone.then(|| (LABEL_ALONE, String::new()));
    let labels = [(LABEL_POD, name), (LABEL_POD_UID, uid.clone())].into_iter().chain(alone);
    let spec = Spec {
        address: Some(place.address),
        extra_ids: ids::extra(pod, powers::here())?,
        labels: labels.map(|(label, value)| (label.to_owned(), value)).collect(),
        ..runtime.common(id, hostname(pod), memory)
    };
    let network = place.network()?;
    let started = match network {
        Some(namespace) => runtime.start_in(namespace, &spec).await,
        None => runtime.start(&spec).await,
    };
    let sandbox = started
        .map_err(|error| Refusal::new("FailedCreatePodSandBox", crate::failure::with_causes(&error)))?;
    node.shared.remember_common(&uid, &sandbox);
    Ok(sandbox)
}

/// The Pod's volumes in memory. None holds more than the containers may have together.
fn memory_dirs(
    pod: &Pod,
    volumes: &BTreeMap<String, Prepared>,
    ceiling: u64,
) -> Result<Vec<MemoryDir>, Refusal> {
    let group = groups::fs_group(pod)?.map_or(0, |group| group.id);
    let most = memory(pod).unwrap_or(ceiling);
    let dir = |volume: &Prepared| match volume.medium {
        Medium::Disk => None,
        Medium::Memory(size) => {
            Some(MemoryDir { path: volume.path.clone(), bytes: size.unwrap_or(most).min(most), group })
        }
    };
    Ok(volumes.values().filter_map(dir).collect())
}

/// The memory of a Pod: that of the containers that run together, or of an init container with more; `None` without limits.
fn memory(pod: &Pod) -> Option<u64> {
    let limit = |container: &Container| {
        bytes(container.resources.as_ref()?.limits.as_ref()?.get("memory")?).filter(|bytes| *bytes > 0)
    };
    let (mut together, mut alone) = (0_u64, 0);
    for slot in Slot::all(pod) {
        let bytes = limit(slot.of(pod)?)?;
        match slot.role(pod) {
            Role::Init => alone = bytes.max(alone),
            Role::Sidecar | Role::Main | Role::Ephemeral => together = together.saturating_add(bytes),
        }
    }
    Some(together.max(alone))
}

impl Worker {
    /// Takes over what an earlier engine left of it, and decides which containers ran for the Pod as it is now, not for what a
    /// restart of the machine has ended.
    pub(super) fn take_common(&mut self, found: Option<Sandbox>) {
        let lives = |it: &Sandbox| it.wait().now_or_never().is_none();
        let lost = found.as_ref().is_some_and(|common| !lives(common));
        let runs = self.seen.iter().any(|one| matches!(one.doing, Doing::Running(_)));
        let kernel = self.place.as_ref().and_then(|place| place.kernel.as_ref()).is_some_and(lives);
        let current = found.as_ref().filter(|_| !lost).map(stamp);
        for (hand, seen) in self.hands.iter().zip(&mut self.seen) {
            let of = |sandbox: &Sandbox| sandbox.spec().labels.get(LABEL_COMMON).cloned();
            let known = match &current {
                Some(current) => hand.sandbox.as_ref().and_then(of).as_ref() == Some(current),
                // Under gVisor there is a kernel instead. Or it is one of an engine that had nothing like this.
                None => (runs || kernel) && !lost,
            };
            seen.past = !known && seen.begun();
        }
        if let Some(place) = &mut self.place {
            place.common = found;
        }
    }

    /// Begins to watch what the containers share.
    pub(super) fn watch_common(&mut self) {
        let common = self.place.as_ref().and_then(|place| place.common.clone());
        if let Some(common) = common.filter(|_| self.common_end.is_none()) {
            self.common_end = Some(async move { drop(common.wait().await) }.boxed());
        }
    }

    /// It has ended before the Pod has, which nobody inside could make it do: the Pod begins again.
    pub(super) async fn lose_common(&mut self) {
        tracing::warn!("what the containers of the Pod share has ended; they begin again");
        self.common_end = None;
        self.finish_start().await;
        // With it go all that were beside it.
        self.drop_common().await;
        for index in 0..self.hands.len() {
            let (Doing::Running(_), Some(sandbox)) = (&self.seen[index].doing, &self.hands[index].sandbox)
            else {
                continue;
            };
            if let Some(Ok(ended)) = sandbox.wait().now_or_never() {
                let (slot, restarts) = (self.hands[index].slot, self.seen[index].restarts);
                let end = finished(sandbox, ended, slot, &self.pod, restarts);
                self.ended(index, end);
            }
        }
        self.seen.iter_mut().for_each(|seen| seen.past = seen.begun());
        if let Some(place) = &mut self.place {
            place.namespace = None;
        }
    }

    /// Removes what the containers share.
    pub(super) async fn drop_common(&mut self) {
        self.common_end = None;
        if let Some(common) = self.place.as_mut().and_then(|place| place.common.take()) {
            adopt::remove(&self.node, vec![common]).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap()
    }

    fn volumes(size: Option<u64>) -> BTreeMap<String, Prepared> {
        let memory = Prepared {
            path: "/m".into(),
            below: Default::default(),
            read_only: false,
            medium: Medium::Memory(size),
            _lease: None,
        };
        let disk = Prepared { path: "/d".into(), medium: Medium::Disk, ..memory.clone() };
        BTreeMap::from([("memory".to_owned(), memory), ("disk".to_owned(), disk)])
    }

    #[test]
    fn pod_of_one_container_has_nothing_to_share_unless_memory_must_outlive_it() {
        let one = pod(json!({"containers": [{"name": "a"}]}));
        let two = pod(json!({"containers": [{"name": "a"}], "initContainers": [{"name": "b"}]}));
        let once = pod(json!({"containers": [{"name": "a"}], "restartPolicy": "Never"}));
        let none = BTreeMap::new();
        for (pod, volumes, driver, expected) in [
            (&one, &none, Name::Native, false),
            (&two, &none, Name::Native, true),
            (&two, &none, Name::Crun, true),
            (&one, &volumes(None), Name::Native, true),
            (&one, &volumes(None), Name::Gvisor, false),
            (&once, &volumes(None), Name::Native, false),
        ] {
            assert_eq!(is_needed(pod, volumes, driver), expected, "{pod:?}");
        }
    }

    #[test]
    fn memory_of_several_containers_is_refused_where_nothing_can_hold_it() {
        let using = |names: &[&str]| {
            let container =
                |name: &&str| json!({"name": "c", "volumeMounts": [{"name": name, "mountPath": "/m"}]});
            pod(json!({"containers": names.iter().map(container).collect::<Vec<_>>()}))
        };
        for (pod, driver, refused) in [
            (using(&["memory", "memory"]), Name::Gvisor, true),
            (using(&["memory", "memory"]), Name::Crun, false),
            (using(&["memory", "disk"]), Name::Gvisor, false),
            (using(&["disk", "disk"]), Name::Gvisor, false),
        ] {
            let judged = refuse_shared_memory(&pod, &volumes(None), driver);
            assert_eq!(judged.is_err(), refused, "{pod:?}");
        }
    }

    #[test]
    fn volumes_in_memory_are_bounded_by_their_size_and_the_memory_of_the_pod() {
        let with = |limits: &[Option<&str>]| {
            let container = |limit: &Option<&str>| match limit {
                Some(limit) => json!({"name": "a", "resources": {"limits": {"memory": limit}}}),
                None => json!({"name": "a"}),
            };
            pod(json!({
                "containers": limits[1..].iter().map(container).collect::<Vec<_>>(),
                "initContainers": [container(&limits[0])],
            }))
        };
        for (limits, size, expected) in [
            (&[Some("1Mi"), Some("1Mi"), Some("2Mi")][..], None, 3 << 20),
            (&[Some("8Mi"), Some("1Mi"), Some("2Mi")], None, 8 << 20),
            (&[Some("8Mi"), Some("1Mi")], Some(5), 5),
            (&[Some("8Mi"), None], None, 1 << 30),
            (&[None, None], Some(1 << 40), 1 << 30),
        ] {
            let dirs = memory_dirs(&with(limits), &volumes(size), 1 << 30).unwrap();
            assert_eq!(dirs.iter().map(|dir| dir.bytes).collect::<Vec<_>>(), [expected], "{limits:?}");
        }
    }
}
