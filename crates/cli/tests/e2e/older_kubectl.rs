//! What people do all day, with the kubectl of a Kubernetes that is some years old.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Output, Stdio};

use crate::engine::{Engine, eventually, stdout, text};

const MANIFEST: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: pages}
data: {index.html: "hello\n"}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: pages, configMap: {name: pages}}]
  containers:
  - name: main
    image: host
    command: [sh, -c, "echo begun; exec python3 -m http.server 8080 --directory /pages"]
    ports: [{name: web, containerPort: 8080}]
    readinessProbe: {tcpSocket: {port: web}, periodSeconds: 1, failureThreshold: 60}
    volumeMounts: [{name: pages, mountPath: /pages}]
---
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: box}
spec:
  podTemplate:
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: host, command: [sleep, "1000"]}]
"#;

#[test]
fn older_kubectl_does_all_that_people_do_with_one() {
    let engine = Engine::start();
    let program = asb_testing::tool("tools/kubectl/build");
    let command = |arguments: &[&str]| {
        let mut command = engine.program(program.to_str().unwrap(), arguments);
        command.env("HOME", engine.data_dir.path()).current_dir(engine.data_dir.path());
        command
    };
    let kubectl = |arguments: &[&str]| -> Output { command(arguments).output().unwrap() };
    let version = stdout(&kubectl(&["version"]));
    assert!(version.contains("Client Version: v1.32.") && version.contains("Server Version: "), "{version}");

    std::fs::write(engine.data_dir.path().join("all.yaml"), MANIFEST).unwrap();
    let server_side = ["apply", "--server-side", "-f", "all.yaml"];
    for arguments in [&["apply", "-f", "all.yaml"][..], &["apply", "-f", "all.yaml"], &server_side] {
        stdout(&kubectl(arguments));
    }
    let unchanged = stdout(&kubectl(&["diff", "-f", "all.yaml"]));
    assert_eq!(unchanged, "", "nothing is to be applied any more");
    stdout(&kubectl(&["wait", "--for=condition=Ready", "pod/web", "sandbox/box", "--timeout=60s"]));
    let row = stdout(&kubectl(&["get", "pods", "-l", "app=web", "--no-headers"]));
    assert!(row.starts_with("web ") && row.contains(" 1/1 ") && row.contains(" Running "), "{row}");
    assert!(
        stdout(&kubectl(&["get", "sandboxes,pods,nodes", "-o", "wide"]))
            .contains("sandbox.agents.x-k8s.io/box")
    );
    eventually("describe tells what happened", || {
        let described = stdout(&kubectl(&["describe", "pod", "web"]));
        described.contains("Readiness:") && described.contains("Container started")
    });
    let explained = stdout(&kubectl(&["explain", "sandbox.spec.podTemplate"]));
    assert!(explained.contains("The Pod that the sandbox runs in."), "{explained}");
    let explained = stdout(&kubectl(&["explain", "sandbox.spec", "--recursive"]));
    assert!(
        explained.contains("What the sandbox should be.") && !explained.contains("<empty>"),
        "{explained}"
    );
    assert!(stdout(&kubectl(&["api-resources"])).contains("sandboxwarmpools"));
    assert!(stdout(&kubectl(&["logs", "web"])).starts_with("begun\n"));

    let exec = ["exec", "-i", "web", "--", "sh", "-c", "cat; exit 7"];
    let mut exec = command(&exec).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    exec.stdin.take().unwrap().write_all(b"through\n").unwrap();
    let ended = exec.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), text(&ended).as_str()), (Some(7), "through\n"));
    stdout(&kubectl(&["cp", "all.yaml", "web:/tmp/copied"]));
    stdout(&kubectl(&["cp", "web:/tmp/copied", "back.yaml"]));
    assert_eq!(std::fs::read_to_string(engine.data_dir.path().join("back.yaml")).unwrap(), MANIFEST);

    let mut forward = command(&["port-forward", "pod/web", ":8080"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(forward.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    // `Forwarding from 127.0.0.1:41234 -> 8080`
    let address = line.split_whitespace().nth(2).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\nhello\n"), "{answer}");
    forward.kill().unwrap();
    forward.wait().unwrap();

    stdout(&kubectl(&["label", "pod", "web", "kind=mine"]));
    stdout(&kubectl(&[
        "patch",
        "sandbox",
        "box",
        "--type=merge",
        "-p",
        r#"{"metadata":{"labels":{"a":"b"}}}"#,
    ]));
    let replaced = stdout(&kubectl(&["get", "configmap", "pages", "-o", "yaml"])).replace("hello", "bye");
    std::fs::write(engine.data_dir.path().join("map.yaml"), replaced).unwrap();
    stdout(&kubectl(&["replace", "-f", "map.yaml"]));
    assert!(
        stdout(&kubectl(&["run", "once", "--image=host", "--restart=Never", "--", "true"]))
            .contains("created")
    );
    stdout(&kubectl(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/once", "--timeout=60s"]));
    assert!(stdout(&kubectl(&["top", "node"])).contains("CPU"));
    stdout(&kubectl(&["delete", "pod", "once", "--now"]));
    stdout(&kubectl(&["delete", "-f", "all.yaml", "--timeout=60s"]));
    assert_eq!(stdout(&kubectl(&["get", "pods,sandboxes", "-o", "name"])), "");
    engine.stop();
}
