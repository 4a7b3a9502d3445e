//! The SandboxClaim definition.

use serde_json::{Value, json};

use super::parts::*;
use super::{Definition, Version};
use crate::EXTENSIONS_GROUP;

pub(super) fn definition() -> Definition {
    Definition {
        group: EXTENSIONS_GROUP,
        kind: "SandboxClaim",
        plural: "sandboxclaims",
        short: "sandboxclaim",
        schema,
    }
}

fn schema(version: Version) -> Value {
    let mut spec = json!({"type": "object", "properties": {
        "lifecycle": lifecycle(),
        "additionalPodMetadata": metadata(&["labels", "annotations"]),
        "env": {"type": "array", "items": env(), "x-kubernetes-list-type": "atomic"},
    }});
    let status = json!({"type": "object", "properties": {
        "conditions": conditions(),
        "sandbox": {"type": "object", "properties": {
            "name": {"type": "string"}, "podIPs": texts(), "serviceFQDN": {"type": "string"},
        }},
    }});
    let fields = &mut spec["properties"];
    match version {
        Version::V1beta1 => {
            fields["warmPoolRef"] = name_ref();
            fields["volumeClaimTemplates"] = volume_claim_templates();
            spec["required"] = json!(["warmPoolRef"]);
            let sandbox = json!({"name": "Sandbox", "type": "string", "jsonPath": ".status.sandbox.name"});
            json!({
                "additionalPrinterColumns":
                    [ready_column("Ready", "status"), sandbox, ready_column("Reason", "reason"), age()],
                "schema": root(spec, Some(status)),
                "subresources": {"status": {}},
            })
        }
        Version::V1alpha1 => {
            fields["sandboxTemplateRef"] = name_ref();
            fields["warmpool"] = json!({"type": "string", "default": "default"});
            spec["required"] = json!(["sandboxTemplateRef"]);
            json!({"schema": root(spec, Some(status)), "subresources": {"status": {}}})
        }
    }
}

fn lifecycle() -> Value {
    let mut ttl = integer("int32");
    ttl["minimum"] = 0.into();
    json!({"type": "object", "properties": {
        "shutdownTime": date_time(),
        "ttlSecondsAfterFinished": ttl,
        "shutdownPolicy": choice("Retain", &["Delete", "DeleteForeground", "Retain"]),
    }})
}

fn env() -> Value {
    json!({"type": "object", "required": ["name", "value"], "properties": {
        "name": {"type": "string"}, "value": {"type": "string"}, "containerName": {"type": "string"},
    }})
}
