//! How the daemon starts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::{Daemon, port_in};

#[test]
fn detached_it_listens_when_the_foreground_process_ends() {
    let directory = tempfile::tempdir().unwrap();
    // Through a shell that leaves descriptor 9 open: output() returns only when no process holds the pipes.
    let output = Command::new("sh")
        .args(["-c", "exec \"$0\" --port 0 --detach 9>&1", env!("CARGO_BIN_EXE_asb-sandboxd")])
        .env("SANDBOX_BASE_DIR", directory.path())
        .output()
        .unwrap();
    assert!(output.status.success());
    let port = port_in(&String::from_utf8(output.stdout).unwrap());
    TcpStream::connect(("127.0.0.1", port)).expect("it listens at once");

    let background = listener(port);
    let status = std::fs::read_to_string(format!("/proc/{background}/stat")).unwrap();
    let session: u32 = status.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap().parse().unwrap();
    let open = std::fs::read_link(format!("/proc/{background}/fd/1")).unwrap();
    Command::new("kill").arg(background.to_string()).status().unwrap();
    assert_eq!(session, background, "it leads a session of its own");
    assert_eq!(open.to_str(), Some("/dev/null"));
}

#[test]
fn a_port_that_is_taken_is_a_clear_error() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for extra in [&[][..], &["--detach"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_asb-sandboxd"))
            .args(["--port", &port])
            .args(extra)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(
            message.starts_with(&format!("error: cannot listen on 0.0.0.0:{port} (--port): ")),
            "{message}"
        );
    }
}

#[test]
fn an_idle_timeout_of_zero_closes_no_connection() {
    let daemon = Daemon::start_as(&["--http-idle-timeout", "0"], &[]);
    let mut stream = daemon.connect();
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        stream.write_all(b"HEAD /v1/health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).expect("the connection is still open");
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        while !answer.ends_with(b"\r\n\r\n") {
            answer.rotate_left(1);
            stream.read_exact(&mut answer[14..]).unwrap();
        }
    }
}

fn zombies(daemon: &Daemon) -> usize {
    let state = |pid: &String| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    daemon.children().iter().filter(|pid| state(pid).contains(") Z ")).count()
}

#[test]
fn orphans_of_a_running_command_are_reaped_while_it_runs() {
    let daemon = Daemon::start();
    let script = "for i in $(seq 50); do (exec sleep 0.2 &); done; touch started; while [ ! -e stop ]; do sleep 0.05; done";
    let command = json!({"command": format!("sh -c '{script}'")});
    std::thread::scope(|scope| {
        let running = scope.spawn(|| daemon.execute(&command));
        crate::support::eventually("all have been started", || daemon.path("started").exists());
        let reaped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // The command itself is the only child left.
            crate::support::eventually("all have been reaped", || daemon.children().len() == 1);
            assert_eq!(zombies(&daemon), 0);
        }));
        std::fs::write(daemon.path("stop"), "").unwrap();
        assert_eq!(running.join().unwrap()["exit_code"], 0);
        reaped.unwrap();
    });
}

/// The main process of a container may reap nothing, and what is not reaped counts as a process of the sandbox.
#[test]
fn what_commands_leave_behind_is_reaped_when_it_has_ended() {
    let daemon = Daemon::start();
    let begun = daemon.execute(
        &json!({"command": "sh -c 'for i in 1 2 3; do (sleep 0.1 &); done; sleep 5 > /dev/null & echo $!'"}),
    );
    assert_eq!(begun["exit_code"], 0, "{begun}");
    let zombies = || {
        assert!(!daemon.children().is_empty(), "the one that goes on is the daemon's");
        zombies(&daemon)
    };
    crate::support::eventually("none is left", || {
        daemon.run("true");
        zombies() == 0 && daemon.children().len() == 1
    });
    daemon.run(&format!("kill {}", begun["stdout"].as_str().unwrap().trim()));
    crate::support::eventually("nor the last one", || {
        daemon.run("true");
        daemon.children().is_empty()
    });
}

#[test]
fn a_peer_that_vanishes_without_a_word_is_noticed() {
    let daemon = Daemon::start();
    let mut stream = daemon.connect();
    // The body never comes, so nothing but the kernel can notice.
    stream.write_all(b"PUT /v1/files/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n").unwrap();
    let (client, server) = (stream.local_addr().unwrap().port(), daemon.port());
    let ends = format!("0100007F:{server:04X} 0100007F:{client:04X}");
    crate::support::eventually("the daemon's end has a keep-alive timer", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let line = table.lines().find(|line| line.contains(&ends)).expect("the connection is there");
        line.split_whitespace().nth(5).unwrap().starts_with("02:")
    });
}

#[test]
fn a_wrong_argument_is_exit_code_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_asb-sandboxd")).arg("--prot").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// The process that listens on `port`: the one that holds the socket of that line in the kernel's table.
fn listener(port: u16) -> u32 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let line =
        table.lines().find(|line| line.contains(&format!("00000000:{port:04X} 00000000:0000 0A"))).unwrap();
    let socket = format!("socket:[{}]", line.split_whitespace().nth(9).unwrap());
    let holds = |process: &u32| {
        let Ok(open) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        open.flatten()
            .any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.to_str() == Some(&socket)))
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(holds)
        .expect("a process listens")
}

/// A daemon with arguments of its own, killed at the end of the test.
struct Started(std::process::Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn health(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn several_ports_serve_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_asb-sandboxd"))
        .args(["--port", "0", "--port", "0", "--root-dir"])
        .arg(directory.path().join("made/for/it"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let _started = Started(child);
    for _ in 0..2 {
        let port = port_in(&lines.next().unwrap().unwrap());
        assert!(health(port).starts_with("HTTP/1.1 200"));
    }
    assert!(directory.path().join("made/for/it").is_dir(), "the root is made");
}

#[test]
fn a_chosen_port_that_is_taken_is_an_error_that_names_the_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_asb-sandboxd"))
        .args(["--listen-host", "127.0.0.1", "--grpc-port", &port])
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("(--grpc-port)"), "{message}");
}

#[test]
fn a_root_that_is_a_file_is_fatal() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_asb-sandboxd"))
        .args(["--port", "0", "--root-dir"])
        .arg(file.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--root-dir"));
}

#[test]
fn with_a_token_only_probes_and_its_holders_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let daemon = Daemon::start_as(&["--token-file", file.to_str().unwrap()], &[]);
    assert_eq!((daemon.get("/").status, daemon.get("/v1/health").status), (200, 200));
    for path in ["/list", "/v1/files/", "/v1/metadata", "/nothing"] {
        assert_eq!(daemon.get(path).status, 401, "{path}");
        let wrong = daemon.send("GET", path, "Authorization: Bearer s3cre\r\n", b"");
        assert_eq!(wrong.status, 401, "{path}");
        let right = daemon.send("GET", path, "Authorization: Bearer s3cret\r\n", b"");
        assert_ne!(right.status, 401, "{path}");
    }
    crate::grpc::run(async {
        let mut client = crate::grpc::Client::connect(&daemon).await;
        let refused = client.execute(crate::grpc::client::config(&["true"])).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    });
    let output = Command::new(env!("CARGO_BIN_EXE_asb-sandboxd"))
        .args(["--port", "0"])
        .env("SANDBOXD_TOKEN_FILE", directory.path().join("missing"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "without its token it does not serve");
}

#[test]
fn a_file_whose_name_is_no_text_is_packed() {
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::fs::write(&file, "x").unwrap();
    let packed = Command::new(env!("CARGO_BIN_EXE_asb-sandboxd")).arg("pack").arg(&file).output().unwrap();
    assert!(packed.status.success() && packed.stdout.starts_with(b"\xff"));
    let wrong = Command::new(env!("CARGO_BIN_EXE_asb-sandboxd"))
        .args(["--root-dir".as_ref(), file.as_os_str()])
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2), "a flag must be text");
}

#[test]
fn it_installs_itself_where_there_is_no_cp() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("bin");
    let run = |program: &std::path::Path, arguments: &[&str]| {
        Command::new(program).args(arguments).output().unwrap()
    };
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_asb-sandboxd"));
    for _ in 0..2 {
        assert!(run(program, &["install", target.to_str().unwrap()]).status.success());
    }
    let installed = run(&target.join("sandboxd"), &["--version"]);
    assert!(String::from_utf8(installed.stdout).unwrap().starts_with("asb-sandboxd "));
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 1, "no temporary file stays");
}
