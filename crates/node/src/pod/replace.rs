//! Containers that are stopped in order to be started again: because a probe has failed, or because the Pod names another
//! image for them now.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::archive::Archive;
use super::care::{Care, Kind};
use super::container::{Role, Slot};
use super::hand::Hand;
use super::plan::{Doing, Rules, Seen};
use super::worker::Worker;
use crate::node::uid;

/// Why a container is stopped although the Pod goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Unhealthy(Kind),
    Changed,
}

impl Worker {
    /// Takes in a form of the Pod. No earlier failure holds up a container whose image is another one now.
    pub(super) fn take_in(&mut self, pod: Arc<Pod>) {
        let before = std::mem::replace(&mut self.pod, pod);
        // Containers are added, and never taken away.
        for slot in Slot::with_ephemeral(&self.pod).into_iter().skip(self.hands.len()) {
            self.hands.push(Hand::new(slot, Care::default()));
            self.seen.push(Seen::default());
        }
        for (hand, seen) in self.hands.iter_mut().zip(&mut self.seen) {
            if image(&before, hand.slot) != image(&self.pod, hand.slot) {
                seen.forgive();
                hand.trouble = None;
            }
        }
    }

    /// The image that the Pod names for a container.
    pub(super) fn asks_for(&self, index: usize) -> Option<String> {
        image(&self.pod, self.hands[index].slot).map(str::to_owned)
    }

    /// Stops a container; its end is followed by a start if the cause and the Pod's `restartPolicy` want it.
    pub(super) fn replace(&mut self, index: usize, cause: Cause) {
        let hand = &self.hands[index];
        let (role, name) = (hand.slot.role(&self.pod), self.name(index).to_owned());
        let rules = Rules::of(&self.pod, self.since);
        let restart = cause == Cause::Changed || rules.restarts_unhealthy();
        let (grace, number) = (grace(hand, cause), self.seen[index].restarts);
        let Doing::Running(running) = &mut self.seen[index].doing else { return };
        running.restart = restart;
        if restart {
            let archive = Archive::new(&self.node.shared.volumes.of_pod(&uid(&self.pod)), &name);
            if let Err(error) = archive.note_restart(number) {
                tracing::warn!(%error, "restart of a container not noted");
            }
        }
        self.stop(index, grace, message(&name, role, cause, restart));
    }
}

/// What the container has to end, where its probe has a say in that.
fn grace(hand: &Hand, cause: Cause) -> Option<Duration> {
    let probe = match cause {
        Cause::Unhealthy(Kind::Startup) => &hand.care.startup,
        Cause::Unhealthy(_) => &hand.care.liveness,
        Cause::Changed => return None,
    };
    probe.as_ref()?.grace
}

fn image(pod: &Pod, slot: Slot) -> Option<&str> {
    slot.image(pod)
}

/// In the kubelet's words, if it has other ones than for a Pod that ends.
fn message(name: &str, role: Role, cause: Cause, restart: bool) -> Option<String> {
    if !restart {
        return None;
    }
    let what = if role == Role::Main { "Container" } else { "Init container" };
    let why = match cause {
        Cause::Unhealthy(kind) => format!("failed {} probe", kind.name().to_lowercase()),
        Cause::Changed => "definition changed".to_owned(),
    };
    let then = if role == Role::Main { ", will be restarted" } else { "" };
    Some(format!("{what} {name} {why}{then}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_the_kubelet() {
        let liveness = Cause::Unhealthy(Kind::Liveness);
        for (role, cause, expected) in [
            (Role::Main, liveness, "Container c failed liveness probe, will be restarted"),
            (
                Role::Main,
                Cause::Unhealthy(Kind::Startup),
                "Container c failed startup probe, will be restarted",
            ),
            (Role::Main, Cause::Changed, "Container c definition changed, will be restarted"),
            (Role::Sidecar, liveness, "Init container c failed liveness probe"),
        ] {
            assert_eq!(message("c", role, cause, true).as_deref(), Some(expected));
        }
        assert_eq!(message("c", Role::Main, liveness, false), None, "it ends like any other");
    }
}
