//! What an answer carries: bytes that are there already, or a file read as the client takes it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};

const CHUNK: usize = 64 * 1024;

pub enum Body {
    Bytes(Option<Bytes>),
    File { file: tokio::fs::File, remaining: u64 },
}

impl Body {
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self::Bytes(Some(bytes.into()))
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
            Self::File { remaining: 0, .. } => Poll::Ready(None),
            Self::File { file, remaining } => {
                let wanted = usize::try_from(*remaining).unwrap_or(usize::MAX).min(CHUNK);
                let mut chunk = vec![0; wanted];
                let mut buffer = ReadBuf::new(&mut chunk);
                ready!(Pin::new(file).poll_read(cx, &mut buffer))?;
                let read = buffer.filled().len();
                if read == 0 {
                    // The length is promised already, so breaking off is the only way to say that the file got shorter.
                    return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
                }
                chunk.truncate(read);
                *remaining -= read as u64;
                Poll::Ready(Some(Ok(Frame::data(chunk.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Bytes(None) | Self::File { remaining: 0, .. })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Self::Bytes(bytes) => bytes.as_ref().map_or(0, |bytes| bytes.len() as u64),
            Self::File { remaining, .. } => *remaining,
        })
    }
}
