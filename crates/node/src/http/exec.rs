//! `pods/exec` over WebSocket, with the subprotocols of kubectl, kube-rs and the Python client.
//!
//! Every binary message starts with a channel: 0 stdin, 1 stdout, 2 stderr, 3 the final status, 4 resize;
//! with `v5` also 255, which closes the channel named by the next byte.

use std::time::Duration;

use asb_runtime::{Exec, Exit, ReadEnd, Sandbox, Session, SessionControl, TerminalSize, WriteEnd};
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::{Failure, flag, sandbox};
use crate::failure::with_causes;
use crate::node::Node;

pub const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// A terminal's size until the client tells.
const DEFAULT_SIZE: TerminalSize = TerminalSize { columns: 80, rows: 24 };
/// How long an answer may wait in a client that does not read before it is cut off.
const SLOW_CLIENT: Duration = Duration::from_secs(30);

pub async fn exec(
    State(node): State<Node>,
    Path((namespace, pod)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let request = Request::parse(query.as_deref().unwrap_or_default())?;
    let sandbox = sandbox(&node, &namespace, &pod, request.container.as_deref()).await?;
    let upgrade = upgrade.map_err(|_| {
        Failure::bad_request("exec needs a WebSocket upgrade with v5.channel.k8s.io or v4.channel.k8s.io")
    })?;
    Ok(upgrade.protocols(PROTOCOLS).on_upgrade(move |socket| serve(socket, sandbox, request)))
}

#[derive(Debug, Default, PartialEq)]
struct Request {
    container: Option<String>,
    command: Vec<String>,
    stdin: bool,
    tty: bool,
}

impl Request {
    fn parse(query: &str) -> Result<Self, Failure> {
        let mut request = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let yes = || {
                let wrong = || Failure::bad_request(format!("{key}: {value:?} is neither true nor false"));
                flag::parse(&value).ok_or_else(wrong)
            };
            match &*key {
                "command" => request.command.push(value.into_owned()),
                "container" => request.container = Some(value.into_owned()),
                "stdin" => request.stdin = yes()?,
                "tty" => request.tty = yes()?,
                _ => {}
            }
        }
        match request.command.is_empty() {
            true => Err(Failure::bad_request("you must specify at least one command for the container")),
            false => Ok(request),
        }
    }
}

async fn serve(socket: WebSocket, sandbox: Sandbox, request: Request) {
    let (mut sink, stream) = socket.split();
    let exec = Exec {
        argv: request.command,
        env: if request.tty { vec![("TERM".to_owned(), "xterm".to_owned())] } else { Vec::new() },
        cwd: None,
        stdin: request.stdin,
        terminal: request.tty.then_some(DEFAULT_SIZE),
    };
    let status = match sandbox.exec(&exec).await {
        Ok(session) => run(session, &mut sink, stream).await,
        Err(error) => failure(&with_causes(&error)),
    };
    finish(&mut sink, &status).await;
}

/// The last words to a client: how it ended. It may be gone; then there is nobody to tell.
pub async fn finish(sink: &mut SplitSink<WebSocket, Message>, status: &Value) {
    let _ = sink.send(frame(STATUS, status.to_string().as_bytes())).await;
    let _ = sink.send(Message::Close(Some(CloseFrame { code: close_code::NORMAL, reason: "".into() }))).await;
    let _ = sink.close().await;
}

pub fn success() -> Value {
    json!({"metadata": {}, "status": "Success"})
}

/// Carries bytes both ways until the program has ended and all its output is sent.
async fn run(
    session: Session,
    sink: &mut SplitSink<WebSocket, Message>,
    stream: SplitStream<WebSocket>,
) -> Value {
    let Session { stdin, stdout, stderr, mut control } = session;
    let (output, mut frames) = mpsc::channel(16);
    let (resizes, mut sizes) = mpsc::channel(4);
    let mut readers = tokio::task::JoinSet::new();
    readers.spawn(pump(STDOUT, stdout, output.clone()));
    stderr.into_iter().for_each(|stderr| drop(readers.spawn(pump(STDERR, stderr, output.clone()))));
    drop(output);
    let input = tokio::spawn(feed(stream, stdin, resizes));

    let mut exit = None;
    let mut connected = true;
    let mut open = true;
    while exit.is_none() || open {
        tokio::select! {
            frame = frames.recv(), if open => match frame {
                Some(frame) if connected => {
                    let sent = tokio::time::timeout(SLOW_CLIENT, sink.send(frame)).await;
                    connected = matches!(sent, Ok(Ok(())));
                }
                // Nobody reads any more; keep draining so that the program does not block.
                Some(_) => {}
                None => open = false,
            },
            Some(size) = sizes.recv() => drop(control.resize(size).await),
            ended = wait(&mut control), if exit.is_none() => {
                exit = Some(ended);
                // A background child may hold the pipes: what is there is sent, nothing more is waited for.
                if open {
                    open = !drain(&mut frames, sink, &mut connected).await;
                }
            }
        }
    }
    input.abort();
    match exit.unwrap_or(Err("the program vanished".to_owned())) {
        Ok(Exit::Code(0)) => success(),
        Ok(Exit::Code(code)) => non_zero(code),
        Ok(Exit::Signal(signal)) => non_zero(128 + signal),
        Ok(Exit::OutOfMemory) => non_zero(137),
        Err(message) => failure(&message),
    }
}

async fn wait(control: &mut SessionControl) -> Result<Exit, String> {
    control.wait().await.map_err(|error| with_causes(&error))
}

/// Sends what the ended program left in its pipes; `true` when that is all there will be.
async fn drain(
    frames: &mut mpsc::Receiver<Message>,
    sink: &mut SplitSink<WebSocket, Message>,
    connected: &mut bool,
) -> bool {
    const QUIET: Duration = Duration::from_millis(100);
    loop {
        match tokio::time::timeout(QUIET, frames.recv()).await {
            Ok(Some(frame)) => *connected = *connected && sink.send(frame).await.is_ok(),
            Ok(None) | Err(_) => return true,
        }
    }
}

async fn pump(channel: u8, mut from: ReadEnd, to: mpsc::Sender<Message>) {
    let mut buffer = vec![0; 32 << 10];
    // A terminal answers EIO when its program is gone: the end, like 0.
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.send(frame(channel, &buffer[..count])).await.is_err() {
            return;
        }
    }
}

/// Takes what the client sends: input and window sizes.
async fn feed(
    mut stream: SplitStream<WebSocket>,
    mut stdin: Option<WriteEnd>,
    resizes: mpsc::Sender<TerminalSize>,
) {
    while let Some(Ok(message)) = stream.next().await {
        let data = match message {
            Message::Binary(data) => data,
            // What the Python client is given as text, it sends as text.
            Message::Text(text) => Bytes::from(text),
            _ => continue,
        };
        match data.split_first() {
            Some((&STDIN, bytes)) => {
                if let Some(pipe) = stdin.as_mut()
                    && (pipe.write_all(bytes).await.is_err() || pipe.flush().await.is_err())
                {
                    stdin = None; // the program closed it; the rest goes nowhere, as in a shell
                }
            }
            Some((&CLOSE, [STDIN, ..])) => stdin = None,
            Some((&RESIZE, text)) => {
                if let Some(size) = parse_size(text) {
                    let _ = resizes.send(size).await;
                }
            }
            _ => {}
        }
    }
    // Without a client there is no more input; dropping stdin tells the program.
}

fn parse_size(text: &[u8]) -> Option<TerminalSize> {
    let size: Value = serde_json::from_slice(text).ok()?;
    let side = |name: &str| size[name].as_u64().and_then(|side| u16::try_from(side).ok());
    Some(TerminalSize { columns: side("Width")?, rows: side("Height")? })
}

/// A message on a channel.
pub fn frame(channel: u8, bytes: &[u8]) -> Message {
    let mut data = Vec::with_capacity(bytes.len() + 1);
    data.push(channel);
    data.extend_from_slice(bytes);
    Message::Binary(Bytes::from(data))
}

fn non_zero(code: i32) -> Value {
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

fn failure(message: &str) -> Value {
    json!({"metadata": {}, "status": "Failure", "reason": "InternalError", "message": message, "code": 500})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_read_from_the_query() {
        let request =
            Request::parse("command=sh&command=-c&command=echo%20hi&stdin=true&tty=1&container=main");
        let request = request.unwrap_or_else(|failure| panic!("{}", failure.message));
        assert_eq!(request.command, ["sh", "-c", "echo hi"]);
        assert!(request.stdin && request.tty);
        assert!(Request::parse("stdin=true").is_err(), "a command is required");
    }

    #[test]
    fn window_size_must_fit() {
        assert!(
            parse_size(br#"{"Width":80,"Height":24}"#)
                .is_some_and(|size| size.columns == 80 && size.rows == 24)
        );
        assert!(parse_size(br#"{"Width":-1,"Height":99999}"#).is_none());
    }
}
