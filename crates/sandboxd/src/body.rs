//! Bodies: of answers, which are bytes, a file read as the client takes it, or a stream; and small ones of requests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

const CHUNK: usize = 64 * 1024;
/// A body that is kept in memory must arrive within this time.
const ARRIVAL: Duration = Duration::from_secs(30);

pub enum Body {
    Bytes(Option<Bytes>),
    File { file: tokio::fs::File, remaining: u64 },
    Events(mpsc::Receiver<Bytes>),
    Grpc(tonic::body::Body),
}

/// Why a body of a request cannot be had.
pub enum Problem {
    TooLarge,
    TooSlow,
    Broken,
}

/// The whole body of a request, if it has no more than `limit` bytes.
pub async fn collect(body: Incoming, limit: usize) -> Result<Bytes, Problem> {
    match tokio::time::timeout(ARRIVAL, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::TooLarge),
        Ok(Err(_)) => Err(Problem::Broken),
        Err(_) => Err(Problem::TooSlow),
    }
}

impl Body {
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self::Bytes(Some(bytes.into()))
    }

    pub fn empty() -> Self {
        Self::Bytes(None)
    }

    /// The next `length` bytes of `file`.
    pub fn file(file: tokio::fs::File, length: u64) -> Self {
        Self::File { file, remaining: length }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Bytes(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Events(events) => {
                events.poll_recv(cx).map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Grpc(body) => {
                Pin::new(body).poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(io::Error::other)))
            }
            Self::File { remaining: 0, .. } => Poll::Ready(None),
            Self::File { file, remaining } => {
                let wanted = usize::try_from(*remaining).unwrap_or(usize::MAX).min(CHUNK);
                let mut chunk = vec![0; wanted];
                let mut buffer = ReadBuf::new(&mut chunk);
                ready!(Pin::new(file).poll_read(cx, &mut buffer))?;
                let read = buffer.filled().len();
                if read == 0 {
                    // The length is promised already: breaking off is the only way to report that the file got shorter.
                    return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
                }
                chunk.truncate(read);
                *remaining -= read as u64;
                Poll::Ready(Some(Ok(Frame::data(chunk.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_none(),
            Self::File { remaining, .. } => *remaining == 0,
            Self::Events(_) => false,
            Self::Grpc(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Bytes(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::File { remaining, .. } => SizeHint::with_exact(*remaining),
            Self::Events(_) => SizeHint::default(),
            Self::Grpc(body) => body.size_hint(),
        }
    }
}
