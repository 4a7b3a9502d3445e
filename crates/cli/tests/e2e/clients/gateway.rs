//! Gateway mode: the client reads the router's address from the status of a Gateway and sends no token.

use std::net::{Ipv4Addr, TcpListener};

use asb_testing::clients::{GATEWAYS, Play, VERSIONS, gateway};
use serde_json::json;

use super::{delete_pool, plain_pool, play};
use crate::engine::{Engine, stdout};

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
    stdout(&engine.kubectl_apply(GATEWAYS));
    let name = "customresourcedefinition/gateways.gateway.networking.k8s.io";
    stdout(&engine.kubectl(&["wait", "--for=condition=Established", name, "--timeout=30s"]));
    let (object, status) = gateway("front", &address.to_string());
    stdout(&engine.kubectl_apply(&object.to_string()));
    let patch =
        ["patch", "gateway", "front", "--subresource=status", "--type=merge", "-p", &status.to_string()];
    stdout(&engine.kubectl(&patch));
    for version in VERSIONS {
        play(&engine, &Play::new(version, "gateway").with(json!({"gateway": "front"})));
    }
    delete_pool(&engine, "default");
    engine.stop();
}
