//! The listeners of the router: plain, and by TLS.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use asb_goflags::Address;
use asb_router::{Connections, Handshake, Peer, Stream};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Listens; no host means every interface, of both families where there are two.
pub async fn bind(address: &Address) -> io::Result<TcpListener> {
    let Address { host, port } = address;
    match host.as_str() {
        "" => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).await {
            // A machine without IPv6.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).await
            }
            bound => bound,
        },
        host => TcpListener::bind((host, *port)).await,
    }
}

/// Hands connections to the router until the future is dropped, or the router has stopped.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    trust_loopback: bool,
    connections: Connections,
) {
    loop {
        let slot = connections.slot().await;
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: accepting again at once would only burn the CPU.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let peer = peer_of(peer, tls.is_some(), trust_loopback);
        if let Err(error) = slot.serve(stream, peer, tls.clone().map(handshake))
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            return;
        }
    }
}

fn handshake(tls: TlsAcceptor) -> Handshake {
    Box::new(move |stream| {
        Box::pin(async move {
            let stream = tls.accept(stream).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    })
}

fn peer_of(address: SocketAddr, tls: bool, trust_loopback: bool) -> Peer {
    // A listener of both families shows IPv4 peers as mapped addresses.
    let address: IpAddr = address.ip().to_canonical();
    Peer { address, trusted: trust_loopback && address.is_loopback(), tls }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_trusted_and_only_when_that_was_asked_for() {
        let trusted = |address: &str, trust| peer_of(address.parse().unwrap(), false, trust).trusted;
        for loopback in ["127.0.0.1:1", "127.8.9.10:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(trusted(loopback, true) && !trusted(loopback, false), "{loopback}");
        }
        for other in ["10.0.0.1:1", "[::ffff:10.0.0.1]:1", "[fe80::1]:1", "0.0.0.0:1", "169.254.0.1:1"] {
            assert!(!trusted(other, true), "{other}");
        }
    }
}
