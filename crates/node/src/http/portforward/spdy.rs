//! Port-forward over SPDY/3.1, what kubectl speaks: tunnelled in a WebSocket, or directly after an upgrade.
//!
//! For each connection the client opens two streams with the same `requestid`: `error`, on which we say why it failed,
//! and `data`.

use bytes::Bytes;
use futures::{Sink, StreamExt};
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio_util::codec::FramedRead;

use super::pairs::Pairs;
use super::relay::Target;
use crate::http::spdy::frame::{self, Frame, FrameDecoder, LARGEST_PIECE};
use crate::http::spdy::{QUEUE, write};

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
