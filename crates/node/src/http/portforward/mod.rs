//! `pods/portforward`: connections from a client to ports on the Pod's loopback interface.
//!
//! | client | way | file |
//! |---|---|---|
//! | kubectl since 1.31 | SPDY tunnelled in a WebSocket | `spdy` |
//! | kubectl before | SPDY after an upgrade | `spdy` |
//! | Python client, kube-rs | WebSocket channels | `channels` |

mod channels;
mod pairs;
mod relay;
mod spdy;

use std::io;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, RawQuery, Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio_util::io::StreamReader;

use self::relay::Target;
use super::spdy::{SPDY, is_asked_for, switch};
use super::{Failure, pod, sandbox_of};
use crate::node::{Node, uid};

const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const CHANNELS: &str = "v4.channel.k8s.io";
/// The only version of the streams inside SPDY.
const STREAMS: &str = "portforward.k8s.io";
/// The most ports of one request: a channel has a number of one byte.
const PORTS: usize = 64;
/// The largest WebSocket message. Clients send what they read at once, the Python client up to 1 MiB.
const LARGEST_MESSAGE: usize = 2 << 20;

pub async fn portforward(
    State(node): State<Node>,
    Path((namespace, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: Request,
) -> Result<Response, Failure> {
    let pod = pod(&node, &namespace, &name).await?;
    let engine = node.engine_pod(&pod).map(|own| own.connect.clone());
    if engine.is_none() && !node.shared.has_sandbox(&uid(&pod)) {
        sandbox_of(&node, &pod, None)?;
    }
    let target = Target { uid: uid(&pod), pod: name, node, engine };
    let Ok(upgrade) = upgrade else { return spdy_upgrade(target, request) };
    let upgrade = upgrade.max_message_size(LARGEST_MESSAGE).protocols([TUNNEL, CHANNELS]);
    if upgrade.selected_protocol().is_some_and(|protocol| protocol == TUNNEL) {
        return Ok(upgrade.on_upgrade(move |socket| tunnel(target, socket)));
    }
    let ports = parse_ports(query.as_deref().unwrap_or_default())?;
    Ok(upgrade.on_upgrade(move |socket| channels::serve(target, socket, ports)))
}

async fn tunnel(target: Target, socket: WebSocket) {
    let (sink, stream) = socket.split();
    let bytes = stream.filter_map(|message| async {
        match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        }
    });
    let sink = sink.with(|bytes: Bytes| std::future::ready(Ok::<_, axum::Error>(Message::Binary(bytes))));
    spdy::serve(target, StreamReader::new(Box::pin(bytes)), sink).await;
}

fn spdy_upgrade(target: Target, request: Request) -> Result<Response, Failure> {
    if !is_asked_for(request.headers(), STREAMS) {
        let message = format!(
            "port-forward needs an upgrade: a WebSocket with {TUNNEL} or {CHANNELS}, or {SPDY} with {STREAMS}"
        );
        return Err(Failure::bad_request(message));
    }
    Ok(switch(request, STREAMS, |from, to| spdy::serve(target, from, to)))
}

/// `ports=80,443`, or `ports=80&ports=443`.
fn parse_ports(query: &str) -> Result<Vec<u16>, Failure> {
    let mut ports = Vec::new();
    for (_, value) in form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == "ports") {
        for text in value.split(',') {
            let port = text.parse().ok().filter(|port| *port != 0);
            ports.push(port.ok_or_else(|| Failure::bad_request(format!("ports: {text:?} is not a port")))?);
        }
    }
    match ports.len() {
        0 => Err(Failure::bad_request("ports: name at least one port, as in ?ports=8080")),
        1..=PORTS => Ok(ports),
        more => {
            Err(Failure::bad_request(format!("ports: {more} are too many; at most {PORTS} in one request")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_from_the_query() {
        let ports = |query| parse_ports(query).map_err(|failure| failure.message);
        assert_eq!(ports("ports=80,443&ports=8080"), Ok(vec![80, 443, 8080]));
        for (wrong, names) in
            [("", "at least one"), ("ports=0", "\"0\""), ("ports=65536", "65536"), ("ports=a", "a")]
        {
            assert!(ports(wrong).is_err_and(|message| message.contains(names)), "{wrong}");
        }
        let many = vec!["1"; PORTS + 1].join(",");
        assert!(ports(&format!("ports={many}")).is_err());
    }
}
