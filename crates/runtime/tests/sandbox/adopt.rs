//! Sandboxes outlive the program that started them, and what was cut short is cleared away.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use asb_runtime::{Error, Exit, Native};

use crate::common::{World, log, output, run, shell, wait};

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
        .env("TMPDIR", world.directory.path())
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

/// Only a record that is missing or empty says that a start never succeeded.
#[tokio::test]
async fn a_sandbox_whose_record_cannot_be_read_is_left_running() {
    let world = World::new();
    let sandbox = world.start(&["sleep", "1000"]).await;
    let state = world.directory.path().join("state");
    let place = state.join("sandbox").join(sandbox.id().as_str());
    for name in ["sandbox.json", "started.json"] {
        let (record, aside) = (place.join(name), place.join("aside"));
        std::fs::rename(&record, &aside).expect("there");
        for make in [
            |path: &std::path::Path| std::fs::write(path, "{\"version\": \"a later one\"}"),
            // Reading it fails, whoever reads.
            |path: &std::path::Path| std::fs::create_dir(path),
        ] {
            make(&record).expect("made");
            let next = Native::open(&state).expect("opens");
            assert!(next.list().await.expect("lists").is_empty(), "{name}");
            assert_eq!(run(&sandbox, &shell("echo alive")).await.stdout, "alive\n", "{name}");
            match record.is_dir() {
                true => std::fs::remove_dir(&record).expect("removed"),
                false => std::fs::remove_file(&record).expect("removed"),
            }
        }
        std::fs::rename(&aside, &record).expect("there");
        let next = Native::open(&state).expect("opens");
        let found = next.list().await.expect("lists");
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!(run(&found[0], &shell("echo found")).await.stdout, "found\n");
    }
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

#[tokio::test]
#[ignore = "helper: run by nothing_is_lost_or_left_when_the_program_is_killed_at_any_point"]
async fn starts_and_deletes_until_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let world = World::new();
    let native = Native::open(directory.as_ref()).expect("opens");
    loop {
        native.park().await;
        let spec = world.spec(&["sleep", "1000"]);
        let (first, second) = (native.start(&spec).await.expect("starts"), world.spec(&[]));
        let (started, deleted) = tokio::join!(native.start(&second), first.delete());
        deleted.expect("deletes");
        started.expect("starts").delete().await.expect("deletes");
    }
}

#[tokio::test]
async fn nothing_is_lost_or_left_when_the_program_is_killed_at_any_point() {
    let world = World::new();
    let state = world.directory.path().join("state");
    for round in 0..8u64 {
        let mut child = Command::new(std::env::current_exe().expect("known"))
            .args(["--exact", "adopt::starts_and_deletes_until_killed", "--ignored", "--nocapture"])
            .env(DIRECTORY, &state)
            .env("TMPDIR", world.directory.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("runs");
        // Not waiting for a state: the point is to hit any of them.
        tokio::time::sleep(std::time::Duration::from_millis(150 + 37 * round)).await;
        child.kill().expect("killed");
        assert_eq!(child.wait().expect("reaped").signal(), Some(libc::SIGKILL));
        let next = Native::open(&state).expect("opens");
        for sandbox in next.list().await.expect("lists") {
            match sandbox.exec(&shell("echo alive")).await {
                Ok(session) => assert_eq!(output(session, b"").await.stdout, "alive\n", "round {round}"),
                // Its deletion had begun.
                Err(Error::Ended(_)) => assert_eq!(wait(&sandbox).await.exit, Exit::Signal(libc::SIGKILL)),
                Err(error) => panic!("round {round}: {error}"),
            }
            sandbox.delete().await.expect("deletes");
        }
        // A launcher that was just started ends when it finds that nothing is asked of it: on a slow machine, a moment later.
        let mut traces = asb_runtime::leak::check(&state);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !traces.is_empty() && std::time::Instant::now() < deadline {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            traces = asb_runtime::leak::check(&state);
        }
        assert_eq!(traces, Vec::<String>::new(), "round {round}");
    }
    world.finish().await;
}
