//! Bodies that count: a request's bytes against a limit, and a response as long as it lasts.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};

use super::Exceeded;

/// Watches the size of one request's body.
#[derive(Debug, Clone, Default)]
pub struct Meter(Option<Limit>);

#[derive(Debug, Clone)]
struct Limit {
    bytes: u64,
    exceeded: Arc<AtomicBool>,
}

/// A request body that ends with an error when it is too large.
#[derive(Debug)]
pub struct Metered<B> {
    body: B,
    left: u64,
    limit: Option<Limit>,
}

// === impl Meter ===

impl Meter {
    pub fn new(limit: Option<u64>) -> Self {
        Self(limit.map(|bytes| Limit { bytes, exceeded: Arc::default() }))
    }

    pub fn watch<B>(&self, body: B) -> Metered<B> {
        let left = self.0.as_ref().map_or(u64::MAX, |limit| limit.bytes);
        Metered { body, left, limit: self.0.clone() }
    }

    /// Why the exchange failed, if it was the body's size: the connection's own error does not say.
    pub fn exceeded(&self) -> Option<Exceeded> {
        let limit = self.0.as_ref().filter(|limit| limit.exceeded.load(Ordering::Acquire))?;
        Some(Exceeded::Body { limit: limit.bytes })
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
        if let (Some(limit), Some(Ok(frame))) = (&self.limit, &frame) {
            let length = frame.data_ref().map_or(0, |data| data.remaining() as u64);
            let Some(left) = self.left.checked_sub(length) else {
                limit.exceeded.store(true, Ordering::Release);
                let error = Exceeded::Body { limit: limit.bytes };
                return Poll::Ready(Some(Err(error.into())));
            };
            self.left = left;
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
        let meter = Meter::new(limit);
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
