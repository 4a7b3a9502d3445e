//! exec and attach as people and programs use them: terminals, pipes, WebSockets and SPDY.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, LogParams};
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::engine::{Engine, eventually, stdout, text};
use crate::terminal::Terminal;

/// An unchanged kubectl in one of its two ways of speaking.
fn kubectl(engine: &Engine, websockets: bool, args: &[&str]) -> Command {
    let mut command = engine.kubectl_command(args);
    command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets.to_string());
    command
}

fn with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn run_pod(engine: &Engine, name: &str, container: serde_json::Value) {
    let mut main = json!({"name": "main", "image": "host", "imagePullPolicy": "IfNotPresent"});
    main.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main]},
    });
    stdout(&engine.kubectl_apply(&pod.to_string()));
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=30s"]));
}

#[test]
fn exec_carries_streams_and_exit_codes_both_ways_of_speaking() {
    let engine = Engine::start();
    stdout(&engine.asb(&["run", "--detach", "--name", "box"]));
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    for websockets in [true, false] {
        let script = "cat; echo problem >&2; exit 42";
        let output = with_input(
            kubectl(&engine, websockets, &["exec", "-i", "box", "--", "sh", "-c", script]),
            &large,
        );
        assert!(output.stdout == large, "{} bytes came back, {}", output.stdout.len(), text(&output));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with("problem\n"), "{said}");
        assert_eq!(output.status.code(), Some(42), "{said}");
        let missing = kubectl(&engine, websockets, &["exec", "box", "--", "pyhton"]).output().unwrap();
        assert!(!missing.status.success() && text(&missing).contains("pyhton"), "{}", text(&missing));
        let killed = kubectl(&engine, websockets, &["exec", "box", "--", "sh", "-c", "kill -9 $$"]).output();
        assert_eq!(killed.unwrap().status.code(), Some(137));
    }
    engine.stop();
}

#[test]
fn exec_in_a_terminal_has_its_size_and_follows_it() {
    let engine = Engine::start();
    stdout(&engine.asb(&["run", "--detach", "--name", "box"]));
    let shell = ["exec", "-it", "box", "--", "sh"];
    let ways = [kubectl(&engine, true, &shell), kubectl(&engine, false, &shell), engine.command(&shell)];
    for program in ways {
        let mut terminal = Terminal::start(&program, 91, 33);
        // Clients send the size beside the input: the shell may be asked before it has arrived.
        eventually("the first size arrives", || {
            terminal.enter("echo size $(stty size)\n");
            terminal.seen().contains("size 33 91")
        });
        terminal.resize(101, 44);
        eventually("the new size arrives", || {
            terminal.enter("echo now $(stty size)\n");
            terminal.seen().contains("now 44 101")
        });
        terminal.enter("echo cat is number $((1+1)); cat\n");
        terminal.shows("cat is number 2");
        terminal.enter("through cat\n");
        terminal.shows("through cat\r\nthrough cat\r\n");
        terminal.enter("\u{3}");
        terminal.shows("^C");
        terminal.enter("exit 3\n");
        assert_eq!(terminal.ends().code(), Some(3), "{program:?}");
    }
    engine.stop();
}

#[test]
fn kubectl_run_in_a_terminal_is_the_main_process_itself() {
    let engine = Engine::start();
    for websockets in [true, false] {
        let args = [
            "run",
            "box",
            "-it",
            "--rm",
            "--restart=Never",
            "--image=host",
            "--image-pull-policy=IfNotPresent",
        ];
        let args = [&args[..], &["--", "sh"]].concat();
        let mut terminal = Terminal::start(&kubectl(&engine, websockets, &args), 77, 22);
        // What the shell said before somebody was there to see it is in its log; kubectl says the same.
        terminal.shows("try pressing enter");
        terminal.enter("\n");
        terminal.shows("# ");
        terminal.enter("echo $((6*7)) on $TERM\n");
        terminal.shows("42 on xterm");
        eventually("the size arrives", || {
            terminal.enter("stty size\n");
            terminal.seen().contains("22 77")
        });
        terminal.enter("exit 5\n");
        terminal.shows("pod \"box\" deleted");
        assert_eq!(terminal.ends().code(), Some(5));
    }
    engine.stop();
}

#[test]
fn kubectl_run_with_piped_input_ends_with_it() {
    let engine = Engine::start();
    for websockets in [true, false] {
        let args = ["run", "box", "-i", "--rm", "--quiet", "--restart=Never", "--image=host"];
        let args = [&args[..], &["--image-pull-policy=IfNotPresent", "--", "sort", "-r"]].concat();
        let output = with_input(kubectl(&engine, websockets, &args), b"a\nc\nb\n");
        assert!(stdout(&output).starts_with("c\nb\na\n"), "{}", text(&output));
    }
    engine.stop();
}

#[test]
fn attach_comes_and_goes_while_the_main_process_stays() {
    let mut engine = Engine::start();
    run_pod(&engine, "shell", json!({"stdin": true, "tty": true, "command": ["sh"]}));
    for (round, websockets) in [true, false, true].into_iter().enumerate() {
        let mut terminal =
            Terminal::start(&kubectl(&engine, websockets, &["attach", "-it", "shell"]), 80, 24);
        eventually("the shell answers", || {
            terminal.enter("echo round $((COUNT))\n");
            terminal.seen().contains(&format!("round {round}"))
        });
        terminal.enter("COUNT=$((COUNT+1)); echo counted $COUNT\n");
        terminal.shows(&format!("counted {}", round + 1));
        drop(terminal);
        // The next engine finds the terminal where the last one left it.
        engine.kill();
        engine.restart();
    }
    let log = text(&engine.kubectl(&["logs", "shell"]));
    assert!(log.contains("counted 3"), "{log}");
    stdout(&engine.kubectl(&["delete", "pod", "shell"]));
    engine.stop();
}

#[test]
fn attach_is_refused_where_there_is_nothing_to_attach_to() {
    let engine = Engine::start();
    run_pod(&engine, "deaf", json!({"command": ["sleep", "1000"]}));
    let path = "/api/v1/namespaces/default/pods/deaf/attach";
    for (query, names) in
        [("stdout=true&stdin=true", "stdin:"), ("stdout=true&tty=true", "tty:"), ("", "at least one")]
    {
        let refused = engine.kubectl(&["get", "--raw", &format!("{path}?{query}")]);
        assert!(text(&refused).contains(names), "{}", text(&refused));
    }
    let plain = engine.kubectl(&["get", "--raw", &format!("{path}?stdout=true")]);
    assert!(text(&plain).contains("needs an upgrade"), "{}", text(&plain));
    stdout(&engine.kubectl(&["delete", "pod", "deaf"]));
    engine.stop();
}

#[test]
fn run_that_is_told_to_end_takes_its_sandbox_with_it() {
    let engine = Engine::start();
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let mut run = engine.command(&["run", "--", "sh", "-c", "echo started; sleep 1000"]).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(run.stdout.take().unwrap()), &mut line)
            .unwrap();
        assert_eq!(line, "started\n");
        assert!(Command::new("kill").args([signal, &run.id().to_string()]).status().unwrap().success());
        assert_eq!(run.wait().unwrap().code(), Some(code), "{signal}");
        assert!(text(&engine.asb(&["ps"])).contains("no sandboxes"), "nothing is left after {signal}");
    }
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_prefers_to_wait_gets_the_output_of_a_pod_that_is_made_later() {
    let engine = Engine::start();
    let pods = |client| kube::Api::<Pod>::default_namespaced(client);
    let (patient, hasty) = (
        pods(engine.client_with(&[("prefer", "wait=60")]).await),
        pods(engine.client_with(&[("prefer", "wait=1")]).await),
    );
    let refused = hasty.logs("late", &LogParams::default()).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 404), "{refused}");

    let log = tokio::spawn({
        let patient = patient.clone();
        async move { patient.logs("late", &LogParams { follow: true, ..LogParams::default() }).await }
    });
    let exec = tokio::spawn({
        let patient = patient.clone();
        async move {
            let params = AttachParams::default().stderr(false);
            let mut process = patient.exec("late", ["echo", "beside"], &params).await.unwrap();
            let mut said = String::new();
            process.stdout().unwrap().read_to_string(&mut said).await.unwrap();
            said
        }
    });
    run_pod(
        &engine,
        "late",
        json!({"command": ["sh", "-c", "echo early; while [ ! -e /tmp/end ]; do sleep 0.05; done"]}),
    );
    assert_eq!(exec.await.unwrap(), "beside\n");
    let wrong = LogParams { container: Some("none".to_owned()), ..LogParams::default() };
    let refused = patient.logs("late", &wrong).await.unwrap_err();
    assert!(refused.to_string().contains("container none is not valid"), "told at once: {refused}");
    engine.kubectl(&["exec", "late", "--", "touch", "/tmp/end"]);
    assert_eq!(log.await.unwrap().unwrap(), "early\n");
    stdout(&engine.kubectl(&["delete", "pod", "late"]));
    engine.stop();
}
