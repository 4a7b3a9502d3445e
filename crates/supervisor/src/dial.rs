//! Connections to ports inside: made here, where the loopback interface is the sandbox's, and handed out.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use asb_supervisor::wire::{FailureKind, Reply};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::peer::{Peer, Work};
use crate::spawn::failed;

/// Begins to connect; the result is for [`finish`].
pub fn begin(peer: &mut Peer, port: u16) {
    // On loopback a refusal is known at once, so the second family costs nothing.
    let socket = match open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))) {
        Err(Errno::CONNREFUSED) => open(SocketAddr::from((Ipv6Addr::LOCALHOST, port))),
        other => other,
    };
    match socket {
        Ok(socket) => peer.work = Work::Dialing(socket),
        Err(errno) => refuse(peer, errno),
    }
}

/// Hands the connection out when it is made.
pub fn finish(peer: &mut Peer) {
    let Work::Dialing(socket) = &peer.work else { return };
    let result = match sockopt::socket_error(socket) {
        Ok(Ok(())) => rustix::net::getpeername(socket).map(drop),
        Ok(Err(errno)) | Err(errno) => Err(errno),
    };
    match result {
        Ok(()) => {
            let Work::Dialing(socket) = std::mem::replace(&mut peer.work, Work::Over) else { return };
            peer.reply(&Reply::Connected, Some(socket.as_fd()));
        }
        Err(Errno::NOTCONN) => {} // still on its way
        Err(errno) => refuse(peer, errno),
    }
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
