//! The objects of an installation.

use serde_json::{Value, json};

use super::rules;

pub const NAME: &str = "agent-sandbox-controller";
pub const NAMESPACE: &str = "agent-sandbox-system";
pub const WEBHOOK_SERVICE: &str = "agent-sandbox-webhook-service";

/// The namespace takes only Pods that ask for nothing special.
pub fn namespace() -> Value {
    let mut labels = labels();
    for mode in ["audit", "enforce", "warn"] {
        labels[format!("pod-security.kubernetes.io/{mode}")] = json!("restricted");
    }
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
}

/// Who the controller is and what it may do.
pub fn rbac() -> Vec<Value> {
    let definitions = format!("{NAME}-definitions");
    vec![
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(NAME),
            "automountServiceAccountToken": false,
        }),
        cluster_role(NAME, rules::core()),
        cluster_role_binding(NAME),
        cluster_role(&definitions, rules::definitions()),
        cluster_role_binding(&definitions),
        role(NAME, rules::election()),
        role_binding(NAME),
    ]
}

pub fn extensions_rbac() -> Vec<Value> {
    let name = format!("{NAME}-extensions");
    vec![cluster_role(&name, rules::extensions()), cluster_role_binding(&name)]
}

/// What is there only because two versions are served.
pub fn webhook() -> Vec<Value> {
    let name = format!("{NAME}-webhook");
    vec![
        cluster_role(&name, rules::authority()),
        cluster_role_binding(&name),
        role(&name, rules::certificate()),
        role_binding(&name),
        service(WEBHOOK_SERVICE, json!([{"name": "webhook", "port": 443, "targetPort": "webhook"}])),
    ]
}

/// The controller and its metrics.
pub fn controller(extensions: bool, webhook: bool) -> Vec<Value> {
    let mut deployment = deployment();
    let pod = &mut deployment["spec"]["template"]["spec"];
    if webhook {
        push(&mut pod["containers"][0]["ports"], webhook_port());
    } else {
        push(&mut pod["containers"][0]["args"], json!(WITHOUT_WEBHOOK));
    }
    if extensions {
        push(&mut pod["containers"][0]["args"], json!(EXTENSIONS));
    }
    vec![deployment, service(NAME, json!([{"name": "metrics", "port": 8080, "targetPort": "metrics"}]))]
}

pub const EXTENSIONS: &str = "--extensions";
pub const WITHOUT_WEBHOOK: &str = "--enable-webhook=false";

pub fn webhook_port() -> Value {
    json!({"name": "webhook", "containerPort": 9443})
}

fn deployment() -> Value {
    let probe = |path: &str, delay: u32, period: u32| {
        json!({
            "httpGet": {"path": path, "port": "healthz"},
            "initialDelaySeconds": delay, "periodSeconds": period,
        })
    };
    let container = json!({
        "name": NAME,
        "image": format!("{NAME}:{}", env!("CARGO_PKG_VERSION")),
        "imagePullPolicy": "IfNotPresent",
        "args": ["--leader-elect=true"],
        "ports": [{"name": "metrics", "containerPort": 8080}, {"name": "healthz", "containerPort": 8081}],
        "livenessProbe": probe("/healthz", 15, 20),
        "readinessProbe": probe("/readyz", 1, 5),
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"cpu": "2", "memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/sandbox-config", "readOnly": true},
        ],
    });
    let pod = json!({
        "serviceAccountName": NAME,
        "automountServiceAccountToken": true,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": "agent-sandbox-config", "optional": true}},
        ],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(NAME),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": NAME}},
            "template": {"metadata": {"labels": labels()}, "spec": pod},
        },
    })
}

fn service(name: &str, ports: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(name),
        "spec": {"selector": {"app": NAME}, "ports": ports},
    })
}

fn cluster_role(name: &str, rules: Vec<Value>) -> Value {
    let metadata = json!({"name": name, "labels": labels()});
    json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": metadata, "rules": rules})
}

fn role(name: &str, rules: Vec<Value>) -> Value {
    json!({"apiVersion": RBAC, "kind": "Role", "metadata": metadata(name), "rules": rules})
}

fn cluster_role_binding(name: &str) -> Value {
    let metadata = json!({"name": name, "labels": labels()});
    binding("ClusterRoleBinding", metadata, "ClusterRole", name)
}

fn role_binding(name: &str) -> Value {
    binding("RoleBinding", metadata(name), "Role", name)
}

/// Grants a ClusterRole in one namespace only.
pub fn grant_in(namespace: &str, name: &str) -> Value {
    let metadata = json!({"name": name, "namespace": namespace, "labels": labels()});
    binding("RoleBinding", metadata, "ClusterRole", name)
}

fn binding(kind: &str, metadata: Value, role_kind: &str, role: &str) -> Value {
    json!({
        "apiVersion": RBAC, "kind": kind, "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
    })
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";

fn metadata(name: &str) -> Value {
    json!({"name": name, "namespace": NAMESPACE, "labels": labels()})
}

fn labels() -> Value {
    json!({"app": NAME, "app.kubernetes.io/name": "agent-sandbox"})
}

fn push(list: &mut Value, item: Value) {
    list.as_array_mut().expect("a list was put there").push(item);
}
