//! Frames of gRPC that no client would send. `ASB_FUZZ_CASES` makes the search long.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::support::Daemon;

const METHODS: [&str; 8] = [
    "/process.v1.ProcessService/Execute",
    "/process.v1.ProcessService/Start",
    "/process.v1.ProcessService/WriteStdin",
    "/process.v1.ProcessService/SendSignal",
    "/process.v1.ProcessService/ResizeTTY",
    "/sandboxd.v1.ProcessService/List",
    "/sandboxd.v1.ProcessService/Connect",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

/// A message that begins with a command that does not exist: whatever follows can only add words to it.
fn harmless(rest: &[u8]) -> Vec<u8> {
    let command = b"/nonexistent";
    let config = [&[0x0a, 12], &command[..]].concat();
    [&[0x0a, 14], &config[..], rest].concat()
}

async fn call(channel: &mut Channel, method: &str, body: Vec<u8>) {
    let request = Request::post(method).header("content-type", "application/grpc").header("te", "trailers");
    let body = Body::new(Full::new(bytes::Bytes::from(body)).map_err(|never| match never {}));
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.expect("the daemon is there");
    // An error is an answer too; no answer in time is not.
    let answering = async {
        if let Ok(response) = channel.call(request.body(body).unwrap()).await {
            let _ = response.into_body().collect().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), answering).await.expect("an answer in time");
}

#[test]
fn any_frame_gets_an_answer_and_leaves_the_daemon_well() {
    let cases = std::env::var("ASB_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64);
    let daemon = Daemon::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let endpoint = Endpoint::try_from(format!("http://127.0.0.1:{}", daemon.port())).unwrap();
    let mut channel = runtime.block_on(endpoint.connect()).unwrap();
    runtime.block_on(call(&mut channel, METHODS[0], frame(0, None, &harmless(&[]))));
    let before = daemon.resident();
    let message = proptest::collection::vec(any::<u8>(), 0..64);
    let flag = prop_oneof![4 => Just(0_u8), 1 => any::<u8>()];
    let length = prop_oneof![4 => Just(None), 1 => any::<u32>().prop_map(Some)];
    let strategy = (0..METHODS.len(), flag, length, message);
    let channel = std::cell::RefCell::new(channel);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let found = TestRunner::new(config).run(&strategy, |(method, flag, length, rest)| {
        let message = if method < 2 { harmless(&rest) } else { rest };
        let body = frame(flag, length, &message);
        runtime.block_on(call(&mut channel.borrow_mut(), METHODS[method], body));
        Ok(())
    });
    found.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(daemon.get("/v1/health").status, 200);
    let grown = daemon.resident().saturating_sub(before);
    assert!(grown < 8 * 1024, "grew by {grown} KiB");
}

/// A frame whose prefix may lie about what follows.
fn frame(flag: u8, length: Option<u32>, message: &[u8]) -> Vec<u8> {
    let length = length.unwrap_or(u32::try_from(message.len()).unwrap());
    [&[flag][..], &length.to_be_bytes(), message].concat()
}
