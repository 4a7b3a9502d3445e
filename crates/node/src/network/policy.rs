//! From NetworkPolicy objects to the network's plain facts. Pure.

use asb_network::policy::{
    Allowed, Expression, Namespaces, Operator, Policy, PolicyPeer, PolicyPort, PortChoice, Selector,
};
use asb_network::{Cidr, Protocol};
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

/// The policy, or what about it cannot be understood.
pub fn policy(object: &NetworkPolicy) -> Result<Policy, String> {
    let nothing = NetworkPolicySpec::default();
    let spec = object.spec.as_ref().unwrap_or(&nothing);
    let types = spec.policy_types.as_deref().unwrap_or_default();
    let speaks_of = |direction: &str| types.iter().any(|it| it == direction);
    let egress_given = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
    let (ingress, egress) =
        if types.is_empty() { (true, egress_given) } else { (speaks_of("Ingress"), speaks_of("Egress")) };
    let ingress = ingress.then(|| {
        let rules = spec.ingress.iter().flatten().enumerate();
        rules.map(|(at, rule)| allowed(&format!("spec.ingress[{at}]"), &rule.from, &rule.ports)).collect()
    });
    let egress = egress.then(|| {
        let rules = spec.egress.iter().flatten().enumerate();
        rules.map(|(at, rule)| allowed(&format!("spec.egress[{at}]"), &rule.to, &rule.ports)).collect()
    });
    Ok(Policy {
        namespace: object.namespace().unwrap_or_default(),
        selector: selector("spec.podSelector", spec.pod_selector.as_ref())?,
        ingress: ingress.transpose()?,
        egress: egress.transpose()?,
    })
}

/// What stands for a policy that cannot be understood: nothing passes in its namespace until it can.
pub fn refuse_all(object: &NetworkPolicy) -> Policy {
    let nothing = || Some(Vec::new());
    let namespace = object.namespace().unwrap_or_default();
    Policy { namespace, selector: Selector::default(), ingress: nothing(), egress: nothing() }
}

fn allowed(
    path: &str,
    peers: &Option<Vec<NetworkPolicyPeer>>,
    ports: &Option<Vec<NetworkPolicyPort>>,
) -> Result<Allowed, String> {
    let given = |length: usize| length > 0;
    let peers = peers.as_deref().filter(|peers| given(peers.len())).map(|peers| {
        let each = peers.iter().enumerate();
        each.map(|(at, one)| peer(&format!("{path}, peer {at}"), one)).collect()
    });
    let ports = ports.as_deref().filter(|ports| given(ports.len())).map(|ports| {
        let each = ports.iter().enumerate();
        each.map(|(at, one)| port(&format!("{path}.ports[{at}]"), one)).collect()
    });
    Ok(Allowed { peers: peers.transpose()?, ports: ports.transpose()? })
}

fn peer(path: &str, peer: &NetworkPolicyPeer) -> Result<PolicyPeer, String> {
    if let Some(block) = &peer.ip_block {
        return ip_block(path, block);
    }
    let namespaces = match &peer.namespace_selector {
        Some(it) => Namespaces::Selected(selector(&format!("{path}.namespaceSelector"), Some(it))?),
        None => Namespaces::Own,
    };
    if peer.pod_selector.is_none() && peer.namespace_selector.is_none() {
        return Err(format!("{path}: names nobody"));
    }
    let selector = selector(&format!("{path}.podSelector"), peer.pod_selector.as_ref())?;
    Ok(PolicyPeer::Sandboxes { namespaces, selector })
}

fn ip_block(path: &str, block: &IPBlock) -> Result<PolicyPeer, String> {
    let read = |cidr: &String| cidr.parse::<Cidr>().map_err(|error| format!("{path}.ipBlock: {error}"));
    let cidr = read(&block.cidr)?;
    let mut except = block.except.iter().flatten().map(read).collect::<Result<Vec<_>, _>>()?;
    // What is of the other family is not in the block anyway.
    except.retain(|except| except.is_ipv6() == cidr.is_ipv6());
    Ok(PolicyPeer::Block { cidr, except })
}

fn port(path: &str, port: &NetworkPolicyPort) -> Result<PolicyPort, String> {
    let number = |value: i32| {
        u16::try_from(value).ok().filter(|port| *port > 0).ok_or(format!("{path}: {value} is not a port"))
    };
    let protocol = protocol(port.protocol.as_deref()).map_err(|error| format!("{path}.protocol: {error}"))?;
    let choice = match (&port.port, port.end_port) {
        (None, None) => None,
        (Some(IntOrString::Int(first)), end) => {
            Some(PortChoice::Range(number(*first)?, number(end.unwrap_or(*first))?))
        }
        (Some(IntOrString::String(name)), None) => Some(PortChoice::Name(name.clone())),
        _ => return Err(format!("{path}.endPort: goes only with a port that is a number")),
    };
    Ok(PolicyPort { protocol, port: choice })
}

pub fn protocol(name: Option<&str>) -> Result<Protocol, String> {
    match name {
        None | Some("" | "TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => Ok(Protocol::Sctp),
        Some(other) => Err(format!("{other:?} is none of TCP, UDP and SCTP")),
    }
}

fn selector(path: &str, selector: Option<&LabelSelector>) -> Result<Selector, String> {
    let Some(selector) = selector else { return Ok(Selector::default()) };
    let expression = |one: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement| {
        let operator = match one.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            other => return Err(format!("{path}: {other:?} is not an operator of label selectors")),
        };
        Ok(Expression { key: one.key.clone(), operator, values: one.values.clone().unwrap_or_default() })
    };
    let expressions = selector.match_expressions.iter().flatten().map(expression);
    Ok(Selector {
        labels: selector.match_labels.clone().unwrap_or_default(),
        expressions: expressions.collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(spec: Value) -> Result<Policy, String> {
        let object = json!({"metadata": {"name": "p", "namespace": "one"}, "spec": spec});
        policy(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn directions_default_as_kubernetes_says() {
        let cases = [
            (json!({"podSelector": {}}), (true, false)),
            (json!({"podSelector": {}, "egress": []}), (true, false)),
            (json!({"podSelector": {}, "egress": [{}]}), (true, true)),
            (json!({"podSelector": {}, "policyTypes": ["Egress"]}), (false, true)),
            (json!({"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}]}), (true, false)),
            (json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}), (true, true)),
        ];
        for (spec, speaks) in cases {
            let policy = read(spec.clone()).unwrap();
            assert_eq!((policy.ingress.is_some(), policy.egress.is_some()), speaks, "{spec}");
        }
    }

    #[test]
    fn absent_and_empty_peers_are_everybody_and_others_whom_they_name() {
        let peers =
            |to: Value| read(json!({"podSelector": {}, "egress": [{"to": to}]})).unwrap().egress.unwrap();
        assert_eq!(peers(json!(null))[0].peers, None);
        assert_eq!(peers(json!([]))[0].peers, None);
        let blocks = peers(json!([{"ipBlock": {"cidr": "::/0", "except": ["fc00::/7"]}}]));
        let six = |text: &str| text.parse::<Cidr>().unwrap();
        let block = PolicyPeer::Block { cidr: six("::/0"), except: vec![six("fc00::/7")] };
        assert_eq!(blocks[0].peers, Some(vec![block]));
        let own = peers(json!([{"podSelector": {"matchLabels": {"a": "b"}}}]));
        assert!(matches!(
            &own[0].peers.as_deref().unwrap()[0],
            PolicyPeer::Sandboxes { namespaces: Namespaces::Own, .. }
        ));
        let all = peers(json!([{"namespaceSelector": {}}]));
        let Some([PolicyPeer::Sandboxes { namespaces: Namespaces::Selected(_), selector }]) =
            all[0].peers.as_deref()
        else {
            panic!("{all:?}")
        };
        assert_eq!(*selector, Selector::default());
    }

    #[test]
    fn ports_are_numbers_ranges_names_or_all_of_a_protocol() {
        let ports = |ports: Value| {
            read(json!({"podSelector": {}, "ingress": [{"ports": ports}]}))
                .map(|it| it.ingress.unwrap()[0].ports.clone())
        };
        let choice = |value: Value| ports(json!([value])).unwrap().unwrap()[0].clone();
        let tcp = |port| PolicyPort { protocol: Protocol::Tcp, port };
        assert_eq!(choice(json!({"port": 80})), tcp(Some(PortChoice::Range(80, 80))));
        assert_eq!(choice(json!({"port": 80, "endPort": 90})), tcp(Some(PortChoice::Range(80, 90))));
        assert_eq!(choice(json!({"port": "web"})), tcp(Some(PortChoice::Name("web".into()))));
        assert_eq!(choice(json!({"protocol": "UDP"})), PolicyPort { protocol: Protocol::Udp, port: None });
        assert_eq!(ports(json!([])), Ok(None));
        for wrong in [
            json!({"port": 0}),
            json!({"port": 70000}),
            json!({"protocol": "ICMP"}),
            json!({"port": "web", "endPort": 9}),
        ] {
            let error = ports(json!([wrong])).unwrap_err();
            assert!(error.starts_with("spec.ingress[0].ports[0]"), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_told_by_its_path() {
        let cases = [
            (
                json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
                "spec.podSelector",
            ),
            (
                json!({"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/99"}}]}]}),
                "spec.egress[0], peer 0.ipBlock",
            ),
            (json!({"podSelector": {}, "ingress": [{"from": [{}]}]}), "spec.ingress[0], peer 0"),
        ];
        for (spec, path) in cases {
            let error = read(spec).unwrap_err();
            assert!(error.starts_with(path), "{error} names {path}");
        }
    }
}
