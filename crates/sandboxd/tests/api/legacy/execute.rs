//! Commands, as a client sees them.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use crate::support::{Daemon, eventually, is_gone};
use serde_json::json;

#[test]
fn health_has_exactly_the_known_body() {
    let daemon = Daemon::start();
    let answer = daemon.get("/");
    assert_eq!(
        (answer.status, answer.text()),
        (200, r#"{"status":"ok","message":"Sandbox Runtime is active."}"#)
    );
}

#[test]
fn a_command_runs_in_the_base_directory_without_a_shell() {
    let daemon = Daemon::start();
    let wanted = json!({"stdout": "hello world\n", "stderr": "", "exit_code": 0, "timed_out": false});
    assert_eq!(daemon.run("echo 'hello world'"), wanted);
    assert_eq!(daemon.run("echo $HOME | cat")["stdout"], "$HOME | cat\n");
    let directory = daemon.path("").canonicalize().unwrap();
    assert_eq!(daemon.run("pwd")["stdout"], format!("{}\n", directory.display()));
}

#[test]
fn streams_are_apart_and_the_exit_code_is_the_commands() {
    let daemon = Daemon::start();
    let outcome = daemon.run("sh -c 'echo out; echo err >&2; exit 7'");
    assert_eq!(outcome, json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 7, "timed_out": false}));
    assert_eq!(daemon.run("sh -c 'kill -9 $$'")["exit_code"], -9);
}

#[test]
fn a_command_has_no_input() {
    assert_eq!(
        Daemon::start().run("cat"),
        json!({"stdout": "", "stderr": "", "exit_code": 0, "timed_out": false})
    );
}

#[test]
fn a_command_that_cannot_run_is_an_answer_with_the_reason() {
    let daemon = Daemon::start();
    for (command, reason) in [
        ("nosuchcmd", "[Errno 2] No such file or directory: 'nosuchcmd'"),
        ("/etc/passwd", "[Errno 13] Permission denied: '/etc/passwd'"),
        ("", "list index out of range"),
        ("echo 'x", "No closing quotation"),
    ] {
        let stderr = format!("Failed to execute command: {reason}");
        let wanted = json!({"stdout": "", "stderr": stderr, "exit_code": 1, "timed_out": false});
        assert_eq!(daemon.run(command), wanted, "{command}");
    }
}

#[test]
fn output_that_is_not_text_is_shown_as_well_as_possible() {
    assert_eq!(Daemon::start().run(r"printf 'a\377b'")["stdout"], "a\u{fffd}b");
}

#[test]
fn output_beyond_the_limit_is_dropped_and_that_is_said() {
    let daemon = Daemon::start_with(&[("SANDBOX_EXEC_MAX_OUTPUT_BYTES", "1000")]);
    let outcome = daemon.run("head -c 300000 /dev/zero");
    assert_eq!(outcome["stdout"].as_str().unwrap().len(), 1000);
    assert_eq!(outcome["exit_code"], 0, "the writer is not broken by the limit");
    assert!(outcome["stderr"].as_str().unwrap().contains("stdout was cut after 1000 bytes"), "{outcome}");
}

#[test]
fn the_callers_limit_ends_the_whole_group_with_124_and_what_it_had_said() {
    let daemon = Daemon::start();
    let command = "sh -c 'echo begun; (sleep 1000 & echo $! > child); sleep 1000'";
    let outcome = daemon.execute(&json!({"command": command, "timeout_seconds": 0.5}));
    assert_eq!(outcome, json!({"stdout": "begun\n", "stderr": "", "exit_code": 124, "timed_out": true}));
    let child = fs::read_to_string(daemon.path("child")).unwrap();
    eventually("the background child is gone", || is_gone(child.trim()));
}

#[test]
fn the_servers_limit_is_a_failure_with_the_known_words() {
    let daemon = Daemon::start_with(&[("SANDBOX_EXEC_TIMEOUT_SECONDS", "0.2")]);
    let outcome = daemon.run("sleep 1000");
    let stderr = "Failed to execute command: Command '['sleep', '1000']' timed out after 0.2 seconds";
    assert_eq!(outcome, json!({"stdout": "", "stderr": stderr, "exit_code": 1, "timed_out": false}));
    let partial = daemon.run("sh -c 'echo begun; sleep 1000'");
    assert_eq!((&partial["stdout"], &partial["exit_code"]), (&json!("begun\n"), &json!(1)));
}

#[test]
fn a_server_limit_that_is_no_number_is_ignored() {
    let daemon = Daemon::start_with(&[("SANDBOX_EXEC_TIMEOUT_SECONDS", "-1")]);
    assert_eq!(daemon.run("true")["exit_code"], 0);
}

#[test]
fn a_warning_that_cannot_be_written_is_dropped() {
    let daemon = Daemon::start_after("exec 2>/dev/full", &[], &[("SANDBOX_EXEC_TIMEOUT_SECONDS", "never")]);
    assert_eq!(daemon.run("true")["exit_code"], 0);
}

#[test]
fn a_client_that_goes_away_takes_its_command_with_it() {
    let daemon = Daemon::start();
    let body = json!({"command": "sh -c 'echo $$ > leader; sleep 1000'"}).to_string();
    let mut stream = daemon.connect();
    let head = format!(
        "POST /execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let leader = || fs::read_to_string(daemon.path("leader")).unwrap_or_default().trim().to_owned();
    eventually("the command runs", || !leader().is_empty());
    drop(stream);
    eventually("the command is gone", || is_gone(&leader()));
}

#[test]
fn a_running_command_delays_nobody() {
    let daemon = Daemon::start();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            daemon.execute(&json!({"command": "sh -c 'touch begun; sleep 1000'", "timeout_seconds": 3}))
        });
        eventually("the command runs", || daemon.path("begun").exists());
        assert_eq!(daemon.get("/").status, 200);
        assert_eq!(daemon.run("echo hi")["stdout"], "hi\n");
        assert!(begun.elapsed() < Duration::from_secs(3), "answered before the command ended");
    });
}

#[test]
fn what_a_command_leaves_in_the_background_does_not_hold_the_answer() {
    let daemon = Daemon::start();
    let begun = Instant::now();
    let outcome = daemon.run("sh -c 'echo started; sleep 30 & echo $! > child'");
    assert_eq!((&outcome["stdout"], &outcome["exit_code"]), (&json!("started\n"), &json!(0)));
    assert!(begun.elapsed() < Duration::from_secs(20));
    let child = fs::read_to_string(daemon.path("child")).unwrap();
    assert!(!is_gone(child.trim()), "a server started in the background goes on");
    daemon.run(&format!("kill {child}"));
}

#[test]
fn a_request_of_the_wrong_shape_is_422_with_the_place_and_the_problem() {
    let daemon = Daemon::start();
    let answer = daemon.post_execute("application/json", br#"{"cmd":"ls"}"#);
    let problem = json!({"type": "missing", "loc": ["body", "command"], "msg": "Field required", "input": {"cmd": "ls"}});
    assert_eq!((answer.status, answer.json()), (422, json!({"detail": [problem]})));
    for (content_type, body) in [
        ("application/json", r#"{"command":5}"#),
        ("application/json", "{"),
        ("application/json", ""),
        ("text/plain", r#"{"command":"ls"}"#),
    ] {
        assert_eq!(daemon.post_execute(content_type, body.as_bytes()).status, 422, "{content_type} {body}");
    }
}

#[test]
fn a_body_above_one_mebibyte_is_refused() {
    let body = json!({"command": "x".repeat(1024 * 1024)}).to_string();
    assert_eq!(Daemon::start().post_execute("application/json", body.as_bytes()).status, 413);
}

#[test]
fn a_daemon_that_is_stopped_kills_what_runs() {
    let mut daemon = Daemon::start();
    let mut stream = daemon.connect();
    let body = json!({"command": "sh -c 'echo $$ > leader; sleep 1000'"}).to_string();
    let head = format!(
        "POST /execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let leader = || fs::read_to_string(daemon.path("leader")).unwrap_or_default().trim().to_owned();
    eventually("the command runs", || !leader().is_empty());
    let leader = leader();
    daemon.signal("-TERM");
    daemon.wait();
    eventually("the command is gone", || is_gone(&leader));
}
