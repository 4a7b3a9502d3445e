//! What passes and what does not.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use asb_network::policy::{Allowed, Policy};
use asb_network::{Network, leak};

use asb_network::testing::{self, Attempt, MACHINE, METADATA, PRIVATE, PUBLIC, connect, ip, serve};

use crate::machine::{Machine, allow, arrives, inside, known, on_a_machine, text};

fn open_between(machine: &Machine<'_>) {
    let update = machine.network.update(|facts| {
        facts.policies.insert("out".to_owned(), allow("a", None, Some("b")));
        facts.policies.insert("in".to_owned(), allow("b", Some("a"), None));
    });
    update.unwrap();
}

#[test]
fn public_addresses_are_reached_with_the_address_of_the_machine() {
    on_a_machine(|machine| {
        let _service = machine.outside.serve(PUBLIC, 80);
        let sandbox = machine.sandbox("a");
        assert_eq!(connect(sandbox.fd.as_fd(), PUBLIC, 80), Attempt::answered(MACHINE));
    });
}

#[test]
fn namespace_whose_addresses_were_taken_gets_them_back() {
    on_a_machine(|machine| {
        let _service = machine.outside.serve(PUBLIC, 80);
        let _six = machine.outside.serve(testing::PUBLIC6, 80);
        let sandbox = machine.sandbox("a");
        inside(&sandbox, || ip("addr flush dev eth0"));
        assert_eq!(connect(sandbox.fd.as_fd(), PUBLIC, 80), Attempt::Silence, "there is no way any more");
        for time in ["once", "and nothing is wrong with twice"] {
            machine.network.restore(&sandbox.fd, sandbox.address).unwrap();
            assert_eq!(connect(sandbox.fd.as_fd(), PUBLIC, 80), Attempt::answered(MACHINE), "{time}");
            let six = connect(sandbox.fd.as_fd(), testing::PUBLIC6, 80);
            assert_eq!(six, Attempt::answered(testing::MACHINE6), "{time}");
        }
    });
}

#[test]
fn private_networks_and_the_metadata_service_are_refused_at_once() {
    on_a_machine(|machine| {
        let sandbox = machine.sandbox("a");
        for address in [PRIVATE, METADATA] {
            let _service = machine.outside.serve(address, 80);
            assert_eq!(connect(sandbox.fd.as_fd(), address, 80), Attempt::Refused, "{address}");
        }
    });
}

#[test]
fn no_address_of_the_machine_answers_a_sandbox() {
    on_a_machine(|machine| {
        let _everywhere = serve(Ipv4Addr::UNSPECIFIED, 6443);
        let sandbox = machine.sandbox("a");
        for address in [MACHINE, machine.network.gateway()] {
            assert_eq!(connect(sandbox.fd.as_fd(), address, 6443), Attempt::Refused, "{address}");
        }
        assert_eq!(connect(sandbox.fd.as_fd(), Ipv4Addr::LOCALHOST, 6443), Attempt::Refused);
        let open = |facts: &mut asb_network::policy::Facts| {
            let policy = Policy { egress: Some(vec![Allowed::default()]), ..allow("a", None, None) };
            facts.policies.insert("all".to_owned(), policy);
        };
        machine.network.update(open).unwrap();
        assert_eq!(
            connect(sandbox.fd.as_fd(), MACHINE, 6443),
            Attempt::Refused,
            "not even if all is allowed"
        );
    });
}

#[test]
fn nobody_connects_to_a_sandbox_unasked() {
    on_a_machine(|machine| {
        let sandbox = machine.sandbox("a");
        let _service = inside(&sandbox, || serve(sandbox.address, 80));
        assert_eq!(connect(machine.outside.as_fd(), sandbox.address, 80), Attempt::Silence);
        let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        assert_eq!(connect(here.as_fd(), sandbox.address, 80), Attempt::Silence, "nor the machine");
    });
}

#[test]
fn sandboxes_meet_only_when_both_sides_are_told_so() {
    on_a_machine(|machine| {
        let (a, b) = (machine.sandbox("a"), machine.sandbox("b"));
        let _service = inside(&b, || serve(b.address, 80));
        assert_eq!(connect(a.fd.as_fd(), b.address, 80), Attempt::Refused);
        open_between(machine);
        assert_eq!(connect(a.fd.as_fd(), b.address, 80), Attempt::answered(a.address));
        let c = machine.sandbox("c");
        assert_eq!(connect(c.fd.as_fd(), b.address, 80), Attempt::Refused);
        machine.network.update(|facts| drop(facts.policies.remove("in"))).unwrap();
        assert_eq!(connect(a.fd.as_fd(), b.address, 80), Attempt::Refused, "taken back for new connections");
    });
}

#[test]
fn a_sandbox_that_is_not_known_yet_sends_nothing() {
    on_a_machine(|machine| {
        let _service = machine.outside.serve(PUBLIC, 80);
        let namespace = machine.take();
        assert_eq!(connect(namespace.fd.as_fd(), PUBLIC, 80), Attempt::Silence);
        machine
            .network
            .update(|facts| drop(facts.sandboxes.insert("a".into(), known("a", &namespace))))
            .unwrap();
        assert_eq!(connect(namespace.fd.as_fd(), PUBLIC, 80), Attempt::answered(MACHINE));
        machine.network.update(|facts| drop(facts.sandboxes.remove("a"))).unwrap();
        assert_eq!(connect(namespace.fd.as_fd(), PUBLIC, 80), Attempt::Silence, "nor one that was forgotten");
    });
}

#[test]
fn packets_with_another_source_are_dropped() {
    on_a_machine(|machine| {
        let (a, b) = (machine.sandbox("a"), machine.sandbox("b"));
        open_between(machine);
        let receiver = inside(&b, || UdpSocket::bind((b.address, 5353)).unwrap());
        let send = |address: Ipv4Addr| {
            inside(&a, || {
                let socket = UdpSocket::bind((address, 0)).unwrap();
                socket.send_to(b"hello", (b.address, 5353)).map(drop)
            })
        };
        assert_eq!(arrives(&receiver, || send(a.address).unwrap()), Some(a.address.into()));
        // Root of the machine adds what a sandbox could never add by itself.
        let c = machine.sandbox("c");
        for spoofed in [c.address, Ipv4Addr::new(203, 0, 113, 77), machine.network.gateway()] {
            inside(&a, || ip(&format!("addr add {spoofed}/32 dev eth0")));
            assert_eq!(arrives(&receiver, || drop(send(spoofed))), None, "{spoofed}");
        }
    });
}

#[test]
fn nobody_asks_for_or_learns_hardware_addresses() {
    on_a_machine(|machine| {
        let (a, b) = (machine.sandbox("a"), machine.sandbox("b"));
        let flags = inside(&a, || text("ip", "-o link show eth0"));
        assert!(flags.contains("NOARP"), "{flags}");
        let neighbours = inside(&a, || text("ip", "neigh show"));
        assert_eq!(neighbours.lines().count(), 2, "{neighbours}");
        assert!(neighbours.lines().all(|line| line.contains("PERMANENT")), "{neighbours}");
        // One that says it is somebody else is not believed: the machine's entry is for good.
        inside(&a, || {
            ip("link set eth0 arp on");
            ip(&format!("addr add {}/32 dev eth0", b.address));
        });
        let route = text("ip", &format!("route get {}", b.address));
        assert!(route.contains(&format!("{:04x}", u32::from(b.address) & 0x3fff)), "{route}");
    });
}

#[test]
fn open_connections_outlive_the_engine() {
    on_a_machine(|machine| {
        use std::io::{Read, Write};
        let service = machine.outside.run(|| std::net::TcpListener::bind((PUBLIC, 7)).unwrap());
        let sandbox = machine.sandbox("a");
        let mut near = inside(&sandbox, || std::net::TcpStream::connect((PUBLIC, 7)).unwrap());
        let (mut far, _) = service.accept().unwrap();
        let mut exchange = |what: &[u8]| {
            near.write_all(what).unwrap();
            let mut read = vec![0; what.len()];
            far.read_exact(&mut read).unwrap();
            far.write_all(&read).unwrap();
            near.read_exact(&mut read).unwrap();
            assert_eq!(read, what);
        };
        exchange(b"before");
        // What a killed engine leaves is what is left when nothing is said: the second one finds it.
        let second = Network::open(machine.data_dir.path(), &[sandbox.address]).unwrap();
        exchange(b"while the rules of the first hold");
        assert_eq!(second.gateway(), machine.network.gateway());
        second.update(|facts| drop(facts.sandboxes.insert("a".into(), known("a", &sandbox)))).unwrap();
        exchange(b"under the rules of the second");
        assert_ne!(second.make().unwrap().address, sandbox.address);
    });
}

#[test]
fn rules_that_somebody_removed_come_back() {
    on_a_machine(|machine| {
        let sandbox = machine.sandbox("a");
        let _service = serve(MACHINE, 22);
        text("nft", "flush ruleset");
        machine.network.heal().unwrap();
        assert!(text("nft", "list tables").contains("asb-guard"), "nor does the machine pass on for others");
        assert_eq!(connect(sandbox.fd.as_fd(), MACHINE, 22), Attempt::Refused);
    });
}

#[test]
fn machine_passes_packets_on_for_nobody_else_and_forgets_that_it_did() {
    on_a_machine(|machine| {
        let forwarding = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        assert_eq!(forwarding().trim(), "1");
        // Another network of the machine's, which never was to be reached from outside.
        let lan = machine.take();
        ip("link add lan0 type veth peer name far0");
        ip(&format!("link set far0 netns /proc/{}/fd/{}", std::process::id(), lan.fd.as_raw_fd()));
        ip("addr add 172.20.0.1/24 dev lan0");
        ip("link set lan0 up");
        let receiver = inside(&lan, || {
            ip("addr add 172.20.0.2/24 dev far0");
            ip("link set far0 up");
            UdpSocket::bind("172.20.0.2:9").unwrap()
        });
        machine.outside.run(|| ip("route add 172.20.0.0/24 via 192.0.2.2"));
        let send = || {
            machine.outside.run(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.send_to(b"hello", "172.20.0.2:9").map(drop).unwrap();
            });
        };
        assert_eq!(arrives(&receiver, send), None);
        text("nft", "delete table inet asb-guard");
        assert!(arrives(&receiver, send).is_some(), "it is the guard that refuses");
        machine.network.heal().unwrap();
        assert_eq!(arrives(&receiver, send), None);
        drop((receiver, lan));

        machine.sandbox("a");
        let name = text("ip", "-br link");
        assert!(name.contains("asb"), "{name}");
        machine.network.update(|facts| facts.sandboxes.clear()).unwrap();
        machine.network.clone().close().unwrap();
        eventually(|| leak::check(machine.data_dir.path()).is_empty());
        assert_eq!((forwarding().trim(), text("nft", "list ruleset").as_str()), ("0", ""));
    });
}

#[test]
fn rules_stay_for_as_long_as_a_sandbox_does() {
    on_a_machine(|machine| {
        let _service = serve(MACHINE, 22);
        let sandbox = machine.sandbox("a");
        machine.network.clone().close().unwrap();
        assert_eq!(connect(sandbox.fd.as_fd(), MACHINE, 22), Attempt::Refused);
        drop(sandbox);
        machine.network.clone().close().unwrap();
        eventually(|| leak::check(machine.data_dir.path()).is_empty());
    });
}

#[test]
fn two_engines_share_a_machine() {
    on_a_machine(|machine| {
        let _service = machine.outside.serve(PUBLIC, 80);
        let directory = tempfile::tempdir().unwrap();
        let other = Network::open(directory.path(), &[]).unwrap();
        assert_ne!(other.gateway(), machine.network.gateway());
        let neighbour = other.make().unwrap();
        other.update(|facts| drop(facts.sandboxes.insert("n".into(), known("n", &neighbour)))).unwrap();
        drop(machine.sandbox("a"));
        machine.network.clone().close().unwrap();
        assert_eq!(connect(neighbour.fd.as_fd(), PUBLIC, 80), Attempt::answered(MACHINE), "goes on alone");
        drop(neighbour);
        other.close().unwrap();
        eventually(|| leak::check(directory.path()).is_empty());
        assert_eq!(text("nft", "list ruleset"), "");
    });
}

#[test]
fn a_hundred_sandboxes_have_a_hundred_addresses() {
    on_a_machine(|machine| {
        let namespaces: Vec<_> = (0..100).map(|_| machine.take()).collect();
        let addresses: std::collections::BTreeSet<_> = namespaces.iter().map(|it| it.address).collect();
        assert_eq!(addresses.len(), 100);
        let update = machine.network.update(|facts| {
            for (at, namespace) in namespaces.iter().enumerate() {
                facts.sandboxes.insert(at.to_string(), known("a", namespace));
            }
        });
        update.unwrap();
        let _service = machine.outside.serve(PUBLIC, 80);
        for namespace in namespaces.iter().step_by(9) {
            assert_eq!(connect(namespace.fd.as_fd(), PUBLIC, 80), Attempt::answered(MACHINE));
        }
    });
}

#[test]
#[ignore = "prints numbers; run it by name on a quiet machine"]
fn time_of_a_namespace_and_of_its_rules() {
    on_a_machine(|machine| {
        let (mut making, mut ruling) = (Vec::new(), Vec::new());
        drop(machine.take());
        let mut kept = Vec::new();
        for at in 0..100 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let began = std::time::Instant::now();
            let namespace = machine.take();
            making.push(began.elapsed());
            let began = std::time::Instant::now();
            machine
                .network
                .update(|facts| drop(facts.sandboxes.insert(at.to_string(), known("a", &namespace))))
                .unwrap();
            ruling.push(began.elapsed());
            kept.push(namespace);
        }
        for (what, mut times) in [("a namespace", making), ("its rules", ruling)] {
            times.sort();
            println!("{what}: p50 {:?}, p90 {:?}", times[50], times[90]);
        }
    });
}

fn eventually(mut is_true: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !is_true() {
        assert!(std::time::Instant::now() < until, "never happened");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn network_of_an_engine_that_is_gone_with_its_data_is_removed_by_the_next() {
    testing::on_a_machine(|_| {
        let directory = || tempfile::tempdir().unwrap();
        let (gone, stopped, next, witness) = (directory(), directory(), directory(), directory());
        // Killed, both of them: nothing is closed.
        drop(Network::open(gone.path(), &[]).unwrap());
        drop(Network::open(stopped.path(), &[]).unwrap());
        std::fs::copy(gone.path().join("network.json"), witness.path().join("network.json")).unwrap();
        gone.close().unwrap();
        // What waited for sandboxes goes with the engine, a moment later.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while leak::check(witness.path()).len() != 2 {
            assert!(std::time::Instant::now() < until, "{:?}", leak::check(witness.path()));
            std::thread::yield_now();
        }
        let network = Network::open(next.path(), &[]).unwrap();
        assert_eq!(leak::check(witness.path()), Vec::<String>::new());
        assert!(!leak::check(stopped.path()).is_empty(), "its engine may come back");
        network.close().unwrap();
    });
}
