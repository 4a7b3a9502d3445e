//! The CRDs, as far as conversion goes: where API servers find the webhook, what they trust, and what is still stored.

use asb_types::{VERSION, crd};
use base64::Engine as _;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// The Service that leads to the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Service {
    pub name: String,
    pub namespace: String,
}

/// The merge patch that makes a definition call `service` and trust `authorities`, if it does not yet.
///
/// A definition that needs no webhook is left alone. One that calls a URL keeps it: somebody has put the webhook there.
pub(crate) fn plan(definition: &Value, service: &Service, authorities: &str) -> Option<Value> {
    let conversion = &definition["spec"]["conversion"];
    if conversion["strategy"] != "Webhook" {
        return None;
    }
    let webhook = &conversion["webhook"];
    let bundle = base64::engine::general_purpose::STANDARD.encode(authorities);
    let mut patch = json!({"clientConfig": {"caBundle": bundle}});
    if webhook["clientConfig"]["url"].is_null() {
        patch["clientConfig"]["service"] =
            json!({"name": service.name, "namespace": service.namespace, "path": crd::WEBHOOK_PATH});
    }
    if webhook["conversionReviewVersions"].as_array().is_none_or(Vec::is_empty) {
        patch["conversionReviewVersions"] = json!(["v1", "v1beta1"]);
    }
    let covered = covers(webhook, &patch);
    (!covered).then(|| json!({"spec": {"conversion": {"webhook": patch}}}))
}

/// Whether a merge patch would change nothing.
fn covers(value: &Value, patch: &Value) -> bool {
    match patch.as_object() {
        Some(fields) => fields.iter().all(|(name, field)| covers(&value[name], field)),
        None => value == patch,
    }
}

/// The versions other than v1beta1 in which objects of a definition may still be stored.
pub(crate) fn left_behind(definition: &Value) -> Vec<String> {
    let stored = definition["status"]["storedVersions"].as_array().into_iter().flatten();
    stored.filter_map(Value::as_str).filter(|version| *version != VERSION).map(str::to_owned).collect()
}

/// Our definitions in a cluster.
pub(crate) struct Definitions {
    api: Api<DynamicObject>,
}

impl Definitions {
    pub fn new(client: Client) -> Self {
        let kind = ApiResource {
            group: "apiextensions.k8s.io".into(),
            version: "v1".into(),
            api_version: "apiextensions.k8s.io/v1".into(),
            kind: "CustomResourceDefinition".into(),
            plural: "customresourcedefinitions".into(),
        };
        Self { api: Api::all_with(client, &kind) }
    }

    /// Points all definitions that are there at `service`, trusted by `authorities`. Tells whether one had to change.
    pub async fn point(&self, service: &Service, authorities: &str) -> Result<bool, kube::Error> {
        let mut changed = false;
        for (name, definition) in self.all().await? {
            let Some(patch) = plan(&definition, service, authorities) else { continue };
            self.api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            tracing::info!(definition = name, "told the API server where the conversion webhook is");
            changed = true;
        }
        Ok(changed)
    }

    /// The definitions that are there, by name.
    pub async fn all(&self) -> Result<Vec<(String, Value)>, kube::Error> {
        let mut found = Vec::new();
        for definition in crd::v1beta1_only() {
            let name = crd::name(&definition).to_owned();
            if let Some(object) = self.api.get_opt(&name).await? {
                found.push((name, object.data));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Service {
        Service { name: "svc".into(), namespace: "ns".into() }
    }

    fn patched(definition: &Value) -> Option<Value> {
        plan(definition, &service(), "PEM")
    }

    /// MG-22
    #[test]
    fn a_definition_with_a_webhook_gets_service_path_and_bundle() {
        let patch = patched(&crd::all()[0]).unwrap();
        let config = &patch["spec"]["conversion"]["webhook"]["clientConfig"];
        assert_eq!(config["service"], json!({"name": "svc", "namespace": "ns", "path": "/convert"}));
        assert_eq!(config["caBundle"], "UEVN");
        assert!(
            patch["spec"]["conversion"]["webhook"]["conversionReviewVersions"].is_null(),
            "they are there"
        );
    }

    /// MG-22
    #[test]
    fn review_versions_are_filled_in_when_there_are_none() {
        let mut definition = crd::all().remove(0);
        definition["spec"]["conversion"]["webhook"]["conversionReviewVersions"] = json!([]);
        let patch = patched(&definition).unwrap();
        assert_eq!(
            patch["spec"]["conversion"]["webhook"]["conversionReviewVersions"],
            json!(["v1", "v1beta1"])
        );
    }

    /// MG-22
    #[test]
    fn a_definition_without_a_webhook_is_left_alone() {
        assert_eq!(patched(&crd::v1beta1_only()[0]), None);
    }

    #[test]
    fn what_is_right_is_not_written_again_and_a_port_is_kept() {
        let mut definition = crd::all().remove(0);
        let config = &mut definition["spec"]["conversion"]["webhook"]["clientConfig"];
        *config = json!({"caBundle": "UEVN", "service": {"name": "svc", "namespace": "ns", "path": "/convert", "port": 9443}});
        assert_eq!(patched(&definition), None);
    }

    #[test]
    fn a_webhook_behind_a_url_keeps_it() {
        let mut definition = crd::all().remove(0);
        definition["spec"]["conversion"]["webhook"]["clientConfig"] =
            json!({"url": "https://example.org/convert"});
        assert_eq!(
            patched(&definition).unwrap()["spec"]["conversion"]["webhook"],
            json!({"clientConfig": {"caBundle": "UEVN"}})
        );
    }

    #[test]
    fn older_stored_versions_are_found() {
        let stored = |versions: Value| left_behind(&json!({"status": {"storedVersions": versions}}));
        assert_eq!(stored(json!(["v1alpha1", "v1beta1"])), ["v1alpha1"]);
        assert!(stored(json!(["v1beta1"])).is_empty());
    }
}
