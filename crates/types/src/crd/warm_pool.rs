//! The SandboxWarmPool definition.

use serde_json::{Value, json};

use super::parts::*;
use super::{Definition, Version};
use crate::EXTENSIONS_GROUP;

pub(super) fn definition() -> Definition {
    Definition {
        group: EXTENSIONS_GROUP,
        kind: "SandboxWarmPool",
        plural: "sandboxwarmpools",
        short: "swp",
        schema,
    }
}

fn schema(version: Version) -> Value {
    let mut replicas = integer("int32");
    replicas["minimum"] = 0.into();
    let mut spec = json!({"type": "object", "required": ["sandboxTemplateRef"], "properties": {
        "sandboxTemplateRef": name_ref(),
        "updateStrategy": {"type": "object", "properties": {
            "type": choice("OnReplenish", &["Recreate", "OnReplenish"]),
        }},
    }});
    let mut status = json!({"type": "object", "properties": {
        "readyReplicas": integer("int32"),
        "replicas": integer("int32"),
        "selector": {"type": "string"},
    }});
    match version {
        Version::V1beta1 => {
            replicas["default"] = 1.into();
            let mut observed = integer("int64");
            observed["minimum"] = 0.into();
            status["properties"]["observedGeneration"] = observed;
        }
        Version::V1alpha1 => spec["required"] = json!(["replicas", "sandboxTemplateRef"]),
    }
    spec["properties"]["replicas"] = replicas;
    json!({
        "additionalPrinterColumns": [
            {"name": "Ready", "type": "integer", "jsonPath": ".status.readyReplicas"},
            {"name": "Desired", "type": "integer", "jsonPath": ".spec.replicas"},
            age(),
        ],
        "schema": root(spec, Some(status)),
        "subresources": scalable(),
    })
}
