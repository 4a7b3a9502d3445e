//! The streams of a program as streams of SPDY/3.1.
//!
//! The client opens one for each that it asked for in its query, named by `streamtype`: `error` for the final status,
//! `stdin`, `stdout`, `stderr`, and `resize` with a terminal. The program is started when all are there.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tokio::io::AsyncRead;
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::FramedRead;
use tokio_util::sync::CancellationToken;

use super::{Client, Input, Output, Streams, parse_size};
use crate::http::spdy::frame::{self, Broken, Frame, FrameDecoder, LARGEST_PIECE, Reset};
use crate::http::spdy::headers::{Headers, Packer};
use crate::http::spdy::{self, QUEUE};

/// The version of the streams that tells exit codes.
pub const PROTOCOL: &str = "v4.channel.k8s.io";
/// How long a client may take to open its streams, and to hang up after the last word.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest message about a window's size.
const LONGEST_SIZE: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Error,
    Stdin,
    Stdout,
    Stderr,
    Resize,
}

/// The numbers of the streams that we write to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    error: u32,
    stdout: Option<u32>,
    stderr: Option<u32>,
}

pub async fn serve<F: Future<Output = ()>>(
    from: impl AsyncRead + Unpin,
    to: spdy::Output,
    streams: Streams,
    work: impl FnOnce(Client) -> F,
) {
    let (frames, queue) = mpsc::channel(QUEUE);
    let (to_program, input) = mpsc::channel(super::QUEUE);
    let (complete, numbers) = oneshot::channel();
    let session = async move {
        let gone = CancellationToken::new();
        let mut listener = Listener::new(frames.clone(), to_program, expected(streams), complete);
        let mut listen = Box::pin(async {
            if let Err(error) = listener.listen(from).await {
                tracing::debug!(%error, "session ended");
                let _ = listener.frames.send(frame::go_away(listener.newest)).await;
            }
            // The end of the input, which the program is told of.
            drop(listener);
            gone.cancel();
        });
        let mut run = Box::pin(async {
            let Ok(Ok(numbers)) = tokio::time::timeout(PATIENCE, numbers).await else { return };
            let (output, to_client) = mpsc::channel(super::QUEUE);
            tokio::join!(work(Client { input, output }), say(to_client, frames, numbers, &gone));
        });
        tokio::select! {
            // What the client still sends is read until it hangs up: closing before could cost it our last words.
            () = &mut run => drop(tokio::time::timeout(PATIENCE, listen).await),
            () = &mut listen => run.await,
        }
    };
    tokio::join!(session, spdy::write(queue, to));
}

/// The streams that a client will open.
fn expected(streams: Streams) -> Vec<Kind> {
    let wanted = [
        (true, Kind::Error),
        (streams.stdin, Kind::Stdin),
        (streams.stdout, Kind::Stdout),
        (streams.stderr && !streams.tty, Kind::Stderr),
        (streams.tty, Kind::Resize),
    ];
    wanted.into_iter().filter(|(wanted, _)| *wanted).map(|(_, kind)| kind).collect()
}

/// Sends what the program says, and the end of every stream after it.
async fn say(
    mut from: mpsc::Receiver<Output>,
    frames: mpsc::Sender<Bytes>,
    numbers: Numbers,
    gone: &CancellationToken,
) {
    let all = async {
        while let Some(output) = from.recv().await {
            let (stream, bytes) = match output {
                Output::Stdout(bytes) => (numbers.stdout, bytes),
                Output::Stderr(bytes) => (numbers.stderr, bytes),
                Output::Status(status) => (Some(numbers.error), status.to_string().into()),
            };
            if let Some(stream) = stream
                && frames.send(frame::data(stream, &bytes)).await.is_err()
            {
                return;
            }
        }
        for stream in [Some(numbers.error), numbers.stdout, numbers.stderr].into_iter().flatten() {
            let _ = frames.send(frame::fin(stream)).await;
        }
    };
    tokio::select! {
        () = all => {}
        () = gone.cancelled() => {}
    }
}

/// What the client sends.
struct Listener {
    frames: mpsc::Sender<Bytes>,
    packer: Packer,
    newest: u32,
    kinds: HashMap<u32, Kind>,
    to_program: mpsc::Sender<Input>,
    /// Streams that have not come yet.
    waiting: Vec<Kind>,
    numbers: Numbers,
    /// Told when none is waited for any more.
    complete: Option<oneshot::Sender<Numbers>>,
    /// The beginning of a message about the window's size.
    size: BytesMut,
}

impl Listener {
    fn new(
        frames: mpsc::Sender<Bytes>,
        to_program: mpsc::Sender<Input>,
        waiting: Vec<Kind>,
        complete: oneshot::Sender<Numbers>,
    ) -> Self {
        Self {
            frames,
            packer: Packer::default(),
            newest: 0,
            kinds: HashMap::new(),
            to_program,
            waiting,
            numbers: Numbers::default(),
            complete: Some(complete),
            size: BytesMut::new(),
        }
    }

    /// Until the client hangs up. An error means that it broke the protocol.
    async fn listen(&mut self, from: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut frames = FramedRead::with_capacity(from, FrameDecoder::new(), LARGEST_PIECE);
        loop {
            let frame = tokio::select! {
                frame = frames.next() => frame,
                () = self.frames.closed() => return Ok(()),
            };
            match frame {
                None | Some(Ok(Frame::GoAway)) => return Ok(()),
                Some(frame) => self.handle(frame?).await?,
            }
        }
    }

    async fn handle(&mut self, frame: Frame) -> io::Result<()> {
        match frame {
            Frame::Open { stream, fin, headers } => self.open(stream, fin, &headers).await,
            Frame::Data { stream, fin, bytes } => self.data(stream, fin, bytes).await,
            Frame::Reset { stream } => match self.kinds.remove(&stream) {
                Some(Kind::Stdin) => self.give(Input::End).await,
                _ => Ok(()),
            },
            // Odd numbers are the client's; the others are answers to ours.
            Frame::Ping { id } if id % 2 == 1 => self.say(frame::ping(id)).await,
            Frame::Ping { .. } | Frame::GoAway => Ok(()),
        }
    }

    async fn open(&mut self, stream: u32, fin: bool, headers: &Headers) -> io::Result<()> {
        if stream.is_multiple_of(2) || stream <= self.newest {
            return Err(Broken("a stream with a number that is not new").into());
        }
        self.newest = stream;
        let wanted = kind(headers).and_then(|kind| self.waiting.iter().position(|it| *it == kind));
        let Some(wanted) = wanted else { return self.say(frame::reset(stream, Reset::ProtocolError)).await };
        let kind = self.waiting.swap_remove(wanted);
        self.kinds.insert(stream, kind);
        match kind {
            Kind::Error => self.numbers.error = stream,
            Kind::Stdout => self.numbers.stdout = Some(stream),
            Kind::Stderr => self.numbers.stderr = Some(stream),
            Kind::Stdin | Kind::Resize => {}
        }
        let reply = frame::reply(stream, &mut self.packer);
        self.say(reply).await?;
        if self.waiting.is_empty() {
            let told = self.complete.take().map(|complete| complete.send(self.numbers));
            // Whoever waited may have given up; the session ends then.
            let _ = told;
        }
        if fin && kind == Kind::Stdin { self.give(Input::End).await } else { Ok(()) }
    }

    async fn data(&mut self, stream: u32, fin: bool, bytes: Bytes) -> io::Result<()> {
        let length = bytes.len() as u32;
        match self.kinds.get(&stream) {
            Some(Kind::Stdin) => {
                if !bytes.is_empty() {
                    self.give(Input::Bytes(bytes)).await?;
                }
                if fin {
                    self.give(Input::End).await?;
                }
            }
            Some(Kind::Resize) => {
                for size in self.sizes(&bytes)? {
                    self.give(size).await?;
                }
            }
            // Nothing of interest comes on the others.
            _ => {}
        }
        if length == 0 {
            return Ok(());
        }
        // For clients that keep to windows.
        self.say([frame::window_update(stream, length), frame::window_update(0, length)].concat().into())
            .await
    }

    /// Sizes are JSON documents, one in a line, however they are cut.
    fn sizes(&mut self, bytes: &[u8]) -> io::Result<Vec<Input>> {
        self.size.extend_from_slice(bytes);
        let mut sizes = Vec::new();
        while let Some(end) = self.size.iter().position(|byte| *byte == b'\n') {
            sizes.extend(parse_size(&self.size.split_to(end + 1)).map(Input::Size));
        }
        match self.size.len() > LONGEST_SIZE {
            true => Err(Broken("a window size that is too long").into()),
            false => Ok(sizes),
        }
    }

    async fn give(&mut self, input: Input) -> io::Result<()> {
        if self.complete.is_some() {
            // Nobody reads before all streams are there, and only this loop can find them.
            let given = self.to_program.try_send(input);
            return given.map_err(|_| Broken("too much input before its streams").into());
        }
        tokio::select! {
            // A program that has ended takes nothing more.
            _ = self.to_program.send(input) => Ok(()),
            () = self.frames.closed() => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    async fn say(&self, frame: Bytes) -> io::Result<()> {
        self.frames.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

fn kind(headers: &Headers) -> Option<Kind> {
    let (_, value) = headers.iter().find(|(name, _)| name == "streamtype")?;
    Some(match value.as_str() {
        "error" => Kind::Error,
        "stdin" => Kind::Stdin,
        "stdout" => Kind::Stdout,
        "stderr" => Kind::Stderr,
        "resize" => Kind::Resize,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(streams: Streams) -> (Listener, mpsc::Receiver<Input>, oneshot::Receiver<Numbers>) {
        let ((frames, queue), (to_program, input)) = (mpsc::channel(100), mpsc::channel(2));
        // Kept open for as long as the test runs.
        std::mem::forget(queue);
        let (complete, numbers) = oneshot::channel();
        (Listener::new(frames, to_program, expected(streams), complete), input, numbers)
    }

    fn open(stream: u32, kind: &str) -> Frame {
        Frame::Open { stream, fin: false, headers: vec![("streamtype".to_owned(), kind.to_owned())] }
    }

    const TERMINAL: Streams = Streams { stdin: true, stdout: true, stderr: true, tty: true };

    #[tokio::test]
    async fn program_waits_for_every_stream_that_was_asked_for() {
        let (mut listener, _input, mut numbers) = listener(TERMINAL);
        for (stream, kind) in [(1, "error"), (3, "stdin"), (5, "stdout")] {
            listener.handle(open(stream, kind)).await.unwrap();
            assert!(numbers.try_recv().is_err(), "not complete with {kind}");
        }
        listener.handle(open(7, "stderr")).await.unwrap();
        assert!(numbers.try_recv().is_err(), "a terminal has no standard error");
        listener.handle(open(9, "resize")).await.unwrap();
        assert_eq!(numbers.try_recv(), Ok(Numbers { error: 1, stdout: Some(5), stderr: None }));
        assert!(listener.handle(open(9, "stdin")).await.is_err(), "a number is used once");
    }

    #[tokio::test]
    async fn sizes_are_read_however_they_are_cut() {
        let (mut listener, ..) = listener(TERMINAL);
        assert!(listener.sizes(br#"{"Width":80,"#).unwrap().is_empty());
        let sizes = listener.sizes(b"\"Height\":24}\n{\"Width\":81,\"Height\":25}\n{").unwrap();
        assert!(matches!(sizes[..], [Input::Size(a), Input::Size(b)] if a.columns == 80 && b.rows == 25));
        assert!(listener.sizes(&[b'x'; LONGEST_SIZE]).is_err());
    }

    #[tokio::test]
    async fn flood_before_the_streams_are_there_ends_the_session() {
        let (mut listener, _input, _numbers) = listener(TERMINAL);
        listener.handle(open(1, "stdin")).await.unwrap();
        let mut data = async || {
            listener.handle(Frame::Data { stream: 1, fin: false, bytes: Bytes::from_static(b"x") }).await
        };
        assert!(data().await.is_ok() && data().await.is_ok());
        assert!(data().await.is_err(), "it would wait for itself");
    }
}
