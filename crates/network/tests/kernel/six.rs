//! IPv6: as strict as IPv4, attack by attack.

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use asb_network::policy::{Allowed, Policy, PolicyPeer};
use asb_network::testing::{
    self, Attempt, MACHINE_LINK, MACHINE6, METADATA6, PRIVATE6, PUBLIC, PUBLIC6, connect, ip, serve,
};
use asb_network::{Namespace, Network};

use crate::machine::{Machine, allow, arrives, inside, known, on_a_machine, text};

const FORWARDING: &str = "/proc/sys/net/ipv6/conf/all/forwarding";

fn six(machine: &Machine<'_>, sandbox: &Namespace) -> Ipv6Addr {
    machine.network.beside(sandbox.address).expect("the test machine has IPv6")
}

fn open(machine: &Machine<'_>, name: &str, policy: Policy) {
    machine.network.update(|facts| drop(facts.policies.insert(name.to_owned(), policy))).unwrap();
}

fn to_everybody() -> Policy {
    Policy { egress: Some(vec![Allowed::default()]), ..allow("a", None, None) }
}

#[test]
fn public_addresses_are_reached_with_the_address_of_the_machine() {
    on_a_machine(|machine| {
        let _service = machine.outside.serve(PUBLIC6, 80);
        let sandbox = machine.sandbox("a");
        assert_eq!(connect(sandbox.fd.as_fd(), PUBLIC6, 80), Attempt::answered(MACHINE6));
    });
}

#[test]
fn without_a_way_out_a_sandbox_hears_so_at_once() {
    on_a_machine(|machine| {
        ip("-6 route del default");
        let sandbox = machine.sandbox("a");
        let to = std::net::SocketAddr::from((PUBLIC6, 80));
        let patience = std::time::Duration::from_secs(5);
        let error = inside(&sandbox, || std::net::TcpStream::connect_timeout(&to, patience)).unwrap_err();
        assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    });
}

#[test]
fn private_networks_and_the_metadata_service_are_refused_at_once() {
    on_a_machine(|machine| {
        let sandbox = machine.sandbox("a");
        for address in [PRIVATE6, METADATA6] {
            let _service = machine.outside.serve(address, 80);
            assert_eq!(connect(sandbox.fd.as_fd(), address, 80), Attempt::Refused, "{address}");
        }
    });
}

#[test]
fn no_address_of_the_machine_answers_a_sandbox() {
    on_a_machine(|machine| {
        let _everywhere = serve(Ipv6Addr::UNSPECIFIED, 6443);
        let sandbox = machine.sandbox("a");
        let gateway = machine.network.beside(machine.network.gateway()).unwrap();
        let answers = |address: Ipv6Addr| connect(sandbox.fd.as_fd(), address, 6443);
        let link = || {
            let to = SocketAddrV6::new(MACHINE_LINK, 6443, 0, 2);
            inside(&sandbox, || {
                std::net::TcpStream::connect_timeout(&to.into(), std::time::Duration::from_secs(1))
            })
        };
        for all in [false, true] {
            for address in [MACHINE6, gateway, Ipv6Addr::LOCALHOST] {
                assert_eq!(answers(address), Attempt::Refused, "{address}, all allowed: {all}");
            }
            // As root of the machine could make it, with a link-local address to start from.
            assert!(link().is_err(), "all allowed: {all}");
            open(machine, "all", to_everybody());
        }
        let named = PolicyPeer::Block { cidr: asb_network::Cidr::single(MACHINE6), except: vec![] };
        let egress = Some(vec![Allowed { peers: Some(vec![named]), ports: None }]);
        open(machine, "all", Policy { egress, ..allow("a", None, None) });
        assert_eq!(answers(MACHINE6), Attempt::answered(six(machine, &sandbox)), "but by its very address");
        assert_eq!(answers(gateway), Attempt::Refused);
    });
}

#[test]
fn nobody_connects_to_a_sandbox_unasked() {
    on_a_machine(|machine| {
        let sandbox = machine.sandbox("a");
        let address = six(machine, &sandbox);
        let _service = inside(&sandbox, || serve(address, 80));
        assert_eq!(connect(machine.outside.as_fd(), address, 80), Attempt::Silence);
        let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        assert_eq!(connect(here.as_fd(), address, 80), Attempt::Silence, "nor the machine");
        open(machine, "in", Policy { ingress: Some(vec![Allowed::default()]), ..allow("a", None, None) });
        let seen = connect(machine.outside.as_fd(), address, 80);
        assert!(matches!(seen, Attempt::Answered(_)), "but when it is told so: {seen:?}");
    });
}

#[test]
fn sandboxes_meet_only_when_both_sides_are_told_so() {
    on_a_machine(|machine| {
        let (a, b) = (machine.sandbox("a"), machine.sandbox("b"));
        let address = six(machine, &b);
        let _service = inside(&b, || serve(address, 80));
        assert_eq!(connect(a.fd.as_fd(), address, 80), Attempt::Refused);
        open(machine, "out", allow("a", None, Some("b")));
        assert_eq!(connect(a.fd.as_fd(), address, 80), Attempt::Refused);
        open(machine, "in", allow("b", Some("a"), None));
        assert_eq!(connect(a.fd.as_fd(), address, 80), Attempt::answered(six(machine, &a)));
        let c = machine.sandbox("c");
        assert_eq!(connect(c.fd.as_fd(), address, 80), Attempt::Refused);
    });
}

#[test]
fn packets_with_another_source_are_dropped() {
    on_a_machine(|machine| {
        let (a, b, c) = (machine.sandbox("a"), machine.sandbox("b"), machine.sandbox("c"));
        open(machine, "out", allow("a", None, Some("b")));
        let everybody = Policy { ingress: Some(vec![Allowed::default()]), ..allow("b", None, None) };
        open(machine, "in", everybody);
        let to = six(machine, &b);
        let receiver = inside(&b, || UdpSocket::bind((to, 5353)).unwrap());
        let send = |from: Ipv6Addr| {
            inside(&a, || {
                let socket = UdpSocket::bind((from, 0)).unwrap();
                socket.send_to(b"hello", (to, 5353)).map(drop)
            })
        };
        let own = six(machine, &a);
        assert_eq!(arrives(&receiver, || send(own).unwrap()), Some(own.into()));
        // Root of the machine adds what a sandbox could never add by itself.
        let gateway = machine.network.beside(machine.network.gateway()).unwrap();
        for spoofed in [six(machine, &c), "2600::77".parse().unwrap(), gateway] {
            inside(&a, || ip(&format!("addr add {spoofed}/128 dev eth0 nodad")));
            assert_eq!(arrives(&receiver, || drop(send(spoofed))), None, "{spoofed}");
        }
    });
}

#[test]
fn a_sandbox_has_the_addresses_that_it_was_given_and_hears_no_routers() {
    on_a_machine(|machine| {
        let sandbox = machine.sandbox("a");
        let address = six(machine, &sandbox);
        let shown = inside(&sandbox, || text("ip", "-6 -o addr show dev eth0"));
        assert_eq!(shown.lines().count(), 1, "{shown}");
        assert!(shown.contains(&format!("{address}/128")), "{shown}");
        for setting in ["accept_ra", "forwarding"] {
            let value = inside(&sandbox, || {
                std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/eth0/{setting}")).unwrap()
            });
            assert_eq!(value.trim(), "0", "{setting}");
        }
        let wires = text("ip", "-6 -o addr show");
        assert!(!wires.lines().any(|line| line.contains("asb") && line.contains("fe80")), "{wires}");
    });
}

#[test]
fn machine_passes_packets_on_for_nobody_else_and_forgets_that_it_did() {
    on_a_machine(|machine| {
        let forwarding = || std::fs::read_to_string(FORWARDING).unwrap();
        assert_eq!(forwarding().trim(), "1");
        let lan = machine.take();
        ip("link add lan0 type veth peer name far0");
        ip(&format!("link set far0 netns /proc/{}/fd/{}", std::process::id(), lan.fd.as_raw_fd()));
        for address in ["2600:0:0:9::1/64", "fe80::9/64"] {
            ip(&format!("addr add {address} dev lan0 nodad"));
        }
        ip("link set lan0 up");
        let receiver = inside(&lan, || {
            std::fs::write("/proc/sys/net/ipv6/conf/far0/disable_ipv6", "0").unwrap();
            ip("link set far0 up");
            ip("addr add 2600:0:0:9::2/64 dev far0 nodad");
            UdpSocket::bind("[2600:0:0:9::2]:9").unwrap()
        });
        machine.outside.run(|| ip(&format!("-6 route add 2600:0:0:9::/64 via {MACHINE6}")));
        let send = || {
            machine.outside.run(|| {
                let socket = UdpSocket::bind("[::]:0").unwrap();
                socket.send_to(b"hello", "[2600:0:0:9::2]:9").map(drop).unwrap();
            });
        };
        assert_eq!(arrives(&receiver, send), None);
        text("nft", "delete table inet asb-guard6");
        assert!(arrives(&receiver, send).is_some(), "it is the guard that refuses");
        machine.network.heal().unwrap();
        assert_eq!(arrives(&receiver, send), None);
        drop((receiver, lan));
        machine.network.clone().close().unwrap();
        assert_eq!((forwarding().trim(), text("nft", "list ruleset").as_str()), ("0", ""));
    });
}

#[test]
fn machine_that_passes_packets_on_itself_goes_on_doing_so() {
    testing::on_a_machine(|_| {
        std::fs::write(FORWARDING, "1").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let network = Network::open(directory.path(), &[]).unwrap();
        let tables = text("nft", "list tables");
        assert!(tables.contains("asb-guard") && !tables.contains("asb-guard6"), "{tables}");
        network.close().unwrap();
        assert_eq!(std::fs::read_to_string(FORWARDING).unwrap().trim(), "1");
    });
}

#[test]
fn without_ipv6_or_with_routes_that_would_be_forgotten_there_is_ipv4_alone() {
    let without: [(&str, fn()); 2] = [
        ("disabled", || std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap()),
        ("advertised", || ip("-6 route add 2600:0:0:7::/64 via 2600:0:0:1::1 proto ra")),
    ];
    for (why, prepare) in without {
        testing::on_a_machine(|outside| {
            prepare();
            let directory = tempfile::tempdir().unwrap();
            let network = Network::open(directory.path(), &[]).unwrap();
            let sandbox = network.make().unwrap();
            network.update(|facts| drop(facts.sandboxes.insert("a".into(), known("a", &sandbox)))).unwrap();
            assert_eq!(network.beside(sandbox.address), None, "{why}");
            assert_eq!(std::fs::read_to_string(FORWARDING).unwrap().trim(), "0", "{why}");
            assert!(inside(&sandbox, || text("ip", "-6 addr show dev eth0")).is_empty(), "{why}");
            let _service = outside.serve(PUBLIC, 80);
            assert!(matches!(connect(sandbox.fd.as_fd(), PUBLIC, 80), Attempt::Answered(_)), "{why}");
            drop(sandbox);
            network.close().unwrap();
        });
    }
}
