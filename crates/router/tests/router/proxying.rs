//! What passes through, and how.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use asb_router::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::world::{Answer, World, eventually, quick_to_refuse};

#[tokio::test]
async fn a_request_reaches_the_sandbox_and_the_answer_comes_back_whole() {
    let world = World::new().await;
    let head = "POST /run HTTP/1.1\r\nHost: router:1\r\nX-Sandbox-ID: web\r\nX-Sandbox-Port: 9000\r\nAuthorization: Bearer x\r\nX-Request-ID: 7\r\n";
    let body = vec![7; 57344];
    let answer = world.send(head, &body).await;
    assert_eq!(answer.status, 418);
    assert!(answer.head.contains("set-cookie: a=1\r\nset-cookie: b=2"), "{}", answer.head);
    let seen = answer.json();
    assert_eq!(
        (&seen["method"], &seen["length"], &seen["sum"]),
        (&"POST".into(), &57344.into(), &(7 * 57344).into())
    );
    let headers = seen["headers"].to_string();
    for wanted in [
        "host: 10.0.0.5:9000",
        "x-sandbox-id: web",
        "x-request-id: 7",
        "x-forwarded-host: router:1",
        "x-forwarded-for: 127.0.0.1",
    ] {
        assert!(headers.contains(wanted), "{wanted} in {headers}");
    }
    assert!(!headers.contains("authorization"), "{headers}");
    let (target, port) = world.dial.dials.lock().unwrap()[0].clone();
    assert_eq!((target.name.as_str(), &*target.pod_uid, port), ("web", "pod-web", 9000));
}

#[tokio::test]
async fn path_and_query_arrive_byte_for_byte() {
    let world = World::new().await;
    for target in
        ["/list/a%2Fb%20c", "//x//y", "/a/../b/./c", "/%2E%2E/x", "/q?a=%20&b=/?&c", "/list/100%2525", "/"]
    {
        assert_eq!(world.get(target).await.json()["target"], target);
    }
}

#[tokio::test]
async fn every_method_passes() {
    let world = World::new().await;
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"] {
        let head = format!("{method} / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n");
        let seen = world.send(&head, b"body").await.json();
        assert_eq!((&seen["method"], &seen["length"]), (&method.into(), &4.into()));
    }
    let head = world.send("HEAD / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n", b"").await;
    assert_eq!((head.status, head.body.as_str()), (418, ""));
}

#[tokio::test]
async fn an_answer_is_passed_on_as_it_comes() {
    let world = World::new().await;
    let mut stream = world.connect().await;
    stream
        .write_all(b"GET /stream HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("one") {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
    }
    world.inside.go.notify_one();
    stream.read_to_end(&mut seen).await.unwrap();
    assert!(String::from_utf8_lossy(&seen).contains("two"));
}

#[tokio::test]
async fn an_upgraded_connection_is_a_tunnel() {
    let world = World::new().await;
    let mut stream = world.connect().await;
    stream
        .write_all(b"GET /ws HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nOrigin: x\r\n\r\n")
        .await
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: websocket"), "{head}");
    stream.write_all(b"\x00any bytes\xff").await.unwrap();
    let mut echo = [0; 11];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"\x00any bytes\xff");
    // The sandbox's end of file arrives after ours.
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut echo).await.unwrap(), 0);
}

#[tokio::test]
async fn a_connection_into_the_sandbox_is_used_again() {
    let world = World::new().await;
    for _ in 0..5 {
        assert_eq!(world.get("/").await.status, 418);
    }
    assert!(world.dials() < 5, "dialled {} times", world.dials());
}

#[tokio::test]
async fn a_connection_that_nobody_uses_is_closed() {
    let world = World::new().await;
    assert_eq!(world.get("/").await.status, 418);
    eventually("the connection is open", || world.inside.open_connections() == 1).await;
    // The clock runs by itself when everybody waits, so this does not take as long as it says.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(10)).await;
    tokio::time::resume();
    eventually("the connection is closed", || world.inside.open_connections() == 0).await;
}

#[tokio::test]
async fn a_kept_connection_that_died_is_replaced_without_the_caller_noticing() {
    let world = World::new().await;
    for round in 0..20 {
        assert_eq!(world.get("/").await.status, 418);
        world.inside.cut_connections().await;
        assert_eq!(world.get("/").await.status, 418, "round {round}");
    }
}

#[tokio::test]
async fn a_request_that_meets_a_closing_connection_is_sent_again_only_when_it_changes_nothing() {
    let world = World::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    *world.dial.address.lock().unwrap() = listener.local_addr().ok();
    let seen = Arc::new(AtomicUsize::new(0));
    tokio::spawn(answer_once_per_connection(listener, seen.clone()));
    let send = |method: &str, body: &'static [u8]| {
        let head = format!("{method} / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n");
        let world = &world;
        async move { world.send(&head, body).await.status }
    };
    assert_eq!(send("GET", b"").await, 200);
    assert_eq!(send("GET", b"").await, 200, "the kept connection closed, a new one answered");
    assert_eq!((world.dials(), seen.load(Ordering::SeqCst)), (2, 3));
    assert_eq!(send("POST", b"run this").await, 502, "it may have been acted on");
    assert_eq!((world.dials(), seen.load(Ordering::SeqCst)), (2, 4), "and was not sent twice");
}

/// Answers the first request of each connection, reads the second and closes.
async fn answer_once_per_connection(listener: TcpListener, seen: Arc<AtomicUsize>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let seen = seen.clone();
        tokio::spawn(async move {
            for answer in ["HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""] {
                let mut request = Vec::new();
                while !request.windows(4).any(|window| window == b"\r\n\r\n") {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                seen.fetch_add(1, Ordering::SeqCst);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
    }
}

#[tokio::test]
async fn a_sandbox_that_does_not_listen_yet_is_tried_again() {
    let world = World::new().await;
    let address = world.dial.address.lock().unwrap().take();
    let (answer, ()) = tokio::join!(world.get("/"), async {
        eventually("the first attempt", || world.dials() > 0).await;
        *world.dial.address.lock().unwrap() = address;
    });
    assert_eq!(answer.status, 418);
    assert!(world.dials() > 1);
}

#[tokio::test]
async fn a_sandbox_that_never_listens_is_502_and_names_it() {
    let world = World::new().await;
    world.dial.address.lock().unwrap().take();
    let answer = world.get("/").await;
    assert_eq!(
        (answer.status, answer.detail().as_str()),
        (502, "Could not connect to the backend sandbox: web")
    );
    assert_eq!(world.dials(), 7, "six more attempts, within a second and a half");
}

#[tokio::test]
async fn the_callers_patience_ends_in_504() {
    let world = World::new().await;
    let head = "GET /slow HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nX-Sandbox-Timeout: 0.1\r\n";
    let answer = world.send(head, b"").await;
    assert_eq!(
        (answer.status, answer.detail().as_str()),
        (504, "Timed out waiting for the backend sandbox: web")
    );
    eventually("the sandbox hears of it", || world.inside.abandoned.load(Ordering::SeqCst)).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_is_gone_for_the_sandbox_too() {
    let world = World::new().await;
    let mut stream = world.connect().await;
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n\r\n").await.unwrap();
    world.inside.slow_begun.notified().await;
    drop(stream);
    eventually("the sandbox hears of it", || world.inside.abandoned.load(Ordering::SeqCst)).await;
}

#[tokio::test]
async fn headers_that_are_too_large_or_too_slow_are_refused() {
    let limits =
        Limits { header_bytes: 8192, header_read_timeout: Duration::from_millis(100), ..Limits::default() };
    let world = World::with(None, limits).await;
    let head =
        format!("GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nX-Long: {}\r\n", "x".repeat(20_000));
    let mut stream = world.connect().await;
    let _ = stream.write_all(head.as_bytes()).await;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 431");

    let mut slow = world.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest).await;
    assert_eq!(world.dials(), 0);
}

#[tokio::test]
async fn beyond_the_limit_connections_wait_for_one_to_end() {
    let world = World::with(None, Limits { connections: 1, ..Limits::default() }).await;
    let mut first = world.connect().await;
    first
        .write_all(b"GET /slow HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    world.inside.slow_begun.notified().await;
    let (second, ()) = tokio::join!(world.get("/"), async {
        // The second has been sent; it may only pass when the first has its answer.
        tokio::task::yield_now().await;
        assert_eq!(world.inside.requests.load(Ordering::SeqCst), 1);
        world.inside.go.notify_one();
        assert_eq!(Answer::read(&mut first).await.body, "slow");
    });
    assert_eq!(second.status, 418);
}

#[tokio::test]
async fn a_body_may_take_longer_than_the_answer() {
    let limits = Limits { response_timeout: Duration::from_millis(400), ..quick_to_refuse() };
    let world = World::with(None, limits).await;
    for (timeout, status) in [("", 418), ("X-Sandbox-Timeout: 0.4\r\n", 504)] {
        let mut stream = world.connect().await;
        let head = format!(
            "POST / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n{timeout}Connection: close\r\nContent-Length: 10\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let _ = stream.write_all(b"x").await;
        }
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[9..], *status.to_string().as_bytes(), "{timeout}");
    }
}

#[tokio::test]
async fn a_hold_and_the_answer_share_one_time_limit() {
    let world = World::with(None, Default::default()).await;
    let head = "GET /slow HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: late\r\nX-Sandbox-Timeout: 1\r\n";
    let begun = std::time::Instant::now();
    let (answer, ()) = tokio::join!(world.send(head, b""), async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        world.api.apply(crate::api::pod("late"));
    });
    assert_eq!(answer.status, 504);
    assert!(begun.elapsed() < Duration::from_millis(1350), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_idle_connection_is_kept_for_longer_than_a_head_may_take() {
    let limits = Limits { header_read_timeout: Duration::from_millis(100), ..quick_to_refuse() };
    let world = World::with(None, limits).await;
    let mut stream = world.connect().await;
    let request = b"GET /healthz HTTP/1.1\r\nHost: r\r\n\r\n";
    for _ in 0..3 {
        stream.write_all(request).await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"}") {
            assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0, "the connection was closed");
        }
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    stream.write_all(&request[..20]).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut [0; 1])).await;
    assert_eq!(ended.expect("a head that does not end ends the connection").unwrap_or(0), 0);
}
