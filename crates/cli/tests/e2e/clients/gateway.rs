//! Gateway mode: the client reads the router's address from the status of a Gateway and sends no token.

use std::net::{Ipv4Addr, TcpListener};

use serde_json::json;

use super::{NEWEST, Play, delete_pool, plain_pool};
use crate::engine::{Engine, stdout};

/// Only what the client reads; the real definition belongs to Gateway API.
const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gateways.gateway.networking.k8s.io}
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

const GATEWAY: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front}
spec: {gatewayClassName: none, listeners: [{name: http, port: 80, protocol: HTTP}]}
"#;

/// A loopback address whose port 80 is free: the client's URL has no port.
fn free_address() -> Ipv4Addr {
    let free = |address: &Ipv4Addr| TcpListener::bind((*address, 80)).is_ok();
    let first = (std::process::id() % 200) as u8;
    let candidates = (0..50).map(|offset| Ipv4Addr::new(127, 77, first, 1 + offset));
    candidates.into_iter().find(free).expect("a loopback address has a free port 80")
}

#[test]
fn clients_find_the_router_by_a_gateway() {
    let address = free_address();
    let engine = Engine::start_with(&["--router", &format!("{address}:80"), "--router-authz", "allow-all"]);
    plain_pool(&engine, "default");
    stdout(&engine.kubectl_apply(DEFINITION));
    let name = "customresourcedefinition/gateways.gateway.networking.k8s.io";
    stdout(&engine.kubectl(&["wait", "--for=condition=Established", name, "--timeout=30s"]));
    stdout(&engine.kubectl_apply(GATEWAY));
    // As a controller of Gateways does.
    let status = json!({"status": {"addresses": [{"type": "IPAddress", "value": address.to_string()}]}});
    let patch =
        ["patch", "gateway", "front", "--subresource=status", "--type=merge", "-p", &status.to_string()];
    stdout(&engine.kubectl(&patch));
    for version in [NEWEST, "1.0.5.post1", "0.5.6", "0.4.6"] {
        Play::new(version, "gateway").with(json!({"gateway": "front"})).run(&engine);
    }
    delete_pool(&engine, "default");
    engine.stop();
}
