//! Programs beside the main one, and connections to ports inside.

use asb_runtime::{Error, Exit, FailureKind, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{World, eventually, exec, log, output, run, shell, wait};

#[tokio::test]
async fn streams_and_exit_code_of_a_program_come_back() {
    let world = World::new();
    let sandbox = world.idle().await;
    let mut program = shell("tr a-z A-Z; echo problem >&2; exit 3");
    program.stdin = true;
    let output = output(sandbox.exec(&program).await.expect("starts"), b"quiet\n").await;
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("QUIET\n", "problem\n"));
    assert_eq!(output.exit, Exit::Code(3));
    assert_eq!(run(&sandbox, &shell("kill -USR1 $$")).await.exit, Exit::Signal(libc::SIGUSR1));
    world.finish().await;
}

#[tokio::test]
async fn program_has_the_main_ones_environment_and_its_own() {
    let world = World::new();
    let mut spec = world.spec(&[]);
    spec.process
        .env
        .extend([("A", "main"), ("B", "main")].map(|(key, value)| (key.to_owned(), value.to_owned())));
    spec.process.uid = 1000;
    let sandbox = world.native.start(&spec).await.expect("starts");
    let mut program = shell(
        "echo $A $B; pwd; id -u; cat /proc/self/status | grep -E 'CapEff|NoNewPrivs|Seccomp:'; ls /proc/self/fd | wc -l",
    );
    program.env.push(("B".to_owned(), "own".to_owned()));
    program.cwd = Some("/usr".into());
    let output = run(&sandbox, &program).await;
    let expected = "main own\n/usr\n1000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n4\n";
    assert_eq!(output.stdout, expected, "{output:?}");
    world.finish().await;
}

#[tokio::test]
async fn terminal_has_the_size_it_was_given_last() {
    let world = World::new();
    let sandbox = world.idle().await;
    let mut program =
        shell("test -t 0 && tty && stty size && read line && stty size && test -O $(tty) && exit 5");
    program.stdin = true;
    program.terminal = Some(TerminalSize { columns: 80, rows: 24 });
    let mut session = sandbox.exec(&program).await.expect("starts");
    assert!(session.stderr.is_none());
    let mut seen = String::new();
    let mut buffer = [0; 256];
    while !seen.contains("24 80") {
        let read = session.stdout.read(&mut buffer).await.expect("readable");
        assert!(read > 0, "ended early: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    session.control.resize(TerminalSize { columns: 100, rows: 50 }).await.expect("resizes");
    session.stdin.as_mut().expect("asked for").write_all(b"go\n").await.expect("taken");
    let mut rest = String::new();
    session.stdout.read_to_string(&mut rest).await.expect("ends cleanly");
    assert!(rest.contains("50 100"), "{rest}");
    assert_eq!(session.control.wait().await.expect("ends"), Exit::Code(5));
    world.finish().await;
}

#[tokio::test]
async fn dropping_a_terminal_hangs_up_on_its_program() {
    let world = World::new();
    let sandbox = world.idle().await;
    let mut program = exec(&["sleep", "1000"]);
    program.terminal = Some(TerminalSize { columns: 80, rows: 24 });
    let mut session = sandbox.exec(&program).await.expect("starts");
    drop((session.stdin, session.stdout));
    assert_eq!(session.control.wait().await.expect("ends"), Exit::Signal(libc::SIGHUP));
    world.finish().await;
}

#[tokio::test]
async fn big_output_comes_through_whole() {
    let world = World::new();
    let sandbox = world.idle().await;
    let output = run(&sandbox, &shell("yes 0123456789 | head -c 8000000")).await;
    assert_eq!((output.stdout.len(), output.exit), (8_000_000, Exit::Code(0)));
    world.finish().await;
}

#[tokio::test]
async fn large_environment_works_and_a_larger_one_is_refused_clearly() {
    let world = World::new();
    let sandbox = world.idle().await;
    let with = |count: usize| {
        let mut program = shell("env | wc -c");
        program.env = (0..count).map(|index| (format!("V{index}"), "x".repeat(100_000))).collect();
        program
    };
    let output = run(&sandbox, &with(10)).await;
    assert!(output.stdout.trim().parse::<usize>().expect("a number") > 1_000_000, "{output:?}");
    let refused = sandbox.exec(&with(20)).await.map(|_| ()).expect_err("too large");
    let words = std::error::Error::source(&refused).map(ToString::to_string).unwrap_or_default();
    assert!(words.contains("larger than 1 MiB"), "{refused:?}");
    assert_eq!(run(&sandbox, &shell("echo fine")).await.stdout, "fine\n");
    world.finish().await;
}

#[tokio::test]
async fn main_process_with_more_variables_than_the_kernel_takes_is_refused_clearly_and_leaves_nothing() {
    let world = World::new();
    let mut spec = world.spec(&["true"]);
    spec.process.env.extend((0..40).map(|index| (format!("V{index}"), "x".repeat(100_000))));
    let refused = world.native.start(&spec).await.map(|_| ()).expect_err("too large");
    assert!(matches!(&refused, Error::Program { kind: FailureKind::TooLarge, .. }), "{refused:?}");
    assert!(refused.to_string().contains("larger than the kernel takes"), "{refused}");
    world.finish().await;
}

#[tokio::test]
async fn program_can_be_signalled() {
    let world = World::new();
    let sandbox = world.idle().await;
    let mut session = sandbox.exec(&exec(&["sleep", "1000"])).await.expect("starts");
    session.control.signal(libc::SIGINT).await.expect("sent");
    assert_eq!(session.control.wait().await.expect("ends"), Exit::Signal(libc::SIGINT));
    world.finish().await;
}

#[tokio::test]
async fn program_ends_with_the_main_process() {
    let world = World::new();
    let sandbox = world.start(&["sh", "-c", "while ! test -e /tmp/go; do sleep 0.01; done"]).await;
    let mut session = sandbox.exec(&shell("touch /tmp/go; sleep 1000")).await.expect("starts");
    assert_eq!(session.control.wait().await.expect("ends"), Exit::Signal(libc::SIGKILL));
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(0));
    assert!(matches!(sandbox.exec(&shell("true")).await.map(|_| ()), Err(Error::Ended(_))));
    world.finish().await;
}

#[tokio::test]
async fn server_inside_is_reached_and_a_closed_port_is_refused() {
    let world = World::new();
    let sandbox = world
        .start(&[
            "python3",
            "-u",
            "-c",
            "
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'from inside')
server = socketserver.TCPServer(('127.0.0.1', 80), Handler)
print('listening')
server.serve_forever()",
        ])
        .await;
    assert!(matches!(sandbox.dial(81).await, Err(Error::Refused { port: 81, .. })));
    eventually(|| log(&sandbox).contains("listening")).await;
    let mut stream = sandbox.dial(80).await.expect("connects");
    assert!(
        stream.nodelay().expect("it is TCP"),
        "a body does not wait until its head is acknowledged, 40 ms later"
    );
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.ends_with("from inside"), "{answer}");
    world.finish().await;
}

#[tokio::test]
async fn sandboxd_is_started_once_by_the_first_connections_and_takes_no_port_of_the_sandbox() {
    let world = World::new();
    let sandbox = world.idle().await;
    let [first, second, third] = asb_runtime::SANDBOXD_PORTS.map(|port| sandbox.dial(port));
    let (first, second, third) = tokio::join!(first, second, third);
    first.expect("connects");
    second.expect("connects");
    third.expect("connects");
    let running = run(&sandbox, &shell("grep -l sandboxd /proc/[0-9]*/comm | wc -l")).await;
    assert_eq!(running.stdout, "1\n");

    // A program that wants one of the ports later gets it, and with it the connections.
    let program = "import socket; s = socket.create_server(('127.0.0.1', 8080)); print('bound', flush=True)
while True: s.accept()[0].sendall(b'own')";
    let mut server = sandbox.exec(&exec(&["python3", "-c", program])).await.expect("starts");
    let mut line = [0; 6];
    server.stdout.read_exact(&mut line).await.expect("it is bound");
    let mut answer = [0; 3];
    sandbox.dial(8080).await.expect("connects").read_exact(&mut answer).await.expect("answers");
    assert_eq!(&answer, b"own");
    world.finish().await;
}
