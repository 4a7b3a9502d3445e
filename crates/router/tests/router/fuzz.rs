//! Random requests through a whole router: whatever a caller sends, a sandbox reads what the router decided about.
//!
//! `ASB_FUZZ_CASES=100000` searches for long.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config as Cases, TestCaseError, TestRunner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http2::{GOOD, Raw};
use crate::recording::{Recording, Seen};
use crate::smuggling::impatient;
use crate::world::World;

const SECRET: &str = "s3cret-of-the-router";

fn cases() -> Cases {
    let cases = std::env::var("ASB_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64);
    Cases { cases, failure_persistence: None, ..Cases::default() }
}

/// Pieces that mean something to a parser, between bytes that do not.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let known = select(
        &[
            "GET ",
            "POST ",
            "/x",
            " HTTP/1.1",
            " HTTP/1.0",
            "\r\n",
            "\n",
            "\r",
            "\r\n\r\n",
            ": ",
            ":",
            " ",
            "\t",
            "\0",
            "Content-Length: 5",
            "Content-Length: 0",
            "Content-Length: ",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: ",
            "chunked",
            "5\r\nhello\r\n",
            "0\r\n\r\n",
            "Connection: close",
            "Connection: ",
            "Upgrade: h2c",
            "Upgrade: websocket",
            "Expect: 100-continue",
            "X-Sandbox-ID: web",
            "X-Sandbox-ID: other",
            "X-Sandbox-Port: 80",
            "Host: r",
            "Host: ",
            "http://a/",
            "?",
            "%0d%0a",
            "..",
            "GET /smuggled HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n\r\n",
        ][..],
    );
    prop_oneof![
        6 => known.prop_map(|known| known.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 1..4),
    ]
}

fn pieces(most: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(piece(), 0..most).prop_map(|pieces| pieces.concat())
}

/// What must hold of everything that a sandbox receives. Parsing was strict already.
fn check(seen: &[Seen]) -> Result<(), TestCaseError> {
    for seen in seen {
        let text = format!("{seen:?}");
        prop_assert!(
            !seen.headers.iter().any(|(name, value)| name == "authorization" || value.contains(SECRET)),
            "{text}"
        );
        prop_assert_eq!(seen.all("host").len(), 1, "{}", text);
        prop_assert!(seen.all("host")[0].starts_with("10.0.0.5:"), "{}", text);
        prop_assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"], "{}", text);
        prop_assert!(!seen.all("upgrade").contains(&"h2c"), "{}", text);
        prop_assert!(seen.line.ends_with(" HTTP/1.1") && seen.line.split(' ').count() == 3, "{}", text);
    }
    Ok(())
}

/// Runs all cases on one router.
fn run<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>, case: impl AsyncFn(&World, &T)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (world, recording) = runtime.block_on(async {
        let world = impatient().await;
        let recording = Recording::replace(&world).await;
        (world, recording)
    });
    let result = TestRunner::new(cases()).run(&strategy, |input| {
        runtime.block_on(async {
            case(&world, &input).await;
            let seen = recording.take().await;
            check(&seen)
        })
    });
    println!("{} connections reached the sandbox", recording.connections());
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(recording.connections() > 0, "no request got through, so nothing was tested");
}

#[test]
fn any_bytes_of_http1_reach_a_sandbox_as_one_strict_request_or_not_at_all() {
    let good = Just(b"POST /x HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n".to_vec());
    let begin = prop_oneof![4 => good, 1 => pieces(6)];
    let secret = format!("Authorization: Bearer {SECRET}\r\n").into_bytes();
    let strategy = (begin, Just(secret), pieces(8), Just(b"\r\n\r\n".to_vec()), pieces(8));
    run(strategy, async |world, (begin, secret, fields, end, body)| {
        // The last request closes the connection, unless it is the body of another one.
        let last = b"GET /healthz HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n";
        let bytes = [begin, secret, fields, end, body, &last[..]].concat();
        let mut stream = world.connect().await;
        // The router may close while this is written.
        let _ = stream.write_all(&bytes).await;
        let mut answers = Vec::new();
        let reading = stream.read_to_end(&mut answers);
        let _ =
            tokio::time::timeout(Duration::from_secs(10), reading).await.expect("the router never closed");
    });
}

#[test]
fn any_fields_of_http2_reach_a_sandbox_as_one_strict_request_or_not_at_all() {
    let name = prop_oneof![
        select(
            &[
                ":path",
                ":method",
                ":authority",
                ":scheme",
                ":status",
                "host",
                "cookie",
                "content-length",
                "te",
                "transfer-encoding",
                "connection",
                "upgrade",
                "x-sandbox-port",
                "x-forwarded-for",
                "X-Upper",
                "expect",
            ][..]
        )
        .prop_map(str::to_owned),
        "[a-z_:\\r\\n -]{0,9}",
    ];
    let value = prop_oneof![
        select(&["/x", "GET", "r", "http", "5", "0", "80", "chunked", "close", "h2c", "a=1", "trailers"][..])
            .prop_map(str::to_owned),
        "[a-z/:\\r\\n\\x00 %-]{0,12}",
    ];
    let field = (name, value);
    let strategy = (proptest::collection::vec(field, 0..4), any::<bool>(), 0_usize..5);
    run(strategy, async |world, (more, replace, at)| {
        let bearer = format!("Bearer {SECRET}");
        let mut all = GOOD.to_vec();
        all.push(("authorization", &bearer));
        for (name, value) in more {
            if *replace {
                all.remove(*at % all.len());
            }
            all.insert((*at).min(all.len()), (name, value));
        }
        let mut raw = Raw::connect(world).await;
        if raw.request(1, &all).await.is_ok() {
            raw.is_answered(1).await;
        }
    });
}
