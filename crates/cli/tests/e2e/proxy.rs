//! `pods/proxy` and `services/proxy`: kubectl, a browser's requests through `kubectl proxy`, and the Python client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};

use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};
use crate::python::python;

/// Tells what it was asked; `/switch` goes over to a protocol that answers every line with the same line.
const SERVER: &str = r#"
import http.server, json, socket, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        if self.path == "/switch":
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "echo")
            self.end_headers()
            for line in self.rfile:
                self.wfile.write(line)
            self.close_connection = True
            return
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size).decode()
                self.rfile.readline()
            self.rfile.readline()
        headers = {name.lower(): value for name, value in self.headers.items()}
        said = json.dumps({"host": socket.gethostname(), "method": self.command, "path": self.path,
                           "headers": headers, "body": body}).encode()
        self.send_response(302 if self.path == "/away" else 404 if self.path == "/none" else 200)
        if self.path == "/away":
            self.send_header("Location", "/here?x=1")
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said)
    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"#;

fn serve(engine: &Engine, name: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": "host", "command": ["python3", "-c", SERVER],
            "ports": [{"name": "web", "containerPort": 8000}],
            "readinessProbe": {"httpGet": {"port": "web", "path": "/"}, "periodSeconds": 1},
        }]},
    });
    stdout(&engine.kubectl_apply(&pod.to_string()));
}

fn ready(engine: &Engine) {
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod", "-l", "app=web", "--timeout=30s"]));
}

fn raw(engine: &Engine, path: &str) -> Value {
    serde_json::from_str(&stdout(&engine.kubectl(&["get", "--raw", path]))).unwrap()
}

/// What kubectl says when a request fails.
fn refused(engine: &Engine, path: &str) -> String {
    let output = engine.kubectl(&["get", "--raw", path]);
    assert!(!output.status.success(), "{}", text(&output));
    text(&output)
}

/// `kubectl proxy` on a port of this machine.
struct Proxy(Child, String);

impl Proxy {
    fn start(engine: &Engine) -> Self {
        let mut kubectl = engine.kubectl_command(&["proxy", "--port=0"]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(kubectl.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        Self(kubectl, address)
    }

    /// Sends a request as it is written here, and returns the head and the body of the answer.
    fn ask(&self, request: &str) -> (String, Value) {
        let mut connection = TcpStream::connect(&self.1).unwrap();
        let request = request.replacen("\r\n", &format!("\r\nHost: {}\r\nConnection: close\r\n", self.1), 1);
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), serde_json::from_str(body).unwrap_or_default())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const POD: &str = "/api/v1/namespaces/default/pods";
const SERVICE: &str = "/api/v1/namespaces/default/services";

#[test]
fn a_program_in_a_pod_is_asked_through_the_api() {
    let engine = Engine::start();
    serve(&engine, "web");
    ready(&engine);
    for id in ["web", "web:8000", "http:web:8000"] {
        let asked = raw(&engine, &format!("{POD}/{id}/proxy/a/b/?q=1&q=2"));
        assert_eq!((&asked["method"], &asked["path"]), (&json!("GET"), &json!("/a/b/?q=1&q=2")), "{id}");
        assert_eq!(asked["headers"]["authorization"], Value::Null, "the token is not the Pod's business");
        assert_eq!(asked["headers"]["x-forwarded-uri"], format!("{POD}/{id}/proxy/a/b/"));
    }
    assert_eq!(raw(&engine, &format!("{POD}/web/proxy"))["path"], "/", "a page is one below a directory");

    let proxy = Proxy::start(&engine);
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let (head, asked) = proxy.ask(&format!(
            "{method} {POD}/web/proxy/thing HTTP/1.1\r\nX-Mine: 1\r\nContent-Length: 4\r\n\r\nbody"
        ));
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(!head.to_lowercase().contains("access-control-allow-origin"), "{head}");
        assert_eq!((&asked["method"], &asked["body"]), (&json!(method), &json!("body")));
        assert_eq!((&asked["headers"]["x-mine"], &asked["path"]), (&json!("1"), &json!("/thing")));
    }
    let (head, _) = proxy.ask(&format!("HEAD {POD}/web/proxy/ HTTP/1.1\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let (head, _) = proxy.ask(&format!("GET {POD}/web/proxy/none HTTP/1.1\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    let (head, _) = proxy.ask(&format!("GET {POD}/web/proxy/away HTTP/1.1\r\n\r\n"));
    assert!(head.contains(&format!("Location: {POD}/web/proxy/here?x=1")), "{head}");
    let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let (_, asked) = proxy.ask(&format!("POST {POD}/web/proxy/thing HTTP/1.1\r\n{chunked}"));
    assert_eq!(asked["body"], "abcde");

    let mut connection = TcpStream::connect(&proxy.1).unwrap();
    let upgrade = format!(
        "GET {POD}/web/proxy/switch HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
        proxy.1
    );
    connection.write_all(upgrade.as_bytes()).unwrap();
    let mut answer = BufReader::new(connection.try_clone().unwrap());
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(answer.read_line(&mut line).unwrap() > 0, "it switches");
    }
    for word in ["one\n", "two\n"] {
        connection.write_all(word.as_bytes()).unwrap();
        line.clear();
        answer.read_line(&mut line).unwrap();
        assert_eq!(line, word);
    }
    drop((connection, answer, proxy));

    for (path, said) in [
        ("ftp:web:21/proxy/", "invalid pod request \"ftp:web:21\""),
        ("gone/proxy/", "pods \"gone\" not found"),
        ("web:7/proxy/", "error trying to reach service: dial tcp"),
        ("web:7/proxy/", ":7: connect: connection refused"),
    ] {
        let refused = refused(&engine, &format!("{POD}/{path}"));
        assert!(refused.contains(said), "{path}: {refused}");
    }
    stdout(&engine.kubectl(&["delete", "pod", "web", "--now"]));
    engine.stop();
}

#[test]
fn a_service_answers_for_its_ready_pods() {
    let engine = Engine::start();
    stdout(&engine.kubectl(&["create", "service", "clusterip", "web", "--tcp=80:8000"]));
    let selector = json!({"spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}]}});
    stdout(&engine.kubectl(&["patch", "service", "web", "--type=merge", "-p", &selector.to_string()]));
    let nobody = refused(&engine, &format!("{SERVICE}/web:80/proxy/"));
    assert!(nobody.contains("no endpoints available for service \"web\""), "{nobody}");
    serve(&engine, "one");
    serve(&engine, "two");
    ready(&engine);
    for id in ["web:80", "web:http", "http:web:http"] {
        let mut hosts = std::collections::BTreeSet::new();
        eventually("both Pods answer", || {
            hosts.insert(raw(&engine, &format!("{SERVICE}/{id}/proxy/where"))["host"].to_string());
            hosts.len() == 2
        });
    }
    let wrong = refused(&engine, &format!("{SERVICE}/web:81/proxy/"));
    assert!(wrong.contains("no service port 81 found for service \"web\""), "{wrong}");
    let gone = refused(&engine, &format!("{SERVICE}/gone:80/proxy/"));
    assert!(gone.contains("services \"gone\" not found"), "{gone}");
    let unnamed = refused(&engine, &format!("{SERVICE}/web/proxy/"));
    assert!(unnamed.contains("no endpoints available for service \"web\""), "{unnamed}");

    let router = "/api/v1/namespaces/agent-sandbox-system/services/sandbox-router-svc:8080/proxy/healthz";
    stdout(&engine.kubectl(&["get", "--raw", router]));

    stdout(&engine.kubectl(&["delete", "pod", "--all", "--now"]));
    engine.stop();
}

#[test]
fn the_python_client_asks_pods_and_services() {
    let engine = Engine::start();
    stdout(&engine.kubectl(&["create", "service", "clusterip", "web", "--tcp=80:8000"]));
    stdout(&engine.kubectl(&[
        "patch",
        "service",
        "web",
        "--type=merge",
        "-p",
        r#"{"spec": {"selector": {"app": "web"}}}"#,
    ]));
    serve(&engine, "one");
    ready(&engine);
    let script = "from kubernetes import client, config\nconfig.load_kube_config()\nv1 = client.CoreV1Api()\nprint(v1.connect_get_namespaced_pod_proxy_with_path('one', 'default', 'from/python'))\nprint(v1.connect_get_namespaced_service_proxy_with_path('web:80', 'default', 'from/python'))\nprint(v1.connect_get_namespaced_pod_proxy('one', 'default'))";
    let said =
        Command::new(python()).args(["-c", script]).env("KUBECONFIG", engine.kubeconfig()).output().unwrap();
    let said = stdout(&said);
    assert_eq!(said.matches("/from/python").count(), 4, "each in the path and in X-Forwarded-Uri: {said}");
    stdout(&engine.kubectl(&["delete", "pod", "--all", "--now"]));
    engine.stop();
}
