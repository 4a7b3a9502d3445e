//! A sandbox from start to end: what it sees, what it prints, how it ends.

use std::os::fd::AsRawFd;

use asb_runtime::{Error, Exit, leak};

use crate::common::{World, log, network_namespace, run, shell, wait};

#[tokio::test]
async fn signal_that_ended_the_main_process_is_kept() {
    let world = World::new();
    let sandbox = world.start(&["sleep", "1000"]).await;
    sandbox.signal(libc::SIGTERM).await.expect("sent");
    assert_eq!(wait(&sandbox).await.exit, Exit::Signal(libc::SIGTERM));
    world.finish().await;
}

#[tokio::test]
async fn failed_step_is_named_with_its_path_and_leaves_nothing() {
    let world = World::new();
    let mut spec = world.spec(&["true"]);
    spec.mounts.push(crate::common::volume("/no/such/volume".as_ref(), "/data"));
    let error = world.native.start(&spec).await.expect_err("cannot start");
    assert!(error.to_string().contains("open volume /no/such/volume"), "{error}");
    assert_eq!(leak::check(&world.directory.path().join("state")), Vec::<String>::new());
    world.finish().await;
}

#[tokio::test]
async fn id_in_use_is_refused_and_its_sandbox_unharmed() {
    let world = World::new();
    let spec = world.spec(&[]);
    let sandbox = world.native.start(&spec).await.expect("starts");
    assert!(matches!(world.native.start(&spec).await, Err(Error::Exists(_))));
    assert_eq!(run(&sandbox, &shell("echo still here")).await.stdout, "still here\n");
    world.finish().await;
}

#[tokio::test]
async fn root_can_be_written_to_and_is_owned_by_root_inside() {
    let world = World::new();
    let sandbox = world.idle().await;
    let script = "touch /made /etc/made /root/made && rm /etc/passwd && mkdir /var/lib/x && stat -c '%u:%g %a' / /etc /made /root /tmp";
    let output = run(&sandbox, &shell(script)).await;
    assert_eq!(output.stdout, "0:0 755\n0:0 755\n0:0 644\n0:0 700\n0:0 1777\n", "{output:?}");
    world.finish().await;
}

#[tokio::test]
async fn read_only_root_refuses_writes_but_not_to_volumes() {
    let world = World::new();
    let data = tempfile::tempdir().expect("temporary directory");
    let mut spec = world.spec(&[]);
    spec.read_only_root = true;
    spec.mounts.push(crate::common::volume(data.path(), "/data"));
    let sandbox = world.native.start(&spec).await.expect("starts");
    let output = run(
        &sandbox,
        &shell("echo x > /data/x && echo x > /dev/shm/x && ! touch /x && ! touch /etc/x && ! touch /usr/x"),
    )
    .await;
    assert_eq!(output.exit, Exit::Code(0), "{output:?}");
    assert!(output.stderr.contains("Read-only file system"), "{output:?}");
    world.finish().await;
}

#[tokio::test]
async fn interpreters_and_ordinary_tools_work() {
    let world = World::new();
    let sandbox = world.idle().await;
    let script = "python3 -c 'import ssl, sqlite3, subprocess, threading, multiprocessing as m; print(m.Pool(2).map(abs, [-6, 7]))'
        && ls -l /proc/self/fd > /dev/null && mkfifo /tmp/f && ps aux | head -2 | wc -l && df / > /dev/null && test -w /dev/null";
    let output = run(&sandbox, &shell(&script.replace('\n', " "))).await;
    assert_eq!((output.stdout.as_str(), output.exit), ("[6, 7]\n2\n", Exit::Code(0)), "{output:?}");
    world.finish().await;
}

#[tokio::test]
async fn own_address_and_low_ports_are_there_and_nothing_else() {
    let world = World::new();
    let mut spec = world.spec(&[]);
    spec.address = Some(std::net::Ipv4Addr::new(10, 88, 0, 7));
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = "import socket
for family, address in [(2, '10.88.0.7'), (2, '127.0.0.1'), (10, '::1')]:
    socket.socket(family).bind((address, 80))
for address in ['10.88.0.8', '192.0.2.1']:
    try: socket.create_connection((address, 80), 1); print('reached', address)
    except OSError as error: print(error.strerror)
print([name for _, name in socket.if_nameindex()], socket.gethostbyname('box'))";
    let output = run(&sandbox, &crate::common::exec(&["python3", "-c", script])).await;
    assert_eq!(
        output.stdout, "Network is unreachable\nNetwork is unreachable\n['lo'] 10.88.0.7\n",
        "{output:?}"
    );
    world.finish().await;
}

#[tokio::test]
async fn log_flood_stays_within_its_bytes_and_long_lines_are_split() {
    let world = World::new();
    let mut spec = world.spec(&[
        "sh",
        "-c",
        "head -c 40000 /dev/zero | tr '\\0' x; echo; yes flood | head -c 20000000; echo; echo last",
    ]);
    spec.limits.log_bytes = 300_000;
    let sandbox = world.native.start(&spec).await.expect("starts");
    assert_eq!(wait(&sandbox).await.exit, Exit::Code(0));
    let sizes: Vec<_> = sandbox.logs().iter().map(|path| path.metadata().expect("there").len()).collect();
    assert_eq!(sizes.len(), 2);
    assert!(sizes.iter().sum::<u64>() <= 300_000, "{sizes:?}");
    assert!(log(&sandbox).ends_with("stdout F last\n"));

    let long = world.start(&["sh", "-c", "head -c 40000 /dev/zero | tr '\\0' x; echo"]).await;
    assert_eq!(wait(&long).await.exit, Exit::Code(0));
    let log = log(&long);
    let tags: Vec<_> = log.lines().map(|line| &line[..9]).collect();
    assert_eq!(tags, ["stdout P ", "stdout P ", "stdout F "]);
    assert_eq!(log.matches('x').count(), 40_000);
    world.finish().await;
}

#[tokio::test]
async fn deleting_a_busy_sandbox_leaves_nothing_and_tells_those_who_wait() {
    let world = World::new();
    let sandbox = world
        .start(&[
            "sh",
            "-c",
            "for i in 1 2 3 4 5; do (trap '' TERM; setsid sleep 1000) & done; mkdir -p /deep/er; wait",
        ])
        .await;
    let waiting = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { wait(&sandbox).await }
    });
    let (first, second) = tokio::join!(sandbox.delete(), sandbox.delete());
    first.expect("deletes");
    second.expect("is already deleted");
    assert_eq!(waiting.await.expect("ends").exit, Exit::Signal(libc::SIGKILL));
    assert!(matches!(sandbox.exec(&shell("true")).await, Err(Error::Ended(_))));
    assert!(world.native.list().await.expect("lists").is_empty());
    world.finish().await;
}

#[tokio::test]
async fn wrong_spec_is_refused_by_the_name_of_the_field() {
    let world = World::new();
    let refusal = |change: fn(&mut asb_runtime::Spec)| {
        let mut spec = world.spec(&["true"]);
        change(&mut spec);
        spec.validate().expect_err("refused").field
    };
    assert_eq!(refusal(|spec| spec.process.uid = 65_536), "process.uid");
    assert_eq!(refusal(|spec| spec.process.cwd = "relative".into()), "process.cwd");
    assert_eq!(
        refusal(|spec| spec.mounts.push(crate::common::volume("/tmp".as_ref(), "/proc/1"))),
        "mounts[0].target"
    );
    assert_eq!(
        refusal(|spec| spec.mounts.push(crate::common::volume("/tmp".as_ref(), "/a/../../b"))),
        "mounts[0].target"
    );
    world.finish().await;
}

#[tokio::test]
async fn many_at_once_have_ranges_of_their_own_and_leave_nothing() {
    let world = World::new();
    let specs: Vec<_> = (0..20).map(|_| world.spec(&[])).collect();
    let mut starts = tokio::task::JoinSet::new();
    for spec in specs {
        let native = world.native.clone();
        starts.spawn(async move {
            let sandbox = native.start(&spec).await.expect("starts");
            let map = run(&sandbox, &shell("cat /proc/self/uid_map")).await.stdout;
            sandbox.delete().await.expect("deletes");
            map
        });
    }
    let maps = starts.join_all().await;
    assert!(maps.iter().all(|map| map.split_whitespace().nth(2) == Some("65536")), "{maps:?}");
    assert!(world.native.list().await.expect("lists").is_empty());
    world.finish().await;
}

#[tokio::test]
async fn sandbox_starts_in_the_network_namespace_it_is_given() {
    let world = World::new();
    let namespace = network_namespace().await;
    let given = std::fs::read_link(format!("/proc/self/fd/{}", namespace.as_raw_fd())).expect("readable");
    let sandbox = world.native.start_in(namespace.into(), &world.spec(&[])).await.expect("starts");
    let seen = run(&sandbox, &shell("readlink /proc/self/ns/net")).await;
    assert_eq!(seen.stdout.trim(), given.to_string_lossy());
    assert!(sandbox.spec().network, "whoever finds it again knows");

    let no_namespace = std::fs::File::open("/dev/null").expect("opens");
    let refused = world.native.start_in(no_namespace.into(), &world.spec(&[])).await;
    assert!(refused.is_err(), "never in the machine's own");
    world.finish().await;
}

#[tokio::test]
async fn last_words_are_kept_wherever_they_are_written() {
    let world = World::new();
    for (path, script) in [
        ("/dev/termination-log", "printf first > /dev/termination-log; printf bye > /dev/termination-log"),
        ("/opt/deep/words", "printf bye > /opt/deep/words"),
    ] {
        let mut spec = world.spec(&["sh", "-c", script]);
        (spec.last_words, spec.read_only_root, spec.process.uid) = (Some(path.into()), true, 1000);
        spec.process.cwd = "/".into();
        let sandbox = world.native.start(&spec).await.expect("starts");
        assert_eq!(wait(&sandbox).await.exit, Exit::Code(0));
        assert_eq!(sandbox.last_words().as_deref(), Some("bye"), "{path}");
    }
    let sandbox = world.start(&["true"]).await;
    wait(&sandbox).await;
    assert_eq!(sandbox.last_words(), None);
    world.finish().await;
}

#[tokio::test]
async fn second_sandbox_can_be_started_where_the_first_one_is() {
    let world = World::new();
    let first = world.start(&["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"]).await;
    let network = first.network().expect("can be looked at").expect("it runs");
    let second = world.native.start_in(network, &world.spec(&["sleep", "1000"])).await.expect("starts");
    let ask = "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do sleep 0.1; done; echo there";
    assert_eq!(run(&second, &shell(ask)).await.stdout, "there\n");
    second.reach(8000).await.expect("the port of the first is that of the second");
    assert!(matches!(second.reach(8888).await, Err(Error::Refused { .. })), "nothing is started for it");
    assert!(second.dial(8000).await.is_ok(), "loopback is the same for both");
    first.delete().await.expect("deletes");
    assert!(first.network().expect("can be looked at").is_none());
    assert!(second.network().expect("can be looked at").is_some(), "it stays for as long as one is in it");
    world.finish().await;
}

#[tokio::test]
async fn port_is_reached_on_the_address_of_the_sandbox_too() {
    let world = World::new();
    let mut spec = world.spec(&["python3", "-m", "http.server", "8000", "--bind", "10.9.8.7"]);
    spec.address = Some("10.9.8.7".parse().expect("an address"));
    let sandbox = world.native.start(&spec).await.expect("starts");
    let wait = "until python3 -c 'import socket; socket.create_connection((\"10.9.8.7\", 8000))' 2>/dev/null; do sleep 0.1; done";
    assert_eq!(run(&sandbox, &shell(wait)).await.exit, Exit::Code(0));
    sandbox.reach(8000).await.expect("reached");
    assert!(
        matches!(sandbox.dial(8000).await, Err(Error::Refused { .. })),
        "a forwarded port is on loopback"
    );
    let serve = "python3 -m http.server 8001 --bind ::1 >/dev/null 2>&1 & \
        until python3 -c 'import socket; socket.create_connection((\"::1\", 8001))' 2>/dev/null; do sleep 0.1; done";
    assert_eq!(run(&sandbox, &shell(serve)).await.exit, Exit::Code(0));
    sandbox.dial(8001).await.expect("reached on the loopback of IPv6");
    world.finish().await;
}
