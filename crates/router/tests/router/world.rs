//! A router with one Ready sandbox called `web`, and a client that writes its own bytes.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use asb_router::{Authorization, Config, Hold, Limits, Serving, serve};
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
        Self::with(None, quick_to_refuse()).await
    }

    /// Without a token every caller may pass.
    pub async fn with(token: Option<&str>, limits: Limits) -> Self {
        let authorization = token.map_or_else(Authorization::allow_all, Authorization::shared_token);
        Self::configured(Config { authorization, limits, ..Config::default() }).await
    }

    pub async fn configured(mut config: Config) -> Self {
        // One worker, so that every request finds the connections of the one before.
        config.workers = NonZeroUsize::new(1);
        let api = FakeApi::default();
        api.apply(pod("web"));
        let inside = Arc::new(Inside::default());
        let address = Mutex::new(Some(inside.listen().await));
        let dial = Arc::new(CountingDial { address, dials: Mutex::default() });
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

    /// Connects until a request is answered.
    pub async fn eventually_connected(&self) {
        let asking = async {
            loop {
                let mut stream = self.connect().await;
                let head = "GET /healthz HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n";
                let mut seen = Vec::new();
                if stream.write_all(head.as_bytes()).await.is_ok()
                    && stream.read_to_end(&mut seen).await.is_ok_and(|read| read > 0)
                {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), asking).await.expect("no connection was accepted")
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

/// Limits under which a request for a sandbox that is not there is answered soon.
pub fn quick_to_refuse() -> Limits {
    let soon = Duration::from_millis(20);
    Limits { hold: Hold { watch_lag: soon, starting: soon, ..Hold::default() }, ..Limits::default() }
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
        assert_eq!(body.as_object().unwrap().len(), 2, "the keys are `detail` and `hint`: {body}");
        assert!(!body["hint"].as_str().unwrap().is_empty());
        body["detail"].as_str().unwrap().to_owned()
    }
}

/// Log lines, kept in memory.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl tracing_subscriber::fmt::MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
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
