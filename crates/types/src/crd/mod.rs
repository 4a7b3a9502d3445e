//! The CustomResourceDefinitions, put together from code and from the schemas of [`crate::schemas`].
//!
//! They come in two flavours: both versions with a conversion webhook ([`all`]), and v1beta1 alone
//! ([`v1beta1_only`]). `cargo xtask crds` writes them, as clusters need them ([`for_clusters`]), to `deploy/crds` and
//! `deploy/crds-v1beta1`; a test there fails when the files are not current.

mod claim;
mod parts;
mod sandbox;
mod template;
mod warm_pool;

use serde_json::{Value, json};

use crate::VERSION;
use crate::conversion::V1ALPHA1;

/// Where an API server finds the conversion webhook, unless somebody installs it elsewhere.
pub const WEBHOOK_SERVICE: &str = "agent-sandbox-webhook-service";
pub const WEBHOOK_NAMESPACE: &str = "agent-sandbox-system";
pub const WEBHOOK_PATH: &str = "/convert";

/// All four definitions with both versions, in the order in which they are installed.
pub fn all() -> Vec<Value> {
    definitions().map(Definition::with_both_versions).into()
}

/// All four definitions with the stored version alone: they need no webhook.
pub fn v1beta1_only() -> Vec<Value> {
    definitions().map(Definition::with_the_stored_version).into()
}

/// A definition as it is installed in clusters: their API servers may know fields of a Pod that are newer than our
/// schema, so what it does not know in a Pod's spec is kept, and they decide when the Pod is made.
pub fn for_clusters(mut definition: Value) -> Value {
    for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
        if let Some(pod) = version.pointer_mut(POD_SPEC) {
            keep_unknown(pod);
        }
    }
    definition
}

/// Where the schema of a Pod is, in a version of Sandbox and SandboxTemplate.
const POD_SPEC: &str = "/schema/openAPIV3Schema/properties/spec/properties/podTemplate/properties/spec";

fn keep_unknown(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let is_object = fields.contains_key("properties");
    for (name, below) in fields.iter_mut() {
        match (name.as_str(), below) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(keep_unknown),
            ("items" | "additionalProperties", below) => keep_unknown(below),
            _ => {}
        }
    }
    if is_object {
        fields.insert("x-kubernetes-preserve-unknown-fields".to_owned(), true.into());
    }
}

/// `<plural>.<group>` of a definition: its object name.
pub fn name(definition: &Value) -> &str {
    definition["metadata"]["name"].as_str().expect("every definition here has a name")
}

fn definitions() -> [Definition; 4] {
    [sandbox::definition(), template::definition(), warm_pool::definition(), claim::definition()]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1beta1,
    V1alpha1,
}

/// What differs from kind to kind.
struct Definition {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
    /// Schema, columns and subresources of a version.
    schema: fn(Version) -> Value,
}

impl Definition {
    fn with_both_versions(self) -> Value {
        let mut definition = self.around(json!([self.stored(), self.deprecated()]));
        definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
            "conversionReviewVersions": ["v1", "v1beta1"],
            "clientConfig": {"service": {
                "name": WEBHOOK_SERVICE, "namespace": WEBHOOK_NAMESPACE, "path": WEBHOOK_PATH,
            }},
        }});
        definition
    }

    fn with_the_stored_version(self) -> Value {
        let mut definition = self.around(json!([self.stored()]));
        definition["spec"]["conversion"] = json!({"strategy": "None"});
        definition
    }

    fn stored(&self) -> Value {
        let mut version = (self.schema)(Version::V1beta1);
        version["name"] = VERSION.into();
        version["served"] = true.into();
        version["storage"] = true.into();
        version
    }

    fn deprecated(&self) -> Value {
        let (group, kind) = (self.group, self.kind);
        let mut version = (self.schema)(Version::V1alpha1);
        version["name"] = V1ALPHA1.into();
        version["served"] = true.into();
        version["storage"] = false.into();
        version["deprecated"] = true.into();
        version["deprecationWarning"] =
            format!("{group}/{V1ALPHA1} {kind} is deprecated; use {group}/{VERSION} {kind} instead").into();
        version
    }

    fn around(&self, versions: Value) -> Value {
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
                "versions": versions,
            },
        })
    }
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

    #[test]
    fn clusters_keep_what_is_new_in_a_pod_and_nothing_else() {
        const KEPT: &str = "x-kubernetes-preserve-unknown-fields";
        let mut pods = 0;
        for (definition, plain) in all().into_iter().map(for_clusters).zip(all()) {
            let versions = definition["spec"]["versions"].as_array().unwrap().iter();
            for (version, plain) in versions.zip(plain["spec"]["versions"].as_array().unwrap()) {
                let count = |schema: &Value| schema.to_string().matches(KEPT).count();
                assert_eq!(count(plain), 0, "one machine knows its own Pods");
                let Some(pod) = version.pointer(POD_SPEC) else { continue };
                pods += 1;
                assert_eq!(count(version), count(pod), "nothing is kept elsewhere");
                let container = &pod["properties"]["containers"]["items"];
                for object in [pod, container, &container["properties"]["securityContext"]] {
                    assert_eq!(object[KEPT], true);
                }
            }
        }
        assert_eq!(pods, 4, "Sandbox and SandboxTemplate, at two versions");
    }

    #[test]
    fn both_flavours_agree_about_the_stored_version() {
        for (both, alone) in all().iter().zip(v1beta1_only()) {
            assert_eq!(both["spec"]["versions"][0], alone["spec"]["versions"][0]);
            assert_eq!(alone["spec"]["versions"].as_array().map(Vec::len), Some(1));
            assert_eq!(both["spec"]["versions"][1]["deprecated"], true);
        }
    }

    /// The places of types of Kubernetes, whose fields are described where they are at home.
    const EMBEDDED: [&str; 3] = ["podTemplate.spec", "volumeClaimTemplates.spec", "networkPolicy"];

    fn undescribed(schema: &Value, path: &str, seen: &mut usize, missing: &mut Vec<String>) {
        let items = &schema["items"];
        let below = if items.is_object() { items } else { schema };
        for (name, field) in below["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            *seen += 1;
            let sentence = field["description"].as_str().unwrap_or_default();
            if !sentence.ends_with('.') && path != ".metadata" {
                missing.push(path.clone());
            }
            if !EMBEDDED.iter().any(|embedded| path.ends_with(&format!(".spec.{embedded}"))) {
                undescribed(field, &path, seen, missing);
            }
        }
    }

    #[test]
    fn every_field_of_our_kinds_is_described() {
        let (mut seen, mut missing) = (0, Vec::new());
        for definition in all() {
            for version in definition["spec"]["versions"].as_array().unwrap() {
                let schema = &version["schema"]["openAPIV3Schema"];
                assert!(schema["description"].is_string(), "{}", name(&definition));
                undescribed(schema, "", &mut seen, &mut missing);
                assert_eq!(missing, Vec::<String>::new(), "{}", name(&definition));
            }
        }
        assert!(seen > 200, "{seen} fields were looked at");
    }
}
