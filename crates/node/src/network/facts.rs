//! From Pods and Services to the network's plain facts. Pure.

use std::net::Ipv4Addr;

use asb_network::policy::{Host, NamedPort, Sandbox, Selector, Service, ServicePort, Target};
use k8s_openapi::api::core::v1::{self, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
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
        ready: is_ready(pod),
    }
}

/// What a Service says: its name stands for its address if it has one, and else for its Pods.
pub fn service(service: &v1::Service) -> Service {
    let spec = service.spec.clone().unwrap_or_default();
    let external = spec.type_.as_deref() == Some("ExternalName");
    let selector = spec.selector.filter(|labels| !labels.is_empty() && !external);
    Service {
        name: service.name_any(),
        namespace: service.namespace().unwrap_or_default(),
        selector: selector.map(|labels| Selector { labels, expressions: Vec::new() }),
        address: spec.cluster_ip.and_then(|address| address.parse().ok()),
        external: spec.external_name.filter(|name| external && !name.is_empty()),
        ports: spec.ports.iter().flatten().filter_map(port).collect(),
        sticky: spec.session_affinity.as_deref() == Some("ClientIP"),
        unready: spec.publish_not_ready_addresses == Some(true),
    }
}

fn port(port: &v1::ServicePort) -> Option<ServicePort> {
    let number = |value: i32| u16::try_from(value).ok().filter(|port| *port > 0);
    let target = match &port.target_port {
        None => Target::Number(number(port.port)?),
        Some(IntOrString::Int(target)) => Target::Number(number(*target)?),
        Some(IntOrString::String(name)) => Target::Name(name.clone()),
    };
    Some(ServicePort {
        name: port.name.clone().filter(|name| !name.is_empty()),
        protocol: protocol(port.protocol.as_deref()).ok()?,
        port: number(port.port)?,
        target,
    })
}

/// Whether a Service leads to it: a Pod that is on its way out gets no new connections.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|it| it.type_ == "Ready").map(|it| it.status == "True");
    pod.metadata.deletion_timestamp.is_none() && ready.next() == Some(true)
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
        assert!(!known.ready);
    }

    #[test]
    fn a_pod_is_ready_until_it_is_deleted() {
        let ready = |status: &str, deleted: Option<&str>| {
            let pod = json!({
                "metadata": {"name": "p", "deletionTimestamp": deleted},
                "status": {"conditions": [
                    {"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": status},
                ]},
            });
            sandbox(&serde_json::from_value(pod).unwrap(), Ipv4Addr::LOCALHOST).ready
        };
        assert!(ready("True", None));
        assert!(!ready("False", None) && !ready("True", Some("2026-01-01T00:00:00Z")));
    }

    #[test]
    fn addresses_and_ports_of_a_service_are_known() {
        let read = |spec| {
            let object = json!({"metadata": {"name": "s", "namespace": "one"}, "spec": spec});
            service(&serde_json::from_value(object).unwrap())
        };
        let known = read(json!({
            "clusterIP": "10.127.1.1", "sessionAffinity": "ClientIP", "ports": [
                {"port": 80, "name": "http"}, {"port": 81, "targetPort": 8081, "protocol": "UDP"}, {"port": 82, "targetPort": "web"},
                {"port": 83, "targetPort": 99999},
            ],
        }));
        assert_eq!((known.address, known.sticky), (Some(Ipv4Addr::new(10, 127, 1, 1)), true));
        let port = |name: Option<&str>, protocol, port, target| ServicePort {
            name: name.map(str::to_owned),
            protocol,
            port,
            target,
        };
        let expected = [
            port(Some("http"), Protocol::Tcp, 80, Target::Number(80)),
            port(None, Protocol::Udp, 81, Target::Number(8081)),
            port(None, Protocol::Tcp, 82, Target::Name("web".into())),
        ];
        assert_eq!(known.ports, expected);
        assert_eq!(read(json!({"clusterIP": "None"})).address, None);
        let elsewhere =
            read(json!({"type": "ExternalName", "externalName": "a.example", "selector": {"a": "b"}}));
        assert_eq!((elsewhere.external.as_deref(), elsewhere.selector), (Some("a.example"), None));
        assert_eq!(read(json!({"externalName": "a.example"})).external, None);
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
