//! Netlink, the kernel's own language for links, routes and packet filters: messages written and answers read.
//!
//! Only what this crate says with it; every request is answered before the next is made.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::sync::mpsc::Sender;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// The kernel answers at once; one that does not is broken.
const PATIENCE: Duration = Duration::from_secs(10);
/// Room for the largest batch: thousands of sandboxes told at once.
const SEND_BUFFER: usize = 8 << 20;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;

pub mod flag {
    pub const REQUEST: u16 = 0x1;
    pub const ACK: u16 = 0x4;
    pub const DUMP: u16 = 0x300;
    pub const EXCLUSIVE: u16 = 0x200;
    pub const CREATE: u16 = 0x400;
    pub const APPEND: u16 = 0x800;
}

/// Marks an attribute that holds attributes.
const NESTED: u16 = 0x8000;

/// The beginning of a message or of an attribute whose length is not known yet.
#[must_use]
pub struct Open(usize);

/// Bytes of one or more messages in the making.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    sequence: u32,
    /// Where the latest message begins.
    latest: usize,
}

impl Buffer {
    /// Begins a message; ends with [`Buffer::end_message`].
    pub fn message(&mut self, kind: u16, flags: u16) -> Open {
        let open = Open(self.bytes.len());
        self.latest = self.bytes.len();
        self.sequence += 1;
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | flag::REQUEST).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend(0u32.to_ne_bytes());
        open
    }

    pub fn end_message(&mut self, open: Open) {
        let length = (self.bytes.len() - open.0) as u32;
        self.bytes[open.0..open.0 + 4].copy_from_slice(&length.to_ne_bytes());
        self.align();
    }

    /// Asks for an acknowledgement of the latest message; answers with its number, if it is not the only one.
    pub fn acknowledge_last(&mut self) -> Option<u32> {
        if self.latest == 0 {
            return None;
        }
        let at = self.latest + 6;
        let flags = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]) | flag::ACK;
        self.bytes[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
        Some(self.sequence)
    }

    /// Fixed fields.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.align();
    }

    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        let open = self.open_attribute(kind);
        self.bytes.extend(value);
        self.end(open);
    }

    /// Text as the kernel wants it, with its NUL.
    pub fn text(&mut self, kind: u16, value: &str) {
        let open = self.open_attribute(kind);
        self.bytes.extend(value.as_bytes());
        self.bytes.push(0);
        self.end(open);
    }

    /// A number in network order, as packet filters want them.
    pub fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// An attribute that holds attributes.
    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let open = self.open_attribute(kind | NESTED);
        fill(self);
        self.end(open);
    }

    /// The same from what is in it, as it was read.
    pub fn group(&mut self, kind: u16, attributes: &[u8]) {
        self.attribute(kind | NESTED, attributes);
    }

    /// How large the message would be if it ended here.
    pub fn length_since(&self, open: &Open) -> usize {
        self.bytes.len() - open.0
    }

    fn open_attribute(&mut self, kind: u16) -> Open {
        let open = Open(self.bytes.len());
        self.bytes.extend(0u16.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        open
    }

    fn end(&mut self, open: Open) {
        let length = (self.bytes.len() - open.0) as u16;
        self.bytes[open.0..open.0 + 2].copy_from_slice(&length.to_ne_bytes());
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// A connection to one part of the kernel, in the network namespace of the thread that opened it.
pub struct Socket {
    /// There until this is dropped.
    socket: Option<OwnedFd>,
    close: fn(OwnedFd),
}

impl Socket {
    pub fn route() -> io::Result<Self> {
        // 0, as which it counts when nothing is said
        Ok(Self { socket: Some(open(None)?), close: drop })
    }

    pub fn netfilter() -> io::Result<Self> {
        Ok(Self { socket: Some(open(Some(netlink::NETFILTER))?), close: close_aside })
    }

    /// Sends messages, the last of which asks for an acknowledgement, and waits for it.
    pub fn execute(&self, messages: &Buffer) -> io::Result<()> {
        self.execute_until(messages, messages.sequence)
    }

    /// Sends messages and waits until the one with this number is acknowledged, or any has failed.
    pub fn execute_until(&self, messages: &Buffer, last: u32) -> io::Result<()> {
        self.send(messages)?;
        self.read(|kind, sequence, body| match kind {
            NLMSG_ERROR => match error_of(body) {
                0 => Ok(sequence == last),
                errno => Err(Errno::from_raw_os_error(errno).into()),
            },
            _ => Ok(false),
        })
    }

    /// Sends a question and hands every part of the answer to `each`, without its header.
    pub fn dump(&self, question: &Buffer, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(question)?;
        self.read(|kind, _, body| match kind {
            NLMSG_DONE => Ok(true),
            NLMSG_ERROR => match error_of(body) {
                0 => Ok(true),
                errno => Err(Errno::from_raw_os_error(errno).into()),
            },
            _ => {
                each(body);
                Ok(false)
            }
        })
    }

    fn fd(&self) -> io::Result<&OwnedFd> {
        self.socket.as_ref().ok_or(io::ErrorKind::NotConnected.into())
    }

    fn send(&self, messages: &Buffer) -> io::Result<()> {
        let sent = rustix::net::send(self.fd()?, &messages.bytes, SendFlags::empty())?;
        if sent == messages.bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Reads answers until `each` says that one was the last.
    fn read(&self, mut each: impl FnMut(u16, u32, &[u8]) -> io::Result<bool>) -> io::Result<()> {
        let mut buffer = vec![0u8; 64 << 10];
        loop {
            let (length, _) = rustix::net::recv(self.fd()?, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = &buffer[..length];
            while rest.len() >= HEADER {
                let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
                let Some(body) = rest.get(HEADER..length) else {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a cut netlink message"));
                };
                let kind = u16::from_ne_bytes([rest[4], rest[5]]);
                let sequence = u32::from_ne_bytes([rest[8], rest[9], rest[10], rest[11]]);
                if each(kind, sequence, body)? {
                    return Ok(());
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

fn open(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    // Without the right to exceed the machine's limit the usual size must do.
    let _ = sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER);
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SEND_BUFFER);
    Ok(socket)
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.socket.take().into_iter().for_each(self.close);
    }
}

/// Closing a socket to the packet filter waits until no processor looks any more at rules that were removed, whoever removed
/// them. Nobody who has his answer needs to wait these ten milliseconds.
fn close_aside(socket: OwnedFd) {
    static CLOSER: LazyLock<Option<Sender<OwnedFd>>> = LazyLock::new(|| {
        let (sender, receiver) = std::sync::mpsc::channel::<OwnedFd>();
        let closer = std::thread::Builder::new().name("asb-nft-close".to_owned());
        closer.spawn(move || receiver.into_iter().for_each(drop)).ok().map(|_| sender)
    });
    if let Some(closer) = CLOSER.as_ref() {
        // Without anybody there it comes back, and is closed here.
        let _ = closer.send(socket);
    }
}

/// News of the packet filter, whoever changes it.
pub fn netfilter_news() -> io::Result<OwnedFd> {
    const NFTABLES: u32 = 1 << 6;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::NETFILTER);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, NFTABLES))?;
    Ok(socket)
}

/// The kinds of the messages that came together.
pub fn kinds(mut messages: &[u8]) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*messages.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes([*messages.get(4)?, *messages.get(5)?]);
        messages = messages.get(length.max(HEADER).next_multiple_of(4)..).unwrap_or_default();
        Some(kind)
    })
}

/// The errno of an answer, positive; 0 is an acknowledgement.
fn error_of(body: &[u8]) -> i32 {
    body.first_chunk().map_or(Errno::INVAL.raw_os_error(), |code| -i32::from_ne_bytes(*code))
}

/// The attributes of an answer, after its fixed fields.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u16::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & !NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let mut buffer = Buffer::default();
        let open = buffer.message(1, flag::ACK);
        buffer.put(&[9, 9]);
        buffer.text(3, "eth0");
        buffer.nested(4, |inner| inner.number(1, 7));
        buffer.end_message(open);
        assert_eq!(buffer.bytes.len() % 4, 0);
        let read: Vec<_> = attributes(&buffer.bytes[HEADER + 4..]).collect();
        assert_eq!(read[0], (3, &b"eth0\0"[..]));
        assert_eq!(attributes(read[1].1).collect::<Vec<_>>(), [(1, &7u32.to_be_bytes()[..])]);
    }

    #[test]
    fn cut_attributes_end_the_reading() {
        for cut in [&[8u8, 0, 1][..], &[8, 0, 1, 0, 5], &[2, 0, 1, 0]] {
            assert_eq!(attributes(cut).count(), 0, "{cut:?}");
        }
    }
}
