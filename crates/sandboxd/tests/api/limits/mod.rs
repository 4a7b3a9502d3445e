//! Each limit has an error that names it.

use std::io::Read;

use tonic::Code;

use crate::grpc::client::{code, config};
use crate::grpc::{Client, run};
use crate::support::{Daemon, eventually};

#[test]
fn processes_are_limited_in_number_by_all_apis_together() {
    let daemon = Daemon::start();
    run(async {
        let mut clients = Vec::new();
        let mut streams = Vec::new();
        // One connection carries no more than 64 calls at once.
        for _ in 0..3 {
            clients.push(Client::connect(&daemon).await);
        }
        for number in 0..128 {
            streams.push(clients[number / 60].start(config(&["sleep", "1000"]), None).await.unwrap());
        }
        assert_eq!(code(clients[2].start(config(&["true"]), None).await.map(drop)), Code::ResourceExhausted);
        assert_eq!(code(clients[2].execute(config(&["true"])).await), Code::ResourceExhausted);
        let body = serde_json::json!({"command": "true"}).to_string();
        let refused = daemon.post_execute("application/json", body.as_bytes());
        assert_eq!(refused.status, 503, "nothing has run, so a client may send it again");
        assert!(refused.text().contains("128 processes are running already"), "{}", refused.text());
        streams.clear();
    });
    eventually("all places are free again", || {
        let body = serde_json::json!({"command": "true"}).to_string();
        daemon.post_execute("application/json", body.as_bytes()).status == 200
    });
}

#[test]
fn connections_are_limited_in_number_with_a_clear_answer() {
    let daemon = Daemon::start();
    let held: Vec<_> = (0..512).map(|_| daemon.connect()).collect();
    let mut refused = daemon.connect();
    let mut answer = String::new();
    refused.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("too many connections"), "{answer}");
    drop(held);
    eventually("a place is free", || {
        let mut stream = daemon.connect();
        let _ =
            std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
    });
}
