//! The rights that our manifests give to the controller, on a cluster that it is not installed in.
//!
//! Whatever a story has the controllers do is then proof that these rights suffice for it.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ClusterResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The user as whom the installed controller speaks.
pub const CONTROLLER: &str = "system:serviceaccount:agent-sandbox-system:agent-sandbox-controller";

/// Those that reach into the namespaces of Sandboxes.
const MANIFESTS: [&str; 2] = [
    include_str!("../../../deploy/base/rbac.yaml"),
    include_str!("../../../deploy/components/extensions/rbac.yaml"),
];
/// One right of each manifest: when both are in force, all are.
const LAST: [(&str, &str, &str); 2] =
    [("delete", "agents.x-k8s.io", "sandboxes"), ("delete", "networking.k8s.io", "networkpolicies")];
const PATIENCE: Duration = Duration::from_secs(30);

/// Gives the controller's rights, as an admin may, and waits until the controller has them.
pub async fn grant(admin: &Client, controller: &Client) {
    let objects: Vec<Value> = MANIFESTS
        .iter()
        .flat_map(|manifest| serde_saphyr::from_multiple::<Value>(manifest).expect("our manifests are YAML"))
        .collect();
    for object in &objects {
        match object["kind"].as_str() {
            Some("ClusterRole") => apply::<ClusterRole>(admin, object).await,
            Some("ClusterRoleBinding") => apply::<ClusterRoleBinding>(admin, object).await,
            // What is of the controller's own namespace, which is not here.
            _ => {}
        }
    }
    let have = async {
        for (verb, group, resource) in LAST {
            while !may(controller, verb, group, resource).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, have).await.expect("rights are in force soon");
}

async fn apply<K>(admin: &Client, object: &Value)
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let name = object["metadata"]["name"].as_str().expect("our manifests name their objects");
    let params = PatchParams::apply("asb-testing").force();
    let applied = Api::<K>::all(admin.clone()).patch(name, &params, &Patch::Apply(object)).await;
    applied.expect("our manifests are valid");
}

async fn may(controller: &Client, verb: &str, group: &str, resource: &str) -> bool {
    let attributes = json!({"verb": verb, "group": group, "resource": resource});
    let question = json!({"spec": {"resourceAttributes": attributes}});
    let question = serde_json::from_value(question).expect("a question");
    let reviews: Api<SelfSubjectAccessReview> = Api::all(controller.clone());
    let answer = reviews.create(&PostParams::default(), &question).await.expect("anybody may ask");
    answer.status.is_some_and(|status| status.allowed)
}
