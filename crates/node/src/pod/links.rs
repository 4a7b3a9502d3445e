//! Variables that tell a container of the Services of its namespace, as the kubelet makes them. Pure.

use std::collections::BTreeMap;

use asb_network::policy::Service;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// The Service that Pods of all namespaces are told of, whatever they say about links.
const MASTER: (&str, &str) = ("default", "kubernetes");

/// The variables of all Services that a Pod is told of.
pub fn variables<'a>(pod: &Pod, all: impl Iterator<Item = &'a Service>) -> Vec<(String, String)> {
    told(pod, all).into_iter().flat_map(of).collect()
}

/// Those that have an address and are of the Pod's namespace, by name.
fn told<'a>(pod: &Pod, all: impl Iterator<Item = &'a Service>) -> Vec<&'a Service> {
    let namespace = pod.namespace().unwrap_or_default();
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links) != Some(false);
    let (mut own, mut master) = (BTreeMap::new(), None);
    for service in all.filter(|service| service.address.is_some()) {
        if links && service.namespace == namespace {
            own.insert(service.name.as_str(), service);
        } else if (service.namespace.as_str(), service.name.as_str()) == MASTER {
            master = Some(service);
        }
    }
    if let Some(master) = master {
        own.entry(&master.name).or_insert(master);
    }
    own.into_values().collect()
}

fn of(service: &Service) -> Vec<(String, String)> {
    let (Some(address), Some(first)) = (service.address, service.ports.first()) else { return Vec::new() };
    let prefix = variable(&service.name);
    let mut all = vec![
        (format!("{prefix}_SERVICE_HOST"), address.to_string()),
        (format!("{prefix}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in &service.ports {
        let named = port.name.as_ref().map(|name| format!("{prefix}_SERVICE_PORT_{}", variable(name)));
        all.extend(named.map(|name| (name, port.port.to_string())));
    }
    for (at, port) in service.ports.iter().enumerate() {
        let protocol = port.protocol.as_str();
        let url = format!("{protocol}://{address}:{}", port.port);
        let of_port = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        all.extend((at == 0).then(|| (format!("{prefix}_PORT"), url.clone())));
        all.extend([
            (of_port.clone(), url),
            (format!("{of_port}_PROTO"), protocol.to_owned()),
            (format!("{of_port}_PORT"), port.port.to_string()),
            (format!("{of_port}_ADDR"), address.to_string()),
        ]);
    }
    all
}

fn variable(name: &str) -> String {
    name.replace('-', "_").to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use asb_network::Protocol;
    use asb_network::policy::{ServicePort, Target};
    use serde_json::json;
    use std::net::Ipv4Addr;

    fn service(namespace: &str, name: &str, address: Option<Ipv4Addr>) -> Service {
        let port = |name: Option<&str>, protocol, port| ServicePort {
            name: name.map(str::to_owned),
            protocol,
            port,
            target: Target::Number(1),
        };
        Service {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            selector: None,
            address,
            external: None,
            ports: vec![port(Some("p-one"), Protocol::Tcp, 80), port(None, Protocol::Udp, 53)],
            sticky: false,
            unready: false,
        }
    }

    #[test]
    fn service_with_an_address_is_told_by_variables() {
        let address = Some(Ipv4Addr::new(10, 127, 0, 9));
        let pod = json!({"metadata": {"namespace": "one"}});
        let services = [service("one", "my-db", address), service("one", "headless", None)];
        let told = variables(&serde_json::from_value(pod).unwrap(), services.iter());
        let told: Vec<_> = told.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = [
            "MY_DB_SERVICE_HOST=10.127.0.9",
            "MY_DB_SERVICE_PORT=80",
            "MY_DB_SERVICE_PORT_P_ONE=80",
            "MY_DB_PORT=tcp://10.127.0.9:80",
            "MY_DB_PORT_80_TCP=tcp://10.127.0.9:80",
            "MY_DB_PORT_80_TCP_PROTO=tcp",
            "MY_DB_PORT_80_TCP_PORT=80",
            "MY_DB_PORT_80_TCP_ADDR=10.127.0.9",
            "MY_DB_PORT_53_UDP=udp://10.127.0.9:53",
            "MY_DB_PORT_53_UDP_PROTO=udp",
            "MY_DB_PORT_53_UDP_PORT=53",
            "MY_DB_PORT_53_UDP_ADDR=10.127.0.9",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn pod_is_told_of_its_namespace_unless_it_does_not_want_to_be() {
        let of = |(namespace, name)| service(namespace, name, Some(Ipv4Addr::LOCALHOST));
        let all = [("one", "a"), ("two", "b"), MASTER, ("two", "kubernetes")].map(of);
        let told = |namespace: &str, links: Option<bool>| {
            let pod = json!({
                "metadata": {"namespace": namespace}, "spec": {"containers": [], "enableServiceLinks": links},
            });
            let pod = serde_json::from_value(pod).unwrap();
            let told = told(&pod, all.iter());
            told.iter().map(|it| format!("{}/{}", it.namespace, it.name)).collect::<Vec<_>>()
        };
        assert_eq!(told("one", None), ["one/a", "default/kubernetes"]);
        assert_eq!(told("two", Some(true)), ["two/b", "two/kubernetes"]);
        assert_eq!(told("one", Some(false)), ["default/kubernetes"]);
    }
}
