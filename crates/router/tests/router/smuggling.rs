//! Requests that two readers could read differently, and callers who claim to be what they are not.

use std::time::Duration;

use asb_router::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::recording::{Recording, Seen};
use crate::world::{World, eventually, quick_to_refuse};

const HEAD: &str = "Host: r\r\nX-Sandbox-ID: web\r\n";

/// A router that soon closes connections on which nothing moves, so that every answer has an end.
pub async fn impatient() -> World {
    let soon = Duration::from_millis(100);
    World::with(
        None,
        Limits { header_read_timeout: soon, keep_alive: soon, idle_timeout: soon, ..quick_to_refuse() },
    )
    .await
}

/// Sends raw bytes; everything that comes back until the router closes.
pub async fn raw(world: &World, bytes: &[u8]) -> String {
    let mut stream = world.connect().await;
    // The router may close while this is written.
    let _ = stream.write_all(bytes).await;
    let mut seen = Vec::new();
    let reading = stream.read_to_end(&mut seen);
    let _ = tokio::time::timeout(Duration::from_secs(10), reading).await.expect("the router never closed");
    String::from_utf8_lossy(&seen).into_owned()
}

fn statuses(answers: &str) -> Vec<&str> {
    answers.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect()
}

#[tokio::test]
async fn a_body_whose_end_is_ambiguous_is_refused_or_passed_on_unambiguously() {
    let world = impatient().await;
    let recording = Recording::replace(&world).await;
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n\r\n";
    let length = smuggled.len();
    for (framing, body) in [
        ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n".to_owned(), "0\r\n\r\n".to_owned()),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n".to_owned(), "0\r\n\r\n".to_owned()),
        ("Content-Length: 0\r\nContent-Length: 5\r\n".to_owned(), "12345".to_owned()),
        ("Content-Length: 5\r\nContent-Length: 0\r\n".to_owned(), "12345".to_owned()),
        ("Content-Length: 5, 5\r\n".to_owned(), "12345".to_owned()),
        ("Content-Length: 5,0\r\n".to_owned(), "12345".to_owned()),
        ("Content-Length: +5\r\n".to_owned(), "12345".to_owned()),
        ("Content-Length: -5\r\n".to_owned(), String::new()),
        ("Content-Length: 0x5\r\n".to_owned(), "12345".to_owned()),
        ("Content-Length: 5 5\r\n".to_owned(), "12345".to_owned()),
        ("Content-Length: \r\n".to_owned(), String::new()),
        ("Content-Length: 99999999999999999999999\r\n".to_owned(), "12345".to_owned()),
        ("Content-Length : 5\r\n".to_owned(), "12345".to_owned()),
        ("Content-Length\t: 5\r\n".to_owned(), "12345".to_owned()),
        ("Transfer-Encoding: identity\r\n".to_owned(), String::new()),
        ("Transfer-Encoding: xchunked\r\n".to_owned(), "0\r\n\r\n".to_owned()),
        ("Transfer-Encoding: chunked, identity\r\n".to_owned(), "0\r\n\r\n".to_owned()),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n".to_owned(), "0\r\n\r\n".to_owned()),
        ("Transfer-Encoding : chunked\r\n".to_owned(), "0\r\n\r\n".to_owned()),
        ("Transfer-Encoding:\x0bchunked\r\n".to_owned(), "0\r\n\r\n".to_owned()),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "0x5\r\n12345\r\n0\r\n\r\n".to_owned()),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "-1\r\n12345\r\n0\r\n\r\n".to_owned()),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "fffffffffffffffff\r\n12345\r\n0\r\n\r\n".to_owned()),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "5\r\n123456\r\n0\r\n\r\n".to_owned()),
        ("Transfer-Encoding: chunked\r\n".to_owned(), "5;a=\"\n0\r\n\r\n\"\r\n12345\r\n0\r\n\r\n".to_owned()),
        ("X-Folded: a\r\n Content-Length: 5\r\n".to_owned(), "12345".to_owned()),
        ("X-Bare: a\rContent-Length: 5\r\n".to_owned(), "12345".to_owned()),
        ("X-Nul: a\0b\r\n".to_owned(), String::new()),
        // The length is the connection's own secret when a caller says so.
        (format!("Connection: Content-Length\r\nContent-Length: {length}\r\n"), String::new()),
        (format!("Connection: Transfer-Encoding\r\nContent-Length: {length}\r\n"), String::new()),
    ] {
        let request = format!("POST /first HTTP/1.1\r\n{HEAD}{framing}\r\n{body}{smuggled}");
        let answers = raw(&world, request.as_bytes()).await;
        // Strict: panics where two readers could disagree.
        let seen = recording.take().await;
        let own = seen.iter().find(|seen| seen.line == "POST /first HTTP/1.1");
        let inside = |seen: &Seen| String::from_utf8_lossy(&seen.body).contains("smuggled");
        if let Some(own) = own.filter(|own| own.complete) {
            let carried = framing.starts_with("Connection:") && inside(own);
            assert!(carried || !inside(own), "{framing:?}: {own:?}");
        } else {
            assert!(matches!(statuses(&answers)[..], [] | ["400"]), "{framing:?}: {answers}");
        }
        // What follows the body is a request of its own, which was addressed and authorised as such, or nothing.
        assert!(seen.len() <= statuses(&answers).len().max(1), "{framing:?}: {seen:?}");
    }
}

#[tokio::test]
async fn a_request_line_that_is_not_one_is_refused() {
    let world = impatient().await;
    let recording = Recording::replace(&world).await;
    for line in [
        "GET /a b HTTP/1.1",
        "GET /a\tb HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET /a\0 HTTP/1.1",
        "GET a HTTP/1.1",
        "GET / HTTP/1.1 x",
        "GET / HTTP/9.9",
        "GET /",
        "G\u{e9}T / HTTP/1.1",
        "GET http:// HTTP/1.1",
        "GET http://a b/ HTTP/1.1",
    ] {
        let answers = raw(&world, format!("{line}\r\n{HEAD}\r\n").as_bytes()).await;
        assert!(matches!(statuses(&answers)[..], [] | ["400" | "505"]), "{line:?}: {answers}");
    }
    for (line, status) in [("CONNECT r:80 HTTP/1.1", "405"), ("CONNECT web:8888 HTTP/1.1", "405")] {
        let answers = raw(&world, format!("{line}\r\n{HEAD}\r\n").as_bytes()).await;
        assert_eq!(statuses(&answers), [status], "{line}: {answers}");
    }
    assert_eq!(recording.connections(), 0);
}

#[tokio::test]
async fn an_absolute_target_reaches_the_named_sandbox_and_no_other_host() {
    let world = impatient().await;
    let recording = Recording::replace(&world).await;
    for target in
        ["http://evil.example/x?y", "http://user:pass@evil.example:1/x?y", "https://evil.example/x?y"]
    {
        let answers = raw(&world, format!("GET {target} HTTP/1.1\r\n{HEAD}\r\n").as_bytes()).await;
        assert_eq!(statuses(&answers), ["200"], "{target}");
        let [seen] = &recording.take().await[..] else { panic!("one request") };
        assert_eq!(seen.line, "GET /x?y HTTP/1.1");
        assert_eq!(seen.all("host"), ["10.0.0.5:8888"]);
    }
}

#[tokio::test]
async fn encoded_line_ends_stay_encoded_everywhere() {
    let world = impatient().await;
    let recording = Recording::replace(&world).await;
    let target = "/%0d%0aX-Evil:%201%0d%0a%0d%0a?%0d%0aX-Evil:%202";
    raw(&world, format!("GET {target} HTTP/1.1\r\n{HEAD}\r\n").as_bytes()).await;
    let [seen] = &recording.take().await[..] else { panic!("one request") };
    assert_eq!(seen.line, format!("GET {target} HTTP/1.1"));
    assert!(seen.all("x-evil").is_empty(), "{seen:?}");
}

#[tokio::test]
async fn what_a_caller_says_about_its_origin_is_replaced() {
    let world = impatient().await;
    let recording = Recording::replace(&world).await;
    let spoofed = "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 7.7.7.7\r\nX_Forwarded_For: 6.6.6.6\r\n\
        X-Forwarded-Host: evil\r\nX-Forwarded_Host: evil\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Port: 666\r\n\
        X-Forwarded-Prefix: /evil\r\nX-Forwarded-Server: evil\r\nForwarded: for=6.6.6.6;host=evil\r\nX-Real-IP: 6.6.6.6\r\n\
        Via: 1.1 evil\r\nX-Sandbox-Pod-IP: 10.9.9.9\r\n";
    let answers = raw(&world, format!("GET / HTTP/1.1\r\n{HEAD}{spoofed}\r\n").as_bytes()).await;
    assert_eq!(statuses(&answers), ["200"], "{answers}");
    let [seen] = &recording.take().await[..] else { panic!("one request") };
    assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen.all("x-forwarded-host"), ["r"]);
    assert_eq!(seen.all("x-forwarded-proto"), ["http"]);
    let text = format!("{seen:?}");
    assert!(!text.contains("6.6.6.6") && !text.contains("7.7.7.7") && !text.contains("666"), "{text}");
    assert!(!text.replace("1.1 evil", "").contains("evil"), "{text}");
}

#[tokio::test]
async fn no_caller_gets_a_tunnel_of_http_through_which_requests_pass_unchecked() {
    let world = impatient().await;
    let recording = Recording::replace(&world).await;
    for (upgrade, passed) in [
        ("h2c", &[][..]),
        ("H2C", &[]),
        ("h2c/1", &[]),
        ("h2", &[]),
        ("HTTP/2.0", &[]),
        ("TLS/1.0", &[]),
        ("h2c, h2", &[]),
        ("h2c, websocket", &["websocket"]),
        ("websocket", &["websocket"]),
    ] {
        let connection =
            "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n";
        raw(&world, format!("GET / HTTP/1.1\r\n{HEAD}{connection}Upgrade: {upgrade}\r\n\r\n").as_bytes())
            .await;
        let [seen] = &recording.take().await[..] else { panic!("one request") };
        assert_eq!(seen.all("upgrade"), passed, "{upgrade}");
        assert!(seen.all("http2-settings").is_empty());
    }
}

#[tokio::test]
async fn the_routers_own_health_cannot_be_answered_by_a_sandbox() {
    let world = impatient().await;
    for target in ["/healthz", "/healthz?x", "http://evil.example/healthz"] {
        let answers = raw(&world, format!("GET {target} HTTP/1.1\r\n{HEAD}\r\n").as_bytes()).await;
        assert!(answers.ends_with(r#"{"status":"ok"}"#), "{target}: {answers}");
    }
    assert_eq!(world.dials(), 0);
}

#[tokio::test]
async fn a_body_that_stops_coming_ends_the_request_on_both_sides() {
    let world = impatient().await;
    let mut stream = world.connect().await;
    let head = format!("POST /x HTTP/1.1\r\n{HEAD}Content-Length: 100\r\n\r\nsome");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut rest = Vec::new();
    let reading = stream.read_to_end(&mut rest);
    let _ = tokio::time::timeout(Duration::from_secs(10), reading).await.expect("the router never closed");
    eventually("the sandbox is released", || world.inside.open_connections() == 0).await;
    assert_eq!(world.eventually("web", 418).await.status, 418);
}
