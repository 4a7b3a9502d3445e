//! Every protocol through the router to a server inside a real sandbox, by unchanged clients.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use crate::engine::{Engine, stdout};
use crate::python::python;
use crate::router::{Router, serve};

#[test]
fn websockets_and_grpc_of_unchanged_python_clients_pass() {
    let engine = Engine::start();
    serve(&engine, "web");
    let router = Router::of(&engine);
    let script = asb_testing::root().join("crates/cli/tests/e2e/router_client.py");
    let proto = asb_testing::root().join("crates/sandboxd/proto");
    let ran = Command::new(python()).arg(script).args([&router.address, &router.token]).arg(proto).output();
    assert_eq!(stdout(&ran.expect("Python can be started")), "all good\n");
    assert_eq!(stdout(&router.get("web", "/closed")), "4002 bye", "the sandbox saw how the client closed");
    engine.stop();
}

#[test]
fn server_sent_events_arrive_one_by_one() {
    let engine = Engine::start();
    serve(&engine, "web");
    let router = Router::of(&engine);
    let mut curl = router.curl("web");
    curl.args(["--no-buffer", &router.url("/events")]).stdout(Stdio::piped());
    let mut curl = curl.spawn().expect("curl can be started");
    let mut events = BufReader::new(curl.stdout.take().unwrap());
    for number in 0..3 {
        let mut event = String::new();
        events.read_line(&mut event).unwrap();
        events.read_line(&mut event).unwrap();
        assert_eq!(event, format!("data: {number}\n\n"));
        // The sandbox sends the next one only now.
        stdout(&router.get("web", "/next"));
    }
    let mut rest = String::new();
    events.read_to_string(&mut rest).unwrap();
    assert!(rest.is_empty() && curl.wait().unwrap().success(), "{rest:?}");
    engine.stop();
}

#[test]
fn http2_with_prior_knowledge_reaches_a_server_that_speaks_http1() {
    let engine = Engine::start();
    serve(&engine, "web");
    let router = Router::of(&engine);
    let ask = |more: &[&str]| {
        let mut curl = router.curl("web");
        curl.args(["--http2-prior-knowledge", "--write-out", "\n%{http_version} %{http_code}"]).args(more);
        stdout(&curl.output().expect("curl can be started"))
    };
    let seen = ask(&["--cookie", "a=1", &router.url("/headers")]);
    assert!(seen.starts_with("GET /headers HTTP/1.1\r\n") && seen.ends_with("\n2 200"), "{seen}");
    assert!(seen.contains("cookie: a=1\r\n") && !seen.contains(&router.token), "{seen}");
    let body = engine.data_dir.path().join("body");
    std::fs::write(&body, vec![7; 3_000_000]).unwrap();
    let upload = format!("@{}", body.display());
    assert_eq!(ask(&["--data-binary", &upload, &router.url("/sink")]), "3000000\n2 200");
    engine.stop();
}
