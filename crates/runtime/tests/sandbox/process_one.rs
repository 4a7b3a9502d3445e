//! Process 1 as programs inside see it: the main process, as in a container.

use asb_runtime::{Exit, Sandbox};

use crate::common::{World, eventually, exec, log, output, run, shell, wait};

/// Prints `ready` when its handlers are there, and what it was told before it ends with 7.
const HANDLES_TERM: &str = r#"
import os, signal, sys
def end(number, frame):
    print("told", number, flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print("ready as", os.getpid(), os.getppid(), flush=True)
while True: signal.pause()
"#;

async fn started(world: &World, script: &str) -> Sandbox {
    let sandbox = world.start(&["python3", "-c", script]).await;
    eventually(|| log(&sandbox).contains("ready")).await;
    sandbox
}

#[tokio::test]
async fn the_main_process_is_process_1_and_sees_nobody_above() {
    let world = World::new();
    let script = "echo main $$ $PPID; echo /proc/[0-9]*; read comm < /proc/1/comm; echo $comm";
    let sandbox = world.start(&["sh", "-c", script]).await;
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(0));
    assert_eq!(log(&sandbox), "stdout F main 1 0\nstdout F /proc/1\nstdout F sh\n");
    world.finish().await;
}

#[tokio::test]
async fn a_signal_to_process_1_reaches_what_handles_it() {
    let world = World::new();
    let sandbox = started(&world, HANDLES_TERM).await;
    run(&sandbox, &shell("kill 1")).await;
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(7));
    assert!(log(&sandbox).ends_with("stdout F ready as 1 0\nstdout F told 15\n"), "{}", log(&sandbox));
    world.finish().await;
}

#[tokio::test]
async fn a_signal_from_inside_that_process_1_does_not_handle_is_lost() {
    let world = World::new();
    let sandbox = world.start(&["sleep", "1000"]).await;
    let output = run(&sandbox, &shell("kill 1; kill -9 1; kill -INT 1; cat /proc/1/comm")).await;
    assert_eq!((output.stdout.as_str(), output.exit), ("sleep\n", Exit::Code(0)), "{output:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_signal_of_the_engine_ends_what_does_not_handle_it() {
    let world = World::new();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGUSR1] {
        let sandbox = world.start(&["sleep", "1000"]).await;
        sandbox.signal(signal).await.expect("sent");
        assert_eq!(wait(&sandbox).await.exit, Exit::Signal(signal));
    }
    world.finish().await;
}

#[tokio::test]
async fn a_signal_that_is_waited_for_or_ignored_ends_nothing() {
    let world = World::new();
    let waits = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [15])\nprint('ready', flush=True)\n\
                 print('got', signal.sigwait([15]).name)";
    let sandbox = started(&world, waits).await;
    sandbox.signal(libc::SIGTERM).await.expect("sent");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(0));
    assert!(log(&sandbox).ends_with("got SIGTERM\n"), "{}", log(&sandbox));

    let ignores =
        "import signal, sys\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\nsys.stdin.read()";
    let mut spec = world.spec(&["python3", "-c", ignores]);
    spec.process.stdin = asb_runtime::Stdin::Open;
    let sandbox = world.native.start(&spec).await.expect("starts");
    eventually(|| log(&sandbox).contains("ready")).await;
    for signal in [libc::SIGTERM, libc::SIGWINCH, libc::SIGCHLD, libc::SIGCONT] {
        sandbox.signal(signal).await.expect("sent");
    }
    assert_eq!(run(&sandbox, &exec(&["cat", "/proc/1/comm"])).await.stdout, "python3\n");
    world.finish().await;
}

/// As the init systems of images do: they refuse to be anything but process 1, and reap whatever comes to them.
#[tokio::test]
async fn an_init_system_starts_and_gets_the_orphans() {
    let world = World::new();
    let init = r#"
import os, sys
if os.getpid() != 1: sys.exit("fatal: can only run as pid 1")
print("ready", flush=True)
# Waits for a child that it never had.
while True:
    try:
        pid, status = os.wait()
        print("reaped", os.waitstatus_to_exitcode(status), flush=True)
        sys.exit(0)
    except ChildProcessError:
        import time; time.sleep(0.005)
"#;
    let sandbox = started(&world, init).await;
    run(&sandbox, &shell("(sh -c 'sleep 0.05; exit 42' &)")).await;
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(0));
    assert!(log(&sandbox).ends_with("reaped 42\n"), "{}", log(&sandbox));
    world.finish().await;
}

#[tokio::test]
async fn idle_process_reaps_and_ends_on_a_signal() {
    let world = World::new();
    let sandbox = world.idle().await;
    run(&sandbox, &shell("for i in 1 2 3; do (sh -c 'exit 1' &); done")).await;
    let count = "while grep -l '^State:.Z' /proc/[0-9]*/status; do :; done; tr '\\0' ' ' < /proc/1/cmdline; cat /proc/1/comm";
    let output = run(&sandbox, &shell(count)).await;
    assert!(output.stdout.ends_with("pause\n"), "{output:?}");
    assert!(!output.stdout.contains('/'), "no path of the machine is shown: {output:?}");
    run(&sandbox, &shell("kill 1")).await;
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(0));
    world.finish().await;
}

#[tokio::test]
async fn the_end_of_process_1_ends_everything_and_is_told() {
    let world = World::new();
    let sandbox = started(&world, HANDLES_TERM).await;
    let session = sandbox.exec(&shell("trap '' TERM HUP; echo up; sleep 1000 & wait")).await.expect("starts");
    let (output, ()) = tokio::join!(output(session, b""), async {
        eventually(|| true).await;
        sandbox.signal(libc::SIGTERM).await.expect("sent");
    });
    assert_eq!(output.exit, Exit::Signal(libc::SIGKILL), "{output:?}");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(7));
    world.finish().await;
}

/// As programs do that start others and end when all of those have ended.
#[tokio::test]
async fn sandboxd_is_no_child_of_the_main_process() {
    let world = World::new();
    let waits = r#"
import os, sys, time
if os.fork() == 0:
    while not os.path.exists("/tmp/over"): time.sleep(0.01)
    sys.exit(0)
print("ready", flush=True)
try:
    while True: os.wait()
except ChildProcessError: sys.exit(5)
"#;
    let sandbox = started(&world, waits).await;
    sandbox.dial_sandboxd().await.expect("connects");
    sandbox.dial_sandboxd().await.expect("it goes on without the connection that started it");
    let children = run(&sandbox, &shell("cat /proc/1/task/1/children | wc -w; touch /tmp/over")).await;
    assert_eq!(children.stdout, "1\n", "{children:?}");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(5));
    world.finish().await;
}
