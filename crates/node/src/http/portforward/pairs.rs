//! The streams of one session, joined in pairs to connections into the Pod.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::relay::{self, Given, PIECES, Target};
use crate::http::spdy::frame::{self, Broken, Frame, Reset};
use crate::http::spdy::headers::{Headers, Packer};

/// Open streams in one session.
const STREAMS: usize = 256;
/// The longest name of a pair.
const LONGEST_NAME: usize = 64;

pub struct Pairs {
    target: Arc<Target>,
    output: mpsc::Sender<Bytes>,
    packer: Packer,
    newest: u32,
    streams: HashMap<u32, Stream>,
    /// Streams whose other half has not come yet.
    lonely: HashMap<String, Lonely>,
    /// Connections; each ends with the numbers of its streams.
    running: JoinSet<[u32; 2]>,
}

enum Stream {
    Error,
    Data(DataStream),
}

struct DataStream {
    /// To the Pod; gone once the client has said that nothing more comes.
    bytes: Option<mpsc::Sender<Bytes>>,
    reset: CancellationToken,
    joined: bool,
}

enum Lonely {
    Error { stream: u32 },
    Data(Data),
}

/// The data half of a pair, for the task that serves it.
struct Data {
    stream: u32,
    port: u16,
    input: mpsc::Receiver<Bytes>,
    reset: CancellationToken,
}

/// What the headers of a stream say.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    pair: String,
    port: u16,
    is_error: bool,
}

impl Wish {
    fn parse(stream: u32, headers: &Headers) -> Option<Self> {
        let header =
            |wanted| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        let is_error = match header("streamtype")? {
            "error" => true,
            "data" => false,
            _ => return None,
        };
        // Clients of old have no names for pairs: the data stream comes right after its error stream.
        let unnamed = || if is_error { stream } else { stream.saturating_sub(2) }.to_string();
        let pair = header("requestid").map_or_else(unnamed, str::to_owned);
        let port = header("port")?.parse().ok().filter(|port| *port != 0)?;
        (pair.len() <= LONGEST_NAME).then_some(Self { pair, port, is_error })
    }
}

impl Pairs {
    pub fn new(target: Target, output: mpsc::Sender<Bytes>) -> Self {
        Self {
            target: Arc::new(target),
            output,
            packer: Packer::default(),
            newest: 0,
            streams: HashMap::new(),
            lonely: HashMap::new(),
            running: JoinSet::new(),
        }
    }

    /// The newest stream that the client opened.
    pub fn newest(&self) -> u32 {
        self.newest
    }

    /// Waits for the end of a connection and forgets its streams.
    pub async fn ended(&mut self) {
        match self.running.join_next().await {
            Some(Ok(streams)) => streams.iter().for_each(|stream| drop(self.streams.remove(stream))),
            Some(Err(error)) => tracing::error!(%error, "a connection of a port-forward failed"),
            None => std::future::pending().await,
        }
    }

    /// An error ends the session.
    pub async fn handle(&mut self, frame: Frame) -> io::Result<()> {
        match frame {
            Frame::Open { stream, fin, headers } => self.open(stream, fin, &headers).await,
            Frame::Data { stream, fin, bytes } => self.data(stream, fin, bytes).await,
            Frame::Reset { stream } => {
                self.lonely.retain(|_, lonely| lonely.stream() != stream);
                if let Some(Stream::Data(data)) = self.streams.remove(&stream) {
                    data.reset.cancel();
                }
                Ok(())
            }
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
        if self.streams.len() >= STREAMS {
            return self.say(frame::reset(stream, Reset::RefusedStream)).await;
        }
        let Some(wish) = Wish::parse(stream, headers) else {
            return self.say(frame::reset(stream, Reset::ProtocolError)).await;
        };
        let half = if wish.is_error {
            self.streams.insert(stream, Stream::Error);
            Lonely::Error { stream }
        } else {
            let (sender, input) = mpsc::channel(PIECES);
            let reset = CancellationToken::new();
            let bytes = (!fin).then_some(sender);
            let data = DataStream { bytes, reset: reset.clone(), joined: false };
            self.streams.insert(stream, Stream::Data(data));
            Lonely::Data(Data { stream, port: wish.port, input, reset })
        };
        let reply = frame::reply(stream, &mut self.packer);
        self.say(reply).await?;
        match (self.lonely.remove(&wish.pair), half) {
            (None, half) => drop(self.lonely.insert(wish.pair, half)),
            (Some(Lonely::Error { stream: error }), Lonely::Data(data))
            | (Some(Lonely::Data(data)), Lonely::Error { stream: error }) => self.join(error, data),
            (Some(first), second) => {
                for stream in [first.stream(), second.stream()] {
                    self.streams.remove(&stream);
                    self.say(frame::reset(stream, Reset::ProtocolError)).await?;
                }
            }
        }
        Ok(())
    }

    fn join(&mut self, error: u32, data: Data) {
        if let Some(Stream::Data(stream)) = self.streams.get_mut(&data.stream) {
            stream.joined = true;
        }
        self.running.spawn(forward(self.target.clone(), error, data, self.output.clone()));
    }

    async fn data(&mut self, stream: u32, fin: bool, bytes: Bytes) -> io::Result<()> {
        let length = bytes.len() as u32;
        // Data of streams that are over is still on its way for a while.
        if let Some(Stream::Data(data)) = self.streams.get_mut(&stream) {
            if let Some(sender) = data.bytes.as_ref().filter(|_| !bytes.is_empty()) {
                let taken = if data.joined {
                    tokio::select! {
                        given = relay::give(sender, bytes) => match given {
                            Given::Taken => true,
                            Given::Over => false,
                            Given::Stuck => return self.cut_off(stream).await,
                        },
                        () = self.output.closed() => false,
                    }
                } else {
                    // Nobody reads before the pair is complete, and only this loop can complete it.
                    sender.try_send(bytes).is_ok()
                };
                if !taken {
                    data.bytes = None;
                }
            }
            if fin {
                data.bytes = None;
            }
        }
        if length == 0 {
            return Ok(());
        }
        // For clients that keep to windows.
        self.say([frame::window_update(stream, length), frame::window_update(0, length)].concat().into())
            .await
    }

    /// Ends a connection whose Pod does not read, for the sake of the others.
    async fn cut_off(&mut self, stream: u32) -> io::Result<()> {
        if let Some(Stream::Data(data)) = self.streams.remove(&stream) {
            data.reset.cancel();
        }
        self.say(frame::reset(stream, Reset::Cancel)).await
    }

    async fn say(&self, frame: Bytes) -> io::Result<()> {
        self.output.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Lonely {
    fn stream(&self) -> u32 {
        match self {
            Self::Error { stream } => *stream,
            Self::Data(data) => data.stream,
        }
    }
}

/// One connection, from the dial to its end, told on both streams.
async fn forward(target: Arc<Target>, error: u32, data: Data, output: mpsc::Sender<Bytes>) -> [u32; 2] {
    let Data { stream, port, input, reset } = data;
    let carry = async {
        match target.dial(port).await {
            Ok((from, to)) => {
                let down = async {
                    relay::down(from, &output, |bytes| frame::data(stream, bytes)).await;
                    let _ = output.send(frame::fin(stream)).await;
                };
                tokio::join!(relay::up(input, to), down);
            }
            Err(message) => {
                let _ = output.send(frame::data(error, message.as_bytes())).await;
                let _ = output.send(frame::fin(stream)).await;
            }
        }
    };
    tokio::select! {
        () = carry => {}
        () = reset.cancelled() => {}
    }
    // The client waits for this before it is done with the pair.
    let _ = output.send(frame::fin(error)).await;
    [stream, error]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(stream: u32, headers: &[(&str, &str)]) -> Option<Wish> {
        let headers: Headers = headers.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        Wish::parse(stream, &headers)
    }

    #[test]
    fn streams_find_each_other_by_name_or_by_number() {
        let named = wish(9, &[("streamtype", "data"), ("port", "80"), ("requestid", "4")]);
        assert_eq!(named, Some(Wish { pair: "4".to_owned(), port: 80, is_error: false }));
        let error = wish(5, &[("streamtype", "error"), ("port", "80")]).unwrap();
        let data = wish(7, &[("streamtype", "data"), ("port", "80")]).unwrap();
        assert_eq!(error.pair, data.pair);
    }

    #[test]
    fn streams_without_a_port_or_a_known_type_are_refused() {
        assert_eq!(wish(1, &[("streamtype", "data"), ("port", "0")]), None);
        assert_eq!(wish(1, &[("streamtype", "data"), ("port", "65536")]), None);
        assert_eq!(wish(1, &[("streamtype", "stdin"), ("port", "80")]), None);
        assert_eq!(wish(1, &[("port", "80")]), None);
        let long = "x".repeat(LONGEST_NAME + 1);
        assert_eq!(wish(1, &[("streamtype", "data"), ("port", "80"), ("requestid", &long)]), None);
    }
}
