//! The CustomResourceDefinitions, put together from code and from the schemas of [`crate::schemas`].
//!
//! `cargo xtask crds` writes them to `deploy/crds`; a test there fails when the files are not current.

use serde_json::{Value, json};

use crate::{EXTENSIONS_GROUP, GROUP, VERSION, schemas};

/// All four definitions, in the order in which they are installed.
pub fn all() -> Vec<Value> {
    vec![sandbox(), template(), warm_pool(), claim()]
}

/// `<plural>.<group>` of a definition: its object name.
pub fn name(definition: &Value) -> &str {
    definition["metadata"]["name"].as_str().expect("every definition here has a name")
}

fn sandbox() -> Value {
    let mut spec = blueprint();
    spec["properties"]["operatingMode"] = choice("Running", &["Running", "Suspended"]);
    spec["properties"]["shutdownPolicy"] = choice("Retain", &["Delete", "Retain"]);
    spec["properties"]["shutdownTime"] = date_time();
    spec["x-kubernetes-validations"] = json!([{
        "message": "volumeClaimTemplates is immutable",
        "rule": "has(self.volumeClaimTemplates) == has(oldSelf.volumeClaimTemplates) && \
                 (!has(self.volumeClaimTemplates) || self.volumeClaimTemplates == oldSelf.volumeClaimTemplates)",
    }]);
    let status = json!({"type": "object", "properties": {
        "conditions": conditions(),
        "nodeName": {"type": "string"},
        "podIPs": {"type": "array", "items": {"type": "string"}},
        "selector": {"type": "string"},
        "service": {"type": "string"},
        "serviceFQDN": {"type": "string"},
    }});
    let columns = json!([
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
        {"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"},
        age(),
    ]);
    Definition { group: GROUP, kind: "Sandbox", plural: "sandboxes", short: "sandbox" }.with(json!({
        "additionalPrinterColumns": columns,
        "schema": schema(spec, Some(status)),
        "subresources": {"status": {}},
    }))
}

fn template() -> Value {
    let mut spec = blueprint();
    spec["properties"]["networkPolicy"] = parse(schemas::NETWORK_POLICY);
    spec["properties"]["networkPolicyManagement"] = choice("Managed", &["Managed", "Unmanaged"]);
    spec["properties"]["envVarsInjectionPolicy"] =
        choice("Disallowed", &["Allowed", "Overrides", "Disallowed"]);
    spec["properties"]["volumeClaimTemplatesPolicy"] =
        choice("Disallowed", &["Disallowed", "Allowed", "Overrides"]);
    Definition {
        group: EXTENSIONS_GROUP,
        kind: "SandboxTemplate",
        plural: "sandboxtemplates",
        short: "sandboxtemplate",
    }
    .with(json!({"schema": schema(spec, None)}))
}

fn warm_pool() -> Value {
    let spec = json!({"type": "object", "required": ["sandboxTemplateRef"], "properties": {
        "replicas": {"type": "integer", "format": "int32", "minimum": 0, "default": 1},
        "sandboxTemplateRef": name_ref(),
        "updateStrategy": {"type": "object", "properties": {
            "type": choice("OnReplenish", &["Recreate", "OnReplenish"]),
        }},
    }});
    let status = json!({"type": "object", "properties": {
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        "readyReplicas": {"type": "integer", "format": "int32"},
        "replicas": {"type": "integer", "format": "int32"},
        "selector": {"type": "string"},
    }});
    let columns = json!([
        {"name": "Ready", "type": "integer", "jsonPath": ".status.readyReplicas"},
        {"name": "Desired", "type": "integer", "jsonPath": ".spec.replicas"},
        age(),
    ]);
    Definition { group: EXTENSIONS_GROUP, kind: "SandboxWarmPool", plural: "sandboxwarmpools", short: "swp" }
        .with(json!({
            "additionalPrinterColumns": columns,
            "schema": schema(spec, Some(status)),
            "subresources": {
                "status": {},
                "scale": {
                    "specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector",
                },
            },
        }))
}

fn claim() -> Value {
    let env = json!({"type": "object", "required": ["name", "value"], "properties": {
        "name": {"type": "string"}, "value": {"type": "string"}, "containerName": {"type": "string"},
    }});
    let lifecycle = json!({"type": "object", "properties": {
        "shutdownTime": date_time(),
        "ttlSecondsAfterFinished": {"type": "integer", "format": "int32", "minimum": 0},
        "shutdownPolicy": choice("Retain", &["Delete", "DeleteForeground", "Retain"]),
    }});
    let spec = json!({"type": "object", "required": ["warmPoolRef"], "properties": {
        "warmPoolRef": name_ref(),
        "lifecycle": lifecycle,
        "additionalPodMetadata": metadata(&["labels", "annotations"]),
        "env": {"type": "array", "items": env, "x-kubernetes-list-type": "atomic"},
        "volumeClaimTemplates": volume_claim_templates(),
    }});
    let status = json!({"type": "object", "properties": {
        "conditions": conditions(),
        "sandbox": {"type": "object", "properties": {
            "name": {"type": "string"},
            "podIPs": {"type": "array", "items": {"type": "string"}},
            "serviceFQDN": {"type": "string"},
        }},
    }});
    let columns = json!([
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
        {"name": "Sandbox", "type": "string", "jsonPath": ".status.sandbox.name"},
        {"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"},
        age(),
    ]);
    Definition {
        group: EXTENSIONS_GROUP,
        kind: "SandboxClaim",
        plural: "sandboxclaims",
        short: "sandboxclaim",
    }
    .with(json!({
        "additionalPrinterColumns": columns,
        "schema": schema(spec, Some(status)),
        "subresources": {"status": {}},
    }))
}

struct Definition {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
}

impl Definition {
    /// The whole definition around what differs from kind to kind.
    fn with(self, mut version: Value) -> Value {
        version["name"] = json!(VERSION);
        version["served"] = json!(true);
        version["storage"] = json!(true);
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{}.{}", self.plural, self.group)},
            "spec": {
                "group": self.group,
                "names": {
                    "kind": self.kind,
                    "listKind": format!("{}List", self.kind),
                    "plural": self.plural,
                    "singular": self.kind.to_lowercase(),
                    "shortNames": [self.short],
                },
                "scope": "Namespaced",
                "versions": [version],
            },
        })
    }
}

fn schema(spec: Value, status: Option<Value>) -> Value {
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
fn blueprint() -> Value {
    json!({"type": "object", "required": ["podTemplate"], "properties": {
        "podTemplate": {"type": "object", "required": ["spec"], "properties": {
            "metadata": metadata(&["labels", "annotations"]),
            "spec": parse(schemas::POD_SPEC),
        }},
        "service": {"type": "boolean"},
        "volumeClaimTemplates": volume_claim_templates(),
    }})
}

fn volume_claim_templates() -> Value {
    json!({"type": "array", "x-kubernetes-list-type": "atomic", "items": {
        "type": "object", "required": ["spec"], "properties": {
            "metadata": metadata(&["name", "labels", "annotations"]),
            "spec": parse(schemas::VOLUME_CLAIM_SPEC),
        },
    }})
}

fn metadata(fields: &[&str]) -> Value {
    let field = |name: &&str| match *name {
        "name" => ("name".to_owned(), json!({"type": "string"})),
        map => (map.to_owned(), json!({"type": "object", "additionalProperties": {"type": "string"}})),
    };
    let properties: serde_json::Map<_, _> = fields.iter().map(field).collect();
    json!({"type": "object", "properties": properties})
}

fn conditions() -> Value {
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

fn choice(default: &str, values: &[&str]) -> Value {
    json!({"type": "string", "default": default, "enum": values})
}

fn date_time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

fn name_ref() -> Value {
    json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}})
}

fn age() -> Value {
    json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
}

fn parse(schema: &str) -> Value {
    serde_json::from_str(schema).expect("the schemas of this crate are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_is_named_after_its_plural_and_group() {
        let names: Vec<_> = all().iter().map(|definition| name(definition).to_owned()).collect();
        assert_eq!(
            names,
            [
                "sandboxes.agents.x-k8s.io",
                "sandboxtemplates.extensions.agents.x-k8s.io",
                "sandboxwarmpools.extensions.agents.x-k8s.io",
                "sandboxclaims.extensions.agents.x-k8s.io",
            ]
        );
    }
}
