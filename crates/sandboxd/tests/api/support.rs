//! A real daemon on a free port, and just enough HTTP to talk to it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub struct Daemon {
    process: Child,
    port: u16,
    directory: tempfile::TempDir,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Daemon {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(environment: &[(&str, &str)]) -> Self {
        Self::start_as(&[], environment)
    }

    pub fn start_as(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_after("", arguments, environment)
    }

    /// Runs a shell script in the process that becomes the daemon, to change its limits or descriptors.
    pub fn start_after(script: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("base")).unwrap();
        let mut process = Command::new("sh")
            .args(["-c", &format!("{script}\nexec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_asb-sandboxd")])
            .args(["--port", "0"])
            .args(arguments)
            .env("SANDBOX_BASE_DIR", directory.path().join("base"))
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, port: port_in(&line), directory }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The memory that the daemon itself uses, in KiB.
    pub fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// How many descriptors the daemon has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    /// Its child processes, also those that have ended and are not reaped.
    pub fn children(&self) -> Vec<String> {
        let id = self.process.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        children.split_whitespace().map(str::to_owned).collect()
    }

    /// A path below the base directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("base").join(name)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", b"")
    }

    pub fn execute(&self, request: &Value) -> Value {
        let answer = self.post_execute("application/json", request.to_string().as_bytes());
        assert_eq!(answer.status, 200);
        answer.json()
    }

    pub fn run(&self, command: &str) -> Value {
        self.execute(&json!({ "command": command }))
    }

    pub fn post_execute(&self, content_type: &str, body: &[u8]) -> Answer {
        self.send("POST", "/execute", &format!("Content-Type: {content_type}\r\n"), body)
    }

    pub fn upload(&self, filename: &str, content: &[u8]) -> Answer {
        let body = multipart(&format!("name=\"file\"; filename=\"{filename}\""), content);
        self.send("POST", "/upload", "Content-Type: multipart/form-data; boundary=XX\r\n", &body)
    }

    pub fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The daemon may answer and close before it has read a body it refuses.
        let _ = stream.write_all(body);
        Answer::read(&mut stream)
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub fn wait(&mut self) {
        self.process.wait().unwrap();
    }
}

impl Drop for Daemon {
    /// In order at first, so that the processes of the test end with the daemon.
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            let pid = rustix::process::Pid::from_child(&self.process);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(4);
            while Instant::now() < deadline && matches!(self.process.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Answer {
    pub fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer has a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
        let status = head[9..12].parse().unwrap();
        Self { status, head, body: bytes[end + 4..].to_vec() }
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub fn multipart(disposition: &str, content: &[u8]) -> Vec<u8> {
    let head = format!("--XX\r\nContent-Disposition: form-data; {disposition}\r\n\r\n");
    [head.as_bytes(), content, b"\r\n--XX--\r\n"].concat()
}

pub fn port_in(line: &str) -> u16 {
    line.trim().strip_prefix("listening on 0.0.0.0:").expect("the first line names the port").parse().unwrap()
}

/// Whether no such process runs any more; a zombie does not run.
pub fn is_gone(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.trim())).unwrap_or_default();
    status.is_empty() || status.contains("State:\tZ")
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
