//! The streams of a program as channels of a WebSocket.
//!
//! Every binary message starts with a channel: 0 stdin, 1 stdout, 2 stderr, 3 the final status, 4 resize;
//! with `v5` also 255, which closes the channel named by the next byte.

use std::pin::pin;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Client, Input, Output, QUEUE, parse_size};
use crate::http::spdy::SLOW_CLIENT;

pub const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
/// What is read at a time. Much more is seldom there, and is cleared for every program.
pub const READ_AT_ONCE: usize = 16 << 10;
/// How long a client may take to hang up when everything is said.
const FAREWELL: Duration = Duration::from_secs(2);
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

pub async fn serve<F: Future<Output = ()>>(socket: WebSocket, work: impl FnOnce(Client) -> F) {
    let (sink, stream) = socket.split();
    let (to_program, input) = mpsc::channel(QUEUE);
    let (output, to_client) = mpsc::channel(QUEUE);
    let gone = CancellationToken::new();
    // All in one task: what is short-lived is not worth waking another processor for.
    let mut working =
        pin!(async { tokio::join!(work(Client { input, output }), write(sink, to_client, gone.clone())) });
    let mut reading = pin!(async {
        read(stream, to_program).await;
        gone.cancel();
    });
    let client_left = tokio::select! {
        _ = &mut working => false,
        () = &mut reading => true,
    };
    match client_left {
        // What the program still does is seen to its end.
        true => drop(working.await),
        // Whoever is hung up on while sending may lose what was said last: clients that have read it hang up themselves.
        false => drop(tokio::time::timeout(FAREWELL, reading).await),
    }
}

/// Until the client has gone.
async fn read(mut stream: SplitStream<WebSocket>, to: mpsc::Sender<Input>) {
    while let Some(Ok(message)) = stream.next().await {
        let data = match message {
            Message::Binary(data) => data,
            // What the Python client is given as text, it sends as text.
            Message::Text(text) => Bytes::from(text),
            _ => continue,
        };
        let input = match data.split_first() {
            Some((&STDIN, _)) => Some(Input::Bytes(data.slice(1..))),
            Some((&CLOSE, [STDIN, ..])) => Some(Input::End),
            Some((&RESIZE, text)) => parse_size(text).map(Input::Size),
            _ => None,
        };
        if let Some(input) = input {
            // A program that takes no input still has a client that may go.
            let _ = to.send(input).await;
        }
    }
}

async fn write(
    mut sink: SplitSink<WebSocket, Message>,
    mut from: mpsc::Receiver<Output>,
    gone: CancellationToken,
) {
    let all = async {
        while let Some(output) = from.recv().await {
            let message = match output {
                Output::Stdout(bytes) => frame(STDOUT, &bytes),
                Output::Stderr(bytes) => frame(STDERR, &bytes),
                Output::Status(status) => frame(STATUS, status.to_string().as_bytes()),
            };
            if !matches!(tokio::time::timeout(SLOW_CLIENT, sink.send(message)).await, Ok(Ok(()))) {
                return;
            }
        }
        let close = CloseFrame { code: close_code::NORMAL, reason: "".into() };
        let _ = sink.send(Message::Close(Some(close))).await;
        let _ = sink.close().await;
    };
    tokio::select! {
        () = all => {}
        () = gone.cancelled() => {}
    }
}

/// A message on a channel.
pub fn frame(channel: u8, bytes: &[u8]) -> Message {
    let mut data = Vec::with_capacity(bytes.len() + 1);
    data.push(channel);
    data.extend_from_slice(bytes);
    Message::Binary(Bytes::from(data))
}
