//! What a response carries, and what lasts until it has been sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::activity::Busy;
use crate::limits::Admission;
use crate::observe::Exchange;
use crate::upstream::ResponseBody;

pub struct Body {
    content: Content,
    _admission: Admission,
    exchange: Option<Box<Exchange>>,
    busy: Option<Busy>,
}

enum Content {
    Own(Option<Bytes>),
    Sandbox(ResponseBody),
}

impl Body {
    /// A few bytes of our own.
    pub fn own(bytes: impl Into<Bytes>) -> Self {
        let content = Content::Own(Some(bytes.into()));
        Self { content, _admission: Admission::default(), exchange: None, busy: None }
    }

    /// What the sandbox sends. The request counts against its limits until the body ends.
    pub fn sandbox(body: ResponseBody, admission: Admission) -> Self {
        Self { content: Content::Sandbox(body), _admission: admission, exchange: None, busy: None }
    }

    /// Reports the exchange when the body has been sent; until then the connection is busy.
    pub fn reporting(mut self, exchange: Option<Exchange>, busy: Busy) -> Self {
        self.exchange = exchange.map(Box::new);
        self.busy = Some(busy);
        self
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = match &mut self.content {
            Content::Own(bytes) => bytes.take().map(|bytes| Ok(Frame::data(bytes))),
            Content::Sandbox(body) => ready!(Pin::new(body).poll_frame(cx)),
        };
        if let Some(Ok(frame)) = &frame {
            if let Some(exchange) = &mut self.exchange {
                exchange.sent(frame.data_ref().map_or(0, Bytes::len));
            }
            if let Some(busy) = &self.busy {
                busy.progress().part();
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Own(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Content::Sandbox(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Content::Sandbox(body) => body.size_hint(),
        }
    }
}
