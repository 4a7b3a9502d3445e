//! From Pods and Services to the network's plain facts. Pure.

use std::net::Ipv4Addr;

use asb_network::policy::{Host, NamedPort, Sandbox, Selector, Service};
use k8s_openapi::api::core::v1::{self, Pod};
use kube::ResourceExt;

use super::policy::protocol;

/// What rules and names must know of a Pod.
pub fn sandbox(pod: &Pod, address: Ipv4Addr) -> Sandbox {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
        Some(NamedPort {
            name: port.name.clone()?,
            protocol: protocol(port.protocol.as_deref()).ok()?,
            port: u16::try_from(port.container_port).ok()?,
        })
    });
    Sandbox {
        name: name(pod),
        namespace: pod.namespace().unwrap_or_default(),
        labels: pod.labels().clone(),
        address,
        ports: ports.collect(),
        host: host(pod),
    }
}

/// What a Service says about names. An address of its own it does not have here: its name stands for its Pods.
pub fn service(service: &v1::Service) -> Service {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone());
    let selector = selector.filter(|labels| !labels.is_empty());
    Service {
        name: service.name_any(),
        namespace: service.namespace().unwrap_or_default(),
        selector: selector.map(|labels| Selector { labels, expressions: Vec::new() }),
    }
}

/// The name of the Sandbox whose Pod it is, which stays when the Pod is another; else the Pod's own.
fn name(pod: &Pod) -> String {
    let owner =
        pod.owner_references().iter().find(|owner| owner.controller == Some(true) && owner.kind == "Sandbox");
    owner.map_or_else(|| pod.name_any(), |owner| owner.name.clone())
}

fn host(pod: &Pod) -> Option<Host> {
    let spec = pod.spec.as_ref()?;
    let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    Some(Host { hostname: given(&spec.hostname)?, subdomain: given(&spec.subdomain)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use asb_network::Protocol;
    use serde_json::json;

    #[test]
    fn named_ports_and_names_of_a_pod_are_known() {
        let pod = json!({
            "metadata": {
                "name": "p", "namespace": "one", "labels": {"a": "b"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Sandbox", "name": "other", "uid": "1"},
                    {"apiVersion": "v1", "kind": "Sandbox", "name": "box", "uid": "2", "controller": true},
                ],
            },
            "spec": {"hostname": "h", "subdomain": "s", "containers": [{"name": "c", "ports": [
                {"containerPort": 80, "name": "web"}, {"containerPort": 53, "name": "dns", "protocol": "UDP"},
                {"containerPort": 9},
            ]}]},
        });
        let known = sandbox(&serde_json::from_value(pod).unwrap(), Ipv4Addr::LOCALHOST);
        let ports: Vec<_> =
            known.ports.iter().map(|port| (port.name.as_str(), port.protocol, port.port)).collect();
        assert_eq!(ports, [("web", Protocol::Tcp, 80), ("dns", Protocol::Udp, 53)]);
        assert_eq!((known.labels["a"].as_str(), known.name.as_str()), ("b", "box"));
        assert_eq!(known.host, Some(Host { hostname: "h".into(), subdomain: "s".into() }));
    }

    #[test]
    fn service_without_a_selector_selects_nobody() {
        let read = |spec| {
            let object = json!({"metadata": {"name": "s", "namespace": "one"}, "spec": spec});
            service(&serde_json::from_value(object).unwrap()).selector
        };
        assert_eq!(read(json!({})), None);
        assert_eq!(read(json!({"selector": {}})), None);
        assert_eq!(read(json!({"selector": {"a": "b"}})).unwrap().labels["a"], "b");
    }
}
