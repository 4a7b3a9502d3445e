//! `/etc/hosts` of a Pod, as the kubelet writes it. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;

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
    for (at, alias) in spec.and_then(|spec| spec.host_aliases.as_ref()).into_iter().flatten().enumerate() {
        if at == 0 {
            text.push_str("\n# Entries added by HostAliases.\n");
        }
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        text.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    text
}

/// Refuses `spec.hostAliases` that would not be lines of such a file, as kube-apiserver does.
pub fn check(aliases: &Value) -> Result<(), String> {
    for (at, alias) in aliases.as_array().into_iter().flatten().enumerate() {
        let path = format!("spec.hostAliases[{at}]");
        let ip = alias["ip"].as_str().unwrap_or_default();
        if ip.parse::<IpAddr>().is_err() {
            return Err(format!("{path}.ip: {ip:?} is not an IP address"));
        }
        for (at, name) in alias["hostnames"].as_array().into_iter().flatten().enumerate() {
            let name = name.as_str().unwrap_or_default();
            if !is_name(name) {
                return Err(format!(
                    "{path}.hostnames[{at}]: {name:?} is not a name of lowercase letters, digits, `-` and `.`"
                ));
            }
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let is_edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = bytes.first().zip(bytes.last()).is_some_and(|(a, b)| is_edge(*a) && is_edge(*b));
        ends && bytes.iter().all(|byte| is_edge(*byte) || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
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
        let aliases =
            json!([{"ip": "1.2.3.4", "hostnames": ["a.b", "c"]}, {"ip": "::5", "hostnames": ["d"]}]);
        assert_eq!(
            lines(json!({"containers": [], "hostAliases": aliases}), None),
            ["10.88.0.2\tbox", "", "# Entries added by HostAliases.", "1.2.3.4\ta.b\tc", "::5\td"]
        );
    }

    #[test]
    fn aliases_that_are_no_lines_of_the_file_are_refused_by_their_path() {
        let check = |alias: Value| check(&json!([alias]));
        assert_eq!(check(json!({"ip": "fd00::1", "hostnames": ["a-1.example"]})), Ok(()));
        let refused = |alias| check(alias).expect_err("refused");
        assert!(refused(json!({"ip": "1.2.3", "hostnames": ["a"]})).starts_with("spec.hostAliases[0].ip"));
        for name in ["", "a b", "a\n1.1.1.1 b", "-a", "a..b", "UPPER", "#"] {
            let message = refused(json!({"ip": "1.2.3.4", "hostnames": ["fine", name]}));
            assert!(message.starts_with("spec.hostAliases[0].hostnames[1]"), "{message}");
        }
    }
}
