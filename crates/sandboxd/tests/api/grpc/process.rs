//! Commands that run to their end, and every status of the calls on processes.

use std::fs;
use std::time::{Duration, Instant};

use tonic::{Code, Request};

use super::client::{code, config, eventually_async, rest, shell};
use super::messages::process::*;
use super::{Client, run};
use crate::support::{Daemon, eventually, is_gone};

const EXECUTE: &str = "/process.v1.ProcessService/Execute";

#[test]
fn execute_returns_both_streams_and_the_exit_code() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let done = client.execute(shell("echo out; echo err >&2; exit 7")).await.unwrap();
        assert_eq!((&done.stdout[..], &done.stderr[..], done.exit_code), (&b"out\n"[..], &b"err\n"[..], 7));
        assert_eq!(client.execute(shell("kill -9 $$")).await.unwrap().exit_code, -1);
        assert_eq!(client.execute(config(&["cat"])).await.unwrap().exit_code, 0, "input is empty");
    });
}

#[test]
fn environment_and_working_directory_are_the_callers() {
    let daemon = Daemon::start();
    fs::create_dir(daemon.path("sub")).unwrap();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let mut wanted = shell("pwd; echo $COLOUR; echo $SANDBOX_BASE_DIR").unwrap();
        wanted.cwd = Some("sub".to_owned());
        wanted.env_vars.insert("COLOUR".to_owned(), "green".to_owned());
        let base = daemon.path("").canonicalize().unwrap();
        let stdout = String::from_utf8(client.execute(Some(wanted.clone())).await.unwrap().stdout).unwrap();
        let mut lines = stdout.lines();
        assert_eq!(lines.next(), base.join("sub").to_str());
        assert_eq!(lines.next(), Some("green"));
        assert!(lines.next().is_some_and(|line| !line.is_empty()), "the daemon's own variables are there");
        // An absolute path that names the root is meant relative to it.
        wanted.cwd = Some(daemon.path("sub").display().to_string());
        assert_eq!(client.execute(Some(wanted)).await.unwrap().exit_code, 0);
        // A PATH of the caller is not where the program is looked for.
        let mut other = config(&["sh", "-c", "echo $PATH"]).unwrap();
        other.env_vars.insert("PATH".to_owned(), "/nowhere".to_owned());
        assert_eq!(client.execute(Some(other)).await.unwrap().stdout, b"/nowhere\n");
    });
}

#[test]
fn every_refusal_has_its_status() {
    let daemon = Daemon::start();
    fs::write(daemon.path("plain"), "x").unwrap();
    std::os::unix::fs::symlink("/etc", daemon.path("out")).unwrap();
    run(async {
        let mut client = Client::connect(&daemon).await;
        assert_eq!(code(client.execute(None).await), Code::InvalidArgument);
        let status = client.execute(config(&[])).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "command is required"));
        assert_eq!(code(client.execute(config(&["nosuchcmd"])).await), Code::NotFound);
        assert_eq!(code(client.execute(config(&["./plain"])).await), Code::PermissionDenied);
        assert_eq!(code(client.execute(config(&["ls", "a\0b"])).await), Code::InvalidArgument);
        for (cwd, wanted) in [
            ("../..", Code::PermissionDenied),
            ("/../etc", Code::PermissionDenied),
            ("out", Code::PermissionDenied),
            ("missing", Code::NotFound),
            ("plain", Code::NotFound),
            ("a\0b", Code::InvalidArgument),
        ] {
            let config = ProcessConfig { cwd: Some(cwd.to_owned()), ..config(&["true"]).unwrap() };
            assert_eq!(code(client.execute(Some(config)).await), wanted, "{cwd}");
        }
        let mut config = config(&["true"]).unwrap();
        config.env_vars.insert("A=B".to_owned(), "x".to_owned());
        assert_eq!(code(client.execute(Some(config)).await), Code::InvalidArgument);
        let unknown = client.unary::<Empty>("/process.v1.ProcessService/Nothing", Empty {}).await;
        assert_eq!(code(unknown), Code::Unimplemented);
    });
}

#[test]
fn unknown_processes_are_not_found_by_any_call() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        assert_eq!(code(client.write(99, "x").await), Code::NotFound);
        assert_eq!(code(client.eof(99).await), Code::NotFound);
        assert_eq!(code(client.signal(99, 0).await), Code::NotFound);
        assert_eq!(code(client.resize(99, 1, 1).await), Code::NotFound);
    });
}

#[test]
fn wrong_calls_on_a_running_process_have_their_status() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let (id, stream) = client.start(config(&["cat"]), None).await.unwrap();
        assert_eq!(code(client.signal(id, 0).await), Code::InvalidArgument);
        assert_eq!(code(client.signal(id, 1).await), Code::InvalidArgument);
        assert_eq!(code(client.resize(id, 80, 24).await), Code::FailedPrecondition);
        assert!(client.write(id, "").await.is_ok());
        assert!(client.eof(id).await.is_ok());
        assert!(
            matches!(code(client.eof(id).await), Code::Internal | Code::NotFound),
            "closed already, or gone with the process"
        );
        assert_eq!(rest(stream).await, (String::new(), String::new(), 0));
    });
}

#[test]
fn a_deadline_ends_the_whole_group_at_once() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let config = shell("(sleep 1000 & echo $! > child); echo $$ > leader; sleep 1000");
        let mut request = Request::new(ExecuteRequest { config });
        request.set_timeout(Duration::from_millis(500));
        let begun = Instant::now();
        let status = client.call::<_, ExecuteResponse>(EXECUTE, request).await.unwrap_err();
        assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
        assert!(begun.elapsed() < Duration::from_secs(10));
        for file in ["leader", "child"] {
            let process = fs::read_to_string(daemon.path(file)).unwrap();
            eventually(file, || is_gone(&process));
        }
    });
}

#[test]
fn a_cancelled_call_kills_the_whole_group() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let config = shell("(sleep 1000 & echo $! > child.new; mv child.new child); sleep 1000");
        tokio::select! {
            answer = client.execute(config) => panic!("{answer:?}"),
            () = eventually_async(|| async { daemon.path("child").exists() }) => {}
        }
        let process = fs::read_to_string(daemon.path("child")).unwrap();
        eventually_async(|| async { is_gone(&process) }).await;
    });
}

#[test]
fn output_above_the_limit_of_clients_is_cut_and_marked() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let done =
            client.execute(shell("head -c 9000000 /dev/zero; head -c 9000000 /dev/zero >&2")).await.unwrap();
        assert_eq!(done.exit_code, 0, "the writer is not broken by the limit");
        let tail = String::from_utf8_lossy(&done.stderr[done.stderr.len() - 300..]).into_owned();
        assert!(
            tail.contains("[sandboxd: stdout was cut after") && tail.contains("stderr was cut after"),
            "{tail}"
        );
    });
}

#[test]
fn what_execute_leaves_in_the_background_does_not_hold_the_answer() {
    let daemon = Daemon::start();
    run(async {
        let mut client = Client::connect(&daemon).await;
        let begun = Instant::now();
        let done = client.execute(shell("echo started; sleep 30 & echo $! > child")).await.unwrap();
        assert_eq!(done.stdout, b"started\n");
        assert!(begun.elapsed() < Duration::from_secs(20));
        let child = fs::read_to_string(daemon.path("child")).unwrap();
        assert!(!is_gone(&child), "a server started in the background goes on");
        client.execute(shell(&format!("kill {child}"))).await.unwrap();
    });
}
