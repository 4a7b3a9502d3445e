//! From facts to rules. Pure: the same facts always give the same rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::{
    Allowed, Facts, Labels, Namespaces, Policy, PolicyPeer, PolicyPort, PortChoice, Sandbox, public, service,
};
use crate::cidr::Cidr;
use crate::rules::{Chains, Direction, Peer, Port, Protocol, Rule, Ruleset, fingerprint};

const DNS: u16 = 53;
/// To policies the resolver is what it is on a cluster: Pods of this label in this namespace.
const RESOLVER_NAMESPACE: &str = "kube-system";
const RESOLVER_LABEL: (&str, &str) = ("k8s-app", "kube-dns");
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

/// The rules that follow. `gateway` is the machine's address that sandboxes know, where names are resolved.
pub fn compile(facts: &Facts, gateway: Ipv4Addr) -> Ruleset {
    let mut compiler = Compiler { facts, gateway, rules: Ruleset::default() };
    // Most sandboxes share their policies with others, and with that their chains.
    let mut known: BTreeMap<Vec<&str>, Chains> = BTreeMap::new();
    for sandbox in facts.sandboxes.values() {
        let (ids, policies): (Vec<_>, Vec<_>) = facts
            .policies
            .iter()
            .filter(|(_, policy)| selects(policy, sandbox))
            .map(|(id, policy)| (id.as_str(), policy))
            .unzip();
        let chains = known.entry(ids).or_insert_with(|| compiler.chains(&policies)).clone();
        compiler.rules.sandboxes.insert(sandbox.address, chains);
    }
    service::compile(facts, &mut compiler.rules);
    compiler.rules
}

struct Compiler<'a> {
    facts: &'a Facts,
    gateway: Ipv4Addr,
    rules: Ruleset,
}

impl Compiler<'_> {
    /// The chains of sandboxes that exactly these policies select.
    fn chains(&mut self, policies: &[&Policy]) -> Chains {
        let egress = allowed(policies, |policy| policy.egress.as_deref());
        let ingress = allowed(policies, |policy| policy.ingress.as_deref());
        let (out, machine) = match egress {
            None => {
                let public = public().map(|peer| Rule { peer, port: Port::Any });
                (public.to_vec(), self.resolver([Port::Any].into_iter()))
            }
            Some(allowed) => (self.rules_of(&allowed), self.machine(&allowed)),
        };
        let into = ingress.map(|allowed| self.rules_of(&allowed)).unwrap_or_default();
        Chains {
            out: self.rules.chain(Direction::Out, out),
            into: self.rules.chain(Direction::In, into),
            machine: self.rules.chain(Direction::Machine, machine),
        }
    }

    fn rules_of(&mut self, allowed: &[(&str, &Allowed)]) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (namespace, allowed) in allowed {
            let peers: Vec<Peer> = match &allowed.peers {
                None => vec![Peer::Anyone],
                Some(peers) => peers.iter().map(|peer| self.peer(namespace, peer)).collect(),
            };
            let ports = self.ports(allowed);
            for peer in &peers {
                rules.extend(ports.iter().map(|port| Rule { peer: peer.clone(), port: port.clone() }));
            }
        }
        rules
    }

    /// What is allowed of the machine itself: the resolver as if it were a Pod, and addresses that a block names alone.
    ///
    /// A wider block does not open the machine: who writes 0.0.0.0/0 means the internet and not this machine's services.
    fn machine(&mut self, allowed: &[(&str, &Allowed)]) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (namespace, allowed) in allowed {
            let ports = self.ports(allowed);
            let peers = allowed.peers.as_deref();
            if peers.is_none_or(|peers| peers.iter().any(|peer| self.is_resolver(namespace, peer))) {
                rules.extend(self.resolver(resolver_ports(allowed).into_iter()));
            }
            for peer in peers.unwrap_or_default() {
                if let PolicyPeer::Block { cidr, except } = peer
                    && cidr.is_single()
                {
                    let peer = Peer::Block { cidr: *cidr, except: except.clone() };
                    rules.extend(ports.iter().map(|port| Rule { peer: peer.clone(), port: port.clone() }));
                }
            }
        }
        rules
    }

    /// The resolver's ports, as far as these allow them.
    fn resolver(&self, ports: impl Iterator<Item = Port>) -> Vec<Rule> {
        let peer = Peer::Block { cidr: Cidr::single(self.gateway), except: Vec::new() };
        let both =
            [Protocol::Udp, Protocol::Tcp].map(|protocol| Port::Range { protocol, first: DNS, last: DNS });
        ports
            .flat_map(|port| if port == Port::Any { both.to_vec() } else { vec![port] })
            .map(|port| Rule { peer: peer.clone(), port })
            .collect()
    }

    fn is_resolver(&self, namespace: &str, peer: &PolicyPeer) -> bool {
        match peer {
            PolicyPeer::Block { cidr, except } => {
                cidr.contains(self.gateway) && !except.iter().any(|except| except.contains(self.gateway))
            }
            PolicyPeer::Sandboxes { namespaces, selector } => {
                let labels = |key: &str, value: &str| Labels::from([(key.to_owned(), value.to_owned())]);
                let place = match namespaces {
                    Namespaces::Own => namespace == RESOLVER_NAMESPACE,
                    Namespaces::Selected(selector) => {
                        selector.selects(&labels(NAMESPACE_LABEL, RESOLVER_NAMESPACE))
                    }
                };
                place && selector.selects(&labels(RESOLVER_LABEL.0, RESOLVER_LABEL.1))
            }
        }
    }

    fn peer(&mut self, namespace: &str, peer: &PolicyPeer) -> Peer {
        match peer {
            PolicyPeer::Block { cidr, except } => Peer::Block { cidr: *cidr, except: except.clone() },
            PolicyPeer::Sandboxes { namespaces, selector } => {
                let own = matches!(namespaces, Namespaces::Own).then_some(namespace);
                let name = fingerprint(&(own, namespaces, selector));
                if !self.rules.peers.contains_key(&name) {
                    let members = self.facts.sandboxes.values().filter(|sandbox| {
                        self.is_in(sandbox, namespace, namespaces) && selector.selects(&sandbox.labels)
                    });
                    let members: BTreeSet<_> = members.map(|sandbox| sandbox.address).collect();
                    self.rules.peers.insert(name.clone(), members);
                }
                Peer::In(name)
            }
        }
    }

    fn is_in(&self, sandbox: &Sandbox, own: &str, namespaces: &Namespaces) -> bool {
        match namespaces {
            Namespaces::Own => sandbox.namespace == own,
            Namespaces::Selected(selector) => {
                self.facts.namespaces.get(&sandbox.namespace).is_some_and(|labels| selector.selects(labels))
            }
        }
    }

    fn ports(&mut self, allowed: &Allowed) -> Vec<Port> {
        match &allowed.ports {
            None => vec![Port::Any],
            Some(ports) => ports.iter().map(|port| self.port(port)).collect(),
        }
    }

    fn port(&mut self, port: &PolicyPort) -> Port {
        let protocol = port.protocol;
        match &port.port {
            None => Port::Every(protocol),
            Some(PortChoice::Range(first, last)) => Port::Range { protocol, first: *first, last: *last },
            Some(PortChoice::Name(name)) => {
                let set = fingerprint(&(protocol, name));
                let named = self.facts.sandboxes.values().flat_map(|sandbox| {
                    let ports = sandbox.ports.iter();
                    ports
                        .filter(|port| port.name == *name && port.protocol == protocol)
                        .map(|port| (sandbox.address, port.port))
                });
                self.rules.ports.entry(set.clone()).or_insert_with(|| named.collect());
                Port::Named { protocol, set }
            }
        }
    }
}

fn selects(policy: &Policy, sandbox: &Sandbox) -> bool {
    policy.namespace == sandbox.namespace && policy.selector.selects(&sandbox.labels)
}

/// What these policies allow together in a direction, each with its policy's namespace; `None` if none speaks of it.
fn allowed<'a>(
    policies: &[&'a Policy],
    direction: impl Fn(&'a Policy) -> Option<&'a [Allowed]>,
) -> Option<Vec<(&'a str, &'a Allowed)>> {
    let speaking: Vec<_> =
        policies.iter().filter_map(|policy| Some((policy.namespace.as_str(), direction(policy)?))).collect();
    if speaking.is_empty() {
        return None;
    }
    let each = |(namespace, allowed): (&'a str, &'a [Allowed])| allowed.iter().map(move |it| (namespace, it));
    Some(speaking.into_iter().flat_map(each).collect())
}

/// Which of the resolver's two ports are among those allowed.
fn resolver_ports(allowed: &Allowed) -> Vec<Port> {
    let Some(ports) = &allowed.ports else { return vec![Port::Any] };
    let covers = |port: &PolicyPort, name: &str| match &port.port {
        None => true,
        Some(PortChoice::Range(first, last)) => (*first..=*last).contains(&DNS),
        Some(PortChoice::Name(named)) => named == name,
    };
    [(Protocol::Udp, "dns"), (Protocol::Tcp, "dns-tcp")]
        .into_iter()
        .filter(|(protocol, name)| ports.iter().any(|port| port.protocol == *protocol && covers(port, name)))
        .map(|(protocol, _)| Port::Range { protocol, first: DNS, last: DNS })
        .collect()
}
