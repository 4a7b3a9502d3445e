//! Connections that the kernel remembers. What belongs to one of them passes without being judged again, so they must be
//! forgotten before somebody else has an address of theirs.

use std::io;
use std::net::IpAddr;

use crate::netlink::{Buffer, Socket, attributes, flag};

const SUBSYSTEM: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;

/// What is said of a connection. The packets of either direction have a tuple; the source of the second is who was
/// really connected to.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// Of a tuple.
const ADDRESSES: u16 = 1;
const SOURCE: u16 = 1;
const SOURCE6: u16 = 3;

/// Forgets every connection from or to such an address.
///
/// The kernel looks at all that it remembers, which takes tens of milliseconds: not for every sandbox.
pub fn forget(is_meant: impl Fn(IpAddr) -> bool) -> io::Result<()> {
    find(is_meant)?.iter().try_for_each(remove)
}

/// What names a connection for good.
struct Connection {
    family: u8,
    original: Vec<u8>,
    id: Vec<u8>,
    zone: Option<Vec<u8>>,
}

fn find(is_meant: impl Fn(IpAddr) -> bool) -> io::Result<Vec<Connection>> {
    const EITHER: u8 = 0;
    let mut message = Buffer::default();
    let open = message.message((SUBSYSTEM << 8) | GET, flag::DUMP);
    message.put(&[EITHER, 0, 0, 0]);
    message.end_message(open);
    let mut found = Vec::new();
    Socket::netfilter()?.dump(&message, |answer| {
        let (Some(family), Some(body)) = (answer.first(), answer.get(4..)) else { return };
        let get = |wanted: u16| attributes(body).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
        let meant = |tuple: u16| get(tuple).and_then(source).is_some_and(&is_meant);
        if let (true, Some(original), Some(id)) = (meant(ORIGINAL) || meant(REPLY), get(ORIGINAL), get(ID)) {
            let zone = get(ZONE).map(<[u8]>::to_vec);
            found.push(Connection { family: *family, original: original.to_vec(), id: id.to_vec(), zone });
        }
    })?;
    Ok(found)
}

fn source(tuple: &[u8]) -> Option<IpAddr> {
    let (_, addresses) = attributes(tuple).find(|(kind, _)| *kind == ADDRESSES)?;
    attributes(addresses).find_map(|(kind, value)| match kind {
        SOURCE => Some(<[u8; 4]>::try_from(value).ok()?.into()),
        SOURCE6 => Some(<[u8; 16]>::try_from(value).ok()?.into()),
        _ => None,
    })
}

/// Removes a connection; one that is over by now is as good as removed.
fn remove(connection: &Connection) -> io::Result<()> {
    let mut message = Buffer::default();
    let open = message.message((SUBSYSTEM << 8) | DELETE, flag::ACK);
    message.put(&[connection.family, 0, 0, 0]);
    message.group(ORIGINAL, &connection.original);
    message.attribute(ID, &connection.id);
    if let Some(zone) = &connection.zone {
        message.attribute(ZONE, zone);
    }
    message.end_message(open);
    match Socket::netfilter()?.execute(&message) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
