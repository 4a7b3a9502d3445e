//! `/etc/resolv.conf` of a Pod, from its `dnsPolicy` and `dnsConfig`.

use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};

/// What a sandbox without a network asks: itself, where nobody answers and everybody hears so at once.
const NOBODY: &str = "127.0.0.1";

/// The file's contents, or `None` when the Pod says nothing about DNS.
pub fn resolv_conf(spec: &PodSpec) -> Option<String> {
    let config = spec.dns_config.as_ref()?;
    // `None` means: only what `dnsConfig` says.
    let own = (spec.dns_policy.as_deref() != Some("None")).then(|| NOBODY.to_owned());
    let servers = own.into_iter().chain(config.nameservers.iter().flatten().cloned());
    let mut lines: Vec<_> = servers.map(|server| format!("nameserver {server}")).collect();
    lines.extend(searches(config));
    lines.extend(options(config));
    Some(lines.into_iter().map(|line| one_line(&line) + "\n").collect())
}

fn searches(config: &PodDNSConfig) -> Option<String> {
    let searches = config.searches.as_ref().filter(|searches| !searches.is_empty())?;
    Some(format!("search {}", searches.join(" ")))
}

fn options(config: &PodDNSConfig) -> Option<String> {
    let options = config.options.as_ref().filter(|options| !options.is_empty())?;
    let option = |option: &k8s_openapi::api::core::v1::PodDNSConfigOption| {
        let name = option.name.clone().unwrap_or_default();
        option.value.as_ref().map_or(name.clone(), |value| format!("{name}:{value}"))
    };
    Some(format!("options {}", options.iter().map(option).collect::<Vec<_>>().join(" ")))
}

/// A value cannot smuggle in a line of its own.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(spec: serde_json::Value) -> Option<String> {
        let mut object = json!({"containers": []});
        object.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        resolv_conf(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn policy_none_holds_exactly_what_the_config_says() {
        let config = json!({
            "nameservers": ["8.8.8.8", "1.1.1.1"], "searches": ["a.example", "b.example"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
        });
        let expected =
            "nameserver 8.8.8.8\nnameserver 1.1.1.1\nsearch a.example b.example\noptions ndots:2 edns0\n";
        assert_eq!(of(json!({"dnsPolicy": "None", "dnsConfig": config})).as_deref(), Some(expected));
    }

    #[test]
    fn other_policies_add_the_config_to_their_own() {
        let config = json!({"nameservers": ["8.8.8.8"]});
        let both = of(json!({"dnsPolicy": "ClusterFirst", "dnsConfig": config}));
        assert_eq!(both.as_deref(), Some("nameserver 127.0.0.1\nnameserver 8.8.8.8\n"));
        assert_eq!(of(json!({"dnsPolicy": "Default"})), None);
    }

    #[test]
    fn a_value_with_a_line_break_stays_on_its_line() {
        let config = json!({"searches": ["a\nnameserver 6.6.6.6"]});
        let text = of(json!({"dnsPolicy": "None", "dnsConfig": config}));
        assert_eq!(text.as_deref(), Some("search a nameserver 6.6.6.6\n"));
    }
}
