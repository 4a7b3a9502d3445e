//! Members of warm pools get their `sandboxd` ahead, so that the first command after a claim does not wait for its start.

use asb_runtime::{SANDBOXD_PORTS, Sandbox};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::container::Slot;
use crate::failure::with_causes;

/// Set by the controllers on Pods that wait in a pool.
const POOL_LABEL: &str = "agents.x-k8s.io/warm-pool-sandbox";

/// Starts `sandboxd` beside the main process, in the background.
///
/// Without it the first connection does the same, so a failure here costs only time.
pub fn prewarm(pod: &Pod, slot: Slot, sandbox: &Sandbox) {
    // Connections into a Pod are made by its first container.
    if slot != Slot::Main(0) || !slot.of(pod).is_some_and(|container| is_wanted(pod, container)) {
        return;
    }
    let sandbox = sandbox.clone();
    tokio::spawn(async move {
        if let Err(error) = sandbox.dial_sandboxd().await {
            tracing::debug!(sandbox = %sandbox.id(), error = with_causes(&error), "failed to start sandboxd ahead");
        }
    });
}

/// True for a pool member that does not serve one of `sandboxd`'s ports itself.
fn is_wanted(pod: &Pod, container: &Container) -> bool {
    let of_pool = pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(POOL_LABEL));
    let own = |port: i32| SANDBOXD_PORTS.iter().any(|of_sandboxd| i32::from(*of_sandboxd) == port);
    of_pool && !container.ports.iter().flatten().any(|port| own(port.container_port))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wanted(label: &str, ports: Value) -> bool {
        let pod = serde_json::from_value(json!({"metadata": {"labels": {label: "x"}}})).unwrap();
        is_wanted(&pod, &serde_json::from_value(json!({"name": "main", "ports": ports})).unwrap())
    }

    #[test]
    fn only_pool_members_without_a_runtime_of_their_own_are_prewarmed() {
        assert!(wanted(POOL_LABEL, json!([])));
        assert!(wanted(POOL_LABEL, json!([{"containerPort": 80}])));
        assert!(!wanted(POOL_LABEL, json!([{"containerPort": 80}, {"containerPort": 8888}])));
        assert!(!wanted("app", json!([])));
    }
}
