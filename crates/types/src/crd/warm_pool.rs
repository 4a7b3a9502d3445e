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
            "type": choice("OnReplenish", &["Recreate", "OnReplenish", "RollingUpdate"]),
            "rollingUpdate": rolling_update(),
        }},
        "claimLifecycle": claim_lifecycle(),
    }});
    let mut status = json!({"type": "object", "properties": {
        "readyReplicas": integer("int32"),
        "replicas": integer("int32"),
        "selector": {"type": "string"},
        "updatedReplicas": integer("int32"),
        "conditions": conditions(),
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

fn rolling_update() -> Value {
    let amount = |description: &str| {
        json!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 0, "maximum": 100_000, "pattern": "^(100|[1-9]?[0-9])%$",
            "description": description,
        })
    };
    json!({"type": "object", "properties": {
        "maxSurge": amount("Members above the size while members are replaced: a number or a percentage; 25% if absent."),
        "maxUnavailable": amount("Ready members below the size meanwhile: a number or a percentage; 25% if absent."),
    }})
}

fn claim_lifecycle() -> Value {
    let seconds = |description: &str| json!({"type": "integer", "format": "int32", "minimum": 0, "description": description});
    json!({
        "type": "object",
        "description": "What a claim on this pool gets that has no lifecycle of its own.",
        "properties": {
            "shutdownAfterSeconds": seconds("Time from the claim's creation until it expires."),
            "ttlSecondsAfterFinished": seconds("Time from the end of its Sandbox until it expires."),
            "shutdownPolicy": choice("Retain", &["Delete", "DeleteForeground", "Retain"]),
        },
    })
}
