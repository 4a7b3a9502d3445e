//! The Sandbox definition.

use serde_json::{Value, json};

use super::parts::*;
use super::{Definition, Version};
use crate::GROUP;

pub(super) fn definition() -> Definition {
    Definition { group: GROUP, kind: "Sandbox", plural: "sandboxes", short: "sandbox", schema }
}

fn schema(version: Version) -> Value {
    let mut spec = blueprint();
    spec["properties"]["shutdownPolicy"] = choice("Retain", &["Delete", "Retain"]);
    spec["properties"]["shutdownTime"] = date_time();
    let mut status = json!({"type": "object", "properties": {
        "conditions": conditions(),
        "podIPs": texts(),
        "selector": {"type": "string"},
        "service": {"type": "string"},
        "serviceFQDN": {"type": "string"},
    }});
    match version {
        Version::V1beta1 => {
            spec["properties"]["operatingMode"] = choice("Running", &["Running", "Suspended"]);
            spec["x-kubernetes-validations"] = json!([{
                "message": "volumeClaimTemplates is immutable",
                "rule": "has(self.volumeClaimTemplates) == has(oldSelf.volumeClaimTemplates) && \
                         (!has(self.volumeClaimTemplates) || self.volumeClaimTemplates == oldSelf.volumeClaimTemplates)",
            }]);
            status["properties"]["nodeName"] = json!({"type": "string"});
            json!({
                "additionalPrinterColumns": [ready_column("Ready", "status"), ready_column("Reason", "reason"), age()],
                "schema": root(spec, Some(status)),
                "subresources": {"status": {}},
            })
        }
        Version::V1alpha1 => {
            let mut replicas = integer("int32");
            replicas["minimum"] = 0.into();
            status["properties"]["replicas"] = replicas.clone();
            replicas["maximum"] = 1.into();
            replicas["default"] = 1.into();
            spec["properties"]["replicas"] = replicas;
            json!({"schema": root(spec, Some(status)), "subresources": scalable()})
        }
    }
}
