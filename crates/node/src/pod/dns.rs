//! `/etc/resolv.conf` of a Pod, from its `dnsPolicy` and `dnsConfig`.

use std::net::Ipv4Addr;

use asb_network::dns::DOMAIN;
use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};

/// What a sandbox without a network asks: itself, where nobody answers and everybody hears so at once.
const NOBODY: &str = "127.0.0.1";

#[derive(Default)]
struct File {
    servers: Vec<String>,
    searches: Vec<String>,
    /// With a value where there is one.
    options: Vec<(String, Option<String>)>,
}

/// The file's contents, or `None` when there is neither a resolver nor anything the Pod says about it.
pub fn resolv_conf(spec: &PodSpec, namespace: &str, resolver: Option<Ipv4Addr>) -> Option<String> {
    if resolver.is_none() && spec.dns_config.is_none() {
        return None;
    }
    let server = || vec![resolver.map_or(NOBODY.to_owned(), |address| address.to_string())];
    let mut file = match (spec.dns_policy.as_deref(), resolver) {
        (Some("None"), _) => File::default(),
        // The machine's own resolvers, through ours: most of them are on networks that no sandbox reaches.
        (Some("Default"), _) | (_, None) => File { servers: server(), ..File::default() },
        _ => File {
            servers: server(),
            searches: vec![format!("{namespace}.svc.{DOMAIN}"), format!("svc.{DOMAIN}"), DOMAIN.to_owned()],
            options: vec![("ndots".to_owned(), Some("5".to_owned()))],
        },
    };
    spec.dns_config.iter().for_each(|config| file.add(config));
    Some(file.text())
}

impl File {
    /// Servers and searches come on top; an option of the same name is replaced.
    fn add(&mut self, config: &PodDNSConfig) {
        let new = |to: &mut Vec<String>, from: &Option<Vec<String>>| {
            for one in from.iter().flatten() {
                if !to.contains(one) {
                    to.push(one.clone());
                }
            }
        };
        new(&mut self.servers, &config.nameservers);
        new(&mut self.searches, &config.searches);
        for option in config.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            self.options.retain(|(known, _)| *known != name);
            self.options.push((name, option.value.clone()));
        }
    }

    fn text(&self) -> String {
        let mut lines: Vec<_> = self.servers.iter().map(|server| format!("nameserver {server}")).collect();
        if !self.searches.is_empty() {
            lines.push(format!("search {}", self.searches.join(" ")));
        }
        if !self.options.is_empty() {
            let option = |(name, value): &(String, Option<String>)| match value {
                Some(value) => format!("{name}:{value}"),
                None => name.clone(),
            };
            lines.push(format!("options {}", self.options.iter().map(option).collect::<Vec<_>>().join(" ")));
        }
        lines.into_iter().map(|line| one_line(&line) + "\n").collect()
    }
}

/// A value cannot smuggle in a line of its own.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RESOLVER: Option<Ipv4Addr> = Some(Ipv4Addr::new(10, 88, 0, 1));

    fn of(spec: serde_json::Value, resolver: Option<Ipv4Addr>) -> Option<String> {
        let mut object = json!({"containers": []});
        object.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        resolv_conf(&serde_json::from_value(object).unwrap(), "one", resolver)
    }

    #[test]
    fn policy_none_holds_exactly_what_the_config_says() {
        let config = json!({
            "nameservers": ["8.8.8.8", "1.1.1.1"], "searches": ["a.example", "b.example"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
        });
        let expected =
            "nameserver 8.8.8.8\nnameserver 1.1.1.1\nsearch a.example b.example\noptions ndots:2 edns0\n";
        for resolver in [None, RESOLVER] {
            let spec = json!({"dnsPolicy": "None", "dnsConfig": config});
            assert_eq!(of(spec, resolver).as_deref(), Some(expected));
        }
    }

    #[test]
    fn names_are_searched_as_on_a_cluster() {
        let usual = "nameserver 10.88.0.1\nsearch one.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n";
        assert_eq!(of(json!({}), RESOLVER).as_deref(), Some(usual));
        assert_eq!(of(json!({"dnsPolicy": "ClusterFirst"}), RESOLVER).as_deref(), Some(usual));
        assert_eq!(of(json!({"dnsPolicy": "Default"}), RESOLVER).as_deref(), Some("nameserver 10.88.0.1\n"));
        let config = json!({"nameservers": ["8.8.8.8"], "searches": ["x"], "options": [{"name": "ndots", "value": "1"}]});
        let both = of(json!({"dnsConfig": config}), RESOLVER).unwrap();
        let expected = "nameserver 10.88.0.1\nnameserver 8.8.8.8\nsearch one.svc.cluster.local svc.cluster.local cluster.local x\noptions ndots:1\n";
        assert_eq!(both, expected);
    }

    #[test]
    fn without_a_network_everybody_hears_at_once_that_nobody_answers() {
        let config = json!({"nameservers": ["8.8.8.8"]});
        let both = of(json!({"dnsPolicy": "ClusterFirst", "dnsConfig": config}), None);
        assert_eq!(both.as_deref(), Some("nameserver 127.0.0.1\nnameserver 8.8.8.8\n"));
        assert_eq!(of(json!({"dnsPolicy": "Default"}), None), None);
    }

    #[test]
    fn a_value_with_a_line_break_stays_on_its_line() {
        let config = json!({"searches": ["a\nnameserver 6.6.6.6"]});
        let text = of(json!({"dnsPolicy": "None", "dnsConfig": config}), None);
        assert_eq!(text.as_deref(), Some("search a nameserver 6.6.6.6\n"));
    }
}
