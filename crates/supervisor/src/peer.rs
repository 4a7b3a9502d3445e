//! One connection from `asb`: packets with descriptors in, packets with descriptors out, never waiting for either.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use asb_supervisor::launch::ORDER_FDS;
use asb_supervisor::wire::{Failed, FailureKind, MAX_FDS, MAX_PACKET, MAX_PAYLOAD, Reply, Request};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::oci::Asked;
use crate::process_one;
use crate::spawn::Spawning;

pub struct Peer {
    pub socket: OwnedFd,
    pub work: Work,
}

/// What a connection is about.
pub enum Work {
    /// Nothing asked yet.
    Idle,
    Spawning {
        spawning: Spawning,
        argv: Vec<String>,
        cwd: String,
    },
    Running(Running),
    /// Another runtime has been asked, and has not answered yet.
    Asking(Asked),
    /// A connection on its way to a port inside.
    Dialing {
        socket: OwnedFd,
        port: u16,
        /// Where to try next, the last one first.
        places: Vec<std::net::IpAddr>,
    },
    /// All said; closed at the end of the turn.
    Over,
}

/// A program that this connection has started.
#[derive(Clone, Copy)]
pub struct Running {
    /// The program itself, or whoever ends as it ends.
    pub pid: rustix::process::Pid,
    /// What it is called by a runtime whose processes are none of the kernel's.
    pub inside: Option<i32>,
}

/// A request and the descriptors that came with it.
pub struct Received {
    pub request: Request,
    pub fds: Vec<OwnedFd>,
}

impl Peer {
    /// The next request; `None` when there is none yet. An error means the connection is of no more use.
    pub fn request(&self, packet: &mut [u8]) -> Result<Option<Received>, Option<Failed>> {
        let (length, mut fds) = match receive(self.socket.as_fd(), packet, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(None),
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::MSGSIZE) => return Err(Some(refusal(FailureKind::TooLarge, "a packet is too large"))),
            Err(_) => return Err(None),
        };
        match parse(&packet[..length])? {
            Request::Payload { length } if !fds.is_empty() => {
                let request = payload(fds.remove(0), length)?;
                Ok(Some(Received { request, fds }))
            }
            request => Ok(Some(Received { request, fds })),
        }
    }

    /// Sends a reply. A peer that does not read loses its connection.
    pub fn reply(&mut self, reply: &Reply, fd: Option<BorrowedFd<'_>>) {
        let sent = serde_json::to_vec(reply).map_err(|_| Errno::INVAL).and_then(|packet| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if let Some(fd) = &fd {
                control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            sendmsg(&self.socket, &[IoSlice::new(&packet)], &mut control, flags)
        });
        if sent.is_err() {
            self.work = Work::Over;
        }
    }

    pub fn fail(&mut self, failed: Failed) {
        self.reply(&Reply::Failed(failed), None);
    }
}

pub fn refusal(kind: FailureKind, message: &str) -> Failed {
    Failed { kind, errno: 0, message: message.to_owned() }
}

fn parse(text: &[u8]) -> Result<Request, Option<Failed>> {
    serde_json::from_slice(text).map_err(|error| Some(refusal(FailureKind::Malformed, &error.to_string())))
}

/// Reads a request that was too large for a packet.
fn payload(fd: OwnedFd, length: usize) -> Result<Request, Option<Failed>> {
    if length > MAX_PAYLOAD {
        return Err(Some(refusal(FailureKind::TooLarge, "a request is larger than 1 MiB")));
    }
    let mut text = Vec::new();
    // Only memory is read here: anything else could make the supervisor wait.
    let sealed = rustix::fs::fcntl_get_seals(&fd).is_ok();
    let read = std::fs::File::from(fd).take(length as u64).read_to_end(&mut text);
    match read {
        Ok(read) if sealed && read == length => parse(&text),
        _ => Err(Some(refusal(FailureKind::Malformed, "a payload is not a memfd of the length given"))),
    }
}

/// The most descriptors that come with one packet, of whatever kind.
const MOST_FDS: usize = {
    let most = if MAX_FDS > ORDER_FDS { MAX_FDS } else { ORDER_FDS };
    if most > process_one::MOST_FDS { most } else { process_one::MOST_FDS }
};

/// One packet and its descriptors.
pub fn receive(
    socket: BorrowedFd<'_>,
    packet: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(packet)], &mut control, flags)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((received.bytes, fds))
}

/// A packet is never larger than this.
pub fn packet_buffer() -> Vec<u8> {
    vec![0; MAX_PACKET]
}
