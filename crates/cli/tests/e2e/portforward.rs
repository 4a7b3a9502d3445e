//! `kubectl port-forward`: the real kubectl, in both of its ways, to a program in a sandbox.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdout};
use std::thread;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::engine::{Engine, eventually, stdout, text};

/// Answers every byte with the same byte, and the end of them with `end`.
const ECHO: &str = r#"
use IO::Socket::INET;
my $listener = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 7000, Listen => 50) or die;
$SIG{CHLD} = "IGNORE";
while (my $client = $listener->accept) {
    next if fork;
    while (sysread($client, my $bytes, 65536)) {
        my $sent = 0;
        $sent += syswrite($client, $bytes, length($bytes) - $sent, $sent) // exit while $sent < length($bytes);
    }
    syswrite($client, "end");
    exit;
}
"#;

/// A kubectl that forwards.
pub struct Forward {
    kubectl: Child,
    /// It tells of every connection; a pipe that nobody holds would kill it.
    _told: BufReader<ChildStdout>,
    pub address: String,
}

impl Forward {
    fn start(engine: &Engine, pod: &str, port: u16, websockets: bool) -> Self {
        Self::start_in(engine, "default", pod, port, websockets)
    }

    pub fn start_in(engine: &Engine, namespace: &str, to: &str, port: u16, websockets: bool) -> Self {
        let mut kubectl = engine
            .kubectl_command(&["port-forward", "--namespace", namespace, to, &format!(":{port}")])
            .args(["--address", "127.0.0.1"])
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets.to_string())
            .spawn()
            .expect("kubectl can be started");
        let mut line = String::new();
        let mut told = BufReader::new(kubectl.stdout.take().unwrap());
        told.read_line(&mut line).unwrap();
        let address = line.split(' ').nth(2).unwrap_or_default().to_owned();
        if address.is_empty() {
            panic!("kubectl forwards nothing: {}", text(&kubectl.wait_with_output().unwrap()));
        }
        Self { kubectl, _told: told, address }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).unwrap()
    }

    /// What it said on stderr, once it has ended by itself.
    pub fn last_words(mut self) -> String {
        eventually("kubectl ends", || self.kubectl.try_wait().unwrap().is_some());
        let mut said = String::new();
        self.kubectl.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

fn start_echo(engine: &Engine, name: &str) {
    let container = json!({"name": "main", "image": "host", "command": ["perl", "-e", ECHO]});
    let manifest = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}},
    });
    stdout(&engine.kubectl_apply(&manifest.to_string()));
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", &format!("sandbox/{name}"), "--timeout=30s"]));
    // Ready is when it runs; this is when it listens.
    let probe = "IO::Socket::INET->new('127.0.0.1:7000') or exit 1";
    let listens = || engine.asb(&["exec", name, "--", "perl", "-MIO::Socket::INET", "-e", probe]);
    eventually("the program listens", || listens().status.success());
}

/// Sends everything, says that this is all, and returns what came back.
fn echo(mut connection: TcpStream, sent: &[u8]) -> Vec<u8> {
    let mut writer = connection.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            writer.write_all(sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        connection.read_to_end(&mut received).unwrap();
        received
    })
}

#[test]
fn kubectl_forwards_many_connections_at_once_and_the_end_of_each_direction() {
    let engine = Engine::start();
    start_echo(&engine, "echo");
    for websockets in [true, false] {
        let forward = Forward::start(&engine, "echo", 7000, websockets);
        thread::scope(|scope| {
            for number in 0..12_u8 {
                let forward = &forward;
                scope.spawn(move || {
                    let sent: Vec<u8> = (0..700_000_u32).map(|at| (at as u8) ^ number).collect();
                    let received = echo(forward.connect(), &sent);
                    assert!(received.strip_suffix(b"end") == Some(&*sent), "connection {number} was garbled");
                });
            }
        });
        for round in 0..100 {
            assert_eq!(echo(forward.connect(), b"x"), b"xend", "connection {round} after the others");
        }
    }
    engine.stop();
}

#[tokio::test]
async fn kube_rs_forwards_a_port() {
    let engine = Engine::start();
    start_echo(&engine, "echo");
    let pods: kube::Api<Pod> = kube::Api::default_namespaced(engine.client().await);
    let mut forwarder = pods.portforward("echo", &[7000]).await.unwrap();
    let mut stream = forwarder.take_stream(7000).unwrap();
    let sent = vec![7; 300_000];
    let mut received = vec![0; sent.len()];
    let (mut from, mut to) = tokio::io::split(&mut stream);
    let (written, read) = tokio::join!(to.write_all(&sent), from.read_exact(&mut received));
    written.and(read).unwrap();
    assert!(sent == received);
    drop(stream);
    forwarder.abort();
    engine.stop();
}

#[test]
fn kubectl_is_told_why_a_port_refuses() {
    let engine = Engine::start();
    stdout(&engine.asb(&["run", "--detach", "--name", "deaf"]));
    for websockets in [true, false] {
        let forward = Forward::start(&engine, "deaf", 7001, websockets);
        assert_eq!(echo(forward.connect(), b""), b"", "the connection ends");
        let said = forward.last_words();
        assert!(
            said.contains("error forwarding port 7001 to pod deaf") && said.contains("nothing listens"),
            "{said}"
        );
    }
    let nobody = engine.kubectl(&["port-forward", "nobody", ":80"]);
    assert!(!nobody.status.success() && text(&nobody).contains("not found"), "{}", text(&nobody));
    let plain =
        engine.kubectl(&["get", "--raw", "/api/v1/namespaces/default/pods/deaf/portforward?ports=80"]);
    assert!(text(&plain).contains("needs an upgrade"), "{}", text(&plain));
    engine.stop();
}

#[test]
fn forwarded_connections_end_with_the_client_the_pod_and_the_engine() {
    let mut engine = Engine::start();
    start_echo(&engine, "echo");
    let connections = |engine: &Engine| {
        let count = "grep -ci ':1B58 .* 01 ' /proc/net/tcp || true"; // 7000, established
        stdout(&engine.asb(&["exec", "echo", "--", "sh", "-c", count])).trim().to_owned()
    };
    let forward = Forward::start(&engine, "echo", 7000, true);
    let open = forward.connect();
    eventually("the connection is made", || connections(&engine) != "0");
    drop(forward);
    eventually("no connection outlives kubectl", || connections(&engine) == "0");
    drop(open);

    let forward = Forward::start(&engine, "echo", 7000, true);
    let mut open = forward.connect();
    open.write_all(b"x").unwrap();
    open.read_exact(&mut [0]).unwrap();
    stdout(&engine.kubectl(&["delete", "pod", "echo"]));
    assert_eq!(open.read(&mut [0]).unwrap_or(0), 0, "the connection ends with the Pod");
    drop(forward);

    eventually("the Pod is back", || text(&engine.kubectl(&["get", "pod", "echo"])).contains("Running"));
    let forward = Forward::start(&engine, "echo", 7000, true);
    engine.kill();
    let said = forward.last_words();
    assert!(said.contains("lost connection"), "{said}");
    engine.restart();
    engine.stop();
}

#[test]
fn connection_whose_pod_does_not_read_is_cut_off_before_the_others_suffer_long() {
    let engine = Engine::start();
    start_echo(&engine, "echo");
    let deaf = "my $l = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 7002, Listen => 5) or die; \
        my @held; while (my $c = $l->accept) { push @held, $c }";
    let script = format!("perl -MIO::Socket::INET -e \"{}\" > /dev/null 2>&1 &", deaf.replace('$', "\\$"));
    stdout(&engine.asb(&["exec", "echo", "--", "sh", "-c", &script]));
    let probe = "IO::Socket::INET->new('127.0.0.1:7002') or exit 1";
    eventually("the deaf one listens", || {
        engine.asb(&["exec", "echo", "--", "perl", "-MIO::Socket::INET", "-e", probe]).status.success()
    });
    for websockets in [true, false] {
        let mut kubectl = engine
            .kubectl_command(&["port-forward", "echo", ":7000", ":7002", "--address", "127.0.0.1"])
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets.to_string())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(kubectl.stdout.take().unwrap());
        let mut address = || {
            let mut line = String::new();
            told.read_line(&mut line).unwrap();
            line.split(' ').nth(2).unwrap().to_owned()
        };
        let (good, deaf) = (address(), address());
        let open = TcpStream::connect(&good).unwrap();
        let mut stuck = TcpStream::connect(&deaf).unwrap();
        let flood = thread::spawn(move || {
            let cut_off = (0..100).find_map(|_| stuck.write_all(&[0; 1 << 20]).err());
            assert!(cut_off.is_some(), "a hundred megabytes are more than may wait");
        });
        assert_eq!(echo(open, b"still here"), b"still hereend");
        flood.join().unwrap();
        assert_eq!(echo(TcpStream::connect(&good).unwrap(), b"and after"), b"and afterend");
        kubectl.kill().unwrap();
        kubectl.wait().unwrap();
    }
    engine.stop();
}
