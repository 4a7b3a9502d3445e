//! Init systems as main processes: those that images bring, from the machine's packages.

use std::time::{Duration, Instant};

use asb_runtime::{Exit, Sandbox};

use crate::common::{World, eventually, log, run, shell, wait};

/// Says `ready`, and ends with 7 on SIGTERM.
const HANDLES_TERM: &str = "trap 'echo told; exit 7' TERM; echo ready; while :; do sleep 0.01; done";

fn assert_is_here(program: &str) {
    let found =
        std::process::Command::new("sh").args(["-c", "command -v $0", program]).output().expect("runs");
    assert!(found.status.success(), "\n\n  {program} is not on this machine. tools/test installs it.\n\n");
}

/// Leaves orphans behind, and waits until none of them is a zombie.
async fn reaps_orphans(sandbox: &Sandbox) {
    run(sandbox, &shell("for i in 1 2 3; do (sh -c 'exit 1' &); done")).await;
    let script =
        "while grep -l '^State:.Z' /proc/[0-9]*/status; do :; done; read name < /proc/1/comm; echo $name";
    let output = run(sandbox, &shell(script)).await;
    assert_eq!(output.exit, Exit::Code(0), "{output:?}");
}

async fn init_passes_signals_on_and_reaps(init: &[&str], ended: Exit) {
    assert_is_here(init[0]);
    let world = World::new();
    let argv: Vec<_> = init.iter().copied().chain(["sh", "-c", HANDLES_TERM]).collect();
    let sandbox = world.start(&argv).await;
    eventually(|| log(&sandbox).contains("ready")).await;
    assert_eq!(run(&sandbox, &shell("cat /proc/1/comm")).await.stdout.trim(), init[0]);
    reaps_orphans(&sandbox).await;
    sandbox.signal(libc::SIGTERM).await.expect("sent");
    assert_eq!(wait(&sandbox).await.exit, ended);
    // dumb-init signals the whole group: the shell may add a word about its `sleep`.
    assert!(log(&sandbox).contains("stdout F told\n"), "{}", log(&sandbox));

    // Below an init system the kernel drops no signal: a program that does not handle it ends at once.
    let argv: Vec<_> = init.iter().copied().chain(["sleep", "1000"]).collect();
    let sandbox = world.start(&argv).await;
    let children = shell("cat /proc/1/task/1/children");
    while run(&sandbox, &children).await.stdout.trim().is_empty() {}
    let sent = Instant::now();
    sandbox.signal(libc::SIGTERM).await.expect("sent");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(128 + libc::SIGTERM));
    assert!(sent.elapsed() < Duration::from_secs(5), "{:?}", sent.elapsed());
    world.finish().await;
}

#[tokio::test]
async fn tini_passes_signals_on_and_reaps() {
    init_passes_signals_on_and_reaps(&["tini", "--"], Exit::Code(7)).await;
}

#[tokio::test]
async fn dumb_init_passes_signals_on_and_reaps() {
    init_passes_signals_on_and_reaps(&["dumb-init"], Exit::Code(7)).await;
}

/// It supervises the services below a directory, and ends with all of them on SIGTERM.
#[tokio::test]
async fn s6_svscan_starts_services_reaps_and_ends_on_a_signal() {
    assert_is_here("s6-svscan");
    let world = World::new();
    let script = "mkdir -p /tmp/services/one && cd /tmp/services && \
        printf '#!/bin/sh\\necho ready\\nexec sleep 1000\\n' > one/run && chmod +x one/run && exec s6-svscan /tmp/services";
    let sandbox = world.start(&["sh", "-c", script]).await;
    eventually(|| log(&sandbox).contains("ready")).await;
    reaps_orphans(&sandbox).await;
    let sent = Instant::now();
    sandbox.signal(libc::SIGTERM).await.expect("sent");
    let exit = wait(&sandbox).await.exit;
    assert!(matches!(exit, Exit::Code(_)), "{exit:?}: {}", log(&sandbox));
    assert!(sent.elapsed() < Duration::from_secs(5), "{:?}", sent.elapsed());
    world.finish().await;
}
