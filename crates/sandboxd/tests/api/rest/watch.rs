//! Changes of files as server-sent events.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::{Daemon, eventually};

pub struct Watch(BufReader<TcpStream>);

impl Watch {
    /// Returns when the watch is in place.
    pub fn open(daemon: &Daemon, path: &str) -> Self {
        let mut stream = daemon.connect();
        write!(stream, "GET /v1/watch/{path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut watch = Self(BufReader::new(stream));
        assert_eq!(watch.line(), "HTTP/1.1 200 OK");
        assert_eq!(watch.next().0, "ready");
        watch
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn next(&mut self) -> (String, Value) {
        loop {
            if let Some(kind) = self.line().strip_prefix("event: ") {
                let data = self.line();
                return (
                    kind.to_owned(),
                    serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap(),
                );
            }
        }
    }

    fn expect(&mut self, kind: &str, path: &str) -> Value {
        loop {
            let (got, data) = self.next();
            if got == kind && data["path"] == path {
                return data;
            }
            assert_eq!(got, "modify", "{data} while waiting for {kind} {path}");
        }
    }
}

#[test]
fn creating_changing_renaming_and_removing_are_reported() {
    let daemon = Daemon::start();
    fs::create_dir(daemon.path("d")).unwrap();
    let mut watch = Watch::open(&daemon, "d");
    fs::write(daemon.path("d/a"), "x").unwrap();
    assert_eq!(watch.expect("create", "/d/a"), json!({"path": "/d/a", "directory": false}));
    watch.expect("modify", "/d/a");
    fs::rename(daemon.path("d/a"), daemon.path("d/b")).unwrap();
    assert_eq!(watch.expect("rename", "/d/b")["from"], "/d/a");
    fs::remove_file(daemon.path("d/b")).unwrap();
    watch.expect("remove", "/d/b");
}

#[test]
fn a_recursive_watch_follows_new_and_renamed_directories() {
    let daemon = Daemon::start();
    fs::create_dir(daemon.path("old")).unwrap();
    let mut watch = Watch::open(&daemon, "?recursive=true");
    fs::write(daemon.path("old/f"), "").unwrap();
    watch.expect("create", "/old/f");
    fs::create_dir(daemon.path("new")).unwrap();
    watch.expect("create", "/new");
    fs::rename(daemon.path("old"), daemon.path("new/moved")).unwrap();
    // Paired, or reported as a removal and a new directory when the new one was not yet watched.
    loop {
        let (kind, data) = watch.next();
        assert!(["rename", "remove", "create"].contains(&kind.as_str()), "{kind} {data}");
        if data["path"] == "/new/moved" {
            break;
        }
    }
    fs::write(daemon.path("new/moved/g"), "").unwrap();
    loop {
        let (_, data) = watch.next();
        if data["path"] == "/new/moved/g" {
            break;
        }
    }
}

#[test]
fn a_watch_ends_with_the_directory_that_it_watches() {
    let daemon = Daemon::start();
    fs::create_dir(daemon.path("d")).unwrap();
    let mut watch = Watch::open(&daemon, "d");
    fs::remove_dir(daemon.path("d")).unwrap();
    assert_eq!(watch.next().0, "gone");
}

#[test]
fn watches_are_limited_in_number_and_free_their_place() {
    let daemon = Daemon::start();
    let watches: Vec<Watch> = (0..16).map(|_| Watch::open(&daemon, "")).collect();
    let refused = daemon.get("/v1/watch/");
    assert_eq!(refused.refusal(), super::refusal(429, "RESOURCE_EXHAUSTED"));
    drop(watches);
    eventually("a place is free", || {
        let mut stream = daemon.connect();
        stream.write_all(b"GET /v1/watch/ HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.contains("200")
    });
    assert_eq!(daemon.get("/v1/watch/nothing").status, 404);
}
