//! Interfaces, addresses, routes and neighbours, by netlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice};

use crate::cidr::{Cidr, octets};
use crate::netlink::{Buffer, Socket, attributes, flag};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
const IFF_RUNNING: u32 = 0x40;
const IFF_NOARP: u32 = 0x80;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const ONLY_NEW: u16 = flag::ACK | flag::CREATE | flag::EXCLUSIVE;

/// How long a new interface may take to get ready.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A hardware address.
pub type Hardware = [u8; 6];

/// Both ends of a new pair. Neither asks who has which address: each is told.
pub struct Pair<'a> {
    pub outside: &'a str,
    pub inside: &'a str,
    pub outside_hardware: Hardware,
    pub inside_hardware: Hardware,
    /// Where the inner end goes.
    pub namespace: BorrowedFd<'a>,
    pub mtu: u32,
}

/// What the machine's main table and addresses say about where packets go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub to: Cidr,
    pub interface: u32,
}

/// Links and routes of one network namespace.
pub struct Links(Socket);

impl Links {
    /// Those of the calling thread's namespace.
    pub fn open() -> io::Result<Self> {
        Socket::route().map(Self)
    }

    pub fn add_pair(&self, pair: &Pair<'_>) -> io::Result<()> {
        self.say(RTM_NEWLINK, ONLY_NEW, |message| {
            message.put(&link(0, IFF_NOARP, IFF_NOARP));
            message.text(IFLA_IFNAME, pair.outside);
            message.attribute(IFLA_ADDRESS, &pair.outside_hardware);
            message.attribute(IFLA_MTU, &pair.mtu.to_ne_bytes());
            message.nested(IFLA_LINKINFO, |info| {
                info.text(IFLA_INFO_KIND, "veth");
                info.nested(IFLA_INFO_DATA, |data| {
                    data.nested(VETH_INFO_PEER, |peer| {
                        peer.put(&link(0, IFF_NOARP, IFF_NOARP));
                        peer.text(IFLA_IFNAME, pair.inside);
                        peer.attribute(IFLA_ADDRESS, &pair.inside_hardware);
                        peer.attribute(IFLA_MTU, &pair.mtu.to_ne_bytes());
                        peer.attribute(IFLA_NET_NS_FD, &pair.namespace.as_raw_fd().to_ne_bytes());
                    });
                });
            });
        })
    }

    /// An interface that only holds an address of the machine. It is down.
    pub fn add_holder(&self, name: &str) -> io::Result<()> {
        self.say(RTM_NEWLINK, ONLY_NEW, |message| {
            message.put(&link(0, 0, 0));
            message.text(IFLA_IFNAME, name);
            message.nested(IFLA_LINKINFO, |info| info.text(IFLA_INFO_KIND, "bridge"));
        })
    }

    /// Notes on an interface whose it is. (A new one cannot be given a note.)
    pub fn note_owner(&self, interface: u32, owner: &str) -> io::Result<()> {
        self.say(RTM_NEWLINK, flag::ACK, |message| {
            message.put(&link(interface, 0, 0));
            message.attribute(IFLA_IFALIAS, owner.as_bytes());
        })
    }

    /// All interfaces with a note, and what it says.
    pub fn owners(&self) -> io::Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        self.each(|answer| {
            let text = |wanted: u16| {
                let mut all = attributes(answer.get(16..)?);
                let (_, value) = all.find(|(kind, _)| *kind == wanted)?;
                Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned())
            };
            found.extend(text(IFLA_IFNAME).zip(text(IFLA_IFALIAS)));
        })?;
        Ok(found)
    }

    /// The interface gets no IPv6 address of its own making. By netlink, which waits for its turn: those who write the file for
    /// it instead try again and again until nobody else changes any interface.
    pub fn make_no_addresses(&self, interface: u32) -> io::Result<()> {
        const NONE: u8 = 1;
        let said = self.say(RTM_NEWLINK, flag::ACK, |message| {
            message.put(&link(interface, 0, 0));
            message.nested(IFLA_AF_SPEC, |families| {
                families
                    .nested(AF_INET6.into(), |family| family.attribute(IFLA_INET6_ADDR_GEN_MODE, &[NONE]));
            });
        });
        match said {
            // Where the kernel has no IPv6 there is nothing to say.
            Err(error) if error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) => Ok(()),
            other => other,
        }
    }

    pub fn set_up(&self, interface: u32) -> io::Result<()> {
        self.say(RTM_NEWLINK, flag::ACK, |message| message.put(&link(interface, IFF_UP, IFF_UP)))
    }

    /// Waits until packets pass: an interface that is up drops them until the kernel, a moment later, has seen that the other
    /// end is up too.
    pub fn wait_until_running(&self, interface: u32) -> io::Result<()> {
        let until = Instant::now() + LONGEST_WAIT;
        while !self.is_running(interface)? {
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "an interface does not get ready"));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    fn is_running(&self, interface: u32) -> io::Result<bool> {
        let mut question = Buffer::default();
        let open = question.message(RTM_GETLINK, flag::ACK);
        question.put(&link(interface, 0, 0));
        question.end_message(open);
        let mut running = false;
        self.0.dump(&question, |answer| {
            running |= flags_of(answer).is_some_and(|flags| flags & IFF_RUNNING != 0);
        })?;
        Ok(running)
    }

    /// Removes an interface; one that is not there is as good as removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.say(RTM_DELLINK, flag::ACK, |message| {
            message.put(&link(0, 0, 0));
            message.text(IFLA_IFNAME, name);
        });
        match removed {
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(()),
            other => other,
        }
    }

    /// An address of its own for an interface, without any network around it.
    pub fn add_address(&self, interface: u32, address: IpAddr) -> io::Result<()> {
        // Nobody is asked whether the address is theirs: it is not.
        const NO_QUESTIONS: u8 = 2;
        let flags = if address.is_ipv6() { NO_QUESTIONS } else { 0 };
        let (alone, octets) = (Cidr::single(address), octets(address));
        self.say(RTM_NEWADDR, ONLY_NEW, |message| {
            let fixed = [&[family(address), alone.length(), flags, 0][..], &interface.to_ne_bytes()];
            message.put(&fixed.concat());
            message.attribute(2, &octets);
            message.attribute(1, &octets);
        })
    }

    /// Packets to `to` leave by the interface, straight or through a gateway.
    pub fn add_route(&self, to: Cidr, interface: u32, gateway: Option<IpAddr>) -> io::Result<()> {
        const MAIN: u8 = 254;
        const STATIC: u8 = 4;
        const UNICAST: u8 = 1;
        let scope = if gateway.is_some() { 0 } else { 253 };
        self.say(RTM_NEWROUTE, ONLY_NEW, |message| {
            message.put(&[family(to.first()), to.length(), 0, 0, MAIN, STATIC, scope, UNICAST, 0, 0, 0, 0]);
            if to.length() > 0 {
                message.attribute(1, &to.octets());
            }
            message.attribute(4, &interface.to_ne_bytes());
            if let Some(gateway) = gateway {
                message.attribute(5, &octets(gateway));
            }
        })
    }

    /// Says for good which hardware has an address, so that nobody is ever asked.
    pub fn add_neighbour(&self, interface: u32, address: IpAddr, hardware: Hardware) -> io::Result<()> {
        const PERMANENT: u16 = 0x80;
        self.say(RTM_NEWNEIGH, ONLY_NEW, |message| {
            let fixed = [
                &[family(address), 0, 0, 0][..],
                &interface.to_ne_bytes(),
                &PERMANENT.to_ne_bytes(),
                &[0, 0],
            ];
            message.put(&fixed.concat());
            message.attribute(1, &octets(address));
            message.attribute(2, &hardware);
        })
    }

    /// The number of the one interface besides loopback.
    pub fn only_other(&self) -> io::Result<u32> {
        let mut found = None;
        self.each(|answer| {
            let number = answer.get(4..8).and_then(|bytes| Some(u32::from_ne_bytes(bytes.try_into().ok()?)));
            if flags_of(answer).is_some_and(|flags| flags & IFF_LOOPBACK == 0) {
                found = number;
            }
        })?;
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Every IPv4 address.
    pub fn addresses(&self) -> io::Result<Vec<Ipv4Addr>> {
        let mut addresses = Vec::new();
        self.dump(RTM_GETADDR, &[AF_INET, 0, 0, 0, 0, 0, 0, 0], |answer| addresses.extend(address(answer)))?;
        Ok(addresses)
    }

    /// Every IPv4 route, those to the machine's own addresses included.
    pub fn routes(&self) -> io::Result<Vec<Route>> {
        let mut routes = Vec::new();
        self.each_route(AF_INET, |answer| routes.extend(route(answer)))?;
        Ok(routes)
    }

    /// Whether the machine was told of an IPv6 route by a router.
    pub fn has_advertised_routes(&self) -> io::Result<bool> {
        const PROTOCOL: usize = 5;
        const ADVERTISED: u8 = 9;
        let mut found = false;
        self.each_route(AF_INET6, |answer| found |= answer.get(PROTOCOL) == Some(&ADVERTISED))?;
        Ok(found)
    }

    fn each_route(&self, family: u8, look: impl FnMut(&[u8])) -> io::Result<()> {
        self.dump(RTM_GETROUTE, &[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], look)
    }

    /// Looks at what the kernel says of every interface.
    fn each(&self, look: impl FnMut(&[u8])) -> io::Result<()> {
        self.dump(RTM_GETLINK, &link(0, 0, 0), look)
    }

    /// Looks at everything that the kernel knows of a kind.
    fn dump(&self, kind: u16, fixed: &[u8], look: impl FnMut(&[u8])) -> io::Result<()> {
        let mut question = Buffer::default();
        let open = question.message(kind, flag::DUMP);
        question.put(fixed);
        question.end_message(open);
        self.0.dump(&question, look)
    }

    fn say(&self, kind: u16, flags: u16, fill: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        let mut message = Buffer::default();
        let open = message.message(kind, flags);
        fill(&mut message);
        message.end_message(open);
        self.0.execute(&message)
    }
}

/// The number of an interface in the calling thread's namespace.
pub fn index(name: &str) -> io::Result<u32> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(netdevice::name_to_index(&socket, name)?)
}

/// The name of an interface by its number.
pub fn name(index: u32) -> io::Result<String> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(netdevice::index_to_name(&socket, index)?)
}

/// Names of all interfaces of the calling thread's namespace.
pub fn names() -> io::Result<Vec<String>> {
    // Not /sys, which shows the namespace it was mounted in.
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let name = |line: &str| line.split_once(':').map(|(name, _)| name.trim().to_owned());
    Ok(table.lines().filter_map(name).collect())
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// Of an `ifinfomsg`.
fn flags_of(answer: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(answer.get(8..12)?.try_into().ok()?))
}

/// `ifinfomsg`.
fn link(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut fixed = [0; 16];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
    fixed[12..16].copy_from_slice(&change.to_ne_bytes());
    fixed
}

fn address(answer: &[u8]) -> Option<Ipv4Addr> {
    const IFA_LOCAL: u16 = 2;
    let (_, value) = attributes(answer.get(8..)?).find(|(kind, _)| *kind == IFA_LOCAL)?;
    Some(<[u8; 4]>::try_from(value).ok()?.into())
}

fn route(answer: &[u8]) -> Option<Route> {
    let length = *answer.get(1)?;
    let (mut to, mut interface) = ([0u8; 4], 0);
    for (kind, value) in attributes(answer.get(12..)?) {
        match (kind, value.try_into()) {
            (1, Ok(value)) => to = value,
            (4, Ok(value)) => interface = u32::from_ne_bytes(value),
            _ => {}
        }
    }
    Some(Route { to: Cidr::new(to, length)?, interface })
}
