//! The life of one Pod. One task owns it: nobody else starts, stops or reports its sandbox.
//!
//! ```text
//! start ──► running ──► ended ──► (restart policy) back-off ──► start
//!   │          │          │
//!   └──────────┴──────────┴── deleted ──► stop within the grace period ──► remove ──► Pod object gone
//! ```

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use asb_runtime::{Exit, Sandbox, Spec};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tracing::Instrument;

use super::spec::{self, LABEL_IMAGE_ID, LABEL_RESTARTS, LABEL_STOP_SIGNAL, Parts, Refusal};
use super::status::{Container, status};
use super::{env, support, volumes};
use crate::event;
use crate::failure::with_causes;
use crate::image::{self, Found};
use crate::network::Wire;
use crate::node::{Node, uid};
use crate::references::{self, References};

const SIGTERM: i32 = 15;
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
const FIRST_BACK_OFF: Duration = Duration::from_secs(10);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(300);
/// How long an error of an image is shown before the wait for the next try is.
const IMAGE_ERROR_SHOWN: Duration = Duration::from_secs(2);
/// A container that ran this long starts its back-off anew.
const GOOD_RUN: Duration = Duration::from_secs(600);

/// What the API wants of a Pod.
#[derive(Debug, Clone)]
pub enum Desired {
    Present(Arc<Pod>),
    /// The object is gone.
    Gone,
}

/// Runs a Pod until it is gone. `sandbox` is what an earlier engine left running for it.
pub async fn run(node: Node, desired: watch::Receiver<Desired>, sandbox: Option<Sandbox>) {
    let pod = match &*desired.borrow() {
        Desired::Present(pod) => pod.clone(),
        Desired::Gone => return,
    };
    let span = tracing::info_span!("pod", sandbox = %pod.name_any(), namespace = pod.namespace());
    let restarts = sandbox.as_ref().map_or(0, restarts);
    let mut worker = Worker {
        restarts,
        node: node.clone(),
        desired,
        pod,
        sandbox,
        failures: 0,
        image_failures: 0,
        references: References::default(),
        refused: None,
    };
    worker.live().instrument(span.clone()).await;
    // Once begun, the end is not interrupted by that of the engine.
    node.shared.ending.spawn(async move { worker.end().await }.instrument(span));
}

/// Removes a sandbox whose Pod does not exist any more.
pub async fn remove_orphan(node: Node, sandbox: Sandbox) {
    tracing::info!(sandbox = %sandbox.id(), "removing a sandbox without a Pod");
    let id = sandbox.id().as_str().to_owned();
    node.shared.forget(&id);
    discard(&node, sandbox).await;
}

struct Worker {
    node: Node,
    desired: watch::Receiver<Desired>,
    /// The last form of the Pod that was seen.
    pod: Arc<Pod>,
    sandbox: Option<Sandbox>,
    restarts: u32,
    /// Ends in a row that were not a good run.
    failures: u32,
    /// Tries in a row to get the image that failed.
    image_failures: u32,
    /// ConfigMaps and Secrets that the Pod names, as last seen.
    references: References,
    /// Why the last start was refused, and how many were in a row.
    refused: Option<(Refusal, u32)>,
}

/// What ended a wait.
enum Wake<T> {
    Done(T),
    Leave,
}

impl Worker {
    async fn live(&mut self) {
        while !self.leaving() {
            match self.ensure_sandbox().await {
                Ok(Some(sandbox)) => self.watch_over(sandbox).await,
                Ok(None) => {}
                Err(refusal) if image::is_about(&refusal) => self.wait_for_image(refusal).await,
                Err(refusal) if is_final(&refusal) => {
                    tracing::warn!(reason = refusal.reason, message = refusal.message, "Pod refused");
                    event::warn(&self.node.shared.client, &self.pod, refusal.reason, &refusal.message).await;
                    self.report(&Container::Refused(refusal)).await;
                    self.until_leave(std::future::pending::<()>()).await;
                }
                Err(refusal) => self.wait_for_another_start(refusal).await,
            }
        }
    }

    /// The running (or ended) sandbox of this Pod, started if there is none; `None` when the Pod is to go instead.
    async fn ensure_sandbox(&mut self) -> Result<Option<Sandbox>, Refusal> {
        if let Some(sandbox) = &self.sandbox {
            return Ok(Some(sandbox.clone()));
        }
        check(&self.pod)?;
        let driver = self.node.shared.drivers.of(&self.node, &self.pod).await?;
        let shared = &self.node.shared;
        let held = match image::find(&shared.client, &shared.images, &self.pod).await? {
            Found::Here(held) => held,
            Found::Elsewhere(reference) => {
                self.report(&Container::Waiting(Refusal::new("ContainerCreating", ""))).await;
                let (node, pod) = (self.node.clone(), self.pod.clone());
                let (client, images) = (&node.shared.client, &node.shared.images);
                match self.until_leave(image::pull(client, images, &pod, &reference)).await {
                    Wake::Done(held) => held?,
                    Wake::Leave => return Ok(None),
                }
            }
        };
        self.image_failures = 0;
        let shared = &self.node.shared;
        self.references = References::fetch(&shared.client, &self.pod)
            .await
            .map_err(|error| references::refusal(&error))?;
        let sources =
            volumes::Sources { pod: &self.pod, references: &self.references, ceiling: shared.ceiling };
        let volumes = shared.volumes.of(&sources).await?;
        let image_volumes = shared.volumes.of_image(&self.pod, &held.image.volumes)?;
        let Wire { address, namespace } =
            shared.wires().take().await.map_err(|message| Refusal::new("NetworkNotReady", message))?;
        let parts = Parts {
            image: held.image.clone(),
            image_volumes,
            address,
            resolver: shared.wires().resolver(),
            volumes: &volumes,
            references: &self.references,
            restarts: self.restarts,
            ceiling: shared.ceiling,
        };
        let wired = namespace.is_some();
        let started = match spec::translate(&self.pod, parts) {
            Ok(spec) => self.start(&Spec { driver, ..spec }, address, namespace).await,
            Err(refusal) => Err(refusal),
        };
        match started {
            Ok(sandbox) => {
                shared.remember(&uid(&self.pod), &sandbox);
                self.sandbox = Some(sandbox.clone());
                self.refused = None;
                self.tell_skipped_variables().await;
                Ok(Some(sandbox))
            }
            Err(refusal) => {
                shared.wires().leave(&uid(&self.pod), address, wired).await;
                Err(refusal)
            }
        }
    }

    /// Starts the sandbox and, at the same time, puts the rules of its network in force: until they are, nothing passes.
    async fn start(
        &self,
        spec: &Spec,
        address: Ipv4Addr,
        namespace: Option<OwnedFd>,
    ) -> Result<Sandbox, Refusal> {
        let shared = &self.node.shared;
        let start = async {
            match namespace {
                Some(namespace) => shared.runtime.start_in(namespace, spec).await,
                None => shared.runtime.start(spec).await,
            }
        };
        let admit = shared.wires().admit(&shared.client, &self.pod, address);
        let (started, admitted) = tokio::join!(start, admit);
        let sandbox = started.map_err(|error| start_refusal(&error))?;
        if let Err(message) = admitted {
            if let Err(error) = sandbox.delete().await {
                tracing::error!(error = &error as &dyn std::error::Error, "sandbox not removed");
            }
            return Err(Refusal::new("NetworkNotReady", message));
        }
        Ok(sandbox)
    }

    /// Tells which keys could not be names of variables, and forgets what the Pod names: it may be secret.
    async fn tell_skipped_variables(&mut self) {
        let references = std::mem::take(&mut self.references);
        let skipped = spec::container(&self.pod).map_or_else(Vec::new, |it| env::skipped(it, &references));
        for message in skipped {
            let client = &self.node.shared.client;
            event::warn(client, &self.pod, "InvalidEnvironmentVariableNames", &message).await;
        }
    }

    /// Tells why the Pod cannot start, once for each reason, and waits for what it names to change, or for a while.
    async fn wait_for_another_start(&mut self, refusal: Refusal) {
        let known = self.refused.take();
        let tries = known.as_ref().map_or(0, |(_, tries)| *tries);
        if known.is_none_or(|(known, _)| known != refusal) {
            tracing::warn!(reason = refusal.reason, message = refusal.message, "Pod cannot start");
            let (reason, message) = told(&refusal);
            event::warn(&self.node.shared.client, &self.pod, reason, &message).await;
            self.report(&Container::Waiting(refusal.clone())).await;
        }
        let (client, references) = (self.node.shared.client.clone(), std::mem::take(&mut self.references));
        let waited = self
            .until_leave(async {
                tokio::select! {
                    () = tokio::time::sleep(back_off(tries)) => tries + 1,
                    () = references.changed(&client) => tries,
                }
            })
            .await;
        if let Wake::Done(tries) = waited {
            self.refused = Some((refusal, tries));
        }
    }

    /// Tells why there is no image, as the kubelet tells it, and waits for the next try.
    async fn wait_for_image(&mut self, refusal: Refusal) {
        let pause = back_off(self.image_failures);
        self.image_failures += 1;
        tracing::warn!(reason = refusal.reason, message = refusal.message, "no image for the Pod");
        let client = self.node.shared.client.clone();
        event::warn(&client, &self.pod, "Failed", &image::failure(&self.pod, &refusal)).await;
        event::warn(&client, &self.pod, "Failed", &format!("Error: {}", refusal.reason)).await;
        self.report(&Container::Waiting(refusal.clone())).await;
        if let Wake::Leave = self.until_leave(tokio::time::sleep(IMAGE_ERROR_SHOWN)).await {
            return;
        }
        if refusal.reason == "ErrImagePull" {
            let waiting = image::back_off(&self.pod, &refusal);
            event::tell(&client, &self.pod, "BackOff", &waiting.message).await;
            self.report(&Container::Waiting(waiting)).await;
        }
        self.until_leave(tokio::time::sleep(pause.saturating_sub(IMAGE_ERROR_SHOWN))).await;
    }

    /// Reports a sandbox, waits for its end, and decides what follows by the restart policy.
    async fn watch_over(&mut self, sandbox: Sandbox) {
        let (since, address) = (sandbox.started_at(), address(&sandbox));
        self.report(&Container::Running { since, address }).await;
        // Now that nobody waits for this Pod any more.
        self.node.park().await;
        let ended = match self.until_leave(sandbox.wait()).await {
            Wake::Leave => return,
            Wake::Done(Ok(ended)) => ended,
            Wake::Done(Err(error)) => {
                tracing::error!(error = &error as &dyn std::error::Error, "lost sight of the sandbox");
                let pause = self.back_off();
                self.until_leave(tokio::time::sleep(pause)).await;
                return;
            }
        };
        let policy =
            self.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always");
        if policy == "Never" || (policy == "OnFailure" && ended.exit == Exit::Code(0)) {
            self.report(&Container::Ended { since, ended, address }).await;
            self.node.shared.wires().mute(&uid(&self.pod), address).await;
            self.until_leave(std::future::pending::<()>()).await;
            return;
        }
        if ended.at.duration_since(since).unwrap_or_default() >= GOOD_RUN {
            self.failures = 0;
        }
        // The first restart comes at once, as the kubelet does it.
        let pause = if self.failures == 0 { Duration::ZERO } else { self.back_off() };
        self.failures += 1;
        if !pause.is_zero() {
            let message = format!("the container ended ({:?}) and is started again in {pause:?}", ended.exit);
            event::warn(&self.node.shared.client, &self.pod, "BackOff", &message).await;
            self.report(&Container::BackOff { since, ended, address }).await;
        }
        if let Wake::Done(()) = self.until_leave(tokio::time::sleep(pause)).await {
            self.discard_sandbox().await;
            self.restarts += 1;
        }
    }

    /// Stops what runs, removes every trace, and lets the API server forget the Pod.
    async fn end(&mut self) {
        if let Some(sandbox) = self.sandbox.clone() {
            let grace = self.grace();
            let signal = label(&sandbox, LABEL_STOP_SIGNAL).parse().unwrap_or(SIGTERM);
            let asked = !grace.is_zero() && sandbox.signal(signal).await.is_ok();
            if asked {
                // Past its grace period it is killed below, like one that never listened.
                let _ = tokio::time::timeout(grace, sandbox.wait()).await;
            }
            self.discard_sandbox().await;
        }
        if let Err(error) = self.node.shared.volumes.forget_pod(&uid(&self.pod)) {
            tracing::warn!(%error, "volumes of the Pod were not removed");
        }
        if matches!(&*self.desired.borrow(), Desired::Gone) {
            return;
        }
        let api: Api<Pod> =
            Api::namespaced(self.node.shared.client.clone(), &self.pod.namespace().unwrap_or_default());
        let preconditions = Preconditions { uid: self.pod.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..Default::default()
        };
        while let Err(error) = api.delete(&self.pod.name_any(), &params).await {
            // 404 and 409: gone, or another Pod of the same name by now.
            if matches!(&error, kube::Error::Api(status) if status.code == 404 || status.code == 409) {
                return;
            }
            tracing::warn!(error = &error as &dyn std::error::Error, "Pod object not removed; trying again");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn discard_sandbox(&mut self) {
        self.node.shared.forget(&uid(&self.pod));
        if let Some(sandbox) = self.sandbox.take() {
            discard(&self.node, sandbox).await;
        }
    }

    /// Writes the status. It is what others act on, so it is tried until it is written or useless.
    async fn report(&mut self, state: &Container) {
        let api: Api<Pod> =
            Api::namespaced(self.node.shared.client.clone(), &self.pod.namespace().unwrap_or_default());
        let image_id = self.sandbox.as_ref().map_or("", |sandbox| label(sandbox, LABEL_IMAGE_ID));
        let status = json!({"status": status(&self.pod, state, self.restarts, image_id, Timestamp::now())});
        for pause in [10, 100, 1000, 5000] {
            match api
                .patch_status(&self.pod.name_any(), &PatchParams::default(), &Patch::Merge(&status))
                .await
            {
                Ok(_) => return,
                Err(kube::Error::Api(error)) if error.code == 404 => return,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "Pod status not written; trying again"
                    );
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            }
        }
    }

    /// Waits for `work`, or for the Pod to be deleted.
    async fn until_leave<T>(&mut self, work: impl Future<Output = T>) -> Wake<T> {
        tokio::pin!(work);
        loop {
            if self.leaving() {
                return Wake::Leave;
            }
            tokio::select! {
                done = &mut work => return Wake::Done(done),
                changed = self.desired.changed() => {
                    if changed.is_err() {
                        return Wake::Leave;
                    }
                }
            }
        }
    }

    /// Takes in the latest form of the Pod; whether it is to go.
    fn leaving(&mut self) -> bool {
        match &*self.desired.borrow_and_update() {
            Desired::Gone => true,
            Desired::Present(pod) => {
                self.pod = pod.clone();
                pod.metadata.deletion_timestamp.is_some()
            }
        }
    }

    fn grace(&self) -> Duration {
        if matches!(&*self.desired.borrow(), Desired::Gone) {
            return Duration::ZERO; // forced: nobody waits for it
        }
        let seconds =
            self.pod.metadata.deletion_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        seconds.map_or(DEFAULT_GRACE, Duration::from_secs)
    }

    fn back_off(&mut self) -> Duration {
        let pause = back_off(self.failures);
        self.failures += 1;
        pause
    }
}

async fn discard(node: &Node, sandbox: Sandbox) {
    let (address, wired) = (sandbox.spec().address, sandbox.spec().network);
    if let Err(error) = sandbox.delete().await {
        // It is still on disk: the next start of the engine finds and removes it.
        tracing::error!(sandbox = %sandbox.id(), error = &error as &dyn std::error::Error, "sandbox not removed");
        return;
    }
    if let Some(address) = address {
        let leaving = node.clone();
        // Nobody waits for this: what had the address is gone.
        node.shared.ending.spawn(async move {
            leaving.shared.wires().leave(sandbox.id().as_str(), address, wired).await;
        });
    }
}

fn check(pod: &Pod) -> Result<(), Refusal> {
    support::check(&json!(pod.spec)).map_err(|message| Refusal::new("Unsupported", message))
}

/// Whether only another Pod can help.
fn is_final(refusal: &Refusal) -> bool {
    matches!(refusal.reason, "Unsupported" | "RuntimeClassNotAvailable" | "InvalidPod" | "InvalidUID")
}

fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF.saturating_mul(1 << failures.min(10)).min(LONGEST_BACK_OFF)
}

/// Reason and message of the event about a refusal, as the kubelet writes them.
fn told(refusal: &Refusal) -> (&'static str, String) {
    match refusal.reason {
        "CreateContainerConfigError" | "CreateContainerError" => {
            ("Failed", format!("Error: {}", refusal.message))
        }
        other => (other, refusal.message.clone()),
    }
}

fn start_refusal(error: &asb_runtime::Error) -> Refusal {
    Refusal::new("CreateContainerError", with_causes(error))
}

fn restarts(sandbox: &Sandbox) -> u32 {
    label(sandbox, LABEL_RESTARTS).parse().unwrap_or_default()
}

/// What was noted when the sandbox was started; empty when nothing was.
fn label<'a>(sandbox: &'a Sandbox, name: &str) -> &'a str {
    sandbox.spec().labels.get(name).map_or("", String::as_str)
}

fn address(sandbox: &Sandbox) -> Ipv4Addr {
    sandbox.spec().address.unwrap_or(Ipv4Addr::UNSPECIFIED)
}
