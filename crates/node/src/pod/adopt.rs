//! Takes over what an earlier engine left of a Pod, and removes sandboxes whose Pod is gone.
//!
//! Nothing has to be remembered: how far a Pod is in the records of its sandboxes and in its archive; whether hooks
//! and probes were through, in the status that the earlier engine wrote.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::time::SystemTime;

use asb_runtime::Sandbox;
use futures::FutureExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::archive::Archive;
use super::common;
use super::container::Slot;
use super::kernel;
use super::lost;
use super::plan::Running;
use super::spec::{LABEL_IMAGE, LABEL_IMAGE_ID, LABEL_POD_UID, LABEL_RESTARTS};
use super::start::{Place, is_wired};
use super::watch::finished;
use super::worker::Worker;
use crate::node::{Node, uid};
use crate::volume::Lease;

/// What an earlier engine left of one Pod.
#[derive(Default)]
pub struct Left {
    pub sandboxes: Vec<Sandbox>,
    /// Of the claimed volumes that they have mounted.
    pub leases: Vec<Lease>,
}

/// The UID of the Pod that a sandbox is part of.
pub fn pod_of(sandbox: &Sandbox) -> &str {
    // An engine that ran one container per Pod noted nothing: its sandbox has the UID for an id.
    sandbox.spec().labels.get(LABEL_POD_UID).map_or(sandbox.id().as_str(), String::as_str)
}

/// Which container of its Pod a sandbox is.
pub fn slot_of(sandbox: &Sandbox) -> Option<Slot> {
    Slot::with_id(sandbox.id(), pod_of(sandbox))
}

/// Makes a worker know what is there.
pub(super) fn take_over(worker: &mut Worker, sandboxes: Vec<Sandbox>) {
    let of_pod = worker.node.shared.volumes.of_pod(&uid(&worker.pod));
    for index in 0..worker.hands.len() {
        if let Some(end) = Archive::new(&of_pod, worker.name(index)).read() {
            let seen = &mut worker.seen[index];
            (seen.restarts, seen.last) = (end.restarts + 1, Some(end));
        }
        let slot = worker.hands[index].slot;
        if let Some(told) = of(&worker.pod, slot) {
            let seen = &mut worker.seen[index];
            (seen.image, seen.image_id) = (told.image.clone(), told.image_id.clone());
        }
        let seen = &mut worker.seen[index];
        if !sandboxes.iter().any(|it| slot_of(it) == Some(slot))
            && let Some(end) =
                of(&worker.pod, slot).and_then(|told| lost::end(told, seen.restarts, SystemTime::now()))
        {
            seen.ended(end);
        }
    }
    take_place(worker, &sandboxes);
    let (kernels, sandboxes): (Vec<_>, Vec<_>) = sandboxes.into_iter().partition(kernel::is_one);
    let mut unknown = Vec::new();
    let is_common = |it: &Sandbox| common::is(it, &uid(&worker.pod));
    let (common, sandboxes): (Vec<_>, Vec<_>) = sandboxes.into_iter().partition(is_common);
    match &mut worker.place {
        Some(place) => place.kernel = kernels.into_iter().next(),
        None => unknown = kernels,
    }
    for sandbox in sandboxes {
        match slot_of(&sandbox).and_then(|slot| worker.hands.iter().position(|hand| hand.slot == slot)) {
            Some(index) => take(worker, index, sandbox),
            None => unknown.push(sandbox),
        }
    }
    worker.take_common(common.into_iter().next());
    if !unknown.is_empty() {
        let node = worker.node.clone();
        worker.node.shared.ending.spawn(async move { remove(&node, unknown).await });
    }
}

fn take(worker: &mut Worker, index: usize, sandbox: Sandbox) {
    let labels = &sandbox.spec().labels;
    let restarts = labels.get(LABEL_RESTARTS).and_then(|text| text.parse().ok()).unwrap_or(0);
    let archive = Archive::new(&worker.node.shared.volumes.of_pod(&uid(&worker.pod)), worker.name(index));
    let restart = archive.is_restart(restarts);
    // An engine that did not note the image left it as the Pod has it.
    let image = labels.get(LABEL_IMAGE).cloned().or_else(|| worker.asks_for(index));
    let seen = &mut worker.seen[index];
    (seen.restarts, seen.image) = (restarts, image.unwrap_or_default());
    seen.image_id = labels.get(LABEL_IMAGE_ID).cloned().unwrap_or_default();
    // The archive may have its record already, when the earlier engine was about to start the next.
    seen.last = seen.last.take().filter(|end| end.restarts < restarts);
    let (slot, care) = (worker.hands[index].slot, worker.hands[index].care.clone());
    worker.node.shared.remember(&uid(&worker.pod), slot, &sandbox);
    if let Some(Ok(ended)) = sandbox.wait().now_or_never() {
        let mut end = finished(&sandbox, ended, slot, &worker.pod, restarts);
        end.restart = restart;
        worker.seen[index].ended(end);
        worker.hands[index].sandbox = Some(sandbox);
        return;
    }
    let told = told(&worker.pod, slot, restarts);
    let was = |state: fn(&ContainerStatus) -> bool| told.is_some_and(state);
    let running = Running {
        since: sandbox.started_at(),
        greeted: care.post_start.is_none() || was(|_| true),
        started: care.startup.is_none() || was(|it| it.started == Some(true)),
        ready: care.readiness.is_none() || was(|it| it.ready),
        stopping: false,
        restart,
    };
    worker.runs(index, sandbox, running);
}

/// What the earlier engine told of the instance that runs.
fn told(pod: &Pod, slot: Slot, restarts: u32) -> Option<&ContainerStatus> {
    let runs = |it: &&ContainerStatus| it.state.as_ref().is_some_and(|state| state.running.is_some());
    of(pod, slot).filter(|it| u32::try_from(it.restart_count) == Ok(restarts)).filter(runs)
}

/// What it told of a container.
fn of(pod: &Pod, slot: Slot) -> Option<&ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = match slot {
        Slot::Main(_) => status.container_statuses.as_ref()?,
        Slot::Init(_) => status.init_container_statuses.as_ref()?,
        Slot::Ephemeral(_) => status.ephemeral_container_statuses.as_ref()?,
    };
    let name = slot.name(pod);
    all.iter().find(|it| it.name == *name)
}

/// The network that a running container holds; of a Pod without one, only the address that it had.
fn take_place(worker: &mut Worker, sandboxes: &[Sandbox]) {
    let mut held = None;
    for sandbox in sandboxes {
        match sandbox.network() {
            Ok(Some(namespace)) => held = Some((sandbox, Some(namespace))),
            Ok(None) if held.is_none() => held = Some((sandbox, None)),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(sandbox = %sandbox.id(), %error, "failed to open the sandbox's network namespace")
            }
        }
    }
    let Some((sandbox, namespace)) = held else { return };
    let Some(address) = sandbox.spec().address else { return };
    let alone = !is_wired(sandbox);
    let place = Place { address, alone, namespace, common: None, kernel: None };
    worker.address6 = place.beside(&worker.node);
    (worker.place, worker.address) = (Some(place), Some(address));
    let others: HashSet<_> =
        sandboxes.iter().filter_map(|it| Some((it.spec().address?, is_wired(it)))).collect();
    for (other, wired) in others.into_iter().filter(|(other, _)| *other != address) {
        leave(&worker.node, &uid(&worker.pod), other, wired);
    }
}

/// Removes sandboxes of one Pod, all at once.
pub async fn remove(node: &Node, sandboxes: Vec<Sandbox>) {
    let one = async |sandbox: Sandbox| {
        node.shared.forget(pod_of(&sandbox), &sandbox);
        if let Err(error) = sandbox.delete().await {
            // It is still on disk: the next start of the engine finds and removes it.
            tracing::error!(sandbox = %sandbox.id(), error = &error as &dyn std::error::Error, "sandbox not removed");
        }
    };
    join_all(sandboxes.into_iter().map(one)).await;
}

/// Gives an address back. Nobody waits for this: what had the address is gone.
pub fn leave(node: &Node, pod_uid: &str, address: Ipv4Addr, wired: bool) {
    let (leaving, uid) = (node.clone(), pod_uid.to_owned());
    node.shared.ending.spawn(async move { leaving.shared.wires.leave(&uid, address, wired).await });
}

/// Removes sandboxes whose Pod does not exist any more, with their addresses.
pub async fn remove_orphans(node: Node, Left { sandboxes, leases }: Left) {
    let mut addresses = HashSet::new();
    for sandbox in &sandboxes {
        tracing::info!(sandbox = %sandbox.id(), "removing a sandbox without a Pod");
        let address = sandbox.spec().address;
        addresses.extend(address.map(|address| (pod_of(sandbox).to_owned(), address, is_wired(sandbox))));
    }
    remove(&node, sandboxes).await;
    drop(leases);
    for (uid, address, wired) in addresses {
        node.shared.wires.leave(&uid, address, wired).await;
    }
}
