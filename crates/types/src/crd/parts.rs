//! The schemas that several kinds share.

use serde_json::{Value, json};

use crate::schemas;

/// A schema with a sentence about the field, which `kubectl explain` prints.
pub(super) fn about(description: &str, mut schema: Value) -> Value {
    schema["description"] = description.into();
    schema
}

pub(super) fn root(description: &str, spec: Value, status: Option<Value>) -> Value {
    // The schema of `metadata` at the root may say nothing: it is the same for all kinds.
    let mut root = json!({"type": "object", "required": ["spec"], "description": description, "properties": {
        "apiVersion": text("The API group and version of this object, such as agents.x-k8s.io/v1beta1."),
        "kind": text("The kind of this object, in CamelCase."),
        "metadata": {"type": "object"},
        "spec": spec,
    }});
    if let Some(status) = status {
        root["properties"]["status"] = status;
    }
    json!({"openAPIV3Schema": root})
}

/// The part of `spec` that Sandbox and SandboxTemplate share.
pub(super) fn blueprint(description: &str) -> Value {
    json!({"type": "object", "required": ["podTemplate"], "description": description, "properties": {
        "podTemplate": {
            "type": "object", "required": ["spec"],
            "description": "The Pod that the sandbox runs in.",
            "properties": {
                "metadata": metadata("Labels and annotations that the Pod gets.", &["labels", "annotations"]),
                "spec": about(
                    "The PodSpec of core/v1. See `kubectl explain pod.spec` for its fields.",
                    parse(schemas::POD_SPEC),
                ),
            },
        },
        "podFailurePolicy": {
            "type": "string", "enum": ["Keep", "Recreate"],
            "description": "What happens to a Pod that failed: Keep (the default) leaves it, Recreate replaces it after \
                            a pause that grows with every failure. Volumes are kept either way.",
        },
        "service": flag(
            "Whether the sandbox has a headless Service, and so a stable DNS name. With true the Service is created, \
             with false it is deleted; if absent, an existing Service is kept.",
        ),
        "volumeClaimTemplates": volume_claim_templates(
            "PersistentVolumeClaims that each sandbox gets of its own. Containers mount them by the template's name. \
             They outlive the Pod and are deleted with the sandbox.",
        ),
    }})
}

pub(super) fn volume_claim_templates(description: &str) -> Value {
    json!({"type": "array", "x-kubernetes-list-type": "atomic", "description": description, "items": {
        "type": "object", "required": ["spec"], "properties": {
            "metadata": metadata(
                "Name, labels and annotations of the claim.",
                &["name", "labels", "annotations"],
            ),
            "spec": about(
                "The PersistentVolumeClaimSpec of core/v1. See `kubectl explain pvc.spec` for its fields.",
                parse(schemas::VOLUME_CLAIM_SPEC),
            ),
        },
    }})
}

pub(super) fn metadata(description: &str, fields: &[&str]) -> Value {
    let map = |about: &str| json!({"type": "object", "additionalProperties": {"type": "string"}, "description": about});
    let field = |name: &&str| {
        let schema = match *name {
            "name" => text("Name of the template. The claim is named TEMPLATE-SANDBOX."),
            "labels" => map("Labels to add. Keys of agents.x-k8s.io and its subdomains are reserved."),
            _ => map("Annotations to add. Keys of agents.x-k8s.io and its subdomains are reserved."),
        };
        ((*name).to_owned(), schema)
    };
    let properties: serde_json::Map<_, _> = fields.iter().map(field).collect();
    json!({"type": "object", "properties": properties, "description": description})
}

pub(super) fn conditions(description: &str) -> Value {
    json!({"type": "array", "description": description, "items": {
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": date_time("When the status of the condition last changed."),
            "message": {
                "type": "string", "maxLength": 32768,
                "description": "Details for people. May be empty.",
            },
            "observedGeneration": {
                "type": "integer", "format": "int64", "minimum": 0,
                "description": "The metadata.generation that the condition was computed from. If it is lower than the \
                                current one, the condition is out of date.",
            },
            "reason": {
                "type": "string", "minLength": 1, "maxLength": 1024,
                "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                "description": "Why the condition has this status, in one word for programs.",
            },
            "status": {
                "type": "string", "enum": ["True", "False", "Unknown"],
                "description": "True, False or Unknown.",
            },
            "type": {
                "type": "string", "maxLength": 316,
                "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?\
                            (([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                "description": "What the condition is about, such as Ready. Each type occurs once.",
            },
        },
    }})
}

pub(super) fn choice(description: &str, default: &str, values: &[&str]) -> Value {
    json!({"type": "string", "default": default, "enum": values, "description": description})
}

pub(super) fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

pub(super) fn flag(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

pub(super) fn date_time(description: &str) -> Value {
    json!({"type": "string", "format": "date-time", "description": description})
}

/// A reference to an object of the same namespace.
pub(super) fn name_ref(description: &str, name: &str) -> Value {
    json!({"type": "object", "required": ["name"], "description": description, "properties": {"name": text(name)}})
}

pub(super) fn age() -> Value {
    json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
}

pub(super) fn parse(schema: &str) -> Value {
    serde_json::from_str(schema).expect("the schemas of this crate are JSON")
}

/// A list of one of a kind's own texts, such as addresses.
pub(super) fn texts(description: &str) -> Value {
    json!({"type": "array", "items": {"type": "string"}, "description": description})
}

pub(super) fn integer(description: &str, format: &str) -> Value {
    json!({"type": "integer", "format": format, "description": description})
}

/// An integer of 32 bits that is not negative.
pub(super) fn count(description: &str) -> Value {
    json!({"type": "integer", "format": "int32", "minimum": 0, "description": description})
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
