//! The SandboxTemplate definition.

use serde_json::{Value, json};

use super::parts::*;
use super::{Definition, Version};
use crate::{EXTENSIONS_GROUP, schemas};

const ABOUT: &str = "A blueprint for sandboxes, with the policies for claims and for the network.";

pub(super) fn definition() -> Definition {
    Definition {
        group: EXTENSIONS_GROUP,
        kind: "SandboxTemplate",
        plural: "sandboxtemplates",
        short: "sandboxtemplate",
        schema,
    }
}

fn schema(version: Version) -> Value {
    let mut spec = blueprint("What sandboxes of this template are, and what claims may change.");
    let fields = &mut spec["properties"];
    fields["networkPolicy"] = about(
        "Ingress and egress rules for all sandboxes of the template. If absent, a sandbox reaches public addresses \
         only, and only the router reaches the sandbox. See `kubectl explain networkpolicy.spec` for the fields.",
        parse(schemas::NETWORK_POLICY),
    );
    fields["networkPolicyManagement"] = choice(
        "Managed (the default): the controller writes a NetworkPolicy for the template. Unmanaged: it writes none.",
        "Managed",
        &["Managed", "Unmanaged"],
    );
    fields["envVarsInjectionPolicy"] = choice(
        "Whether claims may set environment variables: Disallowed (the default), Allowed for new names only, or \
         Overrides for names that the template sets as well.",
        "Disallowed",
        &["Allowed", "Overrides", "Disallowed"],
    );
    if version == Version::V1beta1 {
        fields["volumeClaimTemplatesPolicy"] = choice(
            "Whether claims may bring volume claim templates: Disallowed (the default), Allowed for new names only, or \
             Overrides for names that the template has as well.",
            "Disallowed",
            &["Disallowed", "Allowed", "Overrides"],
        );
    }
    json!({"schema": root(ABOUT, spec, None)})
}
