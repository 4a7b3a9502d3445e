//! Port-forward over SPDY/3.1, what kubectl speaks: tunnelled in a WebSocket, or directly after an upgrade.
//!
//! For each connection the client opens two streams with the same `requestid`: `error`, on which we say why it failed,
//! and `data`. Streams are not limited by SPDY's windows, which Kubernetes' clients do not keep; a Pod that does not
//! read holds up the connections that share the session with it, as it does with the kubelet.

mod frame;
mod headers;
mod pairs;

use std::time::Duration;

use bytes::Bytes;
use futures::{Sink, SinkExt, StreamExt};
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio_util::codec::FramedRead;

use self::frame::{Frame, FrameDecoder, LARGEST_PIECE};
use self::pairs::Pairs;
use super::relay::Target;

/// How long the connection may be silent before we ask whether the client is still there.
const SILENCE: Duration = Duration::from_secs(30);
/// Frames on their way to the client.
const QUEUE: usize = 16;

/// Serves a client until it goes.
pub async fn serve(target: Target, input: impl AsyncRead + Unpin, output: impl Sink<Bytes> + Unpin) {
    let (sender, queue) = mpsc::channel(QUEUE);
    tokio::join!(listen(target, input, sender), write(queue, output));
}

async fn listen(target: Target, input: impl AsyncRead + Unpin, output: mpsc::Sender<Bytes>) {
    let mut frames = FramedRead::with_capacity(input, FrameDecoder::new(), LARGEST_PIECE);
    let mut pairs = Pairs::new(target, output.clone());
    loop {
        let frame = tokio::select! {
            frame = frames.next() => frame,
            () = pairs.ended() => continue,
            () = output.closed() => return,
        };
        let went_well = match frame {
            None | Some(Ok(Frame::GoAway)) => return,
            Some(Ok(frame)) => pairs.handle(frame).await,
            Some(Err(error)) => Err(error),
        };
        if let Err(error) = went_well {
            tracing::debug!(%error, "port-forward ended");
            let _ = output.send(frame::go_away(pairs.newest())).await;
            return;
        }
    }
}

/// Sends what is queued. The queue ends with the last who could add to it.
async fn write(mut queue: mpsc::Receiver<Bytes>, mut output: impl Sink<Bytes> + Unpin) {
    loop {
        let frame = match tokio::time::timeout(SILENCE, queue.recv()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            // Even numbers are ours.
            Err(_) => frame::ping(2),
        };
        if output.send(frame).await.is_err() {
            return;
        }
    }
    let _ = output.close().await;
}
