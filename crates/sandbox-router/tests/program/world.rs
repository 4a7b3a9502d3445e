//! A cluster with one sandbox called `web`, and the program beside it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use asb_apiserver::ApiServer;
use serde_json::{Value, json};

/// The longest that a state may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The API server with a Sandbox whose Pod is this test.
pub struct Cluster {
    data_dir: tempfile::TempDir,
    _server: ApiServer,
    _serving: asb_apiserver::Serving,
    /// Where the sandbox listens.
    pub port: u16,
    /// Every request waits for this many more permissions.
    pub gate: Arc<tokio::sync::Semaphore>,
}

/// The program at work; killed with the test.
pub struct Program {
    child: Child,
    pub listeners: BTreeMap<String, String>,
    log: Arc<Mutex<Vec<Value>>>,
}

pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Cluster {
    pub async fn start() -> Self {
        let data_dir = tempfile::tempdir().unwrap();
        let path = data_dir.path().to_owned();
        let crds = asb_types::crd::all();
        let config = asb_apiserver::Config { data_dir: path, crds, node_name: None };
        let server = ApiServer::open(config).await.unwrap();
        let serving = server.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let gate = Arc::new(tokio::sync::Semaphore::new(1000));
        tokio::spawn(sandbox(listener, gate.clone()));
        make_web(&server.client("default")).await;
        Self { data_dir, _server: server, _serving: serving, port, gate }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.path().join("kubeconfig")
    }

    /// Starts the program under a shell that has run `before`.
    pub fn program_after(&self, before: &str, flags: &[&str]) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{before}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_sandbox-router")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(LISTENERS).args(flags);
        Program::ready(command)
    }

    /// Starts the program and waits until it is ready.
    pub fn program(&self, flags: &[&str]) -> Program {
        self.program_with(flags, &[])
    }

    /// The same with variables in its environment.
    pub fn program_with(&self, flags: &[&str], environment: &[(&str, &str)]) -> Program {
        let mut command = program();
        command.envs(environment.iter().copied());
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(LISTENERS).args(flags);
        Program::ready(command)
    }

    /// The head of a request to `web`, without its last empty line.
    pub fn request(&self, method: &str, path: &str) -> String {
        let port = self.port;
        format!("{method} {path} HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nX-Sandbox-Port: {port}\r\n")
    }
}

const LISTENERS: [&str; 3] = [
    "--http-bind-address=127.0.0.1:0",
    "--metrics-bind-address=127.0.0.1:0",
    "--health-probe-bind-address=127.0.0.1:0",
];

pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandbox-router"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // What surrounds the test must not lead it to another cluster.
    command.env_clear().env("HOME", "/nonexistent");
    command
}

/// Runs it to its end.
pub fn said(command: &mut Command) -> (Output, String) {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

impl Program {
    fn ready(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut listeners = BTreeMap::new();
        loop {
            let mut line = String::new();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended early");
            let line: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
            match line["message"].as_str() {
                Some("listening") => {
                    let text = |field: &str| line[field].as_str().unwrap().to_owned();
                    listeners.insert(text("listener"), text("address"));
                }
                Some("router ready") => break,
                _ => {}
            }
        }
        let log = Arc::new(Mutex::new(Vec::new()));
        let sink = log.clone();
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                sink.lock().unwrap().push(serde_json::from_str(&line).unwrap_or(Value::String(line)));
            }
        });
        Self { child, listeners, log }
    }

    /// A file of the process below /proc.
    pub fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    pub fn log(&self) -> Vec<Value> {
        self.log.lock().unwrap().clone()
    }

    pub fn address(&self, listener: &str) -> &str {
        &self.listeners[&format!("{listener}-bind-address")]
    }

    /// Sends a request whose head lacks its last empty line, and reads the whole answer.
    pub fn send(&self, listener: &str, head: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address(listener)).unwrap();
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
        Answer::read(&mut stream)
    }

    pub fn get(&self, listener: &str, path: &str) -> Answer {
        self.send(listener, &format!("GET {path} HTTP/1.1\r\nHost: r\r\n"))
    }

    /// Opens a tunnel to `web`.
    pub fn tunnel(&self, cluster: &Cluster) -> TcpStream {
        let mut tunnel = TcpStream::connect(self.address("http")).unwrap();
        tunnel.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = cluster.request("GET", "/ws");
        let upgrade = format!("{head}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        tunnel.write_all(upgrade.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            tunnel.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
        tunnel
    }

    /// Asks it to end, as a kubelet does.
    pub fn terminate(&self) {
        let killed = Command::new("kill").arg(self.child.id().to_string()).status();
        assert!(killed.expect("kill exists").success());
    }

    pub fn wait(mut self) -> ExitStatus {
        eventually("the program ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Answer {
    pub fn read(stream: &mut TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Self { status: status.unwrap_or_else(|| panic!("no answer: {text:?}")), body: body.to_owned() }
    }
}

pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < until, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The Sandbox and a Pod of it, which is Ready on loopback.
async fn make_web(client: &kube::Client) {
    let post = async |path: &str, object: &Value| -> Value {
        let request = http::Request::post(path).header("content-type", "application/json");
        client.request(request.body(object.to_string().into_bytes()).unwrap()).await.unwrap()
    };
    let container = json!({"name": "main", "image": "image"});
    let sandbox = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "web"},
        "spec": {"podTemplate": {"spec": {"containers": [container]}}},
    });
    let made = post("/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes", &sandbox).await;
    let owner = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "web",
        "uid": made["metadata"]["uid"], "controller": true,
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]},
        "metadata": {
            "name": "web", "labels": {"agents.x-k8s.io/sandbox-name-hash": "1a2b"}, "ownerReferences": [owner],
        },
    });
    post("/api/v1/namespaces/default/pods", &pod).await;
    let status = json!({"status": {
        "phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}],
    }});
    let patch = http::Request::patch("/api/v1/namespaces/default/pods/web/status")
        .header("content-type", "application/merge-patch+json");
    let _: Value = client.request(patch.body(status.to_string().into_bytes()).unwrap()).await.unwrap();
}

/// Answers every request with its own head, after it was let through the gate; an upgraded connection is echoed.
async fn sandbox(listener: tokio::net::TcpListener, gate: Arc<tokio::sync::Semaphore>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    while let Ok((mut stream, _)) = listener.accept().await {
        let gate = gate.clone();
        tokio::spawn(async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => return,
                }
            }
            if head.windows(8).any(|window| window.eq_ignore_ascii_case(b"upgrade:")) {
                let answer =
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
                let _ = stream.write_all(answer).await;
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                return;
            }
            gate.acquire().await.unwrap().forget();
            let answer =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", head.len());
            let _ = stream.write_all(&[answer.as_bytes(), &head].concat()).await;
        });
    }
}
