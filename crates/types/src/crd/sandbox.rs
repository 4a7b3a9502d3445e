//! The Sandbox definition.

use serde_json::{Value, json};

use super::parts::*;
use super::{Definition, Version};
use crate::GROUP;

const ABOUT: &str =
    "A sandbox: one isolated environment with a name, an address and volumes that outlive its Pod.";

pub(super) fn definition() -> Definition {
    Definition { group: GROUP, kind: "Sandbox", plural: "sandboxes", short: "sandbox", schema }
}

fn schema(version: Version) -> Value {
    let mut spec = blueprint("What the sandbox should be.");
    spec["properties"]["shutdownPolicy"] = choice(
        "What happens to the Sandbox object at shutdownTime: Delete removes it, Retain (the default) keeps it. The Pod \
         and the Service are deleted either way.",
        "Retain",
        &["Delete", "Retain"],
    );
    spec["properties"]["shutdownTime"] =
        date_time("When the sandbox expires, such as 2026-01-31T12:00:00Z. If absent, it never expires.");
    let mut status = json!({"type": "object", "description": "What the controller observed.", "properties": {
        "conditions": conditions(
            "The state of the sandbox: Ready, Suspended, PodScheduled while there is a Pod, and Finished once the Pod \
             has ended.",
        ),
        "podIPs": texts("Addresses of the Pod, the IPv4 address first."),
        "selector": text("A label selector that matches the Pod of the sandbox."),
        "service": text("Name of the headless Service."),
        "serviceFQDN": text("Full DNS name of the Service."),
    }});
    match version {
        Version::V1beta1 => {
            spec["properties"]["operatingMode"] = choice(
                "Running (the default), or Suspended: the Pod is deleted; identity and volumes are kept for the next run.",
                "Running",
                &["Running", "Suspended"],
            );
            spec["x-kubernetes-validations"] = json!([{
                "message": "volumeClaimTemplates is immutable",
                "rule": "has(self.volumeClaimTemplates) == has(oldSelf.volumeClaimTemplates) && \
                         (!has(self.volumeClaimTemplates) || self.volumeClaimTemplates == oldSelf.volumeClaimTemplates)",
            }]);
            status["properties"]["nodeName"] = text("Name of the node that the Pod is on.");
            json!({
                "additionalPrinterColumns": [ready_column("Ready", "status"), ready_column("Reason", "reason"), age()],
                "schema": root(ABOUT, spec, Some(status)),
                "subresources": {"status": {}},
            })
        }
        Version::V1alpha1 => {
            status["properties"]["replicas"] = count("The number of Pods: 0 or 1.");
            let mut replicas = count("1 (the default) to run the sandbox, 0 to suspend it.");
            replicas["maximum"] = 1.into();
            replicas["default"] = 1.into();
            spec["properties"]["replicas"] = replicas;
            json!({"schema": root(ABOUT, spec, Some(status)), "subresources": scalable()})
        }
    }
}
