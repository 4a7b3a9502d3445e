//! One connection: HTTP/1.1 or, when the client begins with its preface, HTTP/2; closed when nothing happens on it.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::http::Extensions;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use crate::body::Body;
use crate::routes::{State, stopped};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// From the first byte of a request to the end of its headers.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 64;
/// A peer that vanished without a word is noticed after this time.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// A peer that does not answer so many probes, one after another, is gone.
const PROBES: u32 = 3;
/// How long a client may take to close an idle HTTP/2 connection after it was asked to.
const GOODBYE: Duration = Duration::from_secs(5);
/// Of an answer.
const MAX_FRAME: usize = 64 * 1024;
const SHORTEST_TICK: Duration = Duration::from_millis(50);

/// Serves until the client closes, nothing happened for `idle`, or the daemon stops and the last answer is out.
pub async fn serve(mut stream: TcpStream, state: Arc<State>, idle: Duration) {
    // Answers are small and written at once: Nagle's algorithm would only delay them.
    let _ = stream.set_nodelay(true);
    let _ = probe(&stream);
    let mut stopping = state.stopping.subscribe();
    let begun = tokio::select! {
        begun = timeout(HEADER_READ_TIMEOUT.max(idle), begin(&mut stream)) => begun,
        () = stopped(&mut stopping) => return,
    };
    let Ok(Ok((prefix, is_http2))) = begun else { return };
    let activity = Arc::new(Activity::default());
    let service = service_fn(|request| {
        let (state, busy) = (state.clone(), Activity::begin(&activity));
        async move {
            let mut reply = state.answer(request).await;
            let kept = std::mem::take(reply.extensions_mut());
            Ok::<_, Infallible>(reply.map(|body| Watched {
                body,
                rest: Bytes::new(),
                _busy: busy,
                _kept: kept,
            }))
        }
    });
    let io = TokioIo::new(Prefixed { prefix, stream, activity: (!is_http2).then(|| activity.clone()) });
    // An error of a connection is the client's: it went away or did not speak HTTP.
    if is_http2 {
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(KEEP_ALIVE))
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADER_BYTES as u32)
            .max_send_buf_size(64 * 1024)
            .serve_connection(io, service);
        let mut connection = pin!(connection);
        tokio::select! {
            _ = &mut connection => {}
            () = stopped(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
            () = activity.idle_for(idle) => {
                connection.as_mut().graceful_shutdown();
                let _ = timeout(GOODBYE, connection).await;
            }
        }
    } else {
        let connection = http1::Builder::new().max_buf_size(MAX_HEADER_BYTES).serve_connection(io, service);
        let mut connection = pin!(connection);
        tokio::select! {
            _ = &mut connection => {}
            () = stopped(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
            () = activity.idle_for(idle) => {}
        }
    }
}

/// Lets the kernel notice a peer that is gone: an upload in HTTP/1 would wait for it for ever.
fn probe(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE / PROBES)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)
}

/// Reads just enough to know the protocol.
async fn begin(stream: &mut TcpStream) -> io::Result<(Vec<u8>, bool)> {
    let mut prefix = Vec::new();
    loop {
        let mut buffer = [0; PREFACE.len()];
        let read = stream.read(&mut buffer[prefix.len()..]).await?;
        prefix.extend_from_slice(&buffer[prefix.len()..][..read]);
        let is_http2 = prefix == PREFACE;
        if read == 0 || is_http2 || !PREFACE.starts_with(&prefix) {
            return Ok((prefix, is_http2));
        }
    }
}

/// What happens on a connection.
#[derive(Default)]
struct Activity {
    requests: AtomicUsize,
    since: Mutex<Since>,
}

struct Since {
    /// The last request ended.
    idle: Instant,
    /// The first bytes of a request came.
    head: Option<Instant>,
}

/// One request, until its answer is out.
struct Busy(Arc<Activity>);

impl Activity {
    fn begin(this: &Arc<Self>) -> Busy {
        this.requests.fetch_add(1, Ordering::Relaxed);
        this.since().head = None;
        Busy(this.clone())
    }

    fn since(&self) -> std::sync::MutexGuard<'_, Since> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn received(&self) {
        if self.requests.load(Ordering::Relaxed) == 0 {
            self.since().head.get_or_insert_with(Instant::now);
        }
    }

    /// Returns when there was no request for `limit`, or when the headers of one did not come in time.
    async fn idle_for(&self, limit: Duration) {
        loop {
            let deadline = {
                let since = self.since();
                let head = since.head.map(|head| head + HEADER_READ_TIMEOUT);
                head.map_or(since.idle + limit, |head| head.min(since.idle + limit.max(HEADER_READ_TIMEOUT)))
            };
            let now = Instant::now();
            match self.requests.load(Ordering::Relaxed) {
                0 if deadline <= now => return,
                0 => sleep_until(deadline.min(now + HEADER_READ_TIMEOUT)).await,
                _ => sleep_until(now + limit.clamp(SHORTEST_TICK, HEADER_READ_TIMEOUT)).await,
            }
        }
    }
}

impl Default for Since {
    fn default() -> Self {
        Self { idle: Instant::now(), head: None }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.since().idle = Instant::now();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer; as long as it is read, its connection is busy.
struct Watched {
    body: Body,
    /// What is left of a long frame.
    rest: Bytes,
    _busy: Busy,
    /// What the answer needs until its end.
    _kept: Extensions,
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        // hyper takes a frame as a whole, however slowly the client reads, and the body would end before it is out.
        let length = self.rest.len().min(MAX_FRAME);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper + rest);
        }
        whole
    }
}

/// A stream whose first bytes were read already.
struct Prefixed {
    prefix: Vec<u8>,
    stream: TcpStream,
    activity: Option<Arc<Activity>>,
}

impl AsyncRead for Prefixed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = if self.prefix.is_empty() {
            Pin::new(&mut self.stream).poll_read(cx, buffer)
        } else {
            let count = self.prefix.len().min(buffer.remaining());
            buffer.put_slice(&self.prefix[..count]);
            self.prefix.drain(..count);
            Poll::Ready(Ok(()))
        };
        if let (Some(activity), true) = (&self.activity, buffer.filled().len() > before) {
            activity.received();
        }
        polled
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
