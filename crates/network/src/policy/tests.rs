//! Tables for what people write, and random worlds for what nobody thought of.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::rules::{Packet, Ruleset};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
const A: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
const B: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 3);
const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn selector(pairs: &[(&str, &str)]) -> Selector {
    Selector { labels: labels(pairs), expressions: Vec::new() }
}

/// `a` and `b` in the namespace `one`; `b` calls 8080 `web`.
fn facts(policies: Vec<Policy>) -> Facts {
    let sandbox = |name: &str, address, ports| Sandbox {
        name: name.to_owned(),
        host: None,
        namespace: "one".to_owned(),
        labels: labels(&[("app", name)]),
        address,
        ports,
        ready: true,
    };
    let web = NamedPort { name: "web".to_owned(), protocol: Protocol::Tcp, port: 8080 };
    Facts {
        sandboxes: [("a".to_owned(), sandbox("a", A, vec![])), ("b".to_owned(), sandbox("b", B, vec![web]))]
            .into(),
        namespaces: [("one".to_owned(), labels(&[("team", "x")]))].into(),
        services: Default::default(),
        policies: policies.into_iter().enumerate().map(|(at, policy)| (at.to_string(), policy)).collect(),
    }
}

fn policy(app: &str, ingress: Option<Vec<Allowed>>, egress: Option<Vec<Allowed>>) -> Policy {
    Policy { namespace: "one".to_owned(), selector: selector(&[("app", app)]), ingress, egress }
}

fn with(app: &str) -> Option<Vec<PolicyPeer>> {
    Some(vec![PolicyPeer::Sandboxes { namespaces: Namespaces::Own, selector: selector(&[("app", app)]) }])
}

fn block(cidr: &str, except: &[&str]) -> Option<Vec<PolicyPeer>> {
    let except = except.iter().map(|except| except.parse().unwrap()).collect();
    Some(vec![PolicyPeer::Block { cidr: cidr.parse().unwrap(), except }])
}

fn tcp(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, port: u16) -> Packet {
    Packet { source: source.into(), destination: destination.into(), port: Some((Protocol::Tcp, port)) }
}

fn rules(policies: Vec<Policy>) -> Ruleset {
    compile(&facts(policies), GATEWAY)
}

#[test]
fn without_policies_only_public_addresses_and_the_resolver_are_reached() {
    let rules = rules(vec![]);
    assert!(rules.passes(&tcp(A, PUBLIC, 443)));
    for private in
        [B, Ipv4Addr::new(169, 254, 169, 254), Ipv4Addr::new(192, 168, 1, 1), Ipv4Addr::new(100, 64, 0, 1)]
    {
        assert!(!rules.passes(&tcp(A, private, 80)), "{private}");
    }
    assert!(!rules.passes(&tcp(PUBLIC, A, 80)), "nobody comes in");
    assert!(rules.reaches_machine(&tcp(A, GATEWAY, 53)));
    assert!(!rules.reaches_machine(&tcp(A, GATEWAY, 22)));
    assert!(!rules.reaches_machine(&tcp(A, PUBLIC, 53)), "another address of the machine");
}

#[test]
fn the_same_holds_for_ipv6() {
    let six = |address| Ruleset::block6().beside(address);
    let parse = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    let closed = rules(vec![]);
    assert!(closed.passes(&tcp(six(A), parse("2600::1"), 443)));
    let private = [
        "::1",
        "::",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:a9fe:a9fe::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ];
    for address in private {
        assert!(!closed.passes(&tcp(six(A), parse(address), 80)), "{address}");
    }
    assert!(!closed.passes(&tcp(six(A), six(B), 80)) && !closed.passes(&tcp(parse("2600::1"), six(A), 80)));
    assert!(
        !closed.reaches_machine(&tcp(six(A), six(GATEWAY), 53)),
        "names are resolved at the other address"
    );
    let out = policy("a", None, Some(vec![Allowed { peers: with("b"), ports: None }]));
    let into = policy("b", Some(vec![Allowed { peers: with("a"), ports: None }]), None);
    let open = rules(vec![out, into]);
    assert!(open.passes(&tcp(six(A), six(B), 80)) && !open.passes(&tcp(six(B), six(A), 80)));
    assert!(!open.passes(&tcp(six(A), parse("2600::1"), 443)), "the default for this direction is replaced");
    let blocks = |cidr, except: &[&str]| {
        rules(vec![policy("a", None, Some(vec![Allowed { peers: block(cidr, except), ports: None }]))])
    };
    let some = blocks("2600::/16", &["2600:1::/32"]);
    assert!(some.passes(&tcp(six(A), parse("2600:2::1"), 443)));
    assert!(!some.passes(&tcp(six(A), parse("2600:1::1"), 443)) && !some.passes(&tcp(A, PUBLIC, 443)));
    assert!(!blocks("::/0", &[]).reaches_machine(&tcp(six(A), parse("2600::2"), 22)));
    assert!(blocks("2600::2/128", &[]).reaches_machine(&tcp(six(A), parse("2600::2"), 22)));
}

#[test]
fn both_ends_must_allow_a_connection() {
    let out = || policy("a", None, Some(vec![Allowed { peers: with("b"), ports: None }]));
    let into = || policy("b", Some(vec![Allowed { peers: with("a"), ports: None }]), None);
    assert!(!rules(vec![out()]).passes(&tcp(A, B, 80)));
    assert!(!rules(vec![into()]).passes(&tcp(A, B, 80)));
    let both = rules(vec![out(), into()]);
    assert!(both.passes(&tcp(A, B, 80)));
    assert!(!both.passes(&tcp(B, A, 80)), "not the other way round");
    assert!(!both.passes(&tcp(A, PUBLIC, 443)), "the default for this direction is replaced");
    assert!(both.passes(&tcp(B, PUBLIC, 443)), "no policy speaks of what b may reach");
}

#[test]
fn policies_add_up_and_an_empty_one_refuses_all() {
    let nothing = policy("a", Some(vec![]), Some(vec![]));
    let internet =
        policy("a", None, Some(vec![Allowed { peers: block("0.0.0.0/0", &["10.0.0.0/8"]), ports: None }]));
    assert!(!rules(vec![nothing.clone()]).passes(&tcp(A, PUBLIC, 443)));
    assert!(!rules(vec![nothing.clone()]).reaches_machine(&tcp(A, GATEWAY, 53)), "nor the resolver");
    let both = rules(vec![nothing, internet]);
    assert!(both.passes(&tcp(A, PUBLIC, 443)));
    assert!(!both.passes(&tcp(A, Ipv4Addr::new(10, 1, 1, 1), 443)));
}

#[test]
fn names_of_ports_are_those_of_the_sandbox_that_is_connected_to() {
    let port = |port| Some(vec![PolicyPort { protocol: Protocol::Tcp, port: Some(port) }]);
    let out =
        policy("a", None, Some(vec![Allowed { peers: None, ports: port(PortChoice::Name("web".into())) }]));
    let into =
        policy("b", Some(vec![Allowed { peers: None, ports: port(PortChoice::Range(8000, 8100)) }]), None);
    let rules = rules(vec![out, into]);
    assert!(rules.passes(&tcp(A, B, 8080)));
    assert!(!rules.passes(&tcp(A, B, 8081)) && !rules.passes(&tcp(A, PUBLIC, 8080)));
    let ping = Packet { source: A.into(), destination: B.into(), port: None };
    assert!(!rules.passes(&ping), "a protocol without ports fits no port");
}

#[test]
fn machine_is_open_only_to_a_block_that_names_its_address_alone() {
    let host = Ipv4Addr::new(192, 0, 2, 2);
    let egress = |cidr| policy("a", None, Some(vec![Allowed { peers: block(cidr, &[]), ports: None }]));
    for (cidr, reached) in
        [("0.0.0.0/0", false), ("192.0.2.0/24", false), ("192.0.2.2/31", false), ("192.0.2.2/32", true)]
    {
        assert_eq!(rules(vec![egress(cidr)]).reaches_machine(&tcp(A, host, 22)), reached, "{cidr}");
    }
    let everybody = policy("a", None, Some(vec![Allowed::default()]));
    let rules = rules(vec![everybody]);
    assert!(!rules.reaches_machine(&tcp(A, host, 22)) && rules.reaches_machine(&tcp(A, GATEWAY, 53)));
}

#[test]
fn resolver_is_allowed_as_on_a_cluster() {
    let dns = |namespaces, selector, ports| {
        let peers = Some(vec![PolicyPeer::Sandboxes { namespaces, selector }]);
        policy("a", None, Some(vec![Allowed { peers, ports }]))
    };
    let system = || Namespaces::Selected(selector(&[("kubernetes.io/metadata.name", "kube-system")]));
    let udp = || Some(vec![PolicyPort { protocol: Protocol::Udp, port: Some(PortChoice::Range(53, 53)) }]);
    let asks = |policy, protocol| {
        let packet = Packet { source: A.into(), destination: GATEWAY.into(), port: Some((protocol, 53)) };
        rules(vec![policy]).reaches_machine(&packet)
    };
    let usual = dns(system(), selector(&[("k8s-app", "kube-dns")]), udp());
    assert!(asks(usual.clone(), Protocol::Udp) && !asks(usual, Protocol::Tcp));
    assert!(asks(dns(system(), Selector::default(), None), Protocol::Tcp));
    assert!(!asks(dns(Namespaces::Own, Selector::default(), None), Protocol::Udp));
    assert!(!asks(dns(system(), selector(&[("app", "db")]), udp()), Protocol::Udp));
}

#[test]
fn a_new_sandbox_adds_members_and_no_chains() {
    let policies = || vec![policy("a", None, Some(vec![Allowed { peers: with("a"), ports: None }]))];
    let before = rules(policies());
    let mut more = facts(policies());
    let twin = Sandbox { address: Ipv4Addr::new(10, 88, 0, 9), ..more.sandboxes["a"].clone() };
    more.sandboxes.insert("c".to_owned(), twin);
    let after = compile(&more, GATEWAY);
    assert_eq!(before.chains, after.chains);
    assert_eq!(before.peers.keys().collect::<Vec<_>>(), after.peers.keys().collect::<Vec<_>>());
    assert_ne!(before.peers, after.peers);
}

// Small alphabets, so that things meet.

fn any_labels() -> impl Strategy<Value = Labels> {
    btree_map("[kl]", "[xy]", 0..=2)
}

fn any_selector() -> impl Strategy<Value = Selector> {
    let operator = prop_oneof![
        Just(Operator::In),
        Just(Operator::NotIn),
        Just(Operator::Exists),
        Just(Operator::DoesNotExist)
    ];
    let expression = ("[kl]", operator, vec("[xy]", 1..=2)).prop_map(|(key, operator, values)| Expression {
        key,
        operator,
        values,
    });
    (btree_map("[kl]", "[xy]", 0..=1), vec(expression, 0..=1))
        .prop_map(|(labels, expressions)| Selector { labels, expressions })
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    let sandbox = |last| Ipv4Addr::new(10, 88, 0, last);
    let others = ["10.1.2.3", "169.254.169.254", "2600::1", "2001:db8::1", "fd00:ec2::254", "64:ff9b::a00:1"];
    prop_oneof![
        2 => (2u8..6).prop_map(move |last| sandbox(last).into()),
        2 => (2u8..6).prop_map(move |last| Ruleset::block6().beside(sandbox(last)).into()),
        1 => Just(PUBLIC.into()),
        3 => proptest::sample::select(others.to_vec()).prop_map(|text| text.parse().unwrap()),
    ]
}

fn any_cidr() -> impl Strategy<Value = Cidr> {
    (any_address(), prop_oneof![Just(0u8), Just(8), Just(24), Just(31), Just(32)]).prop_map(
        |(address, length)| {
            let length = if address.is_ipv4() { length } else { length * 4 };
            Cidr::new(address, length).unwrap()
        },
    )
}

fn any_protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)]
}

fn any_allowed() -> impl Strategy<Value = Allowed> {
    let namespaces = prop_oneof![Just(Namespaces::Own), any_selector().prop_map(Namespaces::Selected)];
    let peer = prop_oneof![
        (namespaces, any_selector())
            .prop_map(|(namespaces, selector)| PolicyPeer::Sandboxes { namespaces, selector }),
        (any_cidr(), vec(any_cidr(), 0..=2)).prop_map(|(cidr, mut except)| {
            except.retain(|except| except.is_ipv6() == cidr.is_ipv6());
            PolicyPeer::Block { cidr, except }
        }),
    ];
    let choice = prop_oneof![
        (1u16..5, 0u16..3).prop_map(|(first, more)| PortChoice::Range(first, first + more)),
        "[pq]".prop_map(PortChoice::Name),
    ];
    let port =
        (any_protocol(), option::of(choice)).prop_map(|(protocol, port)| PolicyPort { protocol, port });
    (option::of(vec(peer, 0..=2)), option::of(vec(port, 0..=2)))
        .prop_map(|(peers, ports)| Allowed { peers, ports })
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let named = ("[pq]", any_protocol(), 1u16..6).prop_map(|(name, protocol, port)| NamedPort {
        name,
        protocol,
        port,
    });
    let sandbox = ("[mn]", any_labels(), vec(named, 0..=2));
    let policy = (
        "[mn]",
        any_selector(),
        option::of(vec(any_allowed(), 0..=2)),
        option::of(vec(any_allowed(), 0..=2)),
    )
        .prop_map(|(namespace, selector, ingress, egress)| Policy {
            namespace,
            selector,
            ingress,
            egress,
        });
    (vec(sandbox, 1..=4), btree_map("[mn]", any_labels(), 0..=2), btree_map("[a-d]", policy, 0..=4)).prop_map(
        |(sandboxes, namespaces, policies)| {
            let sandboxes = sandboxes.into_iter().enumerate().map(|(at, (namespace, labels, ports))| {
                let address = Ipv4Addr::new(10, 88, 0, 2 + at as u8);
                (
                    at.to_string(),
                    Sandbox {
                        name: at.to_string(),
                        host: None,
                        ready: true,
                        namespace,
                        labels,
                        address,
                        ports,
                    },
                )
            });
            Facts { sandboxes: sandboxes.collect(), namespaces, policies, ..Facts::default() }
        },
    )
}

fn any_packet() -> impl Strategy<Value = Packet> {
    (any_address(), any_address(), option::of((any_protocol(), 1u16..8)))
        .prop_map(|(source, destination, port)| Packet { source, destination, port })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn compiled_rules_say_what_policies_mean(facts in any_facts(), packets in vec(any_packet(), 20)) {
        let rules = compile(&facts, GATEWAY);
        for packet in packets {
            prop_assert_eq!(rules.passes(&packet), model::passes(&facts, &packet), "{:?}", packet);
        }
    }

    #[test]
    fn nothing_of_the_machine_but_the_resolver_is_reached_through_wide_blocks(
        facts in any_facts(), packet in any_packet(),
    ) {
        let rules = compile(&facts, GATEWAY);
        let named_alone = facts.policies.values().flat_map(|policy| policy.egress.iter().flatten())
            .flat_map(|allowed| allowed.peers.iter().flatten())
            .any(|peer| matches!(peer, PolicyPeer::Block { cidr, .. } if *cidr == Cidr::single(packet.destination)));
        prop_assume!(!named_alone);
        prop_assert!(!rules.reaches_machine(&packet));
    }
}
