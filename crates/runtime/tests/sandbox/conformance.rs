//! What a sandbox is, whoever makes it: one list, run on every driver.

use std::process::Command;

use asb_runtime::driver::Name;
use asb_runtime::{
    Attach, Capabilities, Error, Exit, FailureKind, MemoryDir, Native, Stdin, TerminalSize, driver, leak,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{PATIENCE, World, ended_by, eventually, exec, log, output, run, shell, volume, wait};

on_drivers! {
    [native: Native, runc: Runc, crun: Crun, gvisor: Gvisor]
    [
        output_is_in_the_log_and_the_exit_code_is_kept,
        main_process_is_ended_by_a_signal,
        main_process_gets_the_signals_it_listens_for,
        sandbox_without_a_command_idles_until_it_is_told_to_stop,
        main_program_that_does_not_exist_is_an_error_and_leaves_nothing,
        program_sees_its_own_names_user_directory_and_environment,
        root_is_written_to_by_its_own_root,
        read_only_root_refuses_writes_but_not_to_volumes,
        dropped_capabilities_are_nobodys_inside,
        volume_is_shared_with_the_machine_and_keeps_its_ids,
        part_of_a_volume_stays_in_it,
        volume_in_memory_leaves_the_disk_alone,
        kernel_is_the_one_the_driver_promises,
        memory_bomb_ends_as_out_of_memory,
        fork_bomb_is_bounded_and_deleted,
        fork_bomb_of_many_users_hurts_nobody_else,
        streams_and_exit_code_of_a_program_come_back,
        program_that_is_missing_is_not_one_that_failed,
        program_in_a_directory_closed_to_others_is_started,
        program_beside_the_main_one_is_signalled,
        terminal_is_one_and_has_its_size,
        main_process_reads_what_is_written_by_who_attaches,
        main_process_can_have_a_terminal,
        last_words_of_the_main_process_are_kept,
        server_inside_is_reached_and_a_closed_port_is_refused,
        frozen_sandbox_does_nothing_until_it_is_thawed,
        frozen_sandbox_can_be_deleted,
        sandbox_outlives_a_killed_program,
        killed_supervisor_ends_everything,
        deleting_a_busy_sandbox_leaves_nothing,
    ]
}

// But for what counts sandboxes, or is about limits, which are the kernel's: `kernel` has that. And keys that are signals
// reach a main process with a terminal only where it has a kernel of its own.
on_a_shared_kernel! {
    gvisor_shared
    [
        main_process_is_ended_by_a_signal,
        main_process_gets_the_signals_it_listens_for,
        sandbox_without_a_command_idles_until_it_is_told_to_stop,
        program_sees_its_own_names_user_directory_and_environment,
        root_is_written_to_by_its_own_root,
        read_only_root_refuses_writes_but_not_to_volumes,
        dropped_capabilities_are_nobodys_inside,
        volume_is_shared_with_the_machine_and_keeps_its_ids,
        part_of_a_volume_stays_in_it,
        volume_in_memory_leaves_the_disk_alone,
        kernel_is_the_one_the_driver_promises,
        streams_and_exit_code_of_a_program_come_back,
        program_that_is_missing_is_not_one_that_failed,
        program_in_a_directory_closed_to_others_is_started,
        program_beside_the_main_one_is_signalled,
        terminal_is_one_and_has_its_size,
        main_process_reads_what_is_written_by_who_attaches,
        last_words_of_the_main_process_are_kept,
        server_inside_is_reached_and_a_closed_port_is_refused,
        killed_supervisor_ends_everything,
    ]
}

async fn output_is_in_the_log_and_the_exit_code_is_kept(world: World) {
    let sandbox = world.start(&["sh", "-c", "echo hello; echo oops >&2; printf end; exit 7"]).await;
    let ended = wait(&sandbox).await;
    assert_eq!(ended.exit, Exit::Code(7), "{}", log(&sandbox));
    let log = log(&sandbox);
    for line in ["stdout F hello\n", "stderr F oops\n", "stdout P end\n"] {
        assert!(log.contains(line), "{log}");
    }
    let next = Native::open(&world.directory.path().join("state")).expect("opens");
    let found = next.list().await.expect("lists");
    assert_eq!((wait(&found[0]).await, found[0].spec().driver), (ended, world.driver));
    world.finish().await;
}

async fn main_process_is_ended_by_a_signal(world: World) {
    let sandbox = world.start(&["sleep", "1000"]).await;
    sandbox.signal(libc::SIGTERM).await.expect("sent");
    let exit = wait(&sandbox).await.exit;
    assert!(ended_by(exit, libc::SIGTERM), "{exit:?}");
    let stubborn = world.start(&["sh", "-c", "trap '' TERM; sleep 1000"]).await;
    stubborn.signal(libc::SIGKILL).await.expect("sent");
    let exit = wait(&stubborn).await.exit;
    assert!(ended_by(exit, libc::SIGKILL), "{exit:?}");
    world.finish().await;
}

async fn main_process_gets_the_signals_it_listens_for(world: World) {
    let script = "trap 'echo told; exit 3' USR1; echo listening; while :; do sleep 0.01; done";
    let sandbox = world.start(&["sh", "-c", script]).await;
    eventually(|| log(&sandbox).contains("listening")).await;
    sandbox.signal(libc::SIGUSR1).await.expect("sent");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(3));
    assert!(log(&sandbox).contains("stdout F told\n"));
    world.finish().await;
}

async fn sandbox_without_a_command_idles_until_it_is_told_to_stop(world: World) {
    let sandbox = world.idle().await;
    assert_eq!(run(&sandbox, &shell("echo here")).await.stdout, "here\n");
    sandbox.signal(libc::SIGTERM).await.expect("sent");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(0));
    assert!(matches!(sandbox.exec(&shell("true")).await, Err(Error::Ended(_))));
    world.finish().await;
}

async fn main_program_that_does_not_exist_is_an_error_and_leaves_nothing(world: World) {
    let error = world.native.start(&world.spec(&["no-such-program"])).await.expect_err("cannot start");
    assert!(matches!(&error, Error::Program { kind: FailureKind::NotFound, .. }), "{error:?}");
    assert!(error.to_string().contains("no such file on PATH: `no-such-program`"), "{error}");
    assert_eq!(leak::check(&world.directory.path().join("state")), Vec::<String>::new());
    world.finish().await;
}

async fn program_sees_its_own_names_user_directory_and_environment(world: World) {
    let script = "hostname; cat /etc/hostname; id -u; id -g; id -G; pwd; echo $COLOR; umask; \
        grep -E 'CapEff|CapPrm' /proc/self/status | cut -f 2; cat /etc/resolv.conf; ulimit -c";
    let mut spec = world.spec(&["sh", "-c", script]);
    (spec.process.uid, spec.process.gid, spec.process.groups) = (1000, 100, vec![7]);
    spec.process.cwd = "/srv/made/for/it".into();
    spec.process.env.push(("COLOR".to_owned(), "green".to_owned()));
    spec.resolv_conf = Some("nameserver 192.0.2.1\n".to_owned());
    let sandbox = world.native.start(&spec).await.expect("starts");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(0), "{}", log(&sandbox));
    let none = "0000000000000000";
    let expected = [
        "box",
        "box",
        "1000",
        "100",
        "100 7",
        "/srv/made/for/it",
        "green",
        "0022",
        none,
        none,
        "nameserver 192.0.2.1",
        "0",
    ];
    let lines: String = expected.iter().map(|line| format!("stdout F {line}\n")).collect();
    assert_eq!(log(&sandbox), lines);
    world.finish().await;
}

async fn root_is_written_to_by_its_own_root(world: World) {
    let sandbox = world.idle().await;
    let script = "touch /made /etc/made /root/made /tmp/made && rm /etc/passwd && mkdir /var/lib/x && chown 5:6 /made && \
        stat -c '%u:%g %a' / /etc /made /root /tmp && ! touch /usr/made 2>/dev/null";
    let output = run(&sandbox, &shell(script)).await;
    assert_eq!(output.stdout, "0:0 755\n0:0 755\n5:6 644\n0:0 700\n0:0 1777\n", "{output:?}");
    world.finish().await;
}

async fn read_only_root_refuses_writes_but_not_to_volumes(world: World) {
    let data = tempfile::tempdir().expect("temporary directory");
    let mut spec = world.spec(&[]);
    spec.read_only_root = true;
    let mut sealed = volume(data.path(), "/sealed");
    sealed.read_only = true;
    spec.mounts = vec![volume(data.path(), "/data"), sealed];
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = "echo x > /data/x && cat /sealed/x && echo x > /dev/shm/x && ! touch /x && ! touch /etc/x && \
        ! touch /usr/x && ! touch /tmp/x && ! touch /sealed/y";
    let output = run(&sandbox, &shell(script)).await;
    assert_eq!((output.stdout.as_str(), output.exit), ("x\n", Exit::Code(0)), "{output:?}");
    world.finish().await;
}

async fn dropped_capabilities_are_nobodys_inside(world: World) {
    // Of the main process, of a program beside it, and of what root starts there: nothing but what was left.
    let tell = "grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status | cut -f 2; touch /tmp/f; chown 5 /tmp/f 2>&1 | grep -c permitted";
    let mut spec = world.spec(&["sh", "-c", &format!("{tell}; exec sleep 1000")]);
    spec.capabilities =
        Capabilities::NONE.with("CAP_NET_BIND_SERVICE", Capabilities::default()).expect("sandboxes have it");
    let sandbox = world.native.start(&spec).await.expect("starts");
    let told = "0000000000000400\n0000000000000400\n0000000000000400\n1\n";
    let logged: String = told.lines().map(|line| format!("stdout F {line}\n")).collect();
    eventually(|| log(&sandbox) == logged).await;
    let beside = run(&sandbox, &shell(tell)).await;
    assert_eq!(beside.stdout, told, "{beside:?}");
    world.finish().await;
}

async fn volume_is_shared_with_the_machine_and_keeps_its_ids(world: World) {
    use std::os::unix::fs::MetadataExt;
    let data = tempfile::tempdir().expect("temporary directory");
    std::fs::write(data.path().join("given"), "from outside").expect("written");
    let mut spec = world.spec(&[]);
    let mut file = volume(&data.path().join("given"), "/etc/given");
    file.read_only = true;
    spec.mounts = vec![volume(data.path(), "/data"), file];
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = "cat /data/given /etc/given; echo inside > /data/made; chown 33:34 /data/made; stat -c %u:%g /data/given";
    let output = run(&sandbox, &shell(script)).await;
    assert_eq!(output.stdout, "from outsidefrom outside0:0\n", "{output:?}");
    let made = std::fs::metadata(data.path().join("made")).expect("there");
    assert_eq!((made.uid(), made.gid()), (33, 34));
    // What others write later is seen, too: volumes are updated while sandboxes run.
    std::fs::write(data.path().join("later"), "news").expect("written");
    assert_eq!(run(&sandbox, &shell("cat /data/later")).await.stdout, "news");
    std::fs::write(data.path().join("later"), "other").expect("written");
    assert_eq!(run(&sandbox, &shell("cat /data/later")).await.stdout, "other");
    world.finish().await;
}

async fn part_of_a_volume_stays_in_it(world: World) {
    let data = tempfile::tempdir().expect("temporary directory");
    std::fs::create_dir(data.path().join("real")).expect("made");
    std::os::unix::fs::symlink("/etc", data.path().join("away")).expect("linked");
    let mut spec = world.spec(&[]);
    let part = |sub_path: &str, target| {
        let mut part = volume(data.path(), target);
        part.sub_path = sub_path.into();
        part
    };
    spec.mounts = vec![part("real/deep", "/data")];
    let sandbox = world.native.start(&spec).await.expect("starts");
    assert_eq!(run(&sandbox, &shell("touch /data/x; ls /data")).await.stdout, "x\n");
    assert!(data.path().join("real/deep/x").exists());
    let mut spec = world.spec(&[]);
    spec.mounts = vec![part("away", "/data")];
    assert!(world.native.start(&spec).await.is_err(), "the volume has no /etc");
    world.finish().await;
}

async fn volume_in_memory_leaves_the_disk_alone(world: World) {
    let data = tempfile::tempdir().expect("temporary directory");
    let mut spec = world.spec(&[]);
    spec.memory_dirs.push(MemoryDir { path: data.path().to_owned(), bytes: 1 << 20, group: 7 });
    spec.mounts = vec![volume(data.path(), "/memory")];
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = "stat -c %u:%g:%a /memory; head -c 2000000 /dev/zero > /memory/large 2>/dev/null || echo full; ls /memory";
    let output = run(&sandbox, &shell(script)).await;
    assert_eq!(output.stdout, "0:7:3777\nfull\nlarge\n", "{output:?}");
    assert_eq!(std::fs::read_dir(data.path()).expect("listed").count(), 0, "nothing of it is on disk");
    world.finish().await;
}

async fn kernel_is_the_one_the_driver_promises(world: World) {
    let sandbox = world.idle().await;
    let ours = Command::new("uname").arg("-r").output().expect("runs").stdout;
    let same = run(&sandbox, &exec(&["uname", "-r"])).await.stdout.as_bytes() == ours;
    let promised = driver::find(world.driver).expect("found").abilities().kernel_of_the_machine;
    assert_eq!(same, promised);
    if world.driver == Name::Gvisor {
        let messages = run(&sandbox, &exec(&["dmesg"])).await;
        assert!(messages.stdout.contains("gVisor"), "{messages:?}");
    }
    world.finish().await;
}

async fn memory_bomb_ends_as_out_of_memory(world: World) {
    let bomb = "x = bytearray(400 << 20)\nfor at in range(0, len(x), 4096): x[at] = 1";
    let mut spec = world.spec(&["python3", "-c", bomb]);
    spec.limits.memory_bytes = Some(64 << 20);
    let sandbox = world.native.start(&spec).await.expect("starts");
    assert_eq!(wait(&sandbox).await.exit, Exit::OutOfMemory, "{}", log(&sandbox));
    world.finish().await;
}

async fn fork_bomb_is_bounded_and_deleted(world: World) {
    let mut spec = world.spec(&[]);
    spec.limits.pids = 40;
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = "import os, time
count = 0
try:
    while True:
        if os.fork() == 0: time.sleep(1000)
        count += 1
except BlockingIOError: print(count, flush=True)";
    let mut session = sandbox.exec(&exec(&["python3", "-c", script])).await.expect("starts");
    let mut count = [0; 2];
    session.stdout.read_exact(&mut count).await.expect("printed");
    let count: u32 = String::from_utf8_lossy(&count).parse().expect("a number");
    assert!((30..70).contains(&count), "{count} processes");
    world.finish().await;
}

/// Whoever counts processes for each user can be had by one that is many; then the cgroup holds, or memory.
async fn fork_bomb_of_many_users_hurts_nobody_else(world: World) {
    let mut spec = world.spec(&[]);
    (spec.limits.pids, spec.limits.memory_bytes) = (40, Some(128 << 20));
    let (bomb, neighbour) = (world.native.start(&spec).await.expect("starts"), world.idle().await);
    let script = "import os, sys, time
if not os.path.exists('/.asb/sandboxd'): sys.exit('not inside a sandbox')
def forks():
    try: return os.fork()
    except OSError: return None
for user in range(1000, 1100):
    if forks() == 0:
        os.setgid(user); os.setuid(user)
        while forks() is not None: pass
        time.sleep(1000)
print('done', flush=True)
time.sleep(1000)";
    let most = driver::find(world.driver).expect("found").limits(spec.limits);
    let mut session = bomb.exec(&exec(&["python3", "-c", script])).await.expect("starts");
    let mut said = [0; 4];
    // It may take its own sandbox along.
    let through = tokio::time::timeout(PATIENCE, session.stdout.read_exact(&mut said)).await;
    let used = bomb.stats();
    assert!(used.pids <= Some(most.pids.into()), "{used:?} are more than {most:?}, {through:?}");
    assert!(used.memory_bytes <= most.memory_bytes, "{used:?} is more than {most:?}");
    assert_eq!(run(&neighbour, &shell("echo alive")).await.stdout, "alive\n");
    assert_eq!(
        wait(&world.start(&["true"]).await).await.exit,
        Exit::Code(0),
        "and there is room for another"
    );
    world.finish().await;
}

async fn streams_and_exit_code_of_a_program_come_back(world: World) {
    let sandbox = world.idle().await;
    let mut program = shell("tr a-z A-Z; echo problem >&2; exit 3");
    program.stdin = true;
    let large: String = "quiet\n".repeat(50_000);
    let output = output(sandbox.exec(&program).await.expect("starts"), large.as_bytes()).await;
    assert_eq!((output.stdout, output.stderr.as_str()), (large.to_uppercase(), "problem\n"));
    assert_eq!(output.exit, Exit::Code(3));
    let killed = run(&sandbox, &shell("kill -USR1 $$")).await.exit;
    assert!(ended_by(killed, libc::SIGUSR1), "{killed:?}");
    world.finish().await;
}

async fn program_that_is_missing_is_not_one_that_failed(world: World) {
    let sandbox = world.idle().await;
    assert_eq!(run(&sandbox, &exec(&["false"])).await.exit, Exit::Code(1));
    let cases = [
        (exec(&["pyhton"]), FailureKind::NotFound, "no such file on PATH: `pyhton`"),
        (exec(&["/usr/bin/pyhton"]), FailureKind::NotFound, "no such file: `/usr/bin/pyhton`"),
        (exec(&["/etc/passwd"]), FailureKind::NotExecutable, "could not execute `/etc/passwd`"),
    ];
    for (program, expected, words) in cases {
        match sandbox.exec(&program).await.map(|_| ()) {
            Err(Error::Program { kind, message, .. }) => {
                assert_eq!((kind, message.as_str()), (expected, words))
            }
            other => panic!("{other:?}"),
        }
    }
    let mut nowhere = shell("true");
    nowhere.cwd = Some("/no/where".into());
    let failed = sandbox.exec(&nowhere).await.map(|_| ());
    assert!(matches!(failed, Err(Error::Program { kind: FailureKind::Directory, .. })), "{failed:?}");
    world.finish().await;
}

async fn program_in_a_directory_closed_to_others_is_started(world: World) {
    let mut spec = world.spec(&[]);
    (spec.process.uid, spec.process.gid, spec.process.cwd) = (1000, 1000, "/tmp".into());
    let sandbox = world.native.start(&spec).await.expect("starts");
    let close =
        "mkdir -m 700 own && cp /usr/bin/true own/there && chmod 700 own/there && mkdir -m 500 own/in";
    assert_eq!(run(&sandbox, &shell(close)).await.exit, Exit::Code(0));
    let mut there = exec(&["/tmp/own/there"]);
    there.cwd = Some("/tmp/own/in".into());
    assert_eq!(run(&sandbox, &there).await.exit, Exit::Code(0));
    assert!(sandbox.exec(&exec(&["/tmp/own/missing"])).await.is_err());
    world.finish().await;
}

async fn program_beside_the_main_one_is_signalled(world: World) {
    let sandbox = world.idle().await;
    let script = "trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let mut session = sandbox.exec(&shell(script)).await.expect("starts");
    let mut ready = [0; 6];
    session.stdout.read_exact(&mut ready).await.expect("printed");
    session.control.signal(libc::SIGTERM).await.expect("sent");
    assert_eq!(session.control.wait().await.expect("ends"), Exit::Code(9));
    let mut session = sandbox.exec(&shell("echo ready; exec sleep 1000")).await.expect("starts");
    session.stdout.read_exact(&mut ready).await.expect("printed");
    session.control.signal(libc::SIGKILL).await.expect("sent");
    let killed = session.control.wait().await.expect("ends");
    assert!(ended_by(killed, libc::SIGKILL), "{killed:?}");
    assert_eq!(run(&sandbox, &shell("echo alive")).await.stdout, "alive\n");
    world.finish().await;
}

async fn terminal_is_one_and_has_its_size(world: World) {
    let sandbox = world.idle().await;
    let mut program =
        shell("test -t 0 && test -t 1 && stty size && read line && stty size && echo got $line && exit 5");
    program.stdin = true;
    program.terminal = Some(TerminalSize { columns: 80, rows: 24 });
    let mut session = sandbox.exec(&program).await.expect("starts");
    let mut seen = String::new();
    let mut buffer = [0; 256];
    while !seen.contains("24 80") {
        let read = session.stdout.read(&mut buffer).await.expect("readable");
        assert!(read > 0, "ended early: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    session.control.resize(TerminalSize { columns: 132, rows: 50 }).await.expect("resized");
    session.stdin.as_mut().expect("asked for").write_all(b"line\n").await.expect("written");
    while !seen.contains("got line") {
        let read = session.stdout.read(&mut buffer).await.expect("readable");
        assert!(read > 0, "ended early: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert!(seen.contains("50 132"), "{seen}");
    assert_eq!(session.control.wait().await.expect("ends"), Exit::Code(5));
    world.finish().await;
}

async fn main_process_reads_what_is_written_by_who_attaches(world: World) {
    let mut spec = world.spec(&["tr", "a-z", "A-Z"]);
    spec.process.stdin = Stdin::Once;
    let sandbox = world.native.start(&spec).await.expect("starts");
    let attach = Attach { stdin: true, stdout: true, stderr: true };
    let output = output(sandbox.attach(attach).await.expect("attaches"), b"quiet\n").await;
    assert_eq!((output.stdout.as_str(), output.exit), ("QUIET\n", Exit::Code(0)));
    assert_eq!(log(&sandbox), "stdout F QUIET\n");
    world.finish().await;
}

async fn main_process_can_have_a_terminal(world: World) {
    // What runs in front is short: a shell answers a signal between two commands, and may get it before the next begins.
    let script = "test -t 0 && test -t 1 && stty size && read line && echo got $line && trap 'exit 6' INT && echo wait && \
        while :; do sleep 0.05; done";
    let mut spec = world.spec(&["sh", "-c", script]);
    (spec.process.stdin, spec.process.terminal) = (Stdin::Open, true);
    let sandbox = world.native.start(&spec).await.expect("starts");
    let attach = Attach { stdin: true, stdout: true, stderr: false };
    let mut session = sandbox.attach(attach).await.expect("attaches");
    let mut stdin = session.stdin.take().expect("asked for");
    stdin.write_all(b"line\n").await.expect("written");
    eventually(|| log(&sandbox).contains("wait")).await;
    let seen = log(&sandbox);
    assert!(seen.contains("24 80") && seen.contains("got line"), "{seen}");
    // Ctrl-C reaches what is in front of the terminal.
    stdin.write_all(b"\x03").await.expect("written");
    let exit = session.control.wait().await.expect("ends");
    assert_eq!(exit, Exit::Code(6), "{}", log(&sandbox));
    world.finish().await;
}

async fn last_words_of_the_main_process_are_kept(world: World) {
    for path in ["/dev/termination-log", "/srv/deep/words"] {
        let mut spec = world.spec(&["sh", "-c", &format!("echo too bad > {path}; exit 1")]);
        (spec.process.uid, spec.process.cwd, spec.last_words) = (1000, "/".into(), Some(path.into()));
        let sandbox = world.native.start(&spec).await.expect("starts");
        assert_eq!(wait(&sandbox).await.exit, Exit::Code(1), "{}", log(&sandbox));
        assert_eq!(sandbox.last_words().as_deref(), Some("too bad\n"), "{path}");
    }
    world.finish().await;
}

async fn server_inside_is_reached_and_a_closed_port_is_refused(world: World) {
    let script = "import socket
server = socket.create_server(('0.0.0.0', 80))
print('listening', flush=True)
while True:
    client, _ = server.accept()
    client.sendall(client.recv(100).upper())
    client.close()";
    let sandbox = world.start(&["python3", "-c", script]).await;
    eventually(|| log(&sandbox).contains("listening")).await;
    for _ in 0..3 {
        let mut connection = sandbox.dial(80).await.expect("connects");
        connection.write_all(b"hello").await.expect("written");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.expect("read");
        assert_eq!(answer, "HELLO");
    }
    assert!(matches!(sandbox.dial(81).await, Err(Error::Refused { port: 81, .. })));
    for port in asb_runtime::SANDBOXD_PORTS {
        sandbox.dial(port).await.expect("sandboxd is started");
    }
    world.finish().await;
}

async fn frozen_sandbox_does_nothing_until_it_is_thawed(world: World) {
    let sandbox = world.start(&["sh", "-c", "while :; do echo tick; sleep 0.01; done"]).await;
    eventually(|| log(&sandbox).contains("tick")).await;
    sandbox.freeze().await.expect("freezes");
    assert!(sandbox.is_frozen());
    assert!(matches!(sandbox.exec(&shell("true")).await, Err(Error::Frozen(_))));
    let before = log(&sandbox).len();
    // Long enough for many ticks, had it been running.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(log(&sandbox).len(), before);
    sandbox.thaw().await.expect("thaws");
    eventually(|| log(&sandbox).len() > before).await;
    assert_eq!(run(&sandbox, &shell("echo alive")).await.stdout, "alive\n");
    sandbox.freeze().await.expect("freezes again");
    sandbox.thaw().await.expect("thaws again");
    assert!(!sandbox.is_frozen());
    world.finish().await;
}

async fn frozen_sandbox_can_be_deleted(world: World) {
    let sandbox = world.start(&["sleep", "1000"]).await;
    sandbox.freeze().await.expect("freezes");
    let waiting = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { wait(&sandbox).await }
    });
    sandbox.delete().await.expect("deletes");
    assert_eq!(waiting.await.expect("ends").exit, Exit::Signal(libc::SIGKILL));
    world.finish().await;
}

/// Tells the helper below where to work, and with what.
const DIRECTORY: &str = "ASB_TEST_CONFORMANCE_DIRECTORY";
const DRIVER: &str = "ASB_TEST_CONFORMANCE_DRIVER";

#[tokio::test]
#[ignore = "helper: run by sandbox_outlives_a_killed_program in a process of its own"]
async fn starts_a_sandbox_and_waits_to_be_killed() {
    let (Some(directory), Ok(driver)) = (std::env::var_os(DIRECTORY), std::env::var(DRIVER)) else { return };
    let world = World::on(Name::parse(&driver).expect("a driver"));
    let native = Native::open(directory.as_ref()).expect("opens");
    let script = "echo before; while ! test -e /tmp/go; do sleep 0.01; done; echo after; exit 4";
    native.start(&world.spec(&["sh", "-c", script])).await.expect("starts");
    println!("started");
    std::future::pending::<()>().await;
}

async fn sandbox_outlives_a_killed_program(world: World) {
    let mut child = Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "conformance::starts_a_sandbox_and_waits_to_be_killed", "--ignored", "--nocapture"])
        .env(DIRECTORY, world.directory.path().join("state"))
        .env(DRIVER, world.driver.as_str())
        .env("TMPDIR", world.directory.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("runs");
    let stdout = child.stdout.take().expect("piped");
    let said = tokio::task::spawn_blocking(move || {
        use std::io::BufRead;
        std::io::BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line.contains("started"))
    });
    assert!(said.await.expect("read"), "the helper started a sandbox");
    child.kill().expect("killed");
    child.wait().expect("reaped");
    let found = world.native.list().await.expect("lists");
    let [sandbox] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(sandbox.spec().driver, world.driver);
    assert_eq!(run(sandbox, &shell("echo works; touch /tmp/go")).await.stdout, "works\n");
    assert_eq!(wait(sandbox).await.exit, Exit::Code(4));
    assert_eq!(log(sandbox), "stdout F before\nstdout F after\n");
    world.finish().await;
}

async fn killed_supervisor_ends_everything(world: World) {
    let sandbox = world.start(&["sh", "-c", "sleep 1000 & sleep 1000"]).await;
    let place = world.directory.path().join("state/sandbox").join(sandbox.id().as_str());
    let identity = std::fs::read_to_string(place.join("started.json")).expect("there");
    let identity: serde_json::Value = serde_json::from_str(&identity).expect("parses");
    let pid = rustix::process::Pid::from_raw(identity["pid"].as_i64().expect("a number") as i32);
    rustix::process::kill_process(pid.expect("positive"), rustix::process::Signal::KILL).expect("killed");
    assert_eq!(wait(&sandbox).await.exit, Exit::Signal(libc::SIGKILL));
    sandbox.delete().await.expect("deletes");
    world.finish().await;
}

async fn deleting_a_busy_sandbox_leaves_nothing(world: World) {
    let script = "for i in 1 2 3 4 5; do (trap '' TERM; setsid sleep 1000) & done; mkdir -p /deep/er; wait";
    let sandbox = world.start(&["sh", "-c", script]).await;
    let _session = sandbox.exec(&shell("sleep 1000")).await.expect("starts");
    let (first, second) = tokio::join!(sandbox.delete(), sandbox.delete());
    first.expect("deletes");
    second.expect("is already deleted");
    assert!(world.native.list().await.expect("lists").is_empty());
    world.finish().await;
}
