//! One connection of a caller: HTTP/1.1 or HTTP/2, whichever it speaks, until it ends or has been idle for too long.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use http::{Request, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::Limits;
use crate::activity::{End, Progress, Watched};
use crate::dial::Stream;
use crate::limits::Connected;
use crate::proxy::Proxy;
use crate::serve::{Peer, Phase};
use crate::worker::{Arrival, Load, Socket};

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
    pub _held: Arc<Held>,
}

/// What counts a connection.
type Held = ((OwnedSemaphorePermit, Connected), Option<Load>);

pub async fn serve(arrival: Arrival, proxy: Arc<Proxy>) {
    let Arrival { socket, peer, permit, load } = arrival;
    let caller = Caller { peer, _held: Arc::new((permit, load)) };
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
    let progress = Progress::default();
    let builder = http_builder(&proxy.limits);
    let service = service_fn(|request: Request<Incoming>| {
        let (proxy, caller) = (proxy.clone(), caller.clone());
        let busy = progress.begin(request.version() == Version::HTTP_2);
        async move { Ok::<_, Infallible>(proxy.answer(request, caller, busy).await) }
    });
    let io = TokioIo::new(Watched { stream, progress: progress.clone() });
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
    // An error is the caller's: it went away or does not speak HTTP.
    tokio::select! {
        _ = connection.as_mut() => return,
        end = progress.ended(&proxy.limits) => {
            tracing::debug!(peer = %caller.peer.address, ?end, "idle connection closed");
            if end == End::Stuck {
                return;
            }
        }
        _ = phase.wait_for(|phase| *phase == Phase::Draining) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = progress.left(&proxy.limits) => {}
    }
}

fn http_builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        // `Progress` has a limit for the head and another one for idle connections.
        .header_read_timeout(None)
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
