//! Which names are ours and what they stand for. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::address6::Block6;
use crate::policy::Facts;

/// Everything below is ours, whether or not it exists.
pub const DOMAIN: &str = "cluster.local";

/// Addresses by full name, in lower case and without the last dot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zone(BTreeMap<String, BTreeSet<IpAddr>>);

/// What is known of a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// None of ours.
    Elsewhere,
    Nothing,
    /// None when only longer names stand for something.
    Addresses(Vec<IpAddr>),
}

impl Zone {
    /// The names that follow from what is known: sandboxes by their own, services by theirs (their address, or else their
    /// sandboxes), and sandboxes with a host name below the service that they belong to.
    ///
    /// Where a service and a sandbox share a name it is the service's. A service is of IPv4 alone, whoever belongs to it.
    pub fn of(facts: &Facts, six: Option<Block6>) -> Self {
        let mut zone = Self::default();
        for sandbox in facts.sandboxes.values() {
            let name = format!("{}.{}.svc", sandbox.name, sandbox.namespace);
            zone.add(name.clone(), [sandbox.address]);
            zone.add(name, six.map(|six| six.beside(sandbox.address)));
        }
        for service in facts.services.values() {
            let members = || facts.sandboxes.values().filter(|sandbox| service.selects(sandbox));
            let name = format!("{}.{}.svc", service.name, service.namespace);
            zone.0.remove(&format!("{name}.{DOMAIN}"));
            match service.address() {
                Some(address) => zone.add(name.clone(), [address]),
                None => zone.add(name.clone(), members().map(|sandbox| sandbox.address)),
            }
            for sandbox in members() {
                let named = sandbox.host.as_ref().filter(|host| host.subdomain == service.name);
                if let Some(host) = named {
                    zone.add(format!("{}.{name}", host.hostname), [sandbox.address]);
                }
            }
        }
        zone
    }

    pub fn find(&self, name: &str) -> Found {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if name != DOMAIN && !name.ends_with(&format!(".{DOMAIN}")) {
            return Found::Elsewhere;
        }
        match self.0.get(&name) {
            Some(addresses) => Found::Addresses(addresses.iter().copied().collect()),
            None if self.has_below(&name) => Found::Addresses(Vec::new()),
            None => Found::Nothing,
        }
    }

    fn has_below(&self, name: &str) -> bool {
        let suffix = format!(".{name}");
        name == DOMAIN || self.0.keys().any(|known| known.ends_with(&suffix))
    }

    fn add<A: Into<IpAddr>>(&mut self, name: String, addresses: impl IntoIterator<Item = A>) {
        let addresses = addresses.into_iter().map(Into::into);
        self.0.entry(format!("{name}.{DOMAIN}").to_ascii_lowercase()).or_default().extend(addresses);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::policy::{Host, Labels, Sandbox, Selector, Service};

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
        assert_eq!(of("web.one"), Found::Addresses(vec![address(2)]));
        assert_eq!(of("WEB.One"), Found::Addresses(vec![address(2)]));
        assert_eq!(of("db.one"), Found::Addresses(vec![address(3), address(4)]));
        assert_eq!(of("first.db.one"), Found::Addresses(vec![address(3)]));
        assert_eq!(of("none.one"), Found::Addresses(vec![]), "a service without members exists");
        assert_eq!(of("one"), Found::Addresses(vec![]), "so does what has names below it");
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
        assert_eq!(of(own), Found::Addresses(vec![own.into()]));
        let members = Found::Addresses(vec![address(3), address(4)]);
        assert_eq!(of(Ipv4Addr::new(203, 0, 113, 9)), members, "nobody's address is not given out");
    }

    #[test]
    fn nothing_of_ours_is_asked_elsewhere() {
        let zone = Zone::default();
        assert_eq!(zone.find("a.cluster.local."), Found::Nothing);
        assert_eq!(zone.find("cluster.local"), Found::Addresses(vec![]));
        for name in ["example.com", "notcluster.local", "local", "", "."] {
            assert_eq!(zone.find(name), Found::Elsewhere, "{name}");
        }
    }
}
