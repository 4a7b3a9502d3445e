//! One sandbox's network: a namespace of its own with one interface, and the machine's end of it.
//!
//! ```text
//! sandbox  eth0  10.88.0.2/32 ── default via 10.88.0.1 ──►  asb1f2e3d-0002  the machine
//!                                                            10.88.0.2/32 leads here
//! ```
//!
//! The same with IPv6 where the machine has it: `address6`.
//!
//! Nobody asks for hardware addresses: both ends are told, and neither answers. Nothing pins a namespace but open
//! descriptors and processes, so it ends with its sandbox, and takes the interface on both sides and the route along.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::cidr::Cidr;
use crate::link::{self, Hardware, Links, Pair};
use crate::place::Place;

/// The same for every sandbox: each pair is a wire of its own.
const OUTSIDE: Hardware = [0x02, 0, 0, 0, 0, 0x01];
const INSIDE: Hardware = [0x02, 0, 0, 0, 0, 0x02];
/// The interface as the sandbox knows it.
const INTERFACE: &str = "eth0";

/// A network namespace that is ready for a sandbox. Dropped, it is gone.
#[derive(Debug)]
pub struct Namespace {
    pub fd: OwnedFd,
    pub address: Ipv4Addr,
}

impl Namespace {
    /// Makes the namespace and joins it to the machine. Blocks for a few milliseconds.
    pub fn make(place: &Place, address: Ipv4Addr, mtu: u32) -> io::Result<Self> {
        let place = place.clone();
        let name = place.interface_of(address);
        // A thread of its own enters the namespace and never comes back.
        let ipv6 = place.six().is_some();
        let (fd, inside) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("asb-netns".to_owned());
            let made = thread.spawn_scoped(scope, || enter_new(ipv6))?;
            made.join().map_err(|_| io::Error::other("a thread failed"))?
        })?;
        let outside = Links::open()?;
        outside.add_pair(&Pair {
            outside: &name,
            inside: INTERFACE,
            outside_hardware: OUTSIDE,
            inside_hardware: INSIDE,
            namespace: fd.as_fd(),
            mtu,
        })?;
        let addresses = place.both(address);
        let joined = join_outside(&outside, &name, &addresses).and_then(|interface| {
            join_inside(&inside, &addresses, &place.both(place.gateway()))?;
            outside.wait_until_running(interface)
        });
        match joined {
            Ok(()) => Ok(Self { fd, address }),
            Err(error) => {
                // The namespace's end would do it too, but somewhat later.
                let _ = outside.remove(&name);
                Err(error)
            }
        }
    }
}

/// Gives the interface back what it had: a sandbox with a network stack of its own takes the addresses off it.
pub fn restore(place: &Place, namespace: &impl AsFd, address: Ipv4Addr) -> io::Result<()> {
    let namespace = namespace.as_fd();
    let links = std::thread::scope(|scope| {
        let enter = move || -> io::Result<Links> {
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
            Links::open()
        };
        let thread = std::thread::Builder::new().name("asb-netns".to_owned());
        thread.spawn_scoped(scope, enter)?.join().map_err(|_| io::Error::other("a thread failed"))?
    })?;
    join_inside(&links, &place.both(address), &place.both(place.gateway()))
}

/// The machine's end: no packets that claim another source, and the routes to the sandbox.
fn join_outside(links: &Links, name: &str, addresses: &[IpAddr]) -> io::Result<u32> {
    let interface = link::index(name)?;
    links.make_no_addresses(interface)?;
    set_ipv6(name, addresses.len() > 1);
    std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "1")?;
    links.set_up(interface)?;
    for address in addresses {
        links.add_neighbour(interface, *address, INSIDE)?;
        links.add_route(Cidr::single(*address), interface, None)?;
    }
    Ok(interface)
}

/// The sandbox's end. What is there already stays.
fn join_inside(links: &Links, addresses: &[IpAddr], gateways: &[IpAddr]) -> io::Result<()> {
    let loopback = 1;
    let interface = links.only_other()?;
    links.set_up(loopback)?;
    links.make_no_addresses(interface)?;
    links.set_up(interface)?;
    for (address, gateway) in addresses.iter().zip(gateways) {
        let everything = if address.is_ipv4() { Cidr::EVERYTHING } else { Cidr::EVERYTHING6 };
        or_there(links.add_address(interface, *address))?;
        or_there(links.add_neighbour(interface, *gateway, OUTSIDE))?;
        or_there(links.add_route(Cidr::single(*gateway), interface, None))?;
        or_there(links.add_route(everything, interface, Some(*gateway)))?;
    }
    links.wait_until_running(interface)
}

fn or_there(added: io::Result<()>) -> io::Result<()> {
    match added {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Whether an interface (or `default`: those to come) has IPv6. If so, then without addresses that anybody advertises; see also
/// [`Links::make_no_addresses`].
pub(crate) fn set_ipv6(interface: &str, on: bool) {
    let disabled = if on { "0" } else { "1" };
    for (setting, value) in [("accept_ra", "0"), ("disable_ipv6", disabled)] {
        let path = format!("/proc/sys/net/ipv6/conf/{interface}/{setting}");
        // Where the kernel has no IPv6 there is nothing to set.
        let differs = std::fs::read_to_string(&path).is_ok_and(|now| now.trim() != value);
        if differs {
            let _ = std::fs::write(path, value);
        }
    }
}

/// Puts the calling thread into a new network namespace; answers with the namespace and a connection made there.
#[allow(unsafe_code)]
pub(crate) fn enter_new(ipv6: bool) -> io::Result<(OwnedFd, Links)> {
    // SAFETY: the descriptor table is not among what is unshared, and this thread does nothing after this.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    // Before the interface is there, so that it never has an address of somebody else's; loopback keeps its own.
    set_ipv6("default", ipv6);
    let path = "/proc/thread-self/ns/net";
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok((fd, Links::open()?))
}
