//! Commands in sandboxes, over one connection to a router that stays open, as SDKs send them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// The longest that a command may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Commands {
    stream: TcpStream,
    token: String,
    namespace: String,
}

impl Commands {
    pub fn over(stream: TcpStream, token: &str, namespace: &str) -> Self {
        stream.set_nodelay(true).expect("a TCP connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a TCP connection");
        Self { stream, token: token.to_owned(), namespace: namespace.to_owned() }
    }

    /// The status and the body of `POST /execute`.
    pub fn execute(&mut self, sandbox: &str, command: &str) -> (u16, Value) {
        let body = json!({ "command": command }).to_string();
        let request = format!(
            "POST /execute HTTP/1.1\r\nHost: router\r\nAuthorization: Bearer {}\r\nX-Sandbox-ID: {sandbox}\r\n\
             X-Sandbox-Namespace: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            self.namespace,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).expect("the router reads");
        let mut answer = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let read = self.stream.read(&mut chunk).expect("the router answers in time");
            assert_ne!(read, 0, "the router closed the connection: {}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&chunk[..read]);
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            if length(head).is_some_and(|length| body.len() >= length) {
                let status = head[9..12].parse().expect("a response begins with its status");
                return (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("not JSON: {text}")));
            }
        }
    }
}

fn length(head: &str) -> Option<usize> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })
}
