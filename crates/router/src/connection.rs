//! One connection of a caller: HTTP/1.1 or HTTP/2, whichever it speaks, until it ends or has been idle for too long.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{io, io::IoSlice};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::Limits;
use crate::dial::Stream;
use crate::limits::Connected;
use crate::proxy::Proxy;
use crate::serve::{Peer, Phase};
use crate::worker::{Arrival, Socket};

/// A connection that has not sent this much in time has sent neither a request nor the preface of HTTP/2.
const PREFACE: u64 = 24;
/// Requests that one HTTP/2 connection may have in flight.
const MAX_STREAMS: u32 = 256;
/// What a caller may send ahead of a sandbox that does not read, on one HTTP/2 stream and on one connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// The connection a request came on.
#[derive(Clone)]
pub struct Caller {
    pub peer: Peer,
    /// Held by tunnels too: they outlive the HTTP part of their connection.
    pub _permit: Arc<(OwnedSemaphorePermit, Connected)>,
}

pub async fn serve(arrival: Arrival, proxy: Arc<Proxy>) {
    let Arrival { socket, peer, permit } = arrival;
    let caller = Caller { peer, _permit: permit };
    match socket {
        Socket::InProcess(stream) => speak_http(stream, proxy, caller).await,
        Socket::Tcp(stream, handshake) => {
            // Fails only when the process is out of resources, and then the caller sees a closed connection.
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            let Some(handshake) = handshake else { return speak_http(stream, proxy, caller).await };
            match tokio::time::timeout(proxy.limits.header_read_timeout, handshake(stream)).await {
                Ok(Ok(stream)) => speak_http(stream, proxy, caller).await,
                Ok(Err(error)) => {
                    tracing::debug!(peer = %peer.address, error = &error as &dyn std::error::Error, "handshake failed");
                }
                Err(_) => tracing::debug!(peer = %peer.address, "handshake took too long"),
            }
        }
    }
}

async fn speak_http(stream: impl Stream + 'static, proxy: Arc<Proxy>, caller: Caller) {
    let mut phase = proxy.phase.clone();
    let Limits { idle_timeout, header_read_timeout, .. } = proxy.limits;
    let progress = Progress::default();
    let builder = http_builder(&proxy.limits);
    let service = service_fn(|request| {
        let (proxy, caller) = (proxy.clone(), caller.clone());
        async move { Ok::<_, Infallible>(proxy.answer(request, caller).await) }
    });
    let io = TokioIo::new(Watched { stream, progress: progress.clone() });
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
    let mut idle = pin!(async {
        tokio::time::sleep(header_read_timeout).await;
        if progress.bytes() >= PREFACE {
            progress.idle_for(idle_timeout).await;
        }
    });
    // An error is the caller's: it went away or does not speak HTTP.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = idle.as_mut() => return tracing::debug!(peer = %caller.peer.address, "idle connection closed"),
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection => {}
        () = idle => {}
    }
}

fn http_builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read_timeout)
        .max_buf_size(limits.header_bytes)
        .half_close(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_WINDOW as usize)
        .keep_alive_interval(Some(limits.http2_keep_alive))
        .keep_alive_timeout(limits.header_read_timeout);
    builder
}

/// Counts the bytes that were read and written.
#[derive(Clone, Default)]
pub struct Progress(Arc<AtomicU64>);

/// A stream that counts its progress.
pub struct Watched<S> {
    pub stream: S,
    pub progress: Progress,
}

// === impl Progress ===

impl Progress {
    /// Completes when nothing has moved for `limit`, which is noticed within as much again.
    pub async fn idle_for(&self, limit: Duration) {
        let mut seen = self.bytes();
        loop {
            tokio::time::sleep(limit).await;
            let now = self.bytes();
            if std::mem::replace(&mut seen, now) == now {
                return;
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

// === impl Watched ===

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.progress.add(buf.filled().len() - before);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.progress.add(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        self.progress.add(written);
        Poll::Ready(Ok(written))
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
