//! Addresses of services: where they lead, and where they do not.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::AsFd;

use asb_network::policy::{Allowed, Policy, PolicyPort, PortChoice, Service, ServicePort, Target};
use asb_network::testing::{Attempt, connect, ip};
use asb_network::{Namespace, Protocol};

use crate::machine::{Machine, allow, app, inside, known, on_a_machine, text};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 127, 1, 1);

/// The service `b`: port 80 leads to 8080.
fn service() -> Service {
    let port = |protocol| ServicePort { name: None, protocol, port: 80, target: Target::Number(8080) };
    Service {
        name: "b".to_owned(),
        namespace: "default".to_owned(),
        selector: Some(app("b")),
        address: Some(ADDRESS),
        ports: vec![port(Protocol::Tcp), port(Protocol::Udp)],
        sticky: false,
        external: None,
        unready: false,
    }
}

fn offer(machine: &Machine<'_>, service: Service) {
    machine.network.update(|facts| drop(facts.services.insert("b".to_owned(), service))).unwrap();
}

fn open(machine: &Machine<'_>, name: &str, policy: Policy) {
    machine.network.update(|facts| drop(facts.policies.insert(name.to_owned(), policy))).unwrap();
}

/// Sandboxes of the label `b` that answer with their own address.
fn servers(machine: &Machine<'_>, count: usize) -> Vec<Namespace> {
    let make = |at: usize| {
        let namespace = machine.take();
        let sandbox = known("b", &namespace);
        let address = namespace.address;
        let listener = inside(&namespace, || TcpListener::bind((address, 8080)).unwrap());
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                // Whoever connected may be gone.
                let _ = stream.write_all(address.to_string().as_bytes());
            }
        });
        machine.network.update(|facts| drop(facts.sandboxes.insert(format!("b{at}"), sandbox))).unwrap();
        namespace
    };
    (0..count).map(make).collect()
}

fn ask(from: &Namespace, address: Ipv4Addr, port: u16) -> Attempt {
    connect(from.fd.as_fd(), address, port)
}

#[test]
fn a_service_leads_to_each_of_its_sandboxes_if_policies_allow_them() {
    on_a_machine(|machine| {
        let a = machine.sandbox("a");
        let servers = servers(machine, 3);
        offer(machine, service());
        assert_eq!(ask(&a, ADDRESS, 80), Attempt::Refused, "closed by default");
        open(machine, "out", allow("a", None, Some("b")));
        assert_eq!(ask(&a, ADDRESS, 80), Attempt::Refused, "by the other end as well");
        let port = PolicyPort { protocol: Protocol::Tcp, port: Some(PortChoice::Range(8080, 8080)) };
        let mut into = allow("b", Some("a"), None);
        into.ingress.as_mut().unwrap()[0].ports = Some(vec![port]);
        open(machine, "in", into);
        let mut seen = BTreeSet::new();
        for _ in 0..60 {
            let Attempt::Answered(address) = ask(&a, ADDRESS, 80) else { panic!("no answer") };
            seen.insert(address);
        }
        assert_eq!(seen, servers.iter().map(|it| it.address.into()).collect(), "every one has its turn");
        let c = machine.sandbox("c");
        assert_eq!(ask(&c, ADDRESS, 80), Attempt::Refused, "somebody else");
        assert_eq!(ask(&a, ADDRESS, 8080), Attempt::Refused, "a port of the sandbox, not of the service");
    });
}

#[test]
fn datagrams_are_led_and_answered_as_well() {
    on_a_machine(|machine| {
        let a = machine.sandbox("a");
        let b = servers(machine, 1).remove(0);
        offer(machine, service());
        open(machine, "out", allow("a", None, Some("b")));
        open(machine, "in", allow("b", Some("a"), None));
        let server = inside(&b, || UdpSocket::bind((b.address, 8080)).unwrap());
        let client = inside(&a, || UdpSocket::bind((a.address, 0)).unwrap());
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
        }
        client.connect((ADDRESS, 80)).unwrap();
        client.send(b"question").unwrap();
        let mut buffer = [0; 16];
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.ip()), (&b"question"[..], a.address.into()));
        server.send_to(b"answer", from).unwrap();
        let length = client.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"answer", "from the address that was asked");
    });
}

#[test]
fn what_leads_nowhere_is_refused_at_once_whatever_policies_say() {
    on_a_machine(|machine| {
        let a = machine.sandbox("a");
        let everything = Policy { egress: Some(vec![Allowed::default()]), ..allow("a", None, None) };
        open(machine, "all", everything);
        open(machine, "in", allow("b", Some("a"), None));
        // Somebody out there has such addresses, too.
        let elsewhere = Ipv4Addr::new(10, 127, 9, 9);
        machine.outside.run(|| {
            ip(&format!("addr add {elsewhere}/32 dev lo"));
            ip(&format!("addr add {ADDRESS}/32 dev lo"));
        });
        let _others = [elsewhere, ADDRESS].map(|address| machine.outside.serve(address, 80));
        assert_eq!(ask(&a, elsewhere, 80), Attempt::Refused, "no service at all");
        offer(machine, service());
        assert_eq!(ask(&a, ADDRESS, 80), Attempt::Refused, "a service without sandboxes");
        let b = servers(machine, 1).remove(0);
        assert_eq!(ask(&a, ADDRESS, 80), Attempt::answered(b.address));
        let ready = |ready| {
            let change = |facts: &mut asb_network::policy::Facts| {
                facts.sandboxes.get_mut("b0").unwrap().ready = ready;
            };
            machine.network.update(change).unwrap();
        };
        ready(false);
        assert_eq!(ask(&a, ADDRESS, 80), Attempt::Refused, "none of them ready");
        offer(machine, Service { unready: true, ..service() });
        assert_eq!(ask(&a, ADDRESS, 80), Attempt::answered(b.address), "which does not matter to this one");
        ready(true);
        machine.network.update(|facts| drop(facts.services.remove("b"))).unwrap();
        assert_eq!(ask(&a, ADDRESS, 80), Attempt::Refused, "the service is gone");
        let left = text("nft", "list ruleset");
        assert!(!left.contains("spread-"), "{left}");
    });
}

#[test]
fn a_sandbox_reaches_itself_through_its_service_without_any_policy() {
    on_a_machine(|machine| {
        let b = servers(machine, 1).remove(0);
        offer(machine, service());
        for _ in 0..3 {
            assert_eq!(ask(&b, ADDRESS, 80), Attempt::answered(b.address));
        }
    });
}

#[test]
fn whoever_comes_again_is_led_to_the_same_sandbox_if_the_service_says_so() {
    on_a_machine(|machine| {
        let clients: Vec<_> = (0..8).map(|_| machine.sandbox("a")).collect();
        for client in &clients {
            let sandbox = known("a", client);
            let id = client.address.to_string();
            machine.network.update(|facts| drop(facts.sandboxes.insert(id, sandbox))).unwrap();
        }
        let _servers = servers(machine, 4);
        offer(machine, Service { sticky: true, ..service() });
        open(machine, "out", allow("a", None, Some("b")));
        open(machine, "in", allow("b", Some("a"), None));
        let mut used = Vec::new();
        for client in &clients {
            let first = ask(client, ADDRESS, 80);
            assert!(matches!(first, Attempt::Answered(_)), "{first:?}");
            for _ in 0..5 {
                assert_eq!(ask(client, ADDRESS, 80), first);
            }
            used.extend(Some(first).filter(|it| !used.contains(it)));
        }
        assert!(used.len() > 1, "not all of them to one");
    });
}

#[test]
fn addresses_of_services_lead_nowhere_from_outside_and_from_the_machine() {
    on_a_machine(|machine| {
        let b = servers(machine, 1).remove(0);
        offer(machine, service());
        let everybody = Policy { ingress: Some(vec![Allowed::default()]), ..allow("b", None, None) };
        open(machine, "in", everybody);
        assert_eq!(connect(machine.outside.as_fd(), b.address, 8080), Attempt::answered(b.address));
        assert_eq!(connect(machine.outside.as_fd(), ADDRESS, 80), Attempt::Silence);
        let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        assert_ne!(connect(here.as_fd(), ADDRESS, 80), Attempt::answered(b.address));
    });
}
