//! Addresses that get another owner. Connections of the first are none of the second's.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use asb_network::policy::{Allowed, Policy};
use asb_network::testing::ip;
use asb_network::{Namespace, Network};

use crate::machine::{Machine, allow, arrives, arrives_within, inside, known, on_a_machine, text};

/// What has to arrive does so at once, but on a machine that is very busy.
const PATIENCE: Duration = Duration::from_secs(20);
const CLIENT: u16 = 4000;
const SERVER: u16 = 5000;

/// `b` may be reached by everybody, and `a` may reach everybody.
fn open(network: &Network) {
    let update = network.update(|facts| {
        let out = Policy { egress: Some(vec![Allowed::default()]), ..allow("a", None, None) };
        let into = Policy { ingress: Some(vec![Allowed::default()]), ..allow("b", None, None) };
        facts.policies.extend([("out".to_owned(), out), ("in".to_owned(), into)]);
    });
    update.unwrap();
}

/// A flow of datagrams from `a` to `b` and back, which the kernel takes for an open connection.
fn talk(a: &Namespace, b: &Namespace, address: Address<'_>) -> UdpSocket {
    let near = inside(a, || UdpSocket::bind((address(a), CLIENT)).unwrap());
    let far = inside(b, || UdpSocket::bind((address(b), SERVER)).unwrap());
    for _ in 0..3 {
        let there = arrives_within(PATIENCE, &far, || drop(near.send_to(b"x", (address(b), SERVER))));
        let back = arrives_within(PATIENCE, &near, || drop(far.send_to(b"x", (address(a), CLIENT))));
        assert!(there.is_some() && back.is_some(), "{there:?} {back:?}");
    }
    far
}

/// One of the two addresses of a sandbox.
type Address<'a> = &'a (dyn Fn(&Namespace) -> IpAddr + Sync);

/// Does something with the IPv4 addresses of sandboxes, and with their IPv6 addresses.
fn with_each(network: &Network, mut work: impl FnMut(Address<'_>)) {
    work(&|sandbox| sandbox.address.into());
    work(&|sandbox| network.beside(sandbox.address).unwrap().into());
}

/// The open flows, as far as they end in `b`.
fn talk_both(network: &Network, a: &Namespace, b: &Namespace) -> Vec<UdpSocket> {
    let mut flows = Vec::new();
    with_each(network, |address| flows.push(talk(a, b, address)));
    flows
}

fn assert_inherited_by_none(network: &Network, c: &Namespace, b: &Namespace, flows: &[UdpSocket]) {
    let mut flows = flows.iter();
    with_each(network, |address| {
        assert_eq!(passes(c, b, flows.next().unwrap(), address), (false, false), "{}", address(c));
    });
}

/// Whether datagrams of the same flow pass between the new owner and `b`, in either direction.
fn passes(c: &Namespace, b: &Namespace, far: &UdpSocket, address: Address<'_>) -> (bool, bool) {
    let near = inside(c, || UdpSocket::bind((address(c), CLIENT)).unwrap());
    // What is refused is told to the sender: of interest to nobody here.
    let forgive = || [&near, far].map(|socket| socket.take_error().unwrap());
    let into = arrives(&near, || drop(far.send_to(b"x", (address(c), CLIENT)))).is_some();
    forgive();
    let out = arrives(far, || drop(near.send_to(b"x", (address(b), SERVER)))).is_some();
    (out, into)
}

/// Makes one address the only free one.
fn keep_all_but(machine: &Machine<'_>, address: Ipv4Addr) {
    let first = u32::from(machine.network.gateway());
    (first..first + 0x3fff)
        .map(Ipv4Addr::from)
        .filter(|it| *it != address)
        .for_each(|it| machine.network.keep(it));
}

#[test]
fn an_open_flow_is_not_inherited_with_its_address() {
    on_a_machine(|machine| {
        let (a, b) = (machine.sandbox("a"), machine.sandbox("b"));
        open(&machine.network);
        let flows = talk_both(&machine.network, &a, &b);
        let address = a.address;
        drop(a);
        machine.network.update(|facts| drop(facts.sandboxes.remove("a"))).unwrap();
        gone(machine, address);
        machine.network.give_back(address);
        while machine.network.take_parked().is_some() {}
        keep_all_but(machine, address);
        let c = machine.sandbox("c");
        assert_eq!(c.address, address);
        assert_inherited_by_none(&machine.network, &c, &b, &flows);
    });
}

#[test]
fn nor_is_it_by_the_first_sandbox_of_the_next_engine() {
    on_a_machine(|machine| {
        let (b, a) = (machine.sandbox("b"), machine.sandbox("a"));
        open(&machine.network);
        let flows = talk_both(&machine.network, &a, &b);
        let address = a.address;
        drop(a);
        gone(machine, address);
        // The engine was killed: nobody gave anything back.
        let next = Network::open(machine.data_dir.path(), &[b.address]).unwrap();
        let c = next.take_parked().unwrap();
        assert_eq!(c.address, address);
        let update = next.update(|facts| {
            let sandboxes = [("b".to_owned(), known("b", &b)), ("c".to_owned(), known("c", &c))];
            facts.sandboxes.extend(sandboxes);
        });
        update.unwrap();
        open(&next);
        assert_inherited_by_none(&next, &c, &b, &flows);
    });
}

#[test]
fn connections_of_others_go_on() {
    on_a_machine(|machine| {
        let (a, b, c) = (machine.sandbox("a"), machine.sandbox("b"), machine.sandbox("c"));
        open(&machine.network);
        let service = inside(&b, || TcpListener::bind((b.address, SERVER)).unwrap());
        let mut near = inside(&a, || TcpStream::connect((b.address, SERVER)).unwrap());
        let (mut far, _) = service.accept().unwrap();
        far.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let address = c.address;
        drop(c);
        gone(machine, address);
        machine.network.give_back(address);
        while machine.network.take_parked().is_some() {}
        keep_all_but(machine, address);
        assert_eq!(machine.take().address, address);
        // Judged anew they would be refused.
        machine.network.update(|facts| facts.policies.clear()).unwrap();
        near.write_all(b"on").unwrap();
        let mut read = [0; 2];
        far.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"on");
    });
}

#[test]
fn what_is_for_a_sandbox_that_is_gone_does_not_leave_the_machine() {
    on_a_machine(|machine| {
        let (a, b) = (machine.sandbox("a"), machine.sandbox("b"));
        open(&machine.network);
        let mut flows = Vec::new();
        with_each(&machine.network, |address| flows.push((address(&a), talk(&a, &b, address))));
        let gone_address = a.address;
        drop(a);
        gone(machine, gone_address);
        // Somebody out there would take it.
        for (address, far) in &flows {
            let length = if address.is_ipv4() { 32 } else { 128 };
            let taker = machine.outside.run(|| {
                ip(&format!("addr add {address}/{length} dev down0"));
                UdpSocket::bind((std::net::Ipv6Addr::UNSPECIFIED, CLIENT)).unwrap()
            });
            assert_eq!(arrives(&taker, || drop(far.send_to(b"x", (*address, CLIENT)))), None, "{address}");
        }
    });
}

/// Waits until the interface of a sandbox is gone.
fn gone(machine: &Machine<'_>, address: Ipv4Addr) {
    let name = format!("-{:04x}", u32::from(address) - u32::from(machine.network.gateway()) + 1);
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while text("ip", "-br link").contains(&name) {
        assert!(std::time::Instant::now() < until, "{name} is still there");
        std::thread::yield_now();
    }
}
