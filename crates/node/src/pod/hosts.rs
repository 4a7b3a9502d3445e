//! `/etc/hosts` of a Pod, as the kubelet writes it. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::spec::hostname;
use asb_network::dns::DOMAIN;

const COMMON: &str = "# Kubernetes-managed hosts file.\n\
    127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

pub fn text(pod: &Pod, address: Ipv4Addr, address6: Option<Ipv6Addr>) -> String {
    let (host, spec) = (hostname(pod), pod.spec.as_ref());
    let subdomain = spec.and_then(|spec| spec.subdomain.as_ref()).filter(|name| !name.is_empty());
    let names = match subdomain {
        Some(subdomain) => {
            let namespace = pod.namespace().unwrap_or_default();
            format!("{host}.{subdomain}.{namespace}.svc.{DOMAIN}\t{host}")
        }
        None => host,
    };
    let mut text = COMMON.to_owned();
    for address in std::iter::once(IpAddr::from(address)).chain(address6.map(IpAddr::from)) {
        text.push_str(&format!("{address}\t{names}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pod_finds_itself_by_each_of_its_addresses() {
        let lines = |spec: serde_json::Value, address6: Option<&str>| {
            let pod = json!({"metadata": {"name": "box", "namespace": "one"}, "spec": spec});
            let pod = serde_json::from_value(pod).unwrap();
            let text = text(&pod, Ipv4Addr::new(10, 88, 0, 2), address6.map(|it| it.parse().unwrap()));
            assert!(text.starts_with(COMMON));
            text.lines().skip(7).map(str::to_owned).collect::<Vec<_>>()
        };
        let plain = json!({"containers": []});
        assert_eq!(lines(plain.clone(), None), ["10.88.0.2\tbox"]);
        assert_eq!(lines(plain, Some("fd61::2")), ["10.88.0.2\tbox", "fd61::2\tbox"]);
        let named = json!({"containers": [], "hostname": "h", "subdomain": "s"});
        assert_eq!(lines(named, None), ["10.88.0.2\th.s.one.svc.cluster.local\th"]);
    }
}
