//! A machine with a network of its own and a world outside it. For tests: nothing of the real network is touched.
//!
//! ```text
//! outside 203.0.113.10, 10.200.0.10, 169.254.169.254 ── up0 192.0.2.2 ── machine (this thread and what it starts)
//!         2600:0:0:2::10, fd12::10, fd00:ec2::254        2600:0:0:1::2, fe80::2
//! ```

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::namespace::enter_new;

pub const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
pub const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 10);
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
pub const MACHINE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

pub const PUBLIC6: Ipv6Addr = Ipv6Addr::new(0x2600, 0, 0, 2, 0, 0, 0, 0x10);
pub const PRIVATE6: Ipv6Addr = Ipv6Addr::new(0xfd12, 0, 0, 0, 0, 0, 0, 0x10);
pub const METADATA6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
pub const MACHINE6: Ipv6Addr = Ipv6Addr::new(0x2600, 0, 0, 1, 0, 0, 0, 2);
pub const MACHINE_LINK: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

/// Longer than a packet needs between two namespaces, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// What became of an attempt to connect.
#[derive(Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Somebody answered, and saw the connection come from here.
    Answered(IpAddr),
    Refused,
    Silence,
}

impl Attempt {
    pub fn answered(from: impl Into<IpAddr>) -> Self {
        Self::Answered(from.into())
    }
}

/// The world outside the machine.
pub struct Outside(OwnedFd);

/// Runs a story on a machine of its own: in a thread, and in what that starts.
pub fn on_a_machine(story: impl FnOnce(&Outside) + Send) {
    assert!(
        rustix::process::getuid().is_root(),
        "\n\n  These tests make network namespaces and must be run as root.\n\n"
    );
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let outside = Outside(new_namespace());
            let _machine = new_namespace();
            // A new one begins with what the real machine has at the moment.
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").expect("root may write there");
            outside.join_machine();
            story(&outside);
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

impl Outside {
    /// A service outside that says where connections come from.
    pub fn serve(&self, address: impl Into<IpAddr> + Send, port: u16) -> TcpListener {
        inside(self.as_fd(), || serve(address, port))
    }

    /// Does something there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(self.as_fd(), work)
    }

    fn join_machine(&self) {
        ip("link add up0 type veth peer name down0");
        ip("addr add 192.0.2.2/24 dev up0");
        ip(&format!("link set down0 netns /proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()));
        ip("link set up0 up");
        ip("route add default via 192.0.2.1");
        for address in [format!("{MACHINE6}/64"), format!("{MACHINE_LINK}/64")] {
            ip(&format!("addr add {address} dev up0 nodad"));
        }
        ip("-6 route add default via 2600:0:0:1::1");
        self.run(|| {
            ip("link set down0 up");
            for address in ["192.0.2.1/24", "203.0.113.10/32", "10.200.0.10/32", "169.254.169.254/32"] {
                ip(&format!("addr add {address} dev down0"));
            }
            // So that a packet that kept a sandbox's address could be answered too.
            ip("route add 10.64.0.0/10 via 192.0.2.2");
            for address in [
                "2600:0:0:1::1/64".to_owned(),
                format!("{PUBLIC6}/128"),
                format!("{PRIVATE6}/128"),
                format!("{METADATA6}/128"),
            ] {
                ip(&format!("addr add {address} dev down0 nodad"));
            }
            ip(&format!("-6 route add fd61:7300::/24 via {MACHINE6}"));
        });
    }
}

impl AsFd for Outside {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Does something in another network namespace.
pub fn inside<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let enter = move || {
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network)).expect("can be entered");
            work()
        };
        scope.spawn(enter).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Listens in the calling thread's namespace, and tells whoever connects which address was seen.
pub fn serve(address: impl Into<IpAddr>, port: u16) -> TcpListener {
    let listener = TcpListener::bind((address.into(), port)).expect("the port is free");
    let accepting = listener.try_clone().expect("can be cloned");
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = accepting.accept() {
            // Whoever connected may be gone.
            let _ = stream.write_all(peer.ip().to_string().as_bytes());
        }
    });
    listener
}

/// Connects from a namespace to such a service.
pub fn connect(from: BorrowedFd<'_>, to: impl Into<IpAddr>, port: u16) -> Attempt {
    let to = to.into();
    inside(from, || match TcpStream::connect_timeout(&SocketAddr::from((to, port)), PATIENCE) {
        Ok(mut stream) => {
            let mut seen = String::new();
            stream.set_read_timeout(Some(PATIENCE)).expect("can be set");
            let read = stream.read_to_string(&mut seen);
            read.ok().and_then(|_| seen.parse().ok()).map_or(Attempt::Silence, Attempt::Answered)
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Attempt::Refused,
        Err(_) => Attempt::Silence,
    })
}

/// The `ip` program, in the calling thread's namespace.
pub fn ip(args: &str) {
    let output = Command::new("ip").args(args.split(' ')).output().expect("the tests need iproute2");
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Puts this thread into a new namespace with loopback up.
fn new_namespace() -> OwnedFd {
    let (namespace, _) = enter_new(true).expect("root may make network namespaces");
    ip("link set lo up");
    namespace
}
