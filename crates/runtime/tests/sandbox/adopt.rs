//! Sandboxes outlive the program that started them, and what was cut short is cleared away.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use asb_runtime::{Exit, Native};

use crate::common::{World, log, run, shell, wait};

/// Tells the helper below where to work.
const DIRECTORY: &str = "ASB_TEST_ADOPT_DIRECTORY";

#[tokio::test]
#[ignore = "helper: run by sandbox_outlives_a_killed_program in a process of its own"]
async fn starts_a_sandbox_and_waits_to_be_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let world = World::new();
    let native = Native::open(directory.as_ref()).expect("opens");
    let spec = world.spec(&[
        "sh",
        "-c",
        "echo before; while ! test -e /tmp/go; do sleep 0.01; done; echo after; exit 4",
    ]);
    native.start(&spec).await.expect("starts");
    println!("started");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn sandbox_outlives_a_killed_program() {
    let world = World::new();
    let mut child = Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "adopt::starts_a_sandbox_and_waits_to_be_killed", "--ignored", "--nocapture"])
        .env(DIRECTORY, world.directory.path().join("state"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    let stdout = child.stdout.take().expect("piped");
    let said = tokio::task::spawn_blocking(move || {
        use std::io::BufRead;
        std::io::BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line.contains("started"))
    });
    assert!(said.await.expect("read"), "the helper started a sandbox");
    child.kill().expect("killed");
    assert_eq!(child.wait().expect("reaped").signal(), Some(libc::SIGKILL));

    let found = world.native.list().await.expect("lists");
    let [sandbox] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(sandbox.spec().labels["test"], "yes");
    assert_eq!(run(sandbox, &shell("echo works; touch /tmp/go")).await.stdout, "works\n");
    assert_eq!(wait(sandbox).await.exit, Exit::Code(4));
    assert_eq!(log(sandbox), "stdout F before\nstdout F after\n");
    world.finish().await;
}

#[tokio::test]
async fn end_is_remembered_by_the_next_program() {
    let world = World::new();
    let sandbox = world.start(&["sh", "-c", "exit 9"]).await;
    let ended = wait(&sandbox).await;
    let next = Native::open(&world.directory.path().join("state")).expect("opens");
    let found = next.list().await.expect("lists");
    assert_eq!(wait(&found[0]).await, ended);
    assert_eq!(found[0].started_at(), sandbox.started_at());
    world.finish().await;
}

#[tokio::test]
async fn killed_supervisor_counts_as_killed_and_is_remembered() {
    let world = World::new();
    let sandbox = world.start(&["sleep", "1000"]).await;
    let state = world.directory.path().join("state");
    let identity =
        std::fs::read_to_string(state.join("sandbox").join(sandbox.id().as_str()).join("started.json"));
    let identity: serde_json::Value = serde_json::from_str(&identity.expect("there")).expect("parses");
    let pid =
        rustix::process::Pid::from_raw(identity["pid"].as_i64().expect("a number") as i32).expect("positive");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    let ended = wait(&sandbox).await;
    assert_eq!(ended.exit, Exit::Signal(libc::SIGKILL));
    let next = Native::open(&state).expect("opens");
    assert_eq!(wait(&next.list().await.expect("lists")[0]).await, ended);
    world.finish().await;
}

#[tokio::test]
async fn unfinished_start_is_cleared_away() {
    let world = World::new();
    let sandbox = world.start(&["sleep", "1000"]).await;
    let state = world.directory.path().join("state");
    // As if the program and the launcher had been killed just before the end.
    let place = state.join("sandbox").join(sandbox.id().as_str());
    std::fs::rename(place.join("started.json"), place.join("starting.json")).expect("there");
    std::fs::create_dir(state.join("sandbox/just-begun")).expect("made");
    std::os::unix::fs::symlink("never-begun", state.join("ids/7")).expect("linked");
    let next = Native::open(&state).expect("opens");
    assert!(next.list().await.expect("lists").is_empty());
    assert_eq!(asb_runtime::leak::check(&state), Vec::<String>::new());
    world.finish().await;
}
