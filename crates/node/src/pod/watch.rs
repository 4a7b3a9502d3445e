//! Watches over one running instance of a container: its end, and what its hooks and probes say.

use std::sync::Arc;
use std::time::Duration;

use asb_runtime::Sandbox;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::task::AbortOnDropHandle;

use super::care::attend::{Patient, attend};
use super::care::{Care, Kind};
use super::container::Slot;
use super::message;
use super::plan::{Finished, Running};
use crate::node::Node;

/// The pause before a sandbox is looked at again that could not be.
const AGAIN: Duration = Duration::from_secs(10);

/// What became known of a container.
#[derive(Debug)]
pub enum News {
    /// Its image must be fetched first.
    Pulling,
    /// Its postStart hook is through.
    Greeted,
    HookFailed,
    Started,
    Ready(bool),
    /// A probe says that it must be stopped.
    Unhealthy(Kind),
    Ended(Finished),
}

/// News of a container, by its number in the Pod, and of which of its instances.
pub type Told = (usize, u32, News);

/// Tells the task of the Pod about one instance of one container.
#[derive(Clone)]
pub struct Reporter {
    pub to: UnboundedSender<Told>,
    pub index: usize,
    pub restarts: u32,
}

impl Reporter {
    pub fn tell(&self, news: News) {
        // Nobody listens any more when the Pod is on its way out.
        let _ = self.to.send((self.index, self.restarts, news));
    }
}

/// Ends with the value.
pub struct Watch {
    _end: AbortOnDropHandle<()>,
    attend: Option<AbortOnDropHandle<()>>,
}

impl Watch {
    /// No more hooks and probes: it was told to end.
    pub fn only_the_end(&mut self) {
        self.attend = None;
    }
}

pub struct Instance {
    pub node: Node,
    pub pod: Arc<Pod>,
    pub slot: Slot,
    pub sandbox: Sandbox,
    pub care: Arc<Care>,
    pub reporter: Reporter,
}

pub fn watch(instance: Instance, known: &Running) -> Watch {
    let Instance { node, pod, slot, sandbox, care, reporter } = instance;
    let attend = (*care != Care::default()).then(|| {
        let patient = Patient {
            events: node.shared.events.clone(),
            slot,
            pod: pod.clone(),
            sandbox: sandbox.clone(),
            care,
            greeted: known.greeted,
            started: known.started,
            ready: known.ready,
            reporter: reporter.clone(),
        };
        AbortOnDropHandle::new(tokio::spawn(attend(patient)))
    });
    let end = tokio::spawn(async move {
        let ended = loop {
            match sandbox.wait().await {
                Ok(ended) => break ended,
                Err(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, "lost sight of the sandbox");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        };
        let end = finished(&sandbox, ended, slot, &pod, reporter.restarts);
        reporter.tell(News::Ended(end));
    });
    Watch { _end: AbortOnDropHandle::new(end), attend }
}

/// How an instance ended, with what it had to say.
pub fn finished(
    sandbox: &Sandbox,
    ended: asb_runtime::Ended,
    slot: Slot,
    pod: &Pod,
    restarts: u32,
) -> Finished {
    let mut end = Finished::new(ended.exit, sandbox.started_at(), ended.at, restarts);
    end.message = message::of(slot.container(pod).as_deref(), sandbox, end.code);
    end
}
