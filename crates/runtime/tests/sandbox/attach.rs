//! Joining the streams of the main process.

use asb_runtime::{Attach, Error, Exit, FailureKind, Session, Stdin, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{World, eventually, log, output, wait};

const ALL: Attach = Attach { stdin: true, stdout: true, stderr: true };

async fn read_until(session: &mut Session, words: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(words) {
        let mut byte = [0];
        let read = session.stdout.read(&mut byte).await.expect("readable");
        assert_ne!(read, 0, "ended before {words:?}: {:?}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[tokio::test]
async fn input_of_the_first_who_attaches_is_all_there_is() {
    let world = World::new();
    let mut spec = world.spec(&["sh", "-c", "tr a-z A-Z; echo end >&2; exit 3"]);
    spec.process.stdin = Stdin::Once;
    let sandbox = world.native.start(&spec).await.expect("starts");
    let output = output(sandbox.attach(ALL).await.expect("attaches"), b"quiet\n").await;
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("QUIET\n", "end\n"));
    assert_eq!((output.exit, wait(&sandbox).await.exit), (Exit::Code(3), Exit::Code(3)));
    assert_eq!(log(&sandbox), "stdout F QUIET\nstderr F end\n", "the log has it too");
    world.finish().await;
}

#[tokio::test]
async fn open_input_outlives_those_who_write_to_it() {
    let world = World::new();
    let mut spec = world.spec(&["cat"]);
    spec.process.stdin = Stdin::Open;
    let sandbox = world.native.start(&spec).await.expect("starts");
    for words in ["first", "second"] {
        let mut session = sandbox.attach(ALL).await.expect("attaches");
        let mut stdin = session.stdin.take().expect("has input");
        stdin.write_all(format!("{words}\n").as_bytes()).await.expect("written");
        assert_eq!(read_until(&mut session, "\n").await, format!("{words}\n"));
    }
    eventually(|| log(&sandbox) == "stdout F first\nstdout F second\n").await;
    world.finish().await;
}

#[tokio::test]
async fn input_that_is_not_there_is_refused() {
    let world = World::new();
    let sandbox = world.native.start(&world.spec(&["sleep", "100"])).await.expect("starts");
    let refused = sandbox.attach(ALL).await.map(drop);
    assert!(matches!(refused, Err(Error::Supervisor { kind: FailureKind::Refused, .. })), "{refused:?}");
    world.finish().await;
}

#[tokio::test]
async fn terminal_of_the_main_process_is_shared_resized_and_logged() {
    let world = World::new();
    let script = "while read line; do echo \"[$line]\"; stty size; done";
    let mut spec = world.spec(&["sh", "-c", script]);
    (spec.process.stdin, spec.process.terminal) = (Stdin::Open, true);
    let sandbox = world.native.start(&spec).await.expect("starts");
    let mut one = sandbox.attach(ALL).await.expect("attaches");
    let mut other = sandbox.attach(Attach { stdin: false, ..ALL }).await.expect("attaches");
    one.control.resize(TerminalSize { columns: 101, rows: 51 }).await.expect("resized");
    one.stdin.take().expect("has input").write_all(b"hello\n").await.expect("written");
    for session in [&mut one, &mut other] {
        let seen = read_until(session, "51 101").await;
        assert!(seen.contains("hello\r\n[hello]\r\n"), "echo and answer: {seen:?}");
    }
    eventually(|| log(&sandbox).contains("stdout F [hello]")).await;
    world.finish().await;
}

#[tokio::test]
async fn who_does_not_read_holds_the_output_up_but_not_the_others_nor_the_supervisor() {
    let world = World::new();
    let mut spec = world.spec(&["sh", "-c", "read go; head -c 3000000 /dev/zero | tr '\\0' x; exit 7"]);
    spec.process.stdin = Stdin::Once;
    let sandbox = world.native.start(&spec).await.expect("starts");
    let deaf = sandbox.attach(Attach { stdin: false, ..ALL }).await.expect("attaches");
    let mut session = sandbox.attach(ALL).await.expect("attaches");
    session.stdin.take().expect("has input").write_all(b"go\n").await.expect("written");
    let mut some = vec![0; 40_000];
    session.stdout.read_exact(&mut some).await.expect("the pipe of the deaf one has room for so much");
    assert_eq!(crate::common::run(&sandbox, &crate::common::shell("echo fine")).await.stdout, "fine\n");
    drop(deaf);
    let mut rest = Vec::new();
    session.stdout.read_to_end(&mut rest).await.expect("readable");
    assert_eq!(some.len() + rest.len(), 3_000_000, "nothing is lost");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(7));
    world.finish().await;
}

#[tokio::test]
async fn attaching_again_and_again_costs_nothing() {
    let world = World::new();
    let sandbox = world.native.start(&world.spec(&["sleep", "100"])).await.expect("starts");
    for _ in 0..2000 {
        sandbox.attach(Attach { stdin: false, ..ALL }).await.expect("attaches, with descriptors to spare");
    }
    world.finish().await;
}
