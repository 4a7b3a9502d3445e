//! From a container that should run to one that does: image, variables, volumes, network, sandbox.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use asb_runtime::{Kernel, Sandbox, Spec, driver, powers};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::archive::Archive;
use super::container::Slot;
use super::plan::Finished;
use super::spec::{self, LABEL_ALONE, Parts, Refusal};
use super::volumes::{Prepared, Sources};
use super::watch::{News, Reporter};
use super::{adopt, common, ids, kernel, support, weaker};
use crate::claim_events;
use crate::failure::with_causes;
use crate::image::{self, Found, Held};
use crate::network::Wire;
use crate::node::{Node, uid};
use crate::references::{self, References};

/// How long a kernel may take to end that does not answer any more.
const KERNEL_ENDS: Duration = Duration::from_secs(1);

/// The network of a Pod: one namespace and one address for all of its containers.
pub struct Place {
    pub address: Ipv4Addr,
    /// The namespace has loopback only.
    pub alone: bool,
    /// `None`: made by the first container that starts, or gone with the last that ran.
    pub namespace: Option<OwnedFd>,
    /// What the containers share besides.
    pub common: Option<Sandbox>,
    /// What its containers run on, if they share one. It may have ended.
    pub kernel: Option<Sandbox>,
}

impl Place {
    /// Its IPv6 address, if it has one.
    pub fn beside(&self, node: &Node) -> Option<Ipv6Addr> {
        node.shared.wires.beside(self.address, self.alone)
    }

    /// The namespace, for one more to start in.
    pub fn network(&self) -> Result<Option<OwnedFd>, Refusal> {
        let namespace = self.namespace.as_ref().map(OwnedFd::try_clone).transpose();
        namespace.map_err(|error| Refusal::new("NetworkNotReady", error.to_string()))
    }
}

/// What a start needs. All of it is its own: the task of the Pod goes on meanwhile.
pub struct Start {
    pub node: Node,
    pub pod: Arc<Pod>,
    pub slot: Slot,
    pub reporter: Reporter,
    /// The instance before, which makes room first.
    pub previous: Option<(Sandbox, Option<Finished>)>,
    pub place: Option<Place>,
    pub volumes: Option<Arc<BTreeMap<String, Prepared>>>,
    /// Nothing of the Pod has run.
    pub is_new: bool,
    /// The Pod is to go; nothing is worth waiting for any more.
    pub cancel: CancellationToken,
}

/// What came of a start, and what the next one needs.
pub struct Began {
    pub place: Option<Place>,
    pub volumes: Option<Arc<BTreeMap<String, Prepared>>>,
    /// The image that was asked for.
    pub image: Option<String>,
    pub references: References,
    pub result: Result<Sandbox, Stopped>,
    /// Limits that are asked for in vain.
    pub unenforced: Option<String>,
}

pub enum Stopped {
    Refused(Refusal),
    /// By [`Start::cancel`].
    Cancelled,
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Starts a container.
pub async fn start(mut start: Start) -> Began {
    let mut references = References::default();
    let result = start.attempt(&mut references).await;
    let unenforced = match (&result, start.slot.container(&start.pod)) {
        (Ok(_), Some(container)) => {
            weaker::unenforced(start.slot, &container, start.node.shared.runtime.enforced())
        }
        _ => None,
    };
    let image = start.slot.image(&start.pod).map(str::to_owned);
    Began { place: start.place, volumes: start.volumes, image, references, result, unenforced }
}

impl Start {
    async fn attempt(&mut self, references: &mut References) -> Result<Sandbox, Stopped> {
        self.clear_previous().await?;
        check(&self.pod, self.node.shared.allow_privileged)?;
        if let Slot::Ephemeral(at) = self.slot {
            let privileged = self.node.shared.allow_privileged;
            let checked = support::check_ephemeral(&json!(self.pod.spec), at, privileged);
            checked.map_err(|message| Refusal::new("CreateContainerConfigError", message))?;
        }
        weaker::check(&self.pod, powers::here())?;
        if self.is_new
            && let Some(refusal) = self.node.shared.disk.refusal()
        {
            return Err(refusal.into());
        }
        let driver = self.node.shared.drivers.of(&self.node, &self.pod).await?;
        let held = self.image().await?;
        let shared = self.node.shared.clone();
        *references = References::fetch(&shared.client, &self.pod)
            .await
            .map_err(|error| references::refusal(&error))?;
        let sources = Sources { pod: &self.pod, references, ceiling: shared.ceiling };
        let volumes = match &self.volumes {
            Some(known) => {
                shared.volumes.refresh(&sources);
                known.clone()
            }
            None => match shared.volumes.of(&sources).await {
                Ok(volumes) => Arc::new(volumes),
                Err(refusal) => {
                    claim_events::tell_of_failure(&self.node, &self.pod, &refusal).await;
                    return Err(refusal.into());
                }
            },
        };
        self.volumes = Some(volumes.clone());
        let image_volumes = shared.volumes.of_image(&self.pod, self.slot, &held.image.volumes)?;
        let taken = self.take_place().await?;
        self.take_common(&volumes, driver).await?;
        let kernel = self.kernel(driver, taken).await?;
        let Some(place) = &self.place else { return Err(Stopped::Cancelled) };
        let parts = Parts {
            image: held.image.clone(),
            image_volumes,
            address: place.address,
            address6: place.beside(&self.node),
            alone: place.alone,
            resolver: shared.wires.resolver(),
            volumes: &volumes,
            references,
            links: &shared.wires.links(&self.pod),
            restarts: self.reporter.restarts,
            common: place.common.as_ref(),
            ceiling: shared.ceiling,
        };
        let spec = spec::translate(&self.pod, self.slot, parts)?;
        let process = weaker::fit(spec.process, powers::here());
        let extra_ids = ids::extra(&self.pod, powers::here())?;
        let spec = Spec { driver, kernel, process, extra_ids, ..spec };
        match self.run(&spec, taken).await {
            Err(Stopped::Refused(_)) if self.has_lost_kernel().await => {
                self.kernel(driver, false).await?;
                self.run(&spec, false).await
            }
            other => other,
        }
    }

    /// Keeps what is to be known of the instance before, and removes the rest of it.
    async fn clear_previous(&mut self) -> Result<(), Refusal> {
        let Some((sandbox, end)) = self.previous.take() else { return Ok(()) };
        let name = self.slot.name(&self.pod);
        let archive = Archive::new(&self.node.shared.volumes.of_pod(&uid(&self.pod)), name);
        if let Some(Err(error)) = end.map(|end| archive.keep(&sandbox, &end)) {
            tracing::warn!(%error, "the log of the instance before is lost");
        }
        self.node.shared.forget(&uid(&self.pod), &sandbox);
        sandbox.delete().await.map_err(|error| start_refusal(&error))
    }

    async fn image(&self) -> Result<Box<Held>, Stopped> {
        let (client, events) = (&self.node.shared.client, &self.node.shared.events);
        let images = &self.node.shared.images;
        match image::find(events, images, &self.pod, self.slot).await? {
            Found::Here(held) => Ok(held),
            Found::Elsewhere(reference) => {
                self.reporter.tell(News::Pulling);
                tokio::select! {
                    held = image::pull(client, events, images, &self.pod, self.slot, &reference) => Ok(held?),
                    () = self.cancel.cancelled() => Err(Stopped::Cancelled),
                }
            }
        }
    }

    /// The Pod's network, taken if it has none; whether it is new.
    async fn take_place(&mut self) -> Result<bool, Refusal> {
        let shared = &self.node.shared;
        if let Some(place) = &mut self.place {
            if place.namespace.is_some() {
                return Ok(false);
            }
            remove_kernel(place).await?;
            // It went with the last process in it: whatever starts now starts somewhere else.
            shared.wires.leave(&uid(&self.pod), place.address, !place.alone).await;
            self.place = None;
        }
        let taken = shared.wires.take().await;
        let Wire { address, namespace } =
            taken.map_err(|message| Refusal::new("NetworkNotReady", message))?;
        self.place =
            Some(Place { address, alone: namespace.is_none(), namespace, common: None, kernel: None });
        Ok(true)
    }

    /// What the containers of the Pod share, made if it is needed and not there.
    async fn take_common(
        &mut self,
        volumes: &BTreeMap<String, Prepared>,
        driver: driver::Name,
    ) -> Result<(), Refusal> {
        common::refuse_shared_memory(&self.pod, volumes, driver)?;
        let Some(place) = &mut self.place else { return Ok(()) };
        if place.common.is_some() || !common::is_needed(&self.pod, volumes, driver) {
            return Ok(());
        }
        let sandbox = common::start(&self.node, &self.pod, place, volumes).await?;
        if place.namespace.is_none() {
            place.namespace = sandbox.network().unwrap_or_default();
        }
        place.common = Some(sandbox);
        Ok(())
    }

    /// What the container is to run on: under a runtime that brings a kernel, one of its own or that of the Pod, which is
    /// started if it does not run.
    async fn kernel(&mut self, driver: driver::Name, new: bool) -> Result<Kernel, Refusal> {
        let shared = &self.node.shared;
        let Some(place) = self.place.as_mut().filter(|_| driver == driver::Name::Gvisor) else {
            return Ok(Kernel::Own);
        };
        if let Some(kernel) = place.kernel.as_ref().filter(|kernel| kernel.wait().now_or_never().is_none()) {
            return Ok(Kernel::Of(kernel.id().clone()));
        }
        if matches!(self.slot, Slot::Ephemeral(_)) && !kernel::is_needed(&self.pod, driver) {
            let message =
                "a Pod of one container under gvisor has that container's kernel: nothing can be added to it";
            return Err(Refusal::new("CreateContainerConfigError", message));
        }
        remove_kernel(place).await?;
        if let Some(namespace) = place.namespace.as_ref().filter(|_| !new) {
            // The kernel before took the addresses off the interface.
            let restored = shared.wires.restore(namespace, place.address).await;
            restored.map_err(|message| Refusal::new("NetworkNotReady", message))?;
        }
        if !kernel::is_needed(&self.pod, driver) {
            return Ok(Kernel::Own);
        }
        let spec = kernel::spec(&self.pod, driver, place, shared.ceiling.memory)?;
        let started = begin(&self.node, place, &spec).await?;
        place.kernel = Some(started);
        Ok(Kernel::Of(spec.id))
    }

    /// Whether the kernel of the Pod has ended just now: what it ran notices somewhat earlier, and is to start again.
    async fn has_lost_kernel(&self) -> bool {
        let Some(kernel) = self.place.as_ref().and_then(|place| place.kernel.as_ref()) else { return false };
        tokio::time::timeout(KERNEL_ENDS, kernel.wait()).await.is_ok()
    }

    /// Starts the sandbox and, if its network is new, at the same time puts the rules of it in force: until they are,
    /// nothing passes.
    async fn run(&mut self, spec: &Spec, new: bool) -> Result<Sandbox, Stopped> {
        let shared = &self.node.shared;
        let Some(place) = &mut self.place else { return Err(Stopped::Cancelled) };
        let address = place.address;
        let admit = async {
            match new {
                true => shared.wires.admit(&shared.client, &self.pod, address).await,
                false => Ok(()),
            }
        };
        let (sandbox, admitted) = tokio::join!(begin(&self.node, place, spec), admit);
        if let Err(message) = admitted {
            let gone = sandbox.ok().into_iter().chain(place.common.take()).collect();
            adopt::remove(&self.node, gone).await;
            // Nothing passes there, so nobody may start there: the next try has another one.
            place.namespace = None;
            return Err(Refusal::new("NetworkNotReady", message).into());
        }
        Ok(sandbox?)
    }
}

/// Starts a sandbox in the network of its Pod.
async fn begin(node: &Node, place: &mut Place, spec: &Spec) -> Result<Sandbox, Refusal> {
    let namespace = place.namespace.as_ref().map(OwnedFd::try_clone).transpose();
    let namespace = namespace.map_err(|error| Refusal::new("NetworkNotReady", error.to_string()))?;
    let started = match namespace {
        Some(namespace) => node.shared.runtime.start_in(namespace, spec).await,
        None => node.shared.runtime.start(spec).await,
    };
    let sandbox = started.map_err(|error| start_refusal(&error))?;
    if place.namespace.is_none() {
        // Those who come later go where the first one is.
        place.namespace = sandbox.network().unwrap_or_default();
    }
    Ok(sandbox)
}

/// Removes a kernel that has ended, or that is in a network that nobody is to start in.
async fn remove_kernel(place: &mut Place) -> Result<(), Refusal> {
    let Some(kernel) = &place.kernel else { return Ok(()) };
    kernel.delete().await.map_err(|error| start_refusal(&error))?;
    place.kernel = None;
    Ok(())
}

/// What cannot be run here, whatever else is true.
pub fn check(pod: &Pod, privileged: bool) -> Result<(), Refusal> {
    support::check(&json!(pod.spec), privileged).map_err(|message| Refusal::new("Unsupported", message))
}

/// Whether only another Pod can help.
pub fn is_final(refusal: &Refusal) -> bool {
    matches!(refusal.reason, "Unsupported" | "RuntimeClassNotAvailable" | "InvalidPod" | "InvalidUID")
}

/// Whether a sandbox has an address of the network.
pub fn is_wired(sandbox: &Sandbox) -> bool {
    sandbox.spec().network && !sandbox.spec().labels.contains_key(LABEL_ALONE)
}

fn start_refusal(error: &asb_runtime::Error) -> Refusal {
    Refusal::new("CreateContainerError", with_causes(error))
}
