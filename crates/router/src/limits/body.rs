//! Bodies that count their bytes against a limit, and the time since the last one.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};

use tokio::time::Instant;

use super::Exceeded;
use crate::activity::Progress;

/// Watches one request's body: its size against a limit, and when it moved last.
#[derive(Debug, Clone)]
pub struct Meter(Arc<State>);

#[derive(Debug)]
struct State {
    limit: Option<u64>,
    exceeded: AtomicBool,
    begun: Instant,
    /// Milliseconds from `begun` to the last part of the body.
    moved: AtomicU64,
    connection: Progress,
}

/// A request body that ends with an error when it is too large.
#[derive(Debug)]
pub struct Metered<B> {
    body: B,
    left: u64,
    meter: Meter,
}

// === impl Meter ===

impl Meter {
    pub fn new(limit: Option<u64>, connection: Progress) -> Self {
        let (begun, exceeded, moved) = (Instant::now(), AtomicBool::default(), AtomicU64::default());
        Self(Arc::new(State { limit, exceeded, begun, moved, connection }))
    }

    pub fn watch<B>(&self, body: B) -> Metered<B> {
        Metered { body, left: self.0.limit.unwrap_or(u64::MAX), meter: self.clone() }
    }

    /// Why the exchange failed, if it was the body's size: the connection's own error does not say.
    pub fn exceeded(&self) -> Option<Exceeded> {
        let limit = self.0.limit.filter(|_| self.0.exceeded.load(Ordering::Acquire))?;
        Some(Exceeded::Body { limit })
    }

    /// When the sandbox last took a part of the body.
    pub fn last_moved(&self) -> Instant {
        self.0.begun + Duration::from_millis(self.0.moved.load(Ordering::Relaxed))
    }

    fn moved(&self) {
        let since = u64::try_from(self.0.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.moved.store(since, Ordering::Relaxed);
        self.0.connection.part();
    }
}

// === impl Metered ===

impl<B> Body for Metered<B>
where
    B: Body + Unpin,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = B::Data;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            let length = frame.data_ref().map_or(0, |data| data.remaining() as u64);
            let Some(left) = self.left.checked_sub(length) else {
                self.meter.0.exceeded.store(true, Ordering::Release);
                let limit = self.meter.0.limit.unwrap_or(u64::MAX);
                return Poll::Ready(Some(Err(Exceeded::Body { limit }.into())));
            };
            self.left = left;
            self.meter.moved();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::stream;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    async fn send(limit: Option<u64>, chunks: &[usize]) -> (bool, Option<Exceeded>) {
        let frames =
            chunks.iter().map(|&size| Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![0; size]))));
        let meter = Meter::new(limit, Progress::default());
        let body = meter.watch(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())));
        (body.collect().await.is_ok(), meter.exceeded())
    }

    #[tokio::test]
    async fn a_body_ends_at_its_limit() {
        assert_eq!(send(None, &[1 << 20, 1 << 20]).await, (true, None));
        assert_eq!(send(Some(10), &[4, 6]).await, (true, None));
        assert_eq!(send(Some(10), &[]).await, (true, None));
        assert_eq!(send(Some(10), &[4, 7]).await, (false, Some(Exceeded::Body { limit: 10 })));
        assert_eq!(send(Some(0), &[1]).await, (false, Some(Exceeded::Body { limit: 0 })));
    }
}
