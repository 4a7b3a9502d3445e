//! What the controller may do: every right that one of its parts uses, and no other.
//!
//! `tools/test cluster` compares this with what the API server's audit log says was used. In tests on a real API server
//! controllers have the first two sets and no more (`crates/testing/src/rights.rs`).

use serde_json::{Value, json};

/// The Lease of the leader.
const LEASE: &str = "a3317529.agent-sandbox.x-k8s.io";
/// The Secret that holds the webhook's certificate.
const CERTIFICATE: &str = "agent-sandbox-webhook-certs";

/// Sandboxes and what they are made of. Needed wherever there are Sandboxes.
pub fn core() -> Vec<Value> {
    vec![
        // Volume claims are never deleted by us, but an owner may be set only on what could be deleted, where
        // OwnerReferencesPermissionEnforcement is on.
        rule(
            "",
            &["persistentvolumeclaims", "pods", "services"],
            &["create", "delete", "get", "list", "patch", "watch"],
        ),
        // Patched to note the trace that a Sandbox belongs to, with --enable-tracing.
        rule("agents.x-k8s.io", &["sandboxes"], &["delete", "get", "list", "patch", "watch"]),
        rule("agents.x-k8s.io", &["sandboxes/status"], &["patch"]),
        // An owner reference that blocks the owner's deletion needs this there too.
        rule("agents.x-k8s.io", &["sandboxes/finalizers"], &["update"]),
        rule("events.k8s.io", &["events"], &["create"]),
    ]
}

/// Templates, warm pools and claims. Needed wherever there are any.
pub fn extensions() -> Vec<Value> {
    let group = "extensions.agents.x-k8s.io";
    vec![
        rule("agents.x-k8s.io", &["sandboxes"], &["create"]),
        rule(group, &["sandboxclaims"], &["delete", "get", "list", "patch", "watch"]),
        rule(group, &["sandboxtemplates"], &["list", "patch", "watch"]),
        rule(group, &["sandboxwarmpools"], &["list", "watch"]),
        rule(group, &["sandboxclaims/status", "sandboxwarmpools/status"], &["patch"]),
        rule(
            group,
            &["sandboxclaims/finalizers", "sandboxtemplates/finalizers", "sandboxwarmpools/finalizers"],
            &["update"],
        ),
        rule(
            "networking.k8s.io",
            &["networkpolicies"],
            &["create", "delete", "get", "list", "update", "watch"],
        ),
        // The last event about a pool tells a new leader what users were told.
        rule("", &["events"], &["list"]),
    ]
}

/// Leader election, in the namespace of the controller.
pub fn election() -> Vec<Value> {
    vec![
        // No name can be demanded of what is yet to be created.
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named(rule("coordination.k8s.io", &["leases"], &["get", "list", "update", "watch"]), &[LEASE]),
    ]
}

/// The webhook's certificate, in the namespace of the controller.
pub fn certificate() -> Vec<Value> {
    vec![
        rule("", &["secrets"], &["create"]),
        named(rule("", &["secrets"], &["get", "update"]), &[CERTIFICATE]),
    ]
}

/// The router: where sandboxes are, and whether a caller may reach one.
pub fn router() -> Vec<Value> {
    vec![
        rule("", &["pods"], &["list", "watch"]),
        rule("agents.x-k8s.io", &["sandboxes"], &["list", "watch"]),
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ]
}

/// Which versions are stored: without a webhook there must be only one.
pub fn definitions() -> Vec<Value> {
    vec![definition("get")]
}

/// The certificate's authority, written into our definitions.
pub fn authority() -> Vec<Value> {
    vec![definition("patch")]
}

fn definition(verb: &str) -> Value {
    let definitions = super::crds();
    let names: Vec<_> = definitions.iter().map(asb_types::crd::name).collect();
    named(rule("apiextensions.k8s.io", &["customresourcedefinitions"], &[verb]), &names)
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

fn named(mut rule: Value, names: &[&str]) -> Value {
    rule["resourceNames"] = json!(names);
    rule
}
