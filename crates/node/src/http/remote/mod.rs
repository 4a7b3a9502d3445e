//! A program's streams joined to a client, whatever the client speaks: `pods/exec` and `pods/attach`.
//!
//! | client | way | file |
//! |---|---|---|
//! | kubectl since 1.31, kube-rs, the Python client | WebSocket, `v5` or `v4.channel.k8s.io` | `websocket` |
//! | kubectl before, Go programs | SPDY after an upgrade, `v4.channel.k8s.io` | `spdy` |

pub mod spdy;
mod status;
pub mod websocket;

use std::pin::{Pin, pin};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use asb_runtime::{Exit, ReadEnd, Session, TerminalSize, WriteEnd};
use axum::extract::Request;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use bytes::Bytes;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use self::status::{failure, not_started, success, told};
use super::Failure;
use super::spdy::{SPDY, is_asked_for, switch};
use crate::failure::with_causes;

/// A terminal's size until the client tells.
pub const DEFAULT_SIZE: TerminalSize = TerminalSize { columns: 80, rows: 24 };
/// Pieces on their way, either way.
const QUEUE: usize = 16;

/// The streams that a client asks for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// A client, as far as a program is concerned.
pub struct Client {
    /// Ends when the client has gone.
    pub input: mpsc::Receiver<Input>,
    /// Closed when the client has gone, or has not read for long.
    pub output: mpsc::Sender<Output>,
}

pub enum Input {
    Bytes(Bytes),
    /// No more bytes.
    End,
    Size(TerminalSize),
}

pub enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    /// How it ended: the last thing said.
    Status(Value),
}

/// Agrees to what the client speaks and gives it to `work`.
pub fn answer<F: Future<Output = ()> + Send + 'static>(
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: Request,
    streams: Streams,
    work: impl FnOnce(Client) -> F + Send + 'static,
) -> Result<Response, Failure> {
    match upgrade {
        Ok(upgrade) => {
            let upgrade = upgrade.protocols(websocket::PROTOCOLS).read_buffer_size(websocket::READ_AT_ONCE);
            Ok(upgrade.on_upgrade(move |socket| websocket::serve(socket, work)))
        }
        Err(_) if is_asked_for(request.headers(), spdy::PROTOCOL) => {
            Ok(switch(request, spdy::PROTOCOL, move |from, to| spdy::serve(from, to, streams, work)))
        }
        Err(_) => Err(Failure::bad_request(format!(
            "needs an upgrade: a WebSocket with {} or {}, or {SPDY} with {}",
            websocket::PROTOCOLS[0],
            websocket::PROTOCOLS[1],
            spdy::PROTOCOL
        ))),
    }
}

/// Carries bytes both ways until the program has ended and all its output is sent.
///
/// A client that goes takes the input with it; the program goes on, and what it prints is read and dropped.
pub async fn carry(
    session: Session,
    input: mpsc::Receiver<Input>,
    output: &mpsc::Sender<Output>,
) -> Result<Exit, String> {
    let Session { stdin, stdout, stderr, mut control } = session;
    let (resizes, mut sizes) = mpsc::channel(4);
    let told = Told::default();
    // All in one task: what is short-lived is not worth waking another processor for.
    let mut printed = pin!(async {
        let stderr = async {
            if let Some(stderr) = stderr {
                pump(Output::Stderr, stderr, output, &told).await;
            }
        };
        tokio::join!(pump(Output::Stdout, stdout, output, &told), stderr);
    });
    let mut fed = pin!(feed(input, stdin, resizes));
    let (mut printing, mut feeding) = (true, true);
    let exit = loop {
        tokio::select! {
            () = &mut printed, if printing => printing = false,
            () = &mut fed, if feeding => feeding = false,
            Some(size) = sizes.recv() => drop(control.resize(size).await),
            ended = control.wait() => break ended.map_err(|error| with_causes(&error)),
        }
    };
    if printing {
        // A background child may hold the pipes: what is there is sent, nothing more is waited for.
        drain(printed, &told).await;
    }
    exit
}

/// What those who read a program's output are told, and tell.
#[derive(Default)]
struct Told {
    /// The program has ended, and everything that it wrote should be there.
    enough: CancellationToken,
    pieces: AtomicU64,
}

/// Sends what the ended program left in its pipes.
///
/// A pipe holds it for certain by now, a terminal in a moment. Silence proves nothing on a busy machine: those who read are told
/// to look once more.
async fn drain(mut printed: Pin<&mut impl Future<Output = ()>>, told: &Told) {
    const QUIET: Duration = Duration::from_millis(100);
    loop {
        let before = told.pieces.load(Relaxed);
        if tokio::time::timeout(QUIET, &mut printed).await.is_ok() {
            return;
        }
        if told.pieces.load(Relaxed) == before {
            told.enough.cancel();
            return printed.await;
        }
    }
}

/// Reads to the end, or until that is enough and nothing is there.
///
/// Nobody may take it any more; then it is dropped, so that the program does not block.
async fn pump(as_output: fn(Bytes) -> Output, mut from: ReadEnd, to: &mpsc::Sender<Output>, told: &Told) {
    let mut buffer = vec![0; 32 << 10];
    loop {
        let read = tokio::select! {
            biased;
            // A reader that had its turn for long enough would say that nothing is there.
            read = tokio::task::unconstrained(from.read(&mut buffer)) => read,
            () = told.enough.cancelled() => return,
        };
        // A terminal answers EIO when its program is gone: the end, like 0.
        let Ok(count @ 1..) = read else { return };
        told.pieces.fetch_add(1, Relaxed);
        let _ = to.send(as_output(Bytes::copy_from_slice(&buffer[..count]))).await;
    }
}

/// Takes what the client sends: input and window sizes.
async fn feed(
    mut from: mpsc::Receiver<Input>,
    mut stdin: Option<WriteEnd>,
    resizes: mpsc::Sender<TerminalSize>,
) {
    while let Some(input) = from.recv().await {
        match input {
            Input::Bytes(bytes) => {
                if let Some(pipe) = stdin.as_mut()
                    && (pipe.write_all(&bytes).await.is_err() || pipe.flush().await.is_err())
                {
                    stdin = None; // the program closed it; the rest goes nowhere, as in a shell
                }
            }
            Input::End => stdin = None,
            Input::Size(size) => drop(resizes.send(size).await),
        }
    }
    // Without a client there is no more input; dropping stdin tells the program.
}

/// A window's size, as both ways of speaking write it.
fn parse_size(text: &[u8]) -> Option<TerminalSize> {
    let size: Value = serde_json::from_slice(text).ok()?;
    let side = |name: &str| size[name].as_u64().and_then(|side| u16::try_from(side).ok());
    Some(TerminalSize { columns: side("Width")?, rows: side("Height")? })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncRead, ReadBuf};

    use super::*;

    /// Has bytes, but the machine was too busy to tell before it was asked again.
    struct Late {
        asked: bool,
        bytes: &'static [u8],
    }

    impl AsyncRead for Late {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if !std::mem::replace(&mut self.asked, true) || self.bytes.is_empty() {
                return Poll::Pending;
            }
            buffer.put_slice(std::mem::take(&mut self.bytes));
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn output_of_an_ended_program_is_sent_however_busy_the_machine_is() {
        let (output, mut sent) = mpsc::channel(QUEUE);
        let told = Told::default();
        let late = Late { asked: false, bytes: b"words" };
        let printed = pin!(pump(Output::Stdout, Box::new(late), &output, &told));
        drain(printed, &told).await;
        assert!(matches!(sent.try_recv(), Ok(Output::Stdout(bytes)) if bytes == "words"));
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
