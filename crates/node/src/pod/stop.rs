//! Ending containers: hook, signal, patience, force; and all those of a Pod in their order.

use std::sync::Arc;
use std::time::Duration;

use asb_runtime::Sandbox;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::care::{self, Action};
use super::container::{Role, Slot};
use super::spec::LABEL_STOP_SIGNAL;
use crate::event::Recorder;

const SIGTERM: i32 = 15;
pub const SIGKILL: i32 = 9;
/// What a container has at least to end by itself, however long its hook took.
const LEAST: Duration = Duration::from_secs(2);

/// A container that is to end.
pub struct Leaving {
    pub events: Recorder,
    pub pod: Arc<Pod>,
    pub slot: Slot,
    /// How the event says it; `None`: as the kubelet says it of a Pod that ends.
    pub message: Option<String>,
    pub sandbox: Sandbox,
    pub pre_stop: Option<Action>,
}

impl Leaving {
    /// Records that it is being stopped.
    pub fn tell(&self) {
        let name = self.slot.name(&self.pod);
        let message = self.message.clone().unwrap_or_else(|| format!("Stopping container {name}"));
        self.events.tell_of(&self.pod, self.slot, "Killing", message);
    }
}

/// Ends a container: within the grace period by its own means, then by force. Without one, at once by force.
pub async fn stop(leaving: &Leaving, grace: Duration, turn: impl Future<Output = ()>) {
    let sandbox = &leaving.sandbox;
    leaving.tell();
    if !grace.is_zero() {
        let until = Instant::now() + grace;
        if let Some(hook) = &leaving.pre_stop {
            let done = timeout_at(until, care::run(sandbox, hook)).await;
            let problem = match done {
                Ok(done) => done.err(),
                Err(_) => {
                    let late = format!("it took longer than the {grace:?} that the container has to end");
                    Some(care::Problem::Failed(late))
                }
            };
            if let Some(problem) = problem {
                let message = format!("PreStopHook failed: {problem}");
                leaving.events.warn_of(&leaving.pod, leaving.slot, "FailedPreStopHook", message);
            }
        }
        let _ = timeout_at(until, turn).await;
        let until = until.max(Instant::now() + LEAST.min(grace));
        let label = sandbox.spec().labels.get(LABEL_STOP_SIGNAL);
        let signal = label.and_then(|text| text.parse().ok()).unwrap_or(SIGTERM);
        if sandbox.signal(signal).await.is_ok() && timeout_at(until, sandbox.wait()).await.is_ok() {
            return;
        }
    }
    if sandbox.signal(SIGKILL).await.is_ok() {
        let _ = sandbox.wait().await;
    }
}

/// Ends all containers of a Pod, given in the order in which they began: all at once but the sidecars, which wait for
/// every other and for each sidecar after them. Hooks wait for nobody.
pub async fn stop_all(all: Vec<Leaving>, grace: Duration) {
    let (flags, ended): (Vec<_>, Vec<_>) = all.iter().map(|_| watch::channel(false)).unzip();
    let roles: Vec<_> = all.iter().map(|one| one.slot.role(&one.pod)).collect();
    let stops = all.iter().zip(flags).enumerate().map(|(index, (one, flag))| {
        let before: Vec<_> = (0..all.len())
            .filter(|other| goes_before(&roles, *other, index))
            .map(|other| ended[other].clone())
            .collect();
        async move {
            let turn = async {
                for mut other in before {
                    let _ = other.wait_for(|ended| *ended).await;
                }
            };
            stop(one, grace, turn).await;
            flag.send_replace(true);
        }
    });
    join_all(stops).await;
}

/// Whether one ends before another is asked to.
fn goes_before(roles: &[Role], one: usize, other: usize) -> bool {
    roles[other] == Role::Sidecar && (roles[one] != Role::Sidecar || one > other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecars_wait_for_all_others_and_for_those_after_them() {
        use Role::{Init, Main, Sidecar};
        let roles = [Sidecar, Init, Sidecar, Main];
        let before = |index| (0..4).filter(|one| goes_before(&roles, *one, index)).collect::<Vec<_>>();
        assert_eq!(before(0), [1, 2, 3]);
        assert_eq!(before(2), [1, 3]);
        assert_eq!((before(1), before(3)), (vec![], vec![]));
    }
}
