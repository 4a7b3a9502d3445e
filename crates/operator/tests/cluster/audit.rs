//! The rights that controller and router have, against those that they used.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use crate::cluster::{CONTROLLER, Cluster, NAMESPACE};
use crate::router::ROUTER;

/// A verb, and the group and resource (with its subresource) that it is for.
type Right = (String, String, String);

/// Rights that are there for a reason, although no story uses them.
const SELDOM: &[(&str, &str, &str)] = &[
    // Asked after a create that met another object of that name, or a write that met a newer version.
    ("get", "", "persistentvolumeclaims"),
    ("get", "", "pods"),
    ("get", "", "services"),
    ("get", "agents.x-k8s.io", "sandboxes"),
    ("get", "networking.k8s.io", "networkpolicies"),
    // Asked before a second Sandbox of a claim is given back, which takes two controllers at once.
    ("get", "extensions.agents.x-k8s.io", "sandboxclaims"),
    // Asked when the certificate is renewed.
    ("update", "", "secrets"),
    // Asked by the admission plugin that guards owner references, which leaves no entry of its own.
    ("delete", "", "persistentvolumeclaims"),
    ("update", "agents.x-k8s.io", "sandboxes/finalizers"),
    ("update", "extensions.agents.x-k8s.io", "sandboxclaims/finalizers"),
    ("update", "extensions.agents.x-k8s.io", "sandboxtemplates/finalizers"),
    ("update", "extensions.agents.x-k8s.io", "sandboxwarmpools/finalizers"),
];

/// Nothing was denied, and no right is granted that nobody uses.
pub async fn check(cluster: &Cluster) {
    assert_nothing_was_denied(cluster);
    for account in [CONTROLLER, ROUTER] {
        check_account(cluster, account).await;
    }
}

async fn check_account(cluster: &Cluster, account: &str) {
    let granted = granted(cluster, account).await;
    let used: BTreeSet<_> = requests(cluster, account).iter().map(right).collect();
    let seldom: BTreeSet<_> =
        SELDOM.iter().map(|(verb, group, resource)| owned(verb, group, resource)).collect();
    let unused: Vec<_> = granted.difference(&used).filter(|right| !seldom.contains(*right)).collect();
    println!("{account}: {} rights granted, {} used, never used: {unused:#?}", granted.len(), used.len());
    assert!(unused.is_empty(), "rights of {account} that no story uses: {unused:#?}");
}

pub fn assert_nothing_was_denied(cluster: &Cluster) {
    // A namespace that goes takes in nothing new, whoever asks.
    let ending = |request: &Value| request["responseStatus"].to_string().contains("NamespaceTerminating");
    let denied = |request: &&Value| request["responseStatus"]["code"] == 403 && !ending(request);
    for account in [CONTROLLER, ROUTER] {
        let requests = requests(cluster, account);
        let denied: BTreeSet<_> = requests.iter().filter(denied).map(right).collect();
        assert!(denied.is_empty(), "{account} needs more rights: {denied:#?}");
        assert!(!requests.is_empty(), "{account} asked for nothing at all");
    }
}

/// How often anybody has written in a namespace since then, by who wrote and to what.
pub fn writes_in(cluster: &Cluster, namespace: &str, since: Timestamp) -> BTreeMap<(Writer, String), usize> {
    let mut counts = BTreeMap::new();
    for request in everything(cluster) {
        let read = matches!(request["verb"].as_str(), Some("get" | "list" | "watch"));
        let at = request["requestReceivedTimestamp"].as_str().and_then(|time| time.parse().ok());
        let refused = request["responseStatus"]["code"].as_i64() >= Some(300);
        if read || refused || request["objectRef"]["namespace"] != namespace || at < Some(since) {
            continue;
        }
        let agent = request["userAgent"].as_str().unwrap_or_default();
        let writer = match () {
            () if is_of(&request, CONTROLLER) => Writer::Controller,
            () if agent.starts_with("kube") => Writer::Kubernetes,
            () => Writer::User,
        };
        let (_, _, resource) = right(&request);
        *counts.entry((writer, resource)).or_default() += 1;
    }
    counts
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Writer {
    Controller,
    /// Scheduler, kubelet, garbage collector.
    Kubernetes,
    User,
}

/// What one of ours asked for.
fn requests(cluster: &Cluster, account: &str) -> Vec<Value> {
    everything(cluster).into_iter().filter(|request| is_of(request, account)).collect()
}

fn is_of(request: &Value, account: &str) -> bool {
    request["user"]["username"] == format!("system:serviceaccount:{NAMESPACE}:{account}")
}

fn everything(cluster: &Cluster) -> Vec<Value> {
    let log = std::fs::read_to_string(cluster.audit_log()).expect("the API server writes an audit log");
    // The last line may not be whole yet.
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn right(request: &Value) -> Right {
    let field = |name: &str| request["objectRef"][name].as_str().unwrap_or_default();
    let resource = match field("subresource") {
        "" => field("resource").to_owned(),
        subresource => format!("{}/{subresource}", field("resource")),
    };
    owned(request["verb"].as_str().unwrap_or_default(), field("apiGroup"), &resource)
}

async fn granted(cluster: &Cluster, account: &str) -> BTreeSet<Right> {
    let ours = ListParams::default().labels(&format!("app={account}"));
    let cluster_roles: Api<ClusterRole> = Api::all(cluster.client.clone());
    let roles: Api<Role> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let cluster_roles = cluster_roles.list(&ours).await.expect("ClusterRoles can be listed");
    let roles = roles.list(&ours).await.expect("Roles can be listed");
    let rules = cluster_roles.items.into_iter().flat_map(|role| role.rules.unwrap_or_default());
    let rules = rules.chain(roles.items.into_iter().flat_map(|role| role.rules.unwrap_or_default()));
    rules.flat_map(rights).collect()
}

fn rights(rule: PolicyRule) -> Vec<Right> {
    let mut rights = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            rights.extend(rule.verbs.iter().map(|verb| owned(verb, group, resource)));
        }
    }
    rights
}

fn owned(verb: &str, group: &str, resource: &str) -> Right {
    (verb.to_owned(), group.to_owned(), resource.to_owned())
}
