//! Questions about the rest of the world, asked of the machine's own resolvers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::message::{answers, id, with_id};

/// How long one resolver may take.
const PATIENCE: Duration = Duration::from_secs(3);
const LARGEST: usize = 65_535;
/// More than any file of this kind names.
const RESOLVERS: usize = 3;
const DNS: u16 = 53;

/// The machine's resolvers, but for ourselves.
pub fn resolvers(file: &Path, ourselves: IpAddr) -> Vec<SocketAddr> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let address = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok();
    let others = text.lines().filter_map(address).filter(|address| *address != ourselves);
    others.take(RESOLVERS).map(|address| SocketAddr::from((address, DNS))).collect()
}

/// Asks one after the other until one answers.
pub async fn forward(resolvers: &[SocketAddr], question: &[u8], datagram: bool) -> io::Result<Vec<u8>> {
    // A number and a port of our own: what comes back unasked does not fit.
    let asked = with_id(question, rand::random());
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the machine has no resolver");
    for resolver in resolvers {
        let answer = async {
            if datagram { by_datagram(*resolver, &asked).await } else { by_stream(*resolver, &asked).await }
        };
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => return Ok(with_id(&answer, id(question))),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

async fn by_datagram(resolver: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match resolver {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; LARGEST];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if answers(question, &buffer[..length]) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn by_stream(resolver: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(resolver).await?;
    write(&mut stream, question).await?;
    let answer = read(&mut stream).await?;
    if answers(question, &answer) { Ok(answer) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// A message on a stream comes after its length.
pub async fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

pub async fn write(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&[&length.to_be_bytes()[..], message].concat()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_as_others_read_them() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("resolv.conf");
        let text = "# a\nnameserver 10.88.0.1\nnameserver 192.0.2.53\n  nameserver\t2001:db8::1\nsearch x\nnameserver y\n";
        std::fs::write(&file, text).unwrap();
        let ourselves = "10.88.0.1".parse().unwrap();
        let expected: [SocketAddr; 2] =
            ["192.0.2.53:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()];
        assert_eq!(resolvers(&file, ourselves), expected);
        assert!(resolvers(&directory.path().join("none"), ourselves).is_empty());
    }
}
