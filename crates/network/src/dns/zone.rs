//! Which names are ours and what they stand for. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use crate::address6::Block6;
use crate::policy::{Facts, Sandbox, Service, reached};

/// Everything below is ours, whether or not it exists.
pub const DOMAIN: &str = "cluster.local";

/// Records by full name, and names by address; all in lower case and without the last dot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zone {
    names: BTreeMap<String, Records>,
    pointers: BTreeMap<IpAddr, BTreeSet<String>>,
}

/// What a name stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    pub addresses: BTreeSet<IpAddr>,
    /// Where a service is found: port and name.
    pub services: BTreeSet<(u16, String)>,
    /// Another name for the same, which may be anybody's.
    pub alias: Option<String>,
    /// Of an address: whose it is.
    pub pointers: BTreeSet<String>,
}

/// What is known of a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// None of ours.
    Elsewhere,
    Nothing,
    /// Empty when only longer names stand for something.
    Records(Records),
}

impl Zone {
    /// The names that follow from what is known: sandboxes by their own, services by theirs (their address, or else their
    /// sandboxes), their ports, and their sandboxes by host name or address below the service that they belong to.
    ///
    /// Where a service and a sandbox share a name it is the service's. A service is of IPv4 alone, whoever belongs to it.
    pub fn of(facts: &Facts, six: Option<Block6>) -> Self {
        let mut zone = Self::default();
        let both = |address: Ipv4Addr| {
            let beside = six.map(|six| IpAddr::from(six.beside(address)));
            std::iter::once(IpAddr::from(address)).chain(beside)
        };
        for sandbox in facts.sandboxes.values() {
            zone.at(&own_name(sandbox)).addresses.extend(both(sandbox.address));
        }
        for service in facts.services.values() {
            let name = full(&format!("{}.{}.svc", service.name, service.namespace));
            zone.names.remove(&name);
            let members: Vec<_> = facts.sandboxes.values().filter(|it| service.selects(it)).collect();
            let records = zone.at(&name);
            records.alias = service.external.as_ref().map(|to| to.trim_end_matches('.').to_ascii_lowercase());
            match service.address() {
                Some(address) => {
                    records.addresses.insert(address.into());
                    zone.point(address.into(), &name);
                }
                None => records.addresses.extend(members.iter().map(|it| IpAddr::from(it.address))),
            }
            for sandbox in &members {
                let below = format!("{}.{name}", label(service, sandbox));
                zone.at(&below).addresses.extend(both(sandbox.address));
                both(sandbox.address).for_each(|address| zone.point(address, &below));
            }
            zone.add_ports(service, &members, &name);
        }
        for sandbox in facts.sandboxes.values() {
            for address in both(sandbox.address) {
                // One that no service knows has its own name.
                if !zone.pointers.contains_key(&address) {
                    zone.point(address, &own_name(sandbox));
                }
            }
        }
        zone
    }

    /// Ports by name: where the service is or, if it has no address, where its sandboxes are.
    fn add_ports(&mut self, service: &Service, members: &[&Sandbox], name: &str) {
        for port in &service.ports {
            let found: Vec<_> = match service.address() {
                Some(_) => vec![(port.port, name.to_owned())],
                None => {
                    let of = |sandbox: &&&Sandbox| {
                        let (_, number) = reached(sandbox, port)?;
                        Some((number, format!("{}.{name}", label(service, sandbox))))
                    };
                    members.iter().filter_map(|sandbox| of(&sandbox)).collect()
                }
            };
            if let Some(port_name) = &port.name {
                let protocol = port.protocol.as_str();
                self.at(&format!("_{port_name}._{protocol}.{name}")).services.extend(found.iter().cloned());
            }
            self.at(name).services.extend(found);
        }
    }

    pub fn find(&self, name: &str) -> Found {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if let Some(address) = reversed(&name) {
            return match self.pointers.get(&address) {
                Some(names) => Found::Records(Records { pointers: names.clone(), ..Records::default() }),
                None => Found::Elsewhere,
            };
        }
        if name != DOMAIN && !name.ends_with(&format!(".{DOMAIN}")) {
            return Found::Elsewhere;
        }
        match self.names.get(&name) {
            Some(records) => Found::Records(records.clone()),
            None if self.has_below(&name) => Found::Records(Records::default()),
            None => Found::Nothing,
        }
    }

    fn has_below(&self, name: &str) -> bool {
        let suffix = format!(".{name}");
        name == DOMAIN || self.names.keys().any(|known| known.ends_with(&suffix))
    }

    fn at(&mut self, name: &str) -> &mut Records {
        self.names.entry(name.to_ascii_lowercase()).or_default()
    }

    fn point(&mut self, address: IpAddr, name: &str) {
        self.pointers.entry(address).or_default().insert(name.to_ascii_lowercase());
    }
}

fn full(name: &str) -> String {
    format!("{name}.{DOMAIN}").to_ascii_lowercase()
}

fn own_name(sandbox: &Sandbox) -> String {
    full(&format!("{}.{}.svc", sandbox.name, sandbox.namespace))
}

/// What a sandbox is called below a service: its host name if it is meant for there, or else its address with dashes.
fn label(service: &Service, sandbox: &Sandbox) -> String {
    let host = sandbox.host.as_ref().filter(|host| host.subdomain == service.name);
    host.map_or_else(|| sandbox.address.to_string().replace('.', "-"), |host| host.hostname.clone())
}

/// The address whose name is asked for, if one is.
fn reversed(name: &str) -> Option<IpAddr> {
    if let Some(bytes) = name.strip_suffix(".in-addr.arpa") {
        let bytes: Vec<_> = bytes.split('.').rev().collect();
        return bytes.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::from);
    }
    let digits: String = name.strip_suffix(".ip6.arpa")?.split('.').rev().collect();
    let whole = digits.len() == 32 && name.split('.').count() == 34;
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| whole)?;
    Some(std::net::Ipv6Addr::from(number).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Host, Labels, NamedPort, Sandbox, Selector, Service, ServicePort, Target};
    use crate::rules::Protocol;

    fn addresses(all: &[IpAddr]) -> Found {
        Found::Records(Records { addresses: all.iter().copied().collect(), ..Records::default() })
    }

    fn address(last: u8) -> IpAddr {
        four(last).into()
    }

    fn four(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, 0, last)
    }

    fn facts() -> Facts {
        let labels = |app: &str| Labels::from([("app".to_owned(), app.to_owned())]);
        let sandbox = |name: &str, app: &str, last, host| Sandbox {
            name: name.to_owned(),
            namespace: "one".to_owned(),
            labels: labels(app),
            address: four(last),
            ports: vec![],
            host,
            ready: true,
        };
        let host = Host { hostname: "first".to_owned(), subdomain: "db".to_owned() };
        let service = |name: &str, app: &str| Service {
            name: name.to_owned(),
            namespace: "one".to_owned(),
            selector: Some(Selector { labels: labels(app), expressions: vec![] }),
            address: None,
            external: None,
            ports: vec![],
            sticky: false,
            unready: false,
        };
        Facts {
            sandboxes: [
                ("1".to_owned(), sandbox("web", "web", 2, None)),
                ("2".to_owned(), sandbox("db-0", "db", 3, Some(host))),
                ("3".to_owned(), sandbox("db-1", "db", 4, None)),
            ]
            .into(),
            services: [("a".to_owned(), service("db", "db")), ("b".to_owned(), service("none", "x"))].into(),
            ..Facts::default()
        }
    }

    #[test]
    fn sandboxes_services_and_hosts_have_names() {
        let zone = Zone::of(&facts(), None);
        let of = |name: &str| zone.find(&format!("{name}.svc.cluster.local"));
        assert_eq!(of("web.one"), addresses(&[address(2)]));
        assert_eq!(of("WEB.One"), addresses(&[address(2)]));
        assert_eq!(of("db.one"), addresses(&[address(3), address(4)]));
        assert_eq!(of("first.db.one"), addresses(&[address(3)]));
        assert_eq!(of("none.one"), addresses(&[]), "a service without members exists");
        assert_eq!(of("one"), addresses(&[]), "so does what has names below it");
        assert_eq!(of("second.db.one"), Found::Nothing);
        assert_eq!(of("web.two"), Found::Nothing);
    }

    #[test]
    fn a_service_with_an_address_stands_for_that() {
        let own = Ipv4Addr::new(10, 127, 1, 1);
        let of = |service_address| {
            let mut facts = facts();
            facts.services.get_mut("a").unwrap().address = Some(service_address);
            Zone::of(&facts, None).find("db.one.svc.cluster.local")
        };
        assert_eq!(of(own), addresses(&[own.into()]));
        let members = addresses(&[address(3), address(4)]);
        assert_eq!(of(Ipv4Addr::new(203, 0, 113, 9)), members, "nobody's address is not given out");
    }

    #[test]
    fn nothing_of_ours_is_asked_elsewhere() {
        let zone = Zone::default();
        assert_eq!(zone.find("a.cluster.local."), Found::Nothing);
        assert_eq!(zone.find("cluster.local"), addresses(&[]));
        for name in ["example.com", "notcluster.local", "local", "", "."] {
            assert_eq!(zone.find(name), Found::Elsewhere, "{name}");
        }
    }

    /// The service `db` with a named port that its sandboxes know by name.
    fn with_ports() -> Facts {
        let mut facts = facts();
        let port = |name: &str| NamedPort { name: name.into(), protocol: Protocol::Tcp, port: 5432 };
        facts.sandboxes.values_mut().for_each(|sandbox| sandbox.ports.push(port("pg")));
        facts.services.get_mut("a").unwrap().ports = vec![
            ServicePort {
                name: Some("sql".into()),
                protocol: Protocol::Tcp,
                port: 80,
                target: Target::Name("pg".into()),
            },
            ServicePort {
                name: Some("log".into()),
                protocol: Protocol::Udp,
                port: 81,
                target: Target::Number(9),
            },
        ];
        facts
    }

    fn services(zone: &Zone, name: &str) -> Vec<(u16, String)> {
        let Found::Records(records) = zone.find(name) else { panic!("{name}") };
        records.services.into_iter().map(|(port, to)| (port, to.replace(".svc.cluster.local", ""))).collect()
    }

    #[test]
    fn named_ports_are_found_at_the_service_or_at_its_sandboxes() {
        let mut facts = with_ports();
        let zone = Zone::of(&facts, None);
        let each = [(5432, "10-88-0-4.db.one".to_owned()), (5432, "first.db.one".to_owned())];
        assert_eq!(services(&zone, "_sql._tcp.db.one.svc.cluster.local"), each);
        assert_eq!(services(&zone, "db.one.svc.cluster.local").len(), 4, "all ports together");
        assert_eq!(zone.find("10-88-0-4.db.one.svc.cluster.local"), addresses(&[address(4)]));
        assert_eq!(zone.find("_sql._udp.db.one.svc.cluster.local"), Found::Nothing);
        facts.services.get_mut("a").unwrap().address = Some(Ipv4Addr::new(10, 127, 1, 1));
        let zone = Zone::of(&facts, None);
        assert_eq!(services(&zone, "_log._udp.db.one.svc.cluster.local"), [(81, "db.one".to_owned())]);
    }

    #[test]
    fn addresses_have_the_names_of_those_who_have_them() {
        let block = Block6::of_tag("0a1b2c");
        let mut facts = facts();
        facts.services.get_mut("a").unwrap().address = Some(Ipv4Addr::new(10, 127, 1, 1));
        let zone = Zone::of(&facts, Some(block));
        let names = |name: &str| match zone.find(name) {
            Found::Records(records) => records.pointers.into_iter().collect::<Vec<_>>().join(" "),
            other => format!("{other:?}"),
        };
        assert_eq!(names("1.1.127.10.in-addr.arpa."), "db.one.svc.cluster.local");
        assert_eq!(names("2.0.88.10.in-addr.arpa"), "web.one.svc.cluster.local");
        assert_eq!(names("3.0.88.10.in-addr.arpa"), "first.db.one.svc.cluster.local");
        assert_eq!(names("4.0.88.10.in-addr.arpa"), "10-88-0-4.db.one.svc.cluster.local");
        let digits = format!("{:032x}", u128::from(block.beside(four(2))));
        let six: Vec<_> = digits.chars().rev().map(String::from).collect();
        assert_eq!(names(&format!("{}.IP6.ARPA.", six.join("."))), "web.one.svc.cluster.local");
        for other in ["5.0.88.10.in-addr.arpa", "88.10.in-addr.arpa", "1.ip6.arpa", "x.in-addr.arpa"] {
            assert_eq!(names(other), "Elsewhere", "{other}");
        }
        let of = |name: &str| zone.find(name);
        let both = [address(3), block.beside(four(3)).into()];
        assert_eq!(of("first.db.one.svc.cluster.local"), addresses(&both), "of both families");
    }

    #[test]
    fn service_can_be_a_name_of_somebody_else() {
        let mut facts = facts();
        facts.services.get_mut("b").unwrap().external = Some("Away.Example.".to_owned());
        let expected = Records { alias: Some("away.example".to_owned()), ..Records::default() };
        let found = Zone::of(&facts, None).find("none.one.svc.cluster.local");
        assert_eq!(found, Found::Records(expected));
    }
}
