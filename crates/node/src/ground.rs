//! What a node stands on: images, runtime, the sandboxes that run already, and the network.
//!
//! None of it needs the API, which is opened at the same time.

use std::sync::Arc;

use asb_runtime::{Images, Native, Sandbox, powers};

use crate::disk::Disk;
use crate::network::Wires;
use crate::node::{Config, Error};
use crate::pod::is_wired;
use crate::volume::HostPaths;

pub struct Ground {
    pub(crate) config: Config,
    pub(crate) disk: Arc<Disk>,
    pub(crate) host_paths: HostPaths,
    pub(crate) images: Images,
    pub(crate) runtime: Native,
    pub(crate) wires: Wires,
    pub(crate) adopted: Vec<Sandbox>,
}

impl Ground {
    /// Opens everything below the data directory. No sandbox is started, and none that runs is touched.
    pub async fn open(config: Config) -> Result<Self, Error> {
        if config.allow_privileged && powers::here().is_rootless() {
            return Err(Error::Privileged);
        }
        let host_paths = HostPaths::new(&config.host_paths, &config.data_dir).map_err(Error::HostPath)?;
        let images = {
            let (path, registries) = (config.data_dir.join("images"), config.registries.clone());
            tokio::task::spawn_blocking(move || Images::with(&path, registries))
        };
        let sandboxes = config.data_dir.join("sandboxes");
        let runtime = tokio::task::spawn_blocking(move || Native::open(&sandboxes));
        let runtime = runtime.await.expect("opening the runtime does not panic").map_err(Error::Runtime)?;
        let adopted = runtime.list().await.map_err(Error::Adopt)?;
        let wires = open_wires(&runtime, &config, &adopted).await;
        let images = images.await.expect("opening the images does not panic").map_err(Error::Images);
        let disk = Arc::new(Disk::new(config.data_dir.clone(), config.disk_floor));
        match images {
            Ok(images) => Ok(Self { config, disk, host_paths, images, runtime, wires, adopted }),
            Err(error) => {
                close(&wires, &adopted).await;
                Err(error)
            }
        }
    }

    /// Leaves nothing behind that a sandbox does not need. For when there will be no node.
    pub async fn close(self) {
        close(&self.wires, &self.adopted).await;
    }
}

async fn close(wires: &Wires, adopted: &[Sandbox]) {
    if adopted.is_empty() {
        wires.close().await;
    }
}

/// The network, with what earlier sandboxes have of it.
async fn open_wires(runtime: &Native, config: &Config, adopted: &[Sandbox]) -> Wires {
    let (wired, alone): (Vec<_>, Vec<_>) = adopted.iter().partition(|sandbox| is_wired(sandbox));
    let addresses =
        |of: Vec<&Sandbox>| of.iter().filter_map(|sandbox| sandbox.spec().address).collect::<Vec<_>>();
    Wires::open(runtime, &config.data_dir, addresses(wired), &addresses(alone)).await
}
