//! The SandboxClaim definition.

use serde_json::{Value, json};

use super::parts::*;
use super::{Definition, Version};
use crate::EXTENSIONS_GROUP;

const ABOUT: &str =
    "A request for one sandbox, served from a pool of sandboxes that already run if possible.";

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
    let mut spec = json!({"type": "object", "description": "Which sandbox is wanted, and for how long.", "properties": {
        "lifecycle": lifecycle(),
        "additionalPodMetadata": metadata(
            "Labels and annotations to add to the Pod of the sandbox. A key that the template sets to another value is an error.",
            &["labels", "annotations"],
        ),
        "env": {
            "type": "array", "items": env(), "x-kubernetes-list-type": "atomic",
            "description": "Environment variables for the sandbox, if the template allows them. A claim with variables gets a \
                            new sandbox, not one from the pool.",
        },
    }});
    let status = json!({"type": "object", "description": "What the controller observed.", "properties": {
        "conditions": conditions("The state of the claim: Ready, and Finished once its sandbox has ended."),
        "sandbox": {"type": "object", "description": "The sandbox that the claim has.", "properties": {
            "name": text("Name of the Sandbox. It may differ from the name of the claim."),
            "podIPs": texts("Addresses of its Pod, the IPv4 address first."),
            "serviceFQDN": text("Full DNS name of its Service, if it has one."),
        }},
    }});
    let fields = &mut spec["properties"];
    match version {
        Version::V1beta1 => {
            fields["warmPoolRef"] = name_ref(
                "The pool that the sandbox is taken from. If none of its sandboxes can be used, one is created from the pool's template.",
                "Name of a SandboxWarmPool in the same namespace.",
            );
            fields["volumeClaimTemplates"] = volume_claim_templates(
                "PersistentVolumeClaims for the sandbox beside those of the template, if the template allows them. A claim \
                 with such templates gets a new sandbox, not one from the pool.",
            );
            spec["required"] = json!(["warmPoolRef"]);
            let sandbox = json!({"name": "Sandbox", "type": "string", "jsonPath": ".status.sandbox.name"});
            json!({
                "additionalPrinterColumns":
                    [ready_column("Ready", "status"), sandbox, ready_column("Reason", "reason"), age()],
                "schema": root(ABOUT, spec, Some(status)),
                "subresources": {"status": {}},
            })
        }
        Version::V1alpha1 => {
            fields["sandboxTemplateRef"] = name_ref(
                "The template that the sandbox is created from.",
                "Name of a SandboxTemplate in the same namespace.",
            );
            fields["warmpool"] = text(
                "Name of the pool that the sandbox is taken from; default for any pool of the template, none for no pool.",
            );
            fields["warmpool"]["default"] = "default".into();
            spec["required"] = json!(["sandboxTemplateRef"]);
            json!({"schema": root(ABOUT, spec, Some(status)), "subresources": {"status": {}}})
        }
    }
}

fn lifecycle() -> Value {
    json!({
        "type": "object",
        "description": "When the claim expires, and what happens then. If absent, the claimLifecycle of the pool applies.",
        "properties": {
            "shutdownTime": date_time("When the claim expires, such as 2026-01-31T12:00:00Z."),
            "ttlSecondsAfterFinished": count("Seconds from the end of the sandbox until the claim expires."),
            "shutdownPolicy": choice(
                "What happens to a claim that expires: Delete removes it with its sandbox, DeleteForeground removes the \
                 sandbox first, Retain (the default) keeps the claim and deletes the sandbox.",
                "Retain",
                &["Delete", "DeleteForeground", "Retain"],
            ),
        },
    })
}

fn env() -> Value {
    json!({"type": "object", "required": ["name", "value"], "properties": {
        "name": text("Name of the variable."),
        "value": text("Value of the variable."),
        "containerName": text("Name of the container that gets the variable. If absent, the first regular container."),
    }})
}
