//! A Gateway as clients look for it: they read an address from its status, and connect to port 80 there.

use serde_json::{Value, json};

/// Only what a client reads; the real definition belongs to Gateway API.
pub const GATEWAYS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: gateways.gateway.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for tests"}
spec:
  group: gateway.networking.k8s.io
  names: {kind: Gateway, plural: gateways, singular: gateway, shortNames: [gtw]}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
"#;

/// The object, and the status that a controller of Gateways would write.
pub fn gateway(name: &str, address: &str) -> (Value, Value) {
    let object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": name},
        "spec": {"gatewayClassName": "none", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    });
    (object, json!({"status": {"addresses": [{"type": "IPAddress", "value": address}]}}))
}
