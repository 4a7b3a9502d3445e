//! How the daemon starts.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::support::port_in;

#[test]
fn detached_it_listens_when_the_foreground_process_ends() {
    let directory = tempfile::tempdir().unwrap();
    // Through a shell that leaves descriptor 9 open: output() returns only if nobody keeps the pipes.
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
        assert!(message.starts_with(&format!("error: cannot listen on 0.0.0.0:{port}: ")), "{message}");
    }
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
        .expect("somebody listens")
}
