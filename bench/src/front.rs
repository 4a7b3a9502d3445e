//! A router before sandboxes that answer at once: what the way in adds to a claim, wherever its API server is.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, ensure};
use asb_router::{Authorization, Config, Dial, Serving, Stream, Target, TcpDial};
use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use crate::engine::NAMESPACE;

/// The answer of every sandbox.
const ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

pub struct Front {
    _router: Serving,
    /// Open before anything is measured, as an SDK's is.
    connection: Mutex<TcpStream>,
}

/// Leads to the same listener, whatever the address of the Pod is.
struct Same(SocketAddr);

impl Dial for Same {
    fn dial<'a>(&'a self, target: &'a Target, _: u16) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        let target = Target { address: self.0.ip(), ..target.clone() };
        Box::pin(async move { TcpDial.dial(&target, self.0.port()).await })
    }
}

impl Front {
    pub async fn open(client: kube::Client) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let dial = Arc::new(Same(listener.local_addr()?));
        tokio::spawn(answer(listener));
        let config = Config { authorization: Authorization::allow_all(), ..Config::default() };
        let router = asb_router::serve((Ipv4Addr::LOCALHOST, 0).into(), client, dial, config).await?;
        let connection = TcpStream::connect(router.address).await?;
        connection.set_nodelay(true)?;
        Ok(Self { _router: router, connection: Mutex::new(connection) })
    }

    /// Fails unless the sandbox answers the first time.
    pub async fn ask(&self, sandbox: &str) -> anyhow::Result<()> {
        let mut connection = self.connection.lock().await;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: router\r\nX-Sandbox-ID: {sandbox}\r\nX-Sandbox-Namespace: {NAMESPACE}\r\n\r\n"
        );
        connection.write_all(request.as_bytes()).await?;
        let mut answer = vec![0; 4096];
        let read = connection.read(&mut answer).await.context("the router closed the connection")?;
        let answer = String::from_utf8_lossy(&answer[..read]);
        ensure!(answer.starts_with("HTTP/1.1 204 "), "{sandbox} answered {answer}");
        Ok(())
    }
}

async fn answer(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut request = [0; 4096];
            while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                if stream.write_all(ANSWER).await.is_err() {
                    return;
                }
            }
        });
    }
}
