//! The SandboxWarmPool definition.

use serde_json::{Value, json};

use super::parts::*;
use super::{Definition, Version};
use crate::EXTENSIONS_GROUP;

const ABOUT: &str =
    "A number of sandboxes of one template that are kept running, so that claims get one at once.";

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
    let mut replicas =
        count("The number of sandboxes that wait in the pool. Sandboxes of claims do not count.");
    let mut spec = json!({
        "type": "object", "required": ["sandboxTemplateRef"],
        "description": "What the pool should be.",
        "properties": {
            "sandboxTemplateRef": name_ref(
                "The template that the pool creates sandboxes from.",
                "Name of a SandboxTemplate in the same namespace.",
            ),
            "updateStrategy": {
                "type": "object",
                "description": "How the pool follows changes of its template.",
                "properties": {
                    "type": choice(
                        "OnReplenish (the default): only new sandboxes follow the template. Recreate: sandboxes of an older \
                         template are replaced at once. RollingUpdate: they are replaced a few at a time.",
                        "OnReplenish",
                        &["Recreate", "OnReplenish", "RollingUpdate"],
                    ),
                    "rollingUpdate": rolling_update(),
                },
            },
            "claimLifecycle": claim_lifecycle(),
        },
    });
    let mut status = json!({"type": "object", "description": "What the controller observed.", "properties": {
        "readyReplicas": integer("The number of sandboxes in the pool that are Ready.", "int32"),
        "replicas": integer("The number of sandboxes in the pool.", "int32"),
        "selector": text("A label selector that matches the sandboxes of the pool."),
        "updatedReplicas": integer(
            "The number of sandboxes that follow the current template. Only for RollingUpdate.",
            "int32",
        ),
        "conditions": conditions("The state of the pool: Progressing, for RollingUpdate."),
    }});
    match version {
        Version::V1beta1 => {
            replicas["default"] = 1.into();
            let mut observed =
                integer("The metadata.generation that this status was computed from.", "int64");
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
        "schema": root(ABOUT, spec, Some(status)),
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
    json!({"type": "object", "description": "Limits for updateStrategy.type RollingUpdate.", "properties": {
        "maxSurge": amount(
            "How many sandboxes above spec.replicas the pool may have during an update: a number or a percentage. 25% if absent.",
        ),
        "maxUnavailable": amount(
            "How many Ready sandboxes below spec.replicas the pool may have during an update: a number or a percentage. 25% if absent.",
        ),
    }})
}

fn claim_lifecycle() -> Value {
    json!({
        "type": "object",
        "description": "The lifecycle of claims on this pool that have none of their own.",
        "properties": {
            "shutdownAfterSeconds": count("Seconds from the creation of a claim until it expires."),
            "ttlSecondsAfterFinished": count("Seconds from the end of the claim's sandbox until the claim expires."),
            "shutdownPolicy": choice(
                "What happens to a claim that expires: Delete removes it, DeleteForeground removes it after its sandbox, \
                 Retain (the default) keeps it without a sandbox.",
                "Retain",
                &["Delete", "DeleteForeground", "Retain"],
            ),
        },
    })
}
