//! The schemas that several kinds share.

use serde_json::{Value, json};

use crate::schemas;

pub(super) fn root(spec: Value, status: Option<Value>) -> Value {
    let mut root = json!({"type": "object", "required": ["spec"], "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": spec,
    }});
    if let Some(status) = status {
        root["properties"]["status"] = status;
    }
    json!({"openAPIV3Schema": root})
}

/// The part of `spec` that Sandbox and SandboxTemplate share.
pub(super) fn blueprint() -> Value {
    json!({"type": "object", "required": ["podTemplate"], "properties": {
        "podTemplate": {"type": "object", "required": ["spec"], "properties": {
            "metadata": metadata(&["labels", "annotations"]),
            "spec": parse(schemas::POD_SPEC),
        }},
        "podFailurePolicy": {
            "type": "string", "enum": ["Keep", "Recreate"],
            "description": "What becomes of a Pod that failed: Keep it (the default), or Recreate it after a pause \
                            that grows with every failure. Volumes are kept either way.",
        },
        "service": {"type": "boolean"},
        "volumeClaimTemplates": volume_claim_templates(),
    }})
}

pub(super) fn volume_claim_templates() -> Value {
    json!({"type": "array", "x-kubernetes-list-type": "atomic", "items": {
        "type": "object", "required": ["spec"], "properties": {
            "metadata": metadata(&["name", "labels", "annotations"]),
            "spec": parse(schemas::VOLUME_CLAIM_SPEC),
        },
    }})
}

pub(super) fn metadata(fields: &[&str]) -> Value {
    let field = |name: &&str| match *name {
        "name" => ("name".to_owned(), json!({"type": "string"})),
        map => (map.to_owned(), json!({"type": "object", "additionalProperties": {"type": "string"}})),
    };
    let properties: serde_json::Map<_, _> = fields.iter().map(field).collect();
    json!({"type": "object", "properties": properties})
}

pub(super) fn conditions() -> Value {
    json!({"type": "array", "items": {
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": date_time(),
            "message": {"type": "string", "maxLength": 32768},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "reason": {
                "type": "string", "minLength": 1, "maxLength": 1024,
                "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            },
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "type": {
                "type": "string", "maxLength": 316,
                "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?\
                            (([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
            },
        },
    }})
}

pub(super) fn choice(default: &str, values: &[&str]) -> Value {
    json!({"type": "string", "default": default, "enum": values})
}

pub(super) fn date_time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

pub(super) fn name_ref() -> Value {
    json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}})
}

pub(super) fn age() -> Value {
    json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
}

pub(super) fn parse(schema: &str) -> Value {
    serde_json::from_str(schema).expect("the schemas of this crate are JSON")
}

/// A list of one of a kind's own texts, such as addresses.
pub(super) fn texts() -> Value {
    json!({"type": "array", "items": {"type": "string"}})
}

pub(super) fn integer(format: &str) -> Value {
    json!({"type": "integer", "format": format})
}

/// `status`, and `scale` by the usual paths.
pub(super) fn scalable() -> Value {
    json!({
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    })
}

/// A column that shows a field of the Ready condition.
pub(super) fn ready_column(name: &str, field: &str) -> Value {
    let path = format!(".status.conditions[?(@.type=='Ready')].{field}");
    json!({"name": name, "type": "string", "jsonPath": path})
}
