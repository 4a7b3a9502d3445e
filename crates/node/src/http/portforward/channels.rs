//! Port-forward over WebSocket channels, what the Python client and kube-rs speak.
//!
//! Port *n* of the request has two channels: 2*n* for data and 2*n*+1 for errors. Both begin with a message that holds
//! the port, low byte first. One connection for each port, made at once; when the last has ended, so has the WebSocket.

use axum::extract::ws::{Message, WebSocket};
use bytes::Bytes;
use futures::stream::SplitStream;
use futures::{SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::relay::{self, Given, PIECES, Target};
use crate::http::remote::websocket::frame;

/// Messages on their way to the client.
const QUEUE: usize = 16;

pub async fn serve(target: Target, socket: WebSocket, ports: Vec<u16>) {
    let target = std::sync::Arc::new(target);
    let (mut sink, stream) = socket.split();
    let (output, mut messages) = mpsc::channel(QUEUE);
    let mut running = JoinSet::new();
    let mut inputs = Vec::new();
    for (index, port) in ports.into_iter().enumerate() {
        let (sender, input) = mpsc::channel(PIECES);
        let connection = forward(target.clone(), 2 * index as u8, port, input, output.clone());
        inputs.push((sender, running.spawn(connection)));
    }
    drop(output);
    let write = async {
        while let Some(message) = messages.recv().await {
            if sink.send(message).await.is_err() {
                return;
            }
        }
        let _ = sink.close().await;
    };
    tokio::select! {
        () = write => {}
        // The client is gone.
        () = read(stream, inputs) => {}
    }
}

async fn forward(
    target: std::sync::Arc<Target>,
    channel: u8,
    port: u16,
    input: mpsc::Receiver<Bytes>,
    output: mpsc::Sender<Message>,
) {
    let (data, error) = (channel, channel + 1);
    for channel in [data, error] {
        let _ = output.send(frame(channel, &port.to_le_bytes())).await;
    }
    match target.dial(port).await {
        Ok((from, to)) => {
            // There is no way to say that one direction has ended, so both end when the Pod has said everything.
            tokio::select! {
                () = relay::down(from, &output, |bytes| frame(data, bytes)) => {}
                () = async { relay::up(input, to).await; std::future::pending().await } => {}
            }
        }
        Err(message) => {
            let _ = output.send(frame(error, message.as_bytes())).await;
        }
    }
}

/// Gives what the client sends to the connections.
async fn read(mut stream: SplitStream<WebSocket>, inputs: Vec<(mpsc::Sender<Bytes>, AbortHandle)>) {
    while let Some(Ok(message)) = stream.next().await {
        let Message::Binary(mut message) = message else { continue };
        if message.is_empty() {
            continue;
        }
        let channel = message.split_to(1)[0];
        if channel.is_multiple_of(2)
            && !message.is_empty()
            && let Some((input, connection)) = inputs.get(usize::from(channel / 2))
            && relay::give(input, message).await == Given::Stuck
        {
            connection.abort();
        }
    }
}
