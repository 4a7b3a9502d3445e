//! The SandboxTemplate definition.

use serde_json::{Value, json};

use super::parts::*;
use super::{Definition, Version};
use crate::{EXTENSIONS_GROUP, schemas};

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
    let mut spec = blueprint();
    let fields = &mut spec["properties"];
    fields["networkPolicy"] = parse(schemas::NETWORK_POLICY);
    fields["networkPolicyManagement"] = choice("Managed", &["Managed", "Unmanaged"]);
    fields["envVarsInjectionPolicy"] = choice("Disallowed", &["Allowed", "Overrides", "Disallowed"]);
    if version == Version::V1beta1 {
        fields["volumeClaimTemplatesPolicy"] = choice("Disallowed", &["Disallowed", "Allowed", "Overrides"]);
    }
    json!({"schema": root(spec, None)})
}
