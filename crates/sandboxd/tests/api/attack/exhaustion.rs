//! Callers that send too much, too slowly, or do not read.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::grpc::client::{config, next, shell};
use crate::grpc::messages::process::{Event, ExecuteRequest, ExecuteResponse};
use crate::grpc::{Client, run};
use crate::support::{Daemon, eventually};

#[test]
fn a_client_that_does_not_read_stops_the_process_and_costs_no_memory() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let before = daemon.resident();
        // The count of written bytes is on disk, so the test sees the process come to a halt.
        let script = "i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > count.new; mv count.new count; done";
        let mut streams = Vec::new();
        for _ in 0..4 {
            streams.push(client.start(shell(script), None).await.unwrap().1);
        }
        let count = || std::fs::read_to_string(daemon.path("count")).unwrap_or_default();
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut last = (String::new(), Instant::now());
        while last.0.is_empty() || last.1.elapsed() < Duration::from_millis(500) {
            assert!(Instant::now() < deadline, "the processes never stopped writing");
            let now = count();
            if now != last.0 {
                last = (now, Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let grown = daemon.resident().saturating_sub(before);
        assert!(grown < 8 * 1024, "grew by {grown} KiB");
        assert!(matches!(next(&mut streams[0]).await, Some(Event::Stdout(_))), "and goes on when it is read");
        // On another connection: the window of this one is full of output that was not read.
        let mut other = Client::connect(&daemon).await;
        assert_eq!(
            other.execute(config(&["true"])).await.unwrap().exit_code,
            0,
            "others are served meanwhile"
        );
    });
}

/// Whether so much output is held for callers that there is no room for a little more.
fn is_full(daemon: &Daemon) -> bool {
    let outcome = daemon.run("printf %020000d 1");
    outcome["stderr"].as_str().unwrap().contains("too much output is held for other commands")
}

#[test]
fn answers_that_are_not_read_count_as_held_output() {
    let daemon = Daemon::start();
    // Each byte of these 16 MiB takes six in JSON.
    let body = serde_json::json!({"command": "head -c 16777216 /dev/zero"}).to_string();
    let held: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = daemon.connect();
            write!(stream, "POST /execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                .unwrap();
            stream
        })
        .collect();
    eventually("the limit of held output is reached", || is_full(&daemon));
    assert!(daemon.resident() < 600 * 1024, "{} KiB", daemon.resident());
    drop(held);
    eventually("what was held is free again", || !is_full(&daemon));
}

#[test]
fn messages_that_are_not_read_count_as_held_output() {
    let daemon = Daemon::start();
    run(async {
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut client = Client::connect(&daemon).await;
            for _ in 0..40 {
                // As a stream, so that it is the test that does not read.
                let request = ExecuteRequest { config: shell("head -c 4000000 /dev/zero") };
                let stream =
                    client.stream::<_, ExecuteResponse>("/process.v1.ProcessService/Execute", request);
                held.push(stream.await.unwrap());
            }
        }
        assert!(is_full(&daemon));
        drop(held);
    });
    eventually("what was held is free again", || !is_full(&daemon));
}

#[test]
fn huge_headers_are_refused_and_cost_no_memory() {
    let daemon = Daemon::start();
    let before = daemon.resident();
    let mut stream = daemon.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").unwrap();
    let line = format!("X-Filler: {}\r\n", "x".repeat(1000));
    // The daemon answers and closes long before all of it is sent.
    let sent = (0..20_000).take_while(|_| stream.write_all(line.as_bytes()).is_ok()).count();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(sent < 20_000 || answer.starts_with(b"HTTP/1.1 4"), "{sent} lines were accepted");
    assert!(daemon.resident() < before + 4 * 1024);
    assert_eq!(daemon.get("/").status, 200);
}

#[test]
fn slow_bodies_delay_no_other_caller() {
    let daemon = Daemon::start();
    let slow: Vec<_> = (0..100)
        .map(|number| {
            let mut stream = daemon.connect();
            let path = if number % 2 == 0 { "POST /execute" } else { "PUT /v1/files/slow" };
            write!(stream, "{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{")
                .unwrap();
            stream
        })
        .collect();
    assert_eq!(daemon.run("echo hi")["stdout"], "hi\n");
    assert_eq!(daemon.put("x", b"y").status, 204);
    drop(slow);
}

#[test]
fn a_connection_whose_headers_never_end_is_closed() {
    let daemon = Daemon::start_as(&["--http-idle-timeout", "200ms"], &[]);
    let mut idle = daemon.connect();
    let mut used = daemon.connect();
    used.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let begun = Instant::now();
    let mut rest = Vec::new();
    used.read_to_end(&mut rest).unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 200"), "the answer came before the end");
    let mut slow = daemon.connect();
    slow.write_all(b"GET / HT").unwrap();
    assert_eq!(slow.read(&mut [0; 10]).unwrap_or(0), 0);
    assert_eq!(idle.read(&mut [0; 10]).unwrap_or(0), 0);
    assert!(begun.elapsed() < Duration::from_secs(19));
}

#[test]
fn garbage_instead_of_http_is_survived() {
    let daemon = Daemon::start();
    for garbage in
        [&b"\0\xff\xfe"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\xff\xff\xff\xff", b"PRI * HTTP/1"]
    {
        let mut stream = daemon.connect();
        stream.write_all(garbage).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(daemon.get("/").status, 200);
}
