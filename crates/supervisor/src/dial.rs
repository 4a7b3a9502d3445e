//! Connections to ports inside: made here, where the loopback interface is the sandbox's, and handed out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use asb_supervisor::wire::{FailureKind, Reply};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::peer::{Peer, Work};
use crate::spawn::failed;

/// Begins to connect; the result is for [`finish`].
pub fn begin(peer: &mut Peer, port: u16, address: Option<Ipv4Addr>) {
    let mut places = vec![IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    places.extend(address.map(IpAddr::from));
    places.reverse();
    next(peer, port, places, Errno::CONNREFUSED);
}

/// Hands the connection out when it is made, or tries the next place.
pub fn finish(peer: &mut Peer) {
    let Work::Dialing { socket, port, places } = &mut peer.work else { return };
    let result = match sockopt::socket_error(&*socket) {
        Ok(Ok(())) => rustix::net::getpeername(&*socket).map(drop),
        Ok(Err(errno)) | Err(errno) => Err(errno),
    };
    match result {
        Ok(()) => {
            let Work::Dialing { socket, .. } = std::mem::replace(&mut peer.work, Work::Over) else { return };
            peer.reply(&Reply::Connected, Some(socket.as_fd()));
        }
        Err(Errno::NOTCONN) => {} // still on its way
        Err(errno) => {
            let (port, places) = (*port, std::mem::take(places));
            next(peer, port, places, errno);
        }
    }
}

/// Begins to connect to the last of these places that can be tried; `why` is what the one before said.
fn next(peer: &mut Peer, port: u16, mut places: Vec<IpAddr>, mut why: Errno) {
    while let Some(place) = places.pop() {
        match open(SocketAddr::from((place, port))) {
            Ok(socket) => {
                peer.work = Work::Dialing { socket, port, places };
                return;
            }
            // That there is no IPv6 is not what is wrong.
            Err(_) if place.is_ipv6() => {}
            Err(errno) => why = errno,
        }
    }
    refuse(peer, why);
}

fn open(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

fn refuse(peer: &mut Peer, errno: Errno) {
    let kind = match errno {
        Errno::CONNREFUSED => FailureKind::Refused,
        _ => FailureKind::Internal,
    };
    peer.work = Work::Idle;
    peer.fail(failed(kind, errno, "could not connect"));
}
