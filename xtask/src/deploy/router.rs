//! The router of a cluster: two replicas behind the Service that every client knows.

use serde_json::{Value, json};

use super::objects::NAMESPACE;
use super::rules;

pub const NAME: &str = "sandbox-router";
/// The name that clients look for.
pub const SERVICE: &str = "sandbox-router-svc";
const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// Lines of the generated YAML that need a reason beside them.
pub const REASONS: [(&str, &str); 1] = [(
    "--authz-trust-loopback=true",
    "Only the kubelet's port-forward can connect from the Pod's own loopback, and the API server has authorised it. \
     Never with hostNetwork or a proxy in this Pod.",
)];

/// Everything of it.
pub fn objects() -> Vec<Value> {
    let subjects = json!([{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]);
    vec![
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(NAME),
            "automountServiceAccountToken": false,
        }),
        json!({
            "apiVersion": RBAC, "kind": "ClusterRole",
            "metadata": {"name": NAME, "labels": labels()}, "rules": rules::router(),
        }),
        json!({
            "apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": NAME, "labels": labels()},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
            "subjects": subjects,
        }),
        deployment(),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata(SERVICE),
            "spec": {"selector": selector(), "ports": [{"name": "proxy", "port": 8080, "targetPort": "proxy"}]},
        }),
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(NAME),
            "spec": {"minAvailable": 1, "selector": {"matchLabels": selector()}},
        }),
        network_policy(),
    ]
}

fn deployment() -> Value {
    let probe = |path: &str, delay: u32, period: u32, failures: u32| {
        json!({
            "httpGet": {"path": path, "port": "healthz"},
            "initialDelaySeconds": delay, "periodSeconds": period, "failureThreshold": failures,
        })
    };
    let spread = |key: &str| {
        json!({
            "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector()},
        })
    };
    let container = json!({
        "name": NAME,
        "image": format!("{NAME}:{}", env!("CARGO_PKG_VERSION")),
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "--authz-mode=tokenreview",
            "--authz-trust-loopback=true",
            // Longer than endpoints need to forget a Pod that is going.
            "--shutdown-delay=5s",
            "--shutdown-timeout=30s",
        ],
        "ports": [
            {"name": "proxy", "containerPort": 8080},
            {"name": "metrics", "containerPort": 9090},
            {"name": "healthz", "containerPort": 8081},
        ],
        "livenessProbe": probe("/healthz", 5, 10, 3),
        "readinessProbe": probe("/readyz", 1, 5, 2),
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"cpu": "2", "memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    });
    let pod = json!({
        "serviceAccountName": NAME,
        "automountServiceAccountToken": true,
        "terminationGracePeriodSeconds": 45,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [spread("topology.kubernetes.io/zone"), spread("kubernetes.io/hostname")],
        "containers": [container],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(NAME),
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": selector()},
            // A new one is ready before an old one goes.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": labels()}, "spec": pod},
        },
    })
}

/// Requests and probes from anywhere, metrics from Pods. Nothing is said about the way out: sandboxes listen on any
/// port, and the API server may be at any address.
fn network_policy() -> Value {
    let port = |port: &str| json!([{"port": port, "protocol": "TCP"}]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(NAME),
        "spec": {
            "podSelector": {"matchLabels": selector()},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": port("proxy")},
                {"ports": port("healthz")},
                {"ports": port("metrics"), "from": [{"namespaceSelector": {}}]},
            ],
        },
    })
}

/// What the NetworkPolicy of a template lets in: `app: sandbox-router` in this namespace.
fn selector() -> Value {
    json!({"app": NAME})
}

fn labels() -> Value {
    json!({"app": NAME, "app.kubernetes.io/name": NAME, "app.kubernetes.io/component": NAME})
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "namespace": NAMESPACE, "labels": labels()})
}
