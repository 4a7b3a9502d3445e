//! Our end of [`asb_supervisor::wire`]: one connection, one request.

use std::io::{self, IoSlice, IoSliceMut, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use asb_supervisor::launch::file;
use asb_supervisor::wire::{Failed, FailureKind, MAX_FDS, MAX_PACKET, MAX_PAYLOAD, Reply, Request};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use tokio_seqpacket::UnixSeqpacket;
use tokio_seqpacket::ancillary::{AncillaryMessageWriter, OwnedAncillaryMessage};

/// Room for the descriptors of one packet, with the kernel's header and its alignment.
const ANCILLARY: usize = 64 + 8 * MAX_FDS;

pub struct Connection {
    socket: UnixSeqpacket,
}

impl Connection {
    /// Connects to the supervisor whose state is in `directory`; `None` when it is no more.
    pub async fn open(directory: &Path) -> io::Result<Option<Self>> {
        let gone = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        };
        let run = directory.join(file::RUN);
        let run =
            match rustix::fs::open(run, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
                Err(rustix::io::Errno::NOENT) => return Ok(None),
                run => run?,
            };
        // By descriptor: the full path may be longer than an address can be.
        let address = format!("/proc/self/fd/{}/{}", run.as_raw_fd(), file::SOCKET);
        let socket = match UnixSeqpacket::connect(address).await {
            Err(error) if gone(&error) => return Ok(None),
            socket => socket?,
        };
        Ok(Some(Self { socket }))
    }

    /// Sends a request with its descriptors.
    pub async fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(request)?;
        if text.len() <= MAX_PACKET {
            return self.packet(&text, fds).await;
        }
        if text.len() > MAX_PAYLOAD {
            return Err(io::Error::new(io::ErrorKind::ArgumentListTooLong, "a request is larger than 1 MiB"));
        }
        let payload =
            rustix::fs::memfd_create("asb-request", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut payload = std::fs::File::from(payload);
        payload.write_all(&text)?;
        payload.rewind()?;
        let packet = serde_json::to_vec(&Request::Payload { length: text.len() })?;
        let all: Vec<_> = std::iter::once(payload.as_fd()).chain(fds.iter().copied()).collect();
        self.packet(&packet, &all).await
    }

    /// The next reply and its descriptor; `None` when the supervisor is no more.
    pub async fn reply(&self) -> io::Result<Option<(Reply, Option<OwnedFd>)>> {
        let mut packet = vec![0; MAX_PACKET];
        loop {
            match self.receive(&mut packet).await {
                // A supervisor of any generation knows every request made here, so none waits for its greeting.
                Ok(Some((Reply::Hello { .. }, _))) => {}
                // It was closed before the request was read. What was said before that is still there.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                other => return other,
            }
        }
    }

    async fn receive(&self, packet: &mut [u8]) -> io::Result<Option<(Reply, Option<OwnedFd>)>> {
        let mut ancillary = [0; ANCILLARY];
        let received =
            self.socket.recv_vectored_with_ancillary(&mut [IoSliceMut::new(packet)], &mut ancillary).await;
        let (length, control) = match received {
            Ok((0, _)) => return Ok(None),
            received => received?,
        };
        let mut fd = None;
        for message in control.into_messages() {
            if let OwnedAncillaryMessage::FileDescriptors(fds) = message {
                fd = fds.last();
            }
        }
        Ok(Some((serde_json::from_slice(&packet[..length])?, fd)))
    }

    async fn packet(&self, text: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [0; ANCILLARY];
        let mut control = AncillaryMessageWriter::new(&mut space);
        if !fds.is_empty() {
            control.add_fds(fds).map_err(|error| io::Error::other(error.to_string()))?;
        }
        self.socket.send_vectored_with_ancillary(&[IoSlice::new(text)], &mut control).await.map(drop)
    }
}

/// A reply that does not belong here.
pub fn unexpected(reply: &Reply) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the supervisor answered {reply:?}"))
}

/// Whether a failure is the program's and not the protocol's.
pub fn is_of_program(failed: &Failed) -> bool {
    use FailureKind::{Directory, Limit, NotExecutable, NotFound, TooLarge};
    matches!(failed.kind, Directory | Limit | NotExecutable | NotFound | TooLarge)
}
