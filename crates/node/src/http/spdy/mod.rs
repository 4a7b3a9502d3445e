//! SPDY/3.1 after an upgrade, what Kubernetes' Go clients spoke before WebSockets and still speak when told to.
//!
//! Streams are not limited by SPDY's windows, which those clients do not keep.

pub mod frame;
pub mod headers;

use std::time::Duration;

use axum::extract::Request;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Sink, SinkExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_util::codec::{BytesCodec, FramedWrite};

pub const SPDY: &str = "SPDY/3.1";
const STREAMS_HEADER: &str = "x-stream-protocol-version";
/// How long the connection may be silent before we ask whether the client is still there.
const SILENCE: Duration = Duration::from_secs(30);
/// How long frames may wait in a client that does not read before it is cut off.
pub const SLOW_CLIENT: Duration = Duration::from_secs(30);
/// Frames on their way to the client.
pub const QUEUE: usize = 16;

pub type Input = ReadHalf<TokioIo<Upgraded>>;
pub type Output = FramedWrite<WriteHalf<TokioIo<Upgraded>>, BytesCodec>;

/// Whether a client asks for SPDY with this protocol of streams.
pub fn is_asked_for(headers: &HeaderMap, streams: &str) -> bool {
    holds(headers, UPGRADE.as_str(), SPDY) && holds(headers, STREAMS_HEADER, streams)
}

/// Agrees to what was asked for and serves the connection.
pub fn switch<F: Future<Output = ()> + Send>(
    mut request: Request,
    streams: &'static str,
    serve: impl FnOnce(Input, Output) -> F + Send + 'static,
) -> Response {
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgraded.await {
            Ok(connection) => {
                let (from, to) = tokio::io::split(TokioIo::new(connection));
                serve(from, FramedWrite::new(to, BytesCodec::new())).await;
            }
            Err(error) => tracing::debug!(%error, "connection not upgraded"),
        }
    });
    let headers =
        [(CONNECTION.as_str(), UPGRADE.as_str()), (UPGRADE.as_str(), SPDY), (STREAMS_HEADER, streams)];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// Whether a header lists a word.
fn holds(headers: &HeaderMap, name: &str, word: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|found| found.trim().eq_ignore_ascii_case(word))
}

/// Sends what is queued. The queue ends with the last who could add to it.
pub async fn write(mut queue: mpsc::Receiver<Bytes>, mut output: impl Sink<Bytes> + Unpin) {
    loop {
        let frame = match tokio::time::timeout(SILENCE, queue.recv()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            // Even numbers are ours.
            Err(_) => frame::ping(2),
        };
        if !matches!(tokio::time::timeout(SLOW_CLIENT, output.send(frame)).await, Ok(Ok(()))) {
            return;
        }
    }
    let _ = output.close().await;
}
