//! A router with one Ready sandbox called `web`, and a client that writes its own bytes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use asb_router::{Config, Limits, Serving, serve};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::{FakeApi, pod};
use crate::sandbox::{CountingDial, Inside};

pub struct World {
    pub api: FakeApi,
    pub dial: Arc<CountingDial>,
    pub inside: Arc<Inside>,
    pub address: SocketAddr,
    pub router: Serving,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl World {
    pub async fn new() -> Self {
        Self::with(None, Limits::default()).await
    }

    pub async fn with(token: Option<&str>, limits: Limits) -> Self {
        let api = FakeApi::default();
        api.apply(pod("web"));
        let inside = Arc::new(Inside::default());
        let address = Mutex::new(Some(inside.listen().await));
        let dial = Arc::new(CountingDial { address, dials: Mutex::default() });
        let config = Config { token: token.map(str::to_owned), limits };
        let router = serve("127.0.0.1:0".parse().unwrap(), api.client(), dial.clone(), config).await.unwrap();
        Self { api, dial, inside, address: router.address, router }
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request for `web` and reads the whole answer.
    pub async fn get(&self, target: &str) -> Answer {
        self.send(&format!("GET {target} HTTP/1.1\r\nHost: router\r\nX-Sandbox-ID: web\r\n"), b"").await
    }

    /// `head` without its last empty line.
    pub async fn send(&self, head: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect().await;
        let length = body.len();
        let head = format!("{head}Content-Length: {length}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        Answer::read(&mut stream).await
    }

    pub fn dials(&self) -> usize {
        self.dial.dials.lock().unwrap().len()
    }

    /// Asks for `name` until the answer has this status.
    pub async fn eventually(&self, name: &str, status: u16) -> Answer {
        let head = format!("GET / HTTP/1.1\r\nHost: router\r\nX-Sandbox-ID: {name}\r\n");
        let asking = async {
            loop {
                let answer = self.send(&head, b"").await;
                if answer.status == status {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), asking).await.expect("the status never came")
    }
}

impl Answer {
    /// Reads until the connection ends.
    pub async fn read(stream: &mut TcpStream) -> Self {
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
        Self { status: head[9..12].parse().unwrap(), head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn detail(&self) -> String {
        let body = self.json();
        assert_eq!(body.as_object().unwrap().len(), 1, "only key is `detail`: {body}");
        body["detail"].as_str().unwrap().to_owned()
    }
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting)
        .await
        .unwrap_or_else(|_| panic!("never happened: {what}"));
}
