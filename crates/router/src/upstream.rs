//! Connections into sandboxes: made through [`Dial`], kept for a moment so that the next request is quick.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use http::{Request, Response};
use http_body_util::{Either, Empty};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use crate::dial::{Dial, Target};

/// Below the 5 seconds after which many servers close an idle connection, so that a request rarely meets a closed one.
const MAX_IDLE: Duration = Duration::from_secs(4);
const MAX_IDLE_PER_TARGET: usize = 16;
const MAX_IDLE_TOTAL: usize = 512;
/// Waits between attempts to connect: a sandbox that has just become Ready may need a moment to listen.
const DIAL_RETRIES: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(400), Duration::from_millis(800)];

pub type RequestBody = Either<Incoming, Empty<Bytes>>;
type Sender = SendRequest<RequestBody>;
type Place = (String, u16);

/// Makes and keeps connections.
pub struct Upstream {
    dial: Arc<dyn Dial>,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    senders: HashMap<Place, Vec<(Sender, Instant)>>,
    count: usize,
    /// Somebody closes the old ones.
    swept: bool,
}

/// A response body that gives its connection back when it has been read to the end.
pub struct ResponseBody {
    body: Incoming,
    ended: bool,
    connection: Option<(Arc<Upstream>, Place, Sender)>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot connect")]
    Dial(#[source] io::Error),
    #[error("the connection failed before the response")]
    Exchange(#[source] hyper::Error),
}

// === impl Upstream ===

impl Upstream {
    pub fn new(dial: Arc<dyn Dial>) -> Self {
        Self { dial, idle: Mutex::default() }
    }

    /// Sends `request` to `port` of `target`.
    ///
    /// A kept connection may turn out to be dead. The request is then sent once more on a new one, but only when the
    /// sandbox cannot have acted on it: nothing was sent, or there is no body and the method changes nothing.
    pub async fn send(
        self: &Arc<Self>,
        target: &Target,
        port: u16,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, Error> {
        let place = (target.pod_uid.clone(), port);
        let Some(mut sender) = self.take(&place) else {
            return self.send_on_new(target, place, request).await;
        };
        let again = repeatable(&request);
        match sender.try_send_request(request).await {
            Ok(response) => Ok(self.keeping(response, place, sender)),
            Err(mut refused) => match refused.take_message().or(again) {
                Some(request) => self.send_on_new(target, place, request).await,
                None => Err(Error::Exchange(refused.into_error())),
            },
        }
    }

    async fn send_on_new(
        self: &Arc<Self>,
        target: &Target,
        place: Place,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, Error> {
        let mut sender = self.connect(target, place.1).await?;
        let response = sender.send_request(request).await.map_err(Error::Exchange)?;
        Ok(self.keeping(response, place, sender))
    }

    async fn connect(&self, target: &Target, port: u16) -> Result<Sender, Error> {
        let mut waits = DIAL_RETRIES.into_iter();
        let stream = loop {
            match (self.dial.dial(target, port).await, waits.next()) {
                (Ok(stream), _) => break stream,
                (Err(_), Some(wait)) => tokio::time::sleep(wait).await,
                (Err(error), None) => return Err(Error::Dial(error)),
            }
        };
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(Error::Exchange)?;
        // Ends when both the sender and the response are gone, or when the sandbox closes.
        tokio::spawn(connection.with_upgrades().map(|_| ()));
        Ok(sender)
    }

    fn keeping(
        self: &Arc<Self>,
        response: Response<Incoming>,
        place: Place,
        sender: Sender,
    ) -> Response<ResponseBody> {
        response.map(|body| ResponseBody {
            body,
            ended: false,
            connection: Some((self.clone(), place, sender)),
        })
    }

    /// A kept connection that still seems to be alive.
    fn take(&self, place: &Place) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (mut sender, since) = idle.pop(place)?;
            if since.elapsed() < MAX_IDLE && matches!(sender.ready().now_or_never(), Some(Ok(()))) {
                return Some(sender);
            }
        }
    }

    fn give_back(self: &Arc<Self>, place: Place, sender: Sender) {
        // Without a runtime nobody could close it later.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(place, sender);
        if !std::mem::replace(&mut idle.swept, true) {
            runtime.spawn(sweep(Arc::downgrade(self)));
        }
    }
}

/// Closes connections that nobody asks for, until there are none: an open one would keep its sandbox from being idle.
async fn sweep(upstream: Weak<Upstream>) {
    loop {
        tokio::time::sleep(MAX_IDLE).await;
        let Some(upstream) = upstream.upgrade() else { return };
        let mut idle = upstream.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.drop_old();
        if idle.count == 0 {
            idle.swept = false;
            return;
        }
    }
}

/// A copy of a request that may safely be sent twice.
fn repeatable(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    if !request.method().is_safe() || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(Either::Right(Empty::new()));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

// === impl Idle ===

impl Idle {
    fn pop(&mut self, place: &Place) -> Option<(Sender, Instant)> {
        let senders = self.senders.get_mut(place)?;
        let popped = senders.pop();
        if senders.is_empty() {
            self.senders.remove(place);
        }
        self.count -= usize::from(popped.is_some());
        popped
    }

    fn push(&mut self, place: Place, sender: Sender) {
        if self.count >= MAX_IDLE_TOTAL {
            self.drop_old();
        }
        let senders = self.senders.entry(place).or_default();
        if senders.len() < MAX_IDLE_PER_TARGET && self.count < MAX_IDLE_TOTAL {
            senders.push((sender, Instant::now()));
            self.count += 1;
        }
    }

    fn drop_old(&mut self) {
        self.senders.retain(|_, senders| {
            senders.retain(|(sender, since)| since.elapsed() < MAX_IDLE && !sender.is_closed());
            !senders.is_empty()
        });
        self.count = self.senders.values().map(Vec::len).sum();
    }
}

// === impl ResponseBody ===

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.ended |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    /// A body that was not read to its end closes its connection instead: what is left of it could only confuse.
    fn drop(&mut self) {
        if (self.ended || self.body.is_end_stream())
            && let Some((upstream, place, sender)) = self.connection.take()
        {
            upstream.give_back(place, sender);
        }
    }
}
