//! Keeps volumes that are files as the API has them: ConfigMaps, Secrets, and what a Pod is told about itself.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::volumes::Sources;
use super::worker::Desired;
use crate::node::Node;
use crate::references::References;

/// Changes come in bunches, and a failed look is not repeated at once.
const PAUSE: Duration = Duration::from_millis(200);

/// Starts to keep the files of a Pod, which are as `references` say, if that is known; `None` when it has none.
pub fn keep(
    node: &Node,
    pod: &Pod,
    desired: watch::Receiver<Desired>,
    references: Option<References>,
) -> Option<AbortOnDropHandle<()>> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let has_files = volumes.into_iter().any(|it| {
        it.config_map.is_some() || it.secret.is_some() || it.downward_api.is_some() || it.projected.is_some()
    });
    has_files.then(|| AbortOnDropHandle::new(tokio::spawn(run(node.clone(), desired, references))))
}

async fn run(node: Node, mut desired: watch::Receiver<Desired>, mut references: Option<References>) {
    let shared = &node.shared;
    loop {
        if let Some(known) = &references {
            tokio::select! {
                () = known.changed(&shared.client) => {}
                changed = desired.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
        let Desired::Present(pod) = desired.borrow_and_update().clone() else { return };
        match References::fetch(&shared.client, &pod).await {
            Ok(fetched) => {
                let sources = Sources { pod: &pod, references: &fetched, ceiling: shared.ceiling };
                shared.volumes.refresh(&sources);
                references = Some(fetched);
            }
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "files of a Pod not looked at");
            }
        }
    }
}
