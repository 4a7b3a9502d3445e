//! Services: names for sandboxes, and addresses behind which they stand. What follows from them, purely.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::{Facts, Sandbox, Selector};
use crate::place::SERVICES;
use crate::rules::{Door, Protocol, Ruleset, Spread, fingerprint};

/// A name for all sandboxes that it selects, and perhaps an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub name: String,
    pub namespace: String,
    /// `None`: nobody.
    pub selector: Option<Selector>,
    /// Where its sandboxes are reached; `None`: its name stands for theirs.
    pub address: Option<Ipv4Addr>,
    /// It is only another name for this one, which may be anybody's.
    pub external: Option<String>,
    pub ports: Vec<ServicePort>,
    /// Whoever comes again is led to the same sandbox.
    pub sticky: bool,
    /// Also leads to sandboxes that are not ready.
    pub unready: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Needed by those of several ports.
    pub name: Option<String>,
    pub protocol: Protocol,
    pub port: u16,
    pub target: Target,
}

/// Which port of a sandbox is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Number(u16),
    /// What the sandbox calls so.
    Name(String),
}

impl Service {
    pub fn selects(&self, sandbox: &Sandbox) -> bool {
        sandbox.namespace == self.namespace
            && self.selector.as_ref().is_some_and(|selector| selector.selects(&sandbox.labels))
    }

    /// Its address, if it is one of those that services may have.
    pub fn address(&self) -> Option<Ipv4Addr> {
        self.address.filter(|address| SERVICES.contains(*address))
    }

    pub fn leads_to(&self, sandbox: &Sandbox) -> bool {
        (sandbox.ready || self.unready) && self.selects(sandbox)
    }
}

impl Facts {
    /// Whether it is of any consequence that a sandbox is ready.
    pub fn awaits(&self, sandbox: &Sandbox) -> bool {
        self.services.values().any(|service| service.address().is_some() && service.selects(sandbox))
    }
}

/// Where the ports of services lead. Without a sandbox that is ready a port leads nowhere, and is refused.
pub fn compile(facts: &Facts, rules: &mut Ruleset) {
    for service in facts.services.values() {
        let Some(address) = service.address() else { continue };
        let members: Vec<_> = facts.sandboxes.values().filter(|sandbox| service.leads_to(sandbox)).collect();
        for port in &service.ports {
            let to: BTreeSet<_> = members.iter().filter_map(|member| reached(member, port)).collect();
            if to.is_empty() {
                continue;
            }
            let spread = Spread { sticky: service.sticky, to: to.into_iter().collect() };
            let name = fingerprint(&spread);
            let door = Door { address, protocol: port.protocol, port: port.port };
            // Two services never have one address; if they do, it is that of the first.
            rules.doors.entry(door).or_insert_with(|| name.clone());
            rules.spreads.insert(name, spread);
        }
    }
    let used: BTreeSet<_> = rules.doors.values().cloned().collect();
    rules.spreads.retain(|name, _| used.contains(name));
}

pub fn reached(sandbox: &Sandbox, port: &ServicePort) -> Option<(Ipv4Addr, u16)> {
    let number = match &port.target {
        Target::Number(number) => *number,
        Target::Name(name) => {
            let mut named = sandbox.ports.iter();
            named.find(|known| known.name == *name && known.protocol == port.protocol)?.port
        }
    };
    Some((sandbox.address, number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Labels, NamedPort};

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 127, 1, 1);

    fn labels(app: &str) -> Labels {
        Labels::from([("app".to_owned(), app.to_owned())])
    }

    fn sandbox(last: u8, app: &str, ready: bool) -> Sandbox {
        Sandbox {
            name: format!("s{last}"),
            namespace: "one".to_owned(),
            labels: labels(app),
            address: Ipv4Addr::new(10, 88, 0, last),
            ports: vec![NamedPort {
                name: "web".into(),
                protocol: Protocol::Tcp,
                port: 8000 + u16::from(last),
            }],
            host: None,
            ready,
        }
    }

    fn service(ports: Vec<ServicePort>) -> Service {
        Service {
            name: "web".to_owned(),
            namespace: "one".to_owned(),
            selector: Some(Selector { labels: labels("web"), expressions: vec![] }),
            address: Some(ADDRESS),
            external: None,
            ports,
            sticky: false,
            unready: false,
        }
    }

    fn tcp(port: u16, target: Target) -> ServicePort {
        ServicePort { name: None, protocol: Protocol::Tcp, port, target }
    }

    fn facts(services: Vec<Service>) -> Facts {
        let other = Sandbox { namespace: "two".to_owned(), ..sandbox(6, "web", true) };
        let all = [
            sandbox(2, "web", true),
            sandbox(3, "web", true),
            sandbox(4, "web", false),
            sandbox(5, "db", true),
            other,
        ];
        Facts {
            sandboxes: all.into_iter().map(|it| (it.address.to_string(), it)).collect(),
            services: services.into_iter().enumerate().map(|(at, it)| (at.to_string(), it)).collect(),
            ..Facts::default()
        }
    }

    /// Where a connection to this port of the service may lead.
    fn leads(services: Vec<Service>, protocol: Protocol, port: u16) -> Vec<(u8, u16)> {
        let mut rules = Ruleset::default();
        compile(&facts(services), &mut rules);
        let door = Door { address: ADDRESS, protocol, port };
        let to = rules.doors.get(&door).map(|name| rules.spreads[name].to.clone()).unwrap_or_default();
        to.into_iter().map(|(address, port)| (address.octets()[3], port)).collect()
    }

    #[test]
    fn a_port_leads_to_ready_sandboxes_of_the_same_namespace() {
        let ports = || vec![tcp(80, Target::Number(8080)), tcp(81, Target::Name("web".into()))];
        assert_eq!(leads(vec![service(ports())], Protocol::Tcp, 80), [(2, 8080), (3, 8080)]);
        assert_eq!(leads(vec![service(ports())], Protocol::Tcp, 81), [(2, 8002), (3, 8003)], "by name");
        assert_eq!(leads(vec![service(ports())], Protocol::Udp, 80), [], "another protocol");
        assert_eq!(leads(vec![service(ports())], Protocol::Tcp, 8080), [], "another port");
        let all = Service { unready: true, ..service(ports()) };
        assert_eq!(leads(vec![all], Protocol::Tcp, 80).len(), 3);
    }

    #[test]
    fn nothing_leads_nowhere() {
        let port = || vec![tcp(80, Target::Number(8080))];
        let unknown = service(vec![tcp(80, Target::Name("grpc".into()))]);
        let nobody = Service { selector: None, ..service(port()) };
        let headless = Service { address: None, ..service(port()) };
        let outside = Service { address: Some(Ipv4Addr::new(10, 88, 0, 5)), ..service(port()) };
        for service in [unknown, nobody, headless, outside] {
            let mut rules = Ruleset::default();
            compile(&facts(vec![service.clone()]), &mut rules);
            assert_eq!(rules, Ruleset::default(), "{service:?}");
        }
    }

    #[test]
    fn of_two_services_with_one_address_the_first_has_it() {
        let second = Service { name: "db".into(), ..service(vec![tcp(80, Target::Number(1))]) };
        let mut rules = Ruleset::default();
        compile(&facts(vec![service(vec![tcp(80, Target::Number(8080))]), second]), &mut rules);
        assert_eq!((rules.doors.len(), rules.spreads.len()), (1, 1));
        assert_eq!(rules.spreads.values().next().unwrap().to[0].1, 8080);
    }

    #[test]
    fn readiness_matters_only_behind_an_address() {
        let headless = Service { address: None, ..service(vec![]) };
        assert!(facts(vec![service(vec![])]).awaits(&sandbox(9, "web", false)));
        assert!(!facts(vec![service(vec![])]).awaits(&sandbox(9, "db", false)));
        assert!(!facts(vec![headless]).awaits(&sandbox(9, "web", false)));
    }
}
