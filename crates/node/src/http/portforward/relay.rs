//! Bytes between a client's stream and a connection into the Pod.
//!
//! Clients keep to no windows, so a connection whose Pod does not read fills its queue, and then holds up all others of
//! its session, also those that are yet to be made. After a while it is cut off.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

use crate::engine_pod::Connect;
use crate::failure::with_causes;
use crate::node::Node;

/// Pieces from the client that may wait for the Pod to read them, per connection: 1 MiB at most.
pub const PIECES: usize = 32;
/// How long a Pod may read nothing while the queue is full.
const PATIENCE: Duration = Duration::from_secs(15);

/// The Pod that a client forwards to.
pub struct Target {
    pub node: Node,
    pub pod: String,
    pub uid: String,
    /// What answers instead, if the engine serves the Pod itself.
    pub engine: Option<Connect>,
}

/// The two directions of a connection.
pub type Halves = (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>);

impl Target {
    /// Connects to a port on the Pod's loopback interface, or says why not.
    pub async fn dial(&self, port: u16) -> Result<Halves, String> {
        self.connect(port).await.map_err(|error| {
            let Self { pod, uid, .. } = self;
            format!("error forwarding port {port} to pod {pod}, uid {uid}: {}", with_causes(&error))
        })
    }

    async fn connect(&self, port: u16) -> io::Result<Halves> {
        if let Some(connect) = &self.engine {
            let (from, to) = tokio::io::split(connect(port).await?);
            return Ok((Box::new(from), Box::new(to)));
        }
        let (from, to) = self.node.dial(&self.uid, port).await?.into_split();
        Ok((Box::new(from), Box::new(to)))
    }
}

/// What became of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    Taken,
    /// The connection has ended; it takes nothing more.
    Over,
    /// The Pod does not read.
    Stuck,
}

/// Gives a piece to a connection, and waits for room.
pub async fn give(to: &mpsc::Sender<Bytes>, bytes: Bytes) -> Given {
    match to.send_timeout(bytes, PATIENCE).await {
        Ok(()) => Given::Taken,
        Err(SendTimeoutError::Closed(_)) => Given::Over,
        Err(SendTimeoutError::Timeout(_)) => Given::Stuck,
    }
}

/// From the client to the Pod, with the end of it.
pub async fn up(mut from: mpsc::Receiver<Bytes>, mut to: impl AsyncWrite + Unpin) {
    while let Some(bytes) = from.recv().await {
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// From the Pod to the client, until the Pod has no more to say or the client is gone.
pub async fn down<M>(mut from: impl AsyncRead + Unpin, to: &mpsc::Sender<M>, message: impl Fn(&[u8]) -> M) {
    let mut buffer = vec![0; 32 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.send(message(&buffer[..count])).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_is_waited_for_and_who_does_not_read_is_stuck() {
        let (sender, mut receiver) = mpsc::channel(1);
        let piece = || Bytes::from_static(b"x");
        assert_eq!(give(&sender, piece()).await, Given::Taken);
        assert_eq!(give(&sender, piece()).await, Given::Stuck);
        let slow = async {
            tokio::time::sleep(PATIENCE / 2).await;
            receiver.recv().await
        };
        let (given, _) = tokio::join!(give(&sender, piece()), slow);
        assert_eq!(given, Given::Taken);
        drop(receiver);
        assert_eq!(give(&sender, piece()).await, Given::Over);
    }
}
