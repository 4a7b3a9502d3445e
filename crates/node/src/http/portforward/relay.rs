//! Bytes between a client's stream and a connection into the Pod.

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use crate::failure::with_causes;
use crate::node::Node;

/// The Pod that a client forwards to.
pub struct Target {
    pub node: Node,
    pub pod: String,
    pub uid: String,
}

impl Target {
    /// Connects to a port on the Pod's loopback interface, or says why not.
    pub async fn dial(&self, port: u16) -> Result<TcpStream, String> {
        self.node.dial(&self.uid, port).await.map_err(|error| {
            let Self { pod, uid, .. } = self;
            format!("error forwarding port {port} to pod {pod}, uid {uid}: {}", with_causes(&error))
        })
    }
}

/// From the client to the Pod, with the end of it.
pub async fn up(mut from: mpsc::Receiver<Bytes>, mut to: OwnedWriteHalf) {
    while let Some(bytes) = from.recv().await {
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// From the Pod to the client, until the Pod has no more to say or the client is gone.
pub async fn down<M>(mut from: OwnedReadHalf, to: &mpsc::Sender<M>, message: impl Fn(&[u8]) -> M) {
    let mut buffer = vec![0; 32 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.send(message(&buffer[..count])).await.is_err() {
            return;
        }
    }
}
