//! The network where it is: in the machine's own namespace or, without root, in a hub that threads enter.

use std::io;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use asb_network::dns::{self, Resolver};
use asb_network::{Network, Removals, machine};
use asb_runtime::Native;
use asb_runtime::rootless::Hub;
use futures::future::BoxFuture;

use crate::failure::with_causes;

/// The network, and the way to where it is.
#[derive(Clone)]
pub struct Hosted {
    network: Network,
    hub: Option<Arc<Joint>>,
}

struct Joint {
    hub: Hub,
    /// Addresses of the machine that are refused there.
    refused: Mutex<Vec<Ipv4Addr>>,
}

impl Deref for Hosted {
    type Target = Network;

    fn deref(&self) -> &Network {
        &self.network
    }
}

impl Hosted {
    /// Opens the network; `used` are the addresses of sandboxes that have an interface already.
    pub async fn open(runtime: &Native, data_dir: &Path, used: Vec<Ipv4Addr>) -> Result<Self, String> {
        let (runtime, directory) = (runtime.clone(), data_dir.to_owned());
        let opened = tokio::task::spawn_blocking(move || {
            let hub = runtime.hub(&directory).map_err(|error| format!("no network namespace: {error}"))?;
            let hub = hub.map(|hub| Arc::new(Joint { hub, refused: Mutex::default() }));
            let open = || Network::open(&directory, &used).map_err(|error| with_causes(&error));
            let opened = match &hub {
                Some(joint) => joint.refuse_machine().and_then(|()| joint.run(open)?),
                None => open(),
            };
            match opened {
                Ok(network) => Ok(Self { network, hub }),
                Err(why) => {
                    if let Some(joint) = hub.filter(|_| used.is_empty()) {
                        joint.close();
                    }
                    Err(why)
                }
            }
        });
        opened.await.expect("opening the network does not panic")
    }

    /// Does something that waits for the kernel where nothing else waits for it.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Network) -> Result<T, asb_network::Error> + Send + 'static,
    ) -> Result<T, String> {
        let Self { network, hub } = self.clone();
        let done = tokio::task::spawn_blocking(move || match hub {
            Some(joint) => {
                joint.refuse_machine()?;
                joint.hub.mend();
                joint.run(|| work(&network))?.map_err(|error| with_causes(&error))
            }
            None => work(&network).map_err(|error| with_causes(&error)),
        });
        done.await.expect("the network does not panic")
    }

    /// Listens for questions of sandboxes, if the port is free. Others are asked from where the machine is.
    pub async fn resolve(&self, resolver: Resolver) -> io::Result<BoxFuture<'static, ()>> {
        let Some(joint) = self.hub.clone() else { return Ok(Box::pin(dns::serve(resolver).await?)) };
        let runtime = tokio::runtime::Handle::current();
        let bound = tokio::task::spawn_blocking(move || {
            // Sockets belong to where the thread is that makes them.
            joint.hub.run(|| runtime.block_on(dns::serve(resolver)))?
        });
        Ok(Box::pin(bound.await.map_err(io::Error::other)??))
    }

    /// Why nothing leads outside, if so.
    pub fn closed(&self) -> Option<String> {
        self.hub.as_ref().and_then(|joint| joint.hub.closed())
    }

    /// Tells when rules are removed.
    pub fn removals(&self) -> io::Result<Removals> {
        let Some(joint) = &self.hub else { return Removals::watch() };
        let runtime = tokio::runtime::Handle::current();
        joint.hub.run(|| {
            let _entered = runtime.enter();
            Removals::watch()
        })?
    }

    /// Removes every trace. For when no sandbox is left.
    pub async fn close(&self) -> Result<(), String> {
        let closed = self.blocking(|network| network.clone().close()).await;
        if let Some(joint) = self.hub.clone() {
            let ended = tokio::task::spawn_blocking(move || joint.close()).await;
            ended.expect("closing the hub does not panic");
        }
        closed
    }
}

impl Joint {
    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, String> {
        self.hub.run(work).map_err(|error| format!("the network cannot be entered: {error}"))
    }

    /// Keeps sandboxes off the machine, whatever addresses it has by now.
    fn refuse_machine(&self) -> Result<(), String> {
        let failed = |error: io::Error| format!("the machine's addresses cannot be refused: {error}");
        let addresses = machine::addresses().map_err(failed)?;
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if *refused != addresses {
            self.run(|| machine::refuse(&addresses))?.map_err(failed)?;
            *refused = addresses;
        }
        Ok(())
    }

    fn close(&self) {
        if let Err(error) = self.hub.close() {
            tracing::warn!(%error, "the network namespace of sandboxes was not removed");
        }
    }
}
