//! The commands of `asb`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::Value;

use crate::engine::{Engine, asb_in, assert_nothing_left, eventually, stdout, text};

#[test]
fn run_starts_what_is_missing_prints_the_output_and_leaves_only_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| asb_in(dir.path(), args).output().unwrap();
    let first = run(&["run", "--", "echo", "hello"]);
    assert_eq!(stdout(&first), "hello\n", "only the command's data is on stdout");
    assert!(String::from_utf8_lossy(&first.stderr).contains("starting the engine"), "it says what it starts");
    let second = run(&["run", "--", "echo", "again"]);
    assert_eq!(
        (stdout(&second).as_str(), second.stderr.as_slice()),
        ("again\n", &b""[..]),
        "nothing to start, nothing to say"
    );
    let down = run(&["down"]);
    assert!(down.status.success(), "{}", text(&down));
    assert_nothing_left(dir.path());
    let none = run(&["ps"]);
    assert!(!none.status.success() && text(&none).contains("asb up"), "{}", text(&none));
}

#[test]
fn streams_and_exit_codes_pass_through() {
    let engine = Engine::start();
    let run = engine.asb(&["run", "--env", "A=b c", "--", "sh", "-c", "echo out $A; echo err >&2; exit 42"]);
    assert_eq!(run.status.code(), Some(42));
    assert_eq!(String::from_utf8_lossy(&run.stdout), "out b c\n");
    assert_eq!(String::from_utf8_lossy(&run.stderr), "err\n");
    let cat = engine.asb_with_input(&["run", "-i", "--", "cat"], "through\nthe sandbox\n");
    assert_eq!(stdout(&cat), "through\nthe sandbox\n");
    let large = engine.asb(&["run", "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"]);
    assert_eq!(stdout(&large).len(), 3_000_000, "nothing of a large output is lost");
    engine.stop();
}

#[test]
fn command_of_a_detached_sandbox_is_its_main_process_and_nobody_waits_for_it() {
    let engine = Engine::start();
    let script = "echo begun; exec sleep 1000";
    let started = engine.asb(&["run", "--detach", "--name", "long", "--", "sh", "-c", script]);
    assert_eq!(stdout(&started), "long\n");
    let mut followed = engine.command(&["logs", "--follow", "long"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(followed.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    followed.kill().unwrap();
    followed.wait().unwrap();
    // However short it is, it was started; what it said is there for as long as the sandbox.
    assert_eq!(stdout(&engine.asb(&["run", "-d", "--name", "short", "--", "echo", "done"])), "short\n");
    assert_eq!(stdout(&engine.asb(&["logs", "--follow", "short"])), "done\n");
    let missing = engine.asb(&["run", "-d", "--name", "missing", "--", "nosuchprogram"]);
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("nosuchprogram"));
    let left: Value = serde_json::from_str(&stdout(&engine.asb(&["ps", "--json"]))).unwrap();
    assert_eq!(left.as_array().map(Vec::len), Some(2), "{left}");
    stdout(&engine.asb(&["rm", "long", "short"]));
    assert_nothing_left(engine.data_dir.path());
    engine.stop();
}

#[test]
fn sandbox_that_stays_can_be_listed_used_and_removed() {
    let engine = Engine::start();
    assert_eq!(stdout(&engine.asb(&["run", "--detach", "--name", "web"])), "web\n");
    let rows: Value = serde_json::from_str(&stdout(&engine.asb(&["ps", "--json"]))).unwrap();
    assert_eq!(
        (&rows[0]["name"], &rows[0]["status"], &rows[0]["image"]),
        (&"web".into(), &"Ready".into(), &"host".into())
    );
    assert!(stdout(&engine.asb(&["ps"])).contains("web"));
    stdout(&engine.asb(&["exec", "web", "--", "sh", "-c", "echo 1 > ~/state"]));
    assert_eq!(
        stdout(&engine.asb(&["exec", "web", "--", "sh", "-c", "cat ~/state"])),
        "1\n",
        "it is stateful"
    );
    assert_eq!(stdout(&engine.asb(&["rm", "web"])), "web\n");
    assert_nothing_left(engine.data_dir.path());
    engine.stop();
}

#[test]
fn logs_show_what_the_main_process_printed_and_follow_it() {
    let engine = Engine::start();
    let manifest = r#"
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: talker}
spec:
  podTemplate:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: host, command: ["sh", "-c", "echo one; echo two >&2; sleep 1; echo three"]}
"#;
    stdout(&engine.kubectl_apply(manifest));
    eventually("the sandbox has started", || text(&engine.asb(&["logs", "talker"])).contains("two"));
    let followed = engine.asb(&["logs", "-f", "talker"]);
    let mut lines: Vec<_> = stdout(&followed).lines().map(str::to_owned).collect();
    assert_eq!(lines.pop().as_deref(), Some("three"), "follow ends with the process, after its last line");
    lines.sort();
    assert_eq!(lines, ["one", "two"]);
    assert_eq!(stdout(&engine.asb(&["logs", "--tail", "1", "talker"])), "three\n");
    engine.stop();
}

/// Prints `tick` until there is a file `/tmp/stop`.
const TICKER: &str = r#"
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: ticker}
spec:
  podTemplate:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: host
        command: ["sh", "-c", "until [ -e /tmp/stop ]; do echo tick; sleep 0.05; done; echo oops >&2; echo last; exit 3"]
"#;

/// The first line of a program's output, and the rest of it.
fn first_line(program: &mut Child) -> (String, BufReader<ChildStdout>) {
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    (line, output)
}

#[test]
fn kubectl_attach_shows_what_comes_until_the_main_process_ends() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(TICKER));
    eventually("it has started", || text(&engine.asb(&["logs", "ticker"])).contains("tick\n"));
    let mut attached = engine.kubectl_command(&["attach", "ticker"]).spawn().unwrap();
    let (first, mut rest) = first_line(&mut attached);
    assert_eq!(first, "tick\n");
    // It may be killed with the main process that it ends; so may those like it elsewhere.
    engine.asb(&["exec", "ticker", "--", "touch", "/tmp/stop"]);
    let mut last = String::new();
    rest.read_to_string(&mut last).unwrap();
    let ended = attached.wait_with_output().unwrap();
    assert!(last.ends_with("last\n"), "{last}");
    assert!(ended.stderr.ends_with(b"\noops\n"), "each stream is itself: {}", text(&ended));
    assert!(ended.status.success(), "the process ended by itself, which is no error of attach");
    engine.stop();
}

#[test]
fn following_a_log_ends_with_an_error_when_the_engine_is_killed() {
    let mut engine = Engine::start();
    stdout(&engine.kubectl_apply(TICKER));
    eventually("it has started", || text(&engine.asb(&["logs", "ticker"])).contains("tick\n"));
    let mut following = engine.command(&["logs", "-f", "ticker"]).spawn().unwrap();
    let (first, mut rest) = first_line(&mut following);
    assert_eq!(first, "tick\n");
    engine.kill();
    rest.read_to_string(&mut String::new()).unwrap();
    let ended = following.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.starts_with("error: the connection"), "nothing else: {said}");
    engine.restart();
    engine.stop();
}

#[test]
fn kubeconfig_is_private_and_works_for_kubectl() {
    use std::os::unix::fs::PermissionsExt;
    let engine = Engine::start();
    let path = stdout(&engine.asb(&["kubeconfig"]));
    assert_eq!(path.trim(), engine.kubeconfig().to_str().unwrap());
    let copy = engine.data_dir.path().join("copy");
    let status = engine.command(&["kubeconfig"]).stdout(std::fs::File::create(&copy).unwrap()).status();
    assert!(status.unwrap().success());
    let (copy, original) = (std::fs::read(copy).unwrap(), std::fs::read(engine.kubeconfig()).unwrap());
    assert_eq!(copy, original, "into a file goes the kubeconfig itself");
    for secret in ["kubeconfig", "router.token", "engine.json", "store.redb", "store.journal"] {
        let mode = engine.data_dir.path().join(secret).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{secret} must be for its owner only, is {mode:o}");
    }
    assert!(stdout(&engine.kubectl(&["get", "nodes,storageclasses,runtimeclasses"])).contains("native"));
    engine.stop();
}

#[test]
fn second_engine_in_one_directory_is_refused() {
    let engine = Engine::start();
    let second = engine.asb(&["up"]);
    assert!(!second.status.success());
    assert!(text(&second).contains("already runs") && text(&second).contains("hint: "), "{}", text(&second));
    let detached = engine.asb(&["up", "--detach", "--json"]);
    let info: Value = serde_json::from_str(&stdout(&detached)).unwrap();
    assert_eq!(info["pid"], engine.info["pid"], "up --detach finds the one that runs");
    engine.stop();
}

#[test]
fn exec_ends_with_an_error_when_the_engine_is_killed() {
    let mut engine = Engine::start();
    stdout(&engine.asb(&["run", "--detach", "--name", "web"]));
    let mut exec =
        engine.command(&["exec", "web", "--", "sh", "-c", "echo started; sleep 60"]).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(exec.stdout.as_mut().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "started\n");
    engine.kill();
    eventually("the command returns", || exec.try_wait().unwrap().is_some());
    let ended = exec.wait_with_output().unwrap();
    assert!(!ended.status.success() && text(&ended).contains("lost"), "{}", text(&ended));
    engine.restart();
    engine.stop();
}
