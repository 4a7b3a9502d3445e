//! Connections into sandboxes: made through [`Dial`], kept for a moment so that the next request is quick.
//!
//! HTTP/1.1, except for gRPC, which needs HTTP/2 and is spoken with prior knowledge (h2c). Each worker has an
//! [`Upstream`] of its own.

mod pool;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{Either, Empty};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use crate::dial::{Dial, Stream, Target};
use crate::directory::Directory;
use crate::limits::Metered;
use crate::observe::{Observe, UpstreamError};
use pool::{Http2Sender, Pool, Sender};

/// As much as a sandbox may send ahead of a caller that does not read, on one gRPC stream and on one connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

pub type RequestBody = Either<Metered<Incoming>, Empty<Bytes>>;

/// Makes and keeps connections.
pub struct Upstream {
    dial: Arc<dyn Dial>,
    directory: Arc<Directory>,
    observe: Observe,
    retries: DialRetries,
    pool: Pool,
}

/// Attempts to connect: a sandbox that has just become Ready may need a moment to listen.
#[derive(Debug, Clone)]
pub struct DialRetries {
    /// Attempts after the first.
    pub count: u32,
    /// The wait before the second attempt; each further one waits twice as long.
    pub first_delay: Duration,
    pub max_delay: Duration,
}

/// Where a connection leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub pod_uid: Arc<str>,
    pub port: u16,
}

/// A response body that gives its connection back when it has been read to the end.
pub struct ResponseBody {
    body: Incoming,
    ended: bool,
    connection: Option<(Arc<Upstream>, Endpoint, Sender)>,
    /// Keeps a shared connection open until the call has ended.
    _http2: Option<Http2Sender>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to connect")]
    Dial(#[source] io::Error),
    #[error("the connection failed before the response")]
    Exchange(#[source] hyper::Error),
    /// While the router tried to connect, the directory has lost the target. Nothing of the request was sent.
    #[error("the Pod has gone")]
    Outdated(Box<Request<RequestBody>>),
}

impl Error {
    /// The request's own body could not be read; the sandbox is not to blame.
    pub fn is_callers(&self) -> bool {
        matches!(self, Self::Exchange(error) if error.is_user())
    }

    pub fn reason(&self) -> UpstreamError {
        match self {
            Self::Dial(error) if error.kind() == io::ErrorKind::TimedOut => UpstreamError::Timeout,
            Self::Dial(_) => UpstreamError::Dial,
            Self::Exchange(error) if error.is_incomplete_message() => UpstreamError::Eof,
            Self::Exchange(_) | Self::Outdated(_) => UpstreamError::Other,
        }
    }
}

/// gRPC needs HTTP/2 from end to end: its status comes in trailers.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"));
    // Not grpc-web, whose messages are plain HTTP.
    kind.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

// === impl Upstream ===

impl Upstream {
    pub fn new(
        dial: Arc<dyn Dial>,
        directory: Arc<Directory>,
        retries: DialRetries,
        observe: Observe,
    ) -> Self {
        Self { dial, directory, observe, retries, pool: Pool::default() }
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
        let endpoint = Endpoint { pod_uid: target.pod_uid.clone(), port };
        if is_grpc(request.headers()) {
            return self.send_http2(target, endpoint, request).await;
        }
        let Some(mut sender) = self.pool.take(&endpoint) else {
            return self.send_on_new(target, endpoint, request).await;
        };
        let again = repeatable(&request);
        match sender.try_send_request(request).await {
            Ok(response) => Ok(self.keeping(response, endpoint, sender)),
            Err(mut refused) => match refused.take_message().or(again) {
                Some(request) => self.send_on_new(target, endpoint, request).await,
                None => Err(Error::Exchange(refused.into_error())),
            },
        }
    }

    async fn send_on_new(
        self: &Arc<Self>,
        target: &Target,
        endpoint: Endpoint,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, Error> {
        let Some(stream) = self.connect(target, endpoint.port).await? else {
            return Err(Error::Outdated(Box::new(request)));
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(Error::Exchange)?;
        // Ends when both the sender and the response are gone, or when the sandbox closes.
        tokio::spawn(connection.with_upgrades().map(drop));
        let response = sender.send_request(request).await.map_err(Error::Exchange)?;
        Ok(self.keeping(response, endpoint, sender))
    }

    /// All gRPC calls of one worker to one endpoint share a connection.
    async fn send_http2(
        self: &Arc<Self>,
        target: &Target,
        endpoint: Endpoint,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, Error> {
        let mut sender = match self.pool.http2(&endpoint) {
            Some(sender) => sender,
            None => {
                let Some(stream) = self.connect(target, endpoint.port).await? else {
                    return Err(Error::Outdated(Box::new(request)));
                };
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_send_buf_size(STREAM_WINDOW as usize)
                    .handshake(TokioIo::new(stream))
                    .await
                    .map_err(Error::Exchange)?;
                tokio::spawn(connection.map(drop));
                self.pool.keep_http2(self, endpoint, sender.clone());
                sender
            }
        };
        let response = sender.send_request(request).await.map_err(Error::Exchange)?;
        Ok(response.map(|body| ResponseBody { body, ended: false, connection: None, _http2: Some(sender) }))
    }

    /// A new connection; `None` when the directory has lost the target meanwhile. A network gives the address of a Pod
    /// that has gone to another one, so what is connected then may be another sandbox.
    async fn connect(&self, target: &Target, port: u16) -> Result<Option<Box<dyn Stream>>, Error> {
        let mut delays = self.retries.delays();
        loop {
            let dialled = self.dial.dial(target, port).await;
            if !self.directory.is_current(target) {
                return Ok(None);
            }
            match (dialled, delays.next()) {
                (Ok(stream), _) => return Ok(Some(stream)),
                (Err(_), Some(delay)) => {
                    self.observe.upstream_retry(&target.namespace);
                    tokio::time::sleep(delay).await;
                    if !self.directory.is_current(target) {
                        return Ok(None);
                    }
                }
                (Err(error), None) => return Err(Error::Dial(error)),
            }
        }
    }

    fn keeping(
        self: &Arc<Self>,
        response: Response<Incoming>,
        endpoint: Endpoint,
        sender: Sender,
    ) -> Response<ResponseBody> {
        let is_http = response.status() != StatusCode::SWITCHING_PROTOCOLS;
        let connection = is_http.then(|| (self.clone(), endpoint, sender));
        response.map(|body| ResponseBody { body, ended: false, connection, _http2: None })
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

// === impl DialRetries ===

impl Default for DialRetries {
    fn default() -> Self {
        Self { count: 6, first_delay: Duration::from_millis(20), max_delay: Duration::from_millis(800) }
    }
}

impl DialRetries {
    fn delays(&self) -> impl Iterator<Item = Duration> {
        let (first, most) = (self.first_delay, self.max_delay);
        (0..self.count).map(move |attempt| first.saturating_mul(1 << attempt.min(16)).min(most))
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
    /// A body that was not read to its end closes its connection instead: the rest of it is still to come.
    fn drop(&mut self) {
        if (self.ended || self.body.is_end_stream())
            && let Some((upstream, endpoint, sender)) = self.connection.take()
        {
            upstream.pool.give_back(&upstream, endpoint, sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_grpc_itself_needs_http2() {
        let is = |kind: &'static str| {
            is_grpc(&[(CONTENT_TYPE, http::HeaderValue::from_static(kind))].into_iter().collect())
        };
        assert!(
            ["application/grpc", "application/grpc+proto", "application/grpc;x"].map(is).iter().all(|&is| is)
        );
        for other in
            ["application/grpc-web", "application/grpc-web-text+proto", "application/grpcx", "text/plain"]
        {
            assert!(!is(other), "{other}");
        }
    }

    #[test]
    fn waits_between_attempts_double_up_to_a_limit() {
        let retries = DialRetries {
            count: 5,
            first_delay: Duration::from_millis(10),
            max_delay: Duration::from_millis(20),
        };
        let delays: Vec<u128> = retries.delays().map(|delay| delay.as_millis()).collect();
        assert_eq!(delays, [10, 20, 20, 20, 20]);
    }
}
