//! A sandbox that keeps every byte it receives, and answers each connection once.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::world::{World, eventually};

/// What arrived, one entry for each connection.
#[derive(Clone, Default)]
pub struct Recording(Arc<Mutex<Vec<Arrived>>>);

#[derive(Default)]
struct Arrived {
    bytes: Vec<u8>,
    ended: bool,
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

impl Recording {
    /// Takes the place of the sandbox `web`.
    pub async fn replace(world: &World) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        *world.dial.address.lock().unwrap() = listener.local_addr().ok();
        let recording = Self::default();
        let sink = recording.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let index = sink.begin();
                tokio::spawn(sink.clone().record(stream, index));
            }
        });
        recording
    }

    fn begin(&self) -> usize {
        let mut all = self.0.lock().unwrap();
        all.push(Arrived::default());
        all.len() - 1
    }

    async fn record(self, mut stream: TcpStream, index: usize) {
        let (mut answered, mut buffer) = (false, [0; 4096]);
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            let complete = {
                let mut all = self.0.lock().unwrap();
                all[index].bytes.extend_from_slice(&buffer[..read]);
                is_complete(&all[index].bytes)
            };
            if complete && !std::mem::replace(&mut answered, true) {
                let _ = stream.write_all(ANSWER).await;
            }
        }
        self.0.lock().unwrap()[index].ended = true;
    }

    pub fn connections(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Waits until the router has closed every connection; what arrived since the last time, parsed strictly.
    pub async fn take(&self) -> Vec<Seen> {
        eventually("the router closes its connections", || self.0.lock().unwrap().iter().all(|it| it.ended))
            .await;
        let all: Vec<_> =
            self.0.lock().unwrap().iter_mut().map(|arrived| std::mem::take(&mut arrived.bytes)).collect();
        all.into_iter().filter(|bytes| !bytes.is_empty()).map(|bytes| Seen::parse(&bytes)).collect()
    }
}

/// One request as the sandbox reads it.
#[derive(Debug)]
pub struct Seen {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Otherwise the router broke off, which every reader sees as such.
    pub complete: bool,
}

impl Seen {
    /// Panics where two readers could disagree: bare line ends, repeated framing, bytes after the end.
    fn parse(bytes: &[u8]) -> Self {
        let (head, body) = split(bytes).unwrap_or_else(|| panic!("no end of the head: {}", show(bytes)));
        // Values may have bytes beyond ASCII (RFC 9110, 5.5).
        let head: String = head.iter().copied().map(char::from).collect();
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let headers: Vec<_> = lines
            .map(|line| {
                assert!(!line.contains(['\r', '\n', '\0']), "{line:?}");
                let (name, value) = line.split_once(':').expect("a header has a colon");
                assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()), "{line:?}");
                (name.to_ascii_lowercase(), value.trim().to_owned())
            })
            .collect();
        let all = |wanted: &str| -> Vec<&str> {
            headers.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.as_str()).collect()
        };
        let (body, complete) = match (&all("content-length")[..], &all("transfer-encoding")[..]) {
            ([], []) => {
                assert!(body.is_empty(), "bytes after the end: {}", show(bytes));
                (Vec::new(), true)
            }
            ([length], []) => {
                let length: usize = length.parse().expect("a length is a number");
                assert!(body.len() <= length, "bytes after the end: {}", show(bytes));
                (body.to_vec(), body.len() == length)
            }
            ([], ["chunked"]) => unchunk(body).unwrap_or_else(|| panic!("bad chunks: {}", show(bytes))),
            _ => panic!("two kinds of framing: {}", show(bytes)),
        };
        Self { line, headers, body, complete }
    }

    pub fn all(&self, wanted: &str) -> Vec<&str> {
        self.headers.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.as_str()).collect()
    }
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).escape_debug().to_string()
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some((&bytes[..at], &bytes[at + 4..]))
}

/// The body, and whether its end is there; `None` when the chunks are malformed or bytes follow.
fn unchunk(mut rest: &[u8]) -> Option<(Vec<u8>, bool)> {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else {
            return Some((body, false));
        };
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return (rest == b"\r\n").then_some((body, true));
        }
        let Some((chunk, after)) = rest.split_at_checked(size) else {
            body.extend_from_slice(rest);
            return Some((body, false));
        };
        body.extend_from_slice(chunk);
        rest = after.strip_prefix(b"\r\n")?;
    }
}

fn is_complete(bytes: &[u8]) -> bool {
    let Some((head, body)) = split(bytes) else { return false };
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    if head.contains("transfer-encoding") {
        return body.ends_with(b"0\r\n\r\n");
    }
    let length =
        head.split("content-length:").nth(1).and_then(|rest| rest.lines().next()?.trim().parse().ok());
    body.len() >= length.unwrap_or(0)
}
