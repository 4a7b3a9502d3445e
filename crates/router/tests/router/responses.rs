//! Sandboxes that answer in ways that two readers could read differently, and answers without a usual body.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use asb_router::{Addressing, Authorization, Config, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::http2::{GOOD, Raw};
use crate::smuggling::{impatient, raw};
use crate::world::{Answer, World, quick_to_refuse};

const GET: &str = "GET /x HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n";

/// A sandbox that answers each request with these bytes, and keeps the connection open.
#[derive(Clone, Default)]
struct Says(Arc<Mutex<Vec<u8>>>);

impl Says {
    async fn replace(world: &World) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        *world.dial.address.lock().unwrap() = listener.local_addr().ok();
        let says = Self::default();
        let bytes = says.0.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, bytes.clone()));
            }
        });
        says
    }

    fn set(&self, bytes: &[u8]) {
        *self.0.lock().unwrap() = bytes.to_vec();
    }
}

async fn answer(mut stream: TcpStream, bytes: Arc<Mutex<Vec<u8>>>) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let bytes = bytes.lock().unwrap().clone();
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// The body of the first answer, and what follows it; panics where two readers could disagree about its end.
fn strict(answers: &str) -> (u16, String, String) {
    let (head, rest) = answers.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answers:?}"));
    let head = head.to_ascii_lowercase();
    let all = |name: &str| -> Vec<String> {
        let lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
        lines.filter(|(it, _)| *it == name).map(|(_, value)| value.trim().to_owned()).collect()
    };
    let status = head[9..12].parse().unwrap();
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    if matches!(status, 204 | 304) {
        assert!(codings.is_empty() && lengths.len() <= 1, "{head}");
        return (status, String::new(), rest.to_owned());
    }
    match (&lengths[..], &codings[..]) {
        ([length], []) => {
            let length: usize = length.parse().unwrap();
            assert!(rest.len() >= length, "the answer broke off: {answers:?}");
            (status, rest[..length].to_owned(), rest[length..].to_owned())
        }
        ([], [chunked]) if chunked == "chunked" => {
            let (body, rest) = rest.split_once("0\r\n\r\n").unwrap_or((rest, ""));
            (status, body.to_owned(), rest.to_owned())
        }
        _ => panic!("two kinds of framing: {head}"),
    }
}

#[tokio::test]
async fn an_answer_of_a_sandbox_never_becomes_two() {
    let world = impatient().await;
    let says = Says::replace(&world).await;
    let evil = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Evil: 1\r\n\r\nevil";
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 70\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 70\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 70\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2, 70\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: content-length\r\n\r\nok",
        "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 70\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX-A: 1\r\n X-B: 2\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nX-A : 1\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nX-A: 1\rX-Evil: 2\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nX-A: 1\0\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
    ] {
        says.set(format!("{head}{evil}").as_bytes());
        for method in ["GET", "HEAD"] {
            let first = GET.replacen("GET", method, 1);
            // The second request would read what is left of the first answer.
            let answers =
                raw(&world, format!("{first}\r\nGET /healthz HTTP/1.1\r\nHost: r\r\n\r\n").as_bytes()).await;
            let rest = if method == "HEAD" && !answers.starts_with("HTTP/1.1 4") {
                let (_, rest) =
                    answers.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{head:?}: {answers:?}"));
                rest.to_owned()
            } else {
                let (status, body, rest) = strict(&answers);
                let expected = match status {
                    200 => body.contains("ok"),
                    204 | 304 => true,
                    502 => body.contains("detail"),
                    _ => false,
                };
                assert!(expected, "{head:?}: {answers}");
                rest
            };
            assert!(
                rest.is_empty() || rest.starts_with("HTTP/1.1 200 OK\r\n"),
                "{method} {head:?}: {answers}"
            );
            assert!(!answers.to_ascii_lowercase().contains("x-evil"), "{method} {head:?}: {answers}");
        }
    }
}

#[tokio::test]
async fn endless_informational_answers_end_in_504() {
    let world =
        World::with(None, Limits { response_timeout: Duration::from_millis(200), ..quick_to_refuse() }).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    *world.dial.address.lock().unwrap() = listener.local_addr().ok();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // An answer before the request would be an error of its own.
        stream.read_u8().await.unwrap();
        while stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert_eq!(world.get("/").await.status, 504);
}

#[tokio::test]
async fn trailers_of_an_answer_arrive_when_the_caller_takes_them() {
    let world = impatient().await;
    let says = Says::replace(&world).await;
    says.set(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n");
    let with = raw(&world, format!("{GET}TE: trailers\r\nConnection: TE\r\n\r\n").as_bytes())
        .await
        .to_ascii_lowercase();
    assert!(with.contains("\r\ntrailer: x-sum\r\n") && with.ends_with("0\r\nx-sum: 7\r\n\r\n"), "{with}");
    let without = raw(&world, format!("{GET}\r\n").as_bytes()).await;
    assert!(without.ends_with("2\r\nok\r\n0\r\n\r\n"), "{without}");
}

#[tokio::test]
async fn an_upgrade_in_http_1_0_is_no_upgrade() {
    let world = impatient().await;
    let head = GET.replacen("HTTP/1.1", "HTTP/1.0", 1);
    let answer =
        raw(&world, format!("{head}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n").as_bytes()).await;
    assert!(answer[9..].starts_with("418"), "the header is ignored: {answer}");
}

#[tokio::test]
async fn two_hosts_are_refused_however_the_sandbox_is_named() {
    let world = impatient().await;
    let answer = raw(&world, format!("{GET}Host: other\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("Host header"), "{answer}");
    assert_eq!(world.dials(), 0);
}

#[tokio::test]
async fn a_sandbox_sees_the_host_that_was_asked_for() {
    let world = impatient().await;
    for (target, host) in
        [("/x", "r"), ("http://asked:1/x", "asked:1"), ("http://user:pass@asked/x", "asked")]
    {
        let answer = raw(
            &world,
            GET.replacen("/x", target, 1)
                .as_bytes()
                .iter()
                .chain(b"\r\n")
                .copied()
                .collect::<Vec<_>>()
                .as_slice(),
        )
        .await;
        assert!(answer.contains(&format!("x-forwarded-host: {host}\"")), "{target}: {answer}");
    }
}

#[tokio::test]
async fn a_page_below_a_path_knows_where_it_is_and_cannot_speak_for_the_whole_origin() {
    let addressing = Addressing {
        path_prefix: "/s".parse().ok(),
        domain: "box.example".parse().ok(),
        ..Addressing::default()
    };
    let world = World::configured(Config {
        addressing,
        authorization: Authorization::allow_all(),
        limits: quick_to_refuse(),
        ..Config::default()
    })
    .await;
    let head = "GET /s/default/web/80/x HTTP/1.1\r\nHost: r\r\nX-Forwarded-Prefix: /evil\r\n";
    let seen = world.send(head, b"").await;
    assert!(seen.body.contains("x-forwarded-prefix: /s/default/web/80\""), "{}", seen.body);
    let by_header = world.get("/x").await;
    assert!(!by_header.body.contains("x-forwarded-prefix"), "{}", by_header.body);

    let says = Says::replace(&world).await;
    says.set(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\nClear-Site-Data: \"*\"\r\n\
        Strict-Transport-Security: max-age=9\r\nAlt-Svc: h2=\":1\"\r\nService-Worker-Allowed: /\r\nX-Kept: 1\r\n\r\nok",
    );
    world.inside.cut_connections().await;
    let headers = ["clear-site-data", "strict-transport-security", "alt-svc", "service-worker-allowed"];
    for (head, kept) in [(head, false), ("GET / HTTP/1.1\r\nHost: 80-web.default.box.example\r\n", true)] {
        let Answer { head: answer, .. } = world.send(head, b"").await;
        assert!(answer.contains("x-kept"), "{answer}");
        assert!(headers.iter().all(|name| answer.contains(name) == kept), "{head}: {answer}");
    }
}

#[tokio::test]
async fn a_websocket_by_http2_is_refused_cleanly() {
    let world = World::new().await;
    let mut raw = Raw::connect(&world).await;
    let mut pairs = GOOD.to_vec();
    pairs[0] = (":method", "CONNECT");
    pairs.insert(4, (":protocol", "websocket"));
    raw.request(1, &pairs).await.unwrap();
    // Not offered by the settings: a reset or 405, and the connection serves others.
    raw.is_answered(1).await;
    raw.request(3, &GOOD).await.unwrap();
    assert!(raw.is_answered(3).await);
    assert_eq!(world.inside.requests.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_drain_answers_http2_requests_in_flight() {
    let world = World::new().await;
    let mut raw = Raw::connect(&world).await;
    let mut slow = GOOD;
    slow[2] = (":path", "/slow");
    raw.request(1, &slow).await.unwrap();
    world.inside.slow_begun.notified().await;
    let World { inside, router, .. } = world;
    let draining = tokio::spawn(router.drain(Duration::from_secs(20)));
    tokio::time::sleep(Duration::from_millis(50)).await;
    inside.go.notify_one();
    assert!(raw.is_answered_after_goodbye(1).await, "the request was answered");
    tokio::time::timeout(Duration::from_secs(10), draining).await.expect("and the router ended").unwrap();
}
