//! Attacks by frames of HTTP/2 that no client library would send.

use std::io;
use std::time::Duration;

use asb_router::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::recording::Recording;
use crate::world::{World, quick_to_refuse};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const GO_AWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// A connection that has sent its preface and seen the router's settings.
pub struct Raw {
    pub stream: TcpStream,
    /// Streams that were answered with headers, in order.
    answered: Vec<u32>,
    reset: Vec<u32>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Literal fields without indexing: what is written is what is sent.
fn fields(pairs: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str, out: &mut Vec<u8>| {
        match u8::try_from(text.len()) {
            Ok(length @ ..127) => out.push(length),
            _ => {
                out.push(127);
                let mut rest = text.len() - 127;
                while rest >= 128 {
                    out.push(u8::try_from(rest % 128).unwrap() | 128);
                    rest /= 128;
                }
                out.push(u8::try_from(rest).unwrap());
            }
        }
        out.extend_from_slice(text.as_bytes());
    };
    let mut out = Vec::new();
    for (name, value) in pairs {
        out.push(0);
        text(name, &mut out);
        text(value, &mut out);
    }
    out
}

pub const GOOD: [(&str, &str); 5] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/good"),
    (":authority", "r"),
    ("x-sandbox-id", "web"),
];

/// The good request with one field replaced, or added at the end.
fn with(name: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut pairs = GOOD.to_vec();
    match pairs.iter_mut().find(|(known, _)| *known == name) {
        Some(pair) => pair.1 = value,
        None => pairs.push((name, value)),
    }
    pairs
}

impl Raw {
    pub async fn connect(world: &World) -> Self {
        let mut stream = world.connect().await;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        stream.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
        Self { stream, answered: Vec::new(), reset: Vec::new() }
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&frame(kind, flags, stream, payload)).await
    }

    pub async fn request(&mut self, stream: u32, pairs: &[(&str, &str)]) -> io::Result<()> {
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, &fields(pairs)).await
    }

    /// Reads frames until the stream has an end of any kind; whether that was an answer.
    pub async fn is_answered(&mut self, stream: u32) -> bool {
        let reading = async {
            while !self.answered.contains(&stream) {
                if self.reset.contains(&stream) || self.read().await.is_none_or(|kind| kind == GO_AWAY) {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(Duration::from_secs(10), reading).await.expect("no end of the stream")
    }

    /// The same while the router drains: it says goodbye first.
    pub async fn is_answered_after_goodbye(&mut self, stream: u32) -> bool {
        let reading = async {
            while !self.answered.contains(&stream) {
                if self.reset.contains(&stream) || self.read().await.is_none() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(Duration::from_secs(10), reading).await.expect("no end of the stream")
    }

    /// One frame; `None` at the end of the connection.
    async fn read(&mut self) -> Option<u8> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.stream.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match head[3] {
            HEADERS => self.answered.push(stream),
            RESET => self.reset.push(stream),
            _ => {}
        }
        Some(head[3])
    }
}

#[tokio::test]
async fn fields_that_would_become_lines_of_their_own_never_reach_a_sandbox() {
    let world = World::new().await;
    let recording = Recording::replace(&world).await;
    let mut good = Raw::connect(&world).await;
    good.request(1, &GOOD).await.unwrap();
    assert!(good.is_answered(1).await);
    assert_eq!(recording.take().await[0].line, "GET /good HTTP/1.1");
    for pairs in [
        with(":path", "/x HTTP/1.1\r\nX-Evil: 1\r\n\r\n"),
        with(":path", "/x y"),
        with(":path", "/x\0"),
        with(":path", ""),
        with(":path", "no-slash"),
        with(":method", "GET / HTTP/1.1\r\nX-Evil: 1\r\n\r\nGET"),
        with(":method", ""),
        with(":method", "G T"),
        with(":scheme", "http\r\nx-evil: 1"),
        with(":authority", "r\r\nX-Evil: 1"),
        with(":authority", "a b"),
        with("x-a", "1\r\nX-Evil: 1"),
        with("x-a", "1\nX-Evil: 1"),
        with("x-a", "1\0"),
        with("x-a\r\nx-evil", "1"),
        with("x-a: 1\r\nx-evil", "1"),
        with("X-Evil", "1"),
        with("x evil", "1"),
        with("", "x-evil"),
        with(":evil", "1"),
        with(":status", "200"),
        with("transfer-encoding", "chunked"),
        with("connection", "close"),
        with("keep-alive", "evil"),
        with("proxy-connection", "evil"),
        with("upgrade", "websocket"),
        with("te", "gzip"),
        with("content-length", "5"),
        with("content-length", "-1"),
        with("content-length", "evil"),
        [&GOOD[..], &[(":path", "/evil")]].concat(),
        [&GOOD[..], &[(":method", "POST")]].concat(),
        [&[("x-a", "1")], &GOOD[..]].concat(),
        GOOD[1..].to_vec(),
        [&GOOD[..2], &GOOD[3..]].concat(),
    ] {
        let mut raw = Raw::connect(&world).await;
        raw.request(1, &pairs).await.unwrap();
        let answered = raw.is_answered(1).await;
        // Strict: panics where two readers could disagree.
        for seen in recording.take().await {
            assert!(answered && seen.line == "GET /good HTTP/1.1", "{pairs:?}: {seen:?}");
            let hop = ["transfer-encoding", "connection", "keep-alive", "proxy-connection", "upgrade", "te"];
            assert!(!format!("{seen:?}").contains("evil"), "{pairs:?}: {seen:?}");
            assert!(hop.iter().all(|name| seen.all(name).is_empty()), "{pairs:?}: {seen:?}");
        }
    }
}

#[tokio::test]
async fn the_authority_decides_and_a_host_field_that_differs_does_not() {
    let addressing = asb_router::Addressing { domain: "box.example".parse().ok(), ..Default::default() };
    let world = World::configured(asb_router::Config {
        addressing,
        authorization: asb_router::Authorization::allow_all(),
        limits: quick_to_refuse(),
        ..Default::default()
    })
    .await;
    let recording = Recording::replace(&world).await;
    let mut raw = Raw::connect(&world).await;
    let mut pairs = with(":authority", "80-web.default.box.example");
    pairs.extend([("host", "80-other.default.box.example"), ("x-sandbox-namespace", "elsewhere")]);
    raw.request(1, &pairs).await.unwrap();
    assert!(raw.is_answered(1).await);
    for seen in recording.take().await {
        assert_eq!(seen.all("host"), ["10.0.0.5:80"]);
        assert_eq!(seen.all("x-forwarded-host"), ["80-web.default.box.example"]);
    }
    let dials = world.dial.dials.lock().unwrap();
    assert!(dials.iter().all(|(target, port)| target.name == "web" && *port == 80), "{dials:?}");
}

#[tokio::test]
async fn more_bytes_than_announced_are_an_error_and_not_a_second_request() {
    let world = World::new().await;
    let recording = Recording::replace(&world).await;
    for (length, body) in [("4", &b"GET /smuggled HTTP/1.1\r\n\r\n"[..]), ("100", b"short")] {
        let mut raw = Raw::connect(&world).await;
        let pairs = [&[(":method", "POST")], &GOOD[1..], &[("content-length", length)]].concat();
        raw.send(HEADERS, END_HEADERS, 1, &fields(&pairs)).await.unwrap();
        // The router may have ended the stream already.
        let _ = raw.send(DATA, END_STREAM, 1, body).await;
        let answered = raw.is_answered(1).await;
        for seen in recording.take().await {
            assert!(!seen.complete && !format!("{seen:?}").contains("smuggled"), "{answered}: {seen:?}");
        }
    }
}

#[tokio::test]
async fn headers_without_end_are_cut_off_early() {
    let limits = Limits { header_bytes: 8192, ..quick_to_refuse() };
    let world = World::with(None, limits).await;
    let mut raw = Raw::connect(&world).await;
    let long = "x".repeat(20_000);
    let mut pairs = GOOD.to_vec();
    pairs.push(("x-long", &long));
    let block = fields(&pairs);
    raw.send(HEADERS, END_STREAM, 1, &block[..10_000]).await.unwrap();
    let _ = raw.send(CONTINUATION, END_HEADERS, 1, &block[10_000..]).await;
    let _ = raw.is_answered(1).await;

    let mut flood = Raw::connect(&world).await;
    flood.send(HEADERS, END_STREAM, 1, &fields(&GOOD)).await.unwrap();
    let part = fields(&[("x-more", &"y".repeat(16_000))]);
    let mut sent = 0;
    // Bounded, should the router take everything.
    while sent < 256 * 1024 * 1024 && flood.send(CONTINUATION, 0, 1, &part).await.is_ok() {
        sent += part.len();
    }
    println!("the router closed after {sent} bytes of headers");
    assert!(sent < 32 * 1024 * 1024, "{sent} bytes of headers were taken");
    assert_eq!(world.dials(), 0);
    assert_eq!(world.eventually("web", 418).await.status, 418);
}

#[tokio::test]
async fn requests_that_are_taken_back_at_once_end_the_connection_and_not_the_router() {
    let world = World::new().await;
    let mut raw = Raw::connect(&world).await;
    let (block, mut sent) = (fields(&GOOD), 0);
    for number in 0..20_000_u32 {
        let stream = number * 2 + 1;
        let both = [
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &block),
            frame(RESET, 0, stream, &8_u32.to_be_bytes()),
        ];
        if raw.stream.write_all(&both.concat()).await.is_err() {
            break;
        }
        sent += 1;
    }
    let closed = async { while raw.read().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(10), closed).await.expect("the router goes on with it");
    let reached = world.inside.requests.load(std::sync::atomic::Ordering::SeqCst);
    println!(
        "{sent} requests were taken back; {reached} of them reached the sandbox; {} dials",
        world.dials()
    );
    assert!(world.dials() < 1000, "{} dials", world.dials());
    assert_eq!(world.eventually("web", 418).await.status, 418);
}

#[tokio::test]
async fn one_connection_has_a_bounded_number_of_requests_in_flight() {
    let world = World::new().await;
    let mut raw = Raw::connect(&world).await;
    let slow = with(":path", "/slow");
    for number in 0..300_u32 {
        if raw.request(number * 2 + 1, &slow).await.is_err() {
            break;
        }
    }
    // What is beyond the limit is refused at once; nothing else ends, because /slow does not.
    while raw.reset.len() < 300 - 256 {
        let read =
            tokio::time::timeout(Duration::from_secs(10), raw.read()).await.expect("nothing was refused");
        assert!(read.is_some(), "the connection ended");
    }
    assert!(world.dials() <= 256, "{} dials", world.dials());
    assert_eq!(world.get("/").await.status, 418, "others are served");
}
