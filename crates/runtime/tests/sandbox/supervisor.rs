//! The supervisor against clients that are broken, hostile or from another time.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use asb_runtime::{Powers, Sandbox};
use asb_supervisor::launch::{Image, Launch, LaunchFile, Main, Report, Slot, file};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use tokio_seqpacket::UnixSeqpacket;

use crate::common::{World, eventually, run, shell};

fn socket(world: &World, sandbox: &Sandbox) -> PathBuf {
    world.directory.path().join("state/sandbox").join(sandbox.id().as_str()).join("run/socket")
}

async fn reply(connection: &UnixSeqpacket) -> serde_json::Value {
    let mut packet = vec![0; 65536];
    let length = connection.recv(&mut packet).await.expect("received");
    serde_json::from_slice(&packet[..length]).unwrap_or(serde_json::Value::Null)
}

#[tokio::test]
async fn unknown_requests_and_garbage_are_answered_and_do_no_harm() {
    let world = World::new();
    let sandbox = world.idle().await;
    let path = socket(&world, &sandbox);
    let cases = [
        (r#"{"type":"teleport"}"#.to_owned(), "unsupported"),
        (r#"{"type":"signal","signal":9}"#.to_owned(), "malformed"),
        (r#"{"type":"attach","stdout":true}"#.to_owned(), "malformed"),
        (r#"{"type":"payload","length":10}"#.to_owned(), "malformed"),
        (r#"{"type":"exec","argv":[],"env":[],"cwd":"/","uid":0,"gid":0}"#.to_owned(), "malformed"),
        (
            r#"{"type":"exec","argv":["id"],"env":[],"cwd":"/","uid":0,"gid":0,"output":true}"#.to_owned(),
            "malformed",
        ),
        ("[1,2,".to_owned(), "malformed"),
        ("\u{0}\u{1}".to_owned(), "malformed"),
        (format!("{{\"type\":\"dial\",\"port\":1,\"x\":\"{}\"}}", "y".repeat(40_000)), "too_large"),
    ];
    for (request, kind) in cases {
        let connection = UnixSeqpacket::connect(&path).await.expect("connects");
        assert_eq!(reply(&connection).await["generation"], 2);
        connection.send(request.as_bytes()).await.expect("sent");
        let answer = reply(&connection).await;
        assert_eq!(answer["kind"], kind, "{request:.60} was answered {answer}");
    }
    assert_eq!(run(&sandbox, &shell("echo fine")).await.stdout, "fine\n");
    world.finish().await;
}

#[tokio::test]
async fn thousands_of_connections_and_deaf_clients_do_not_stop_it() {
    let world = World::new();
    let sandbox = world.idle().await;
    let path = socket(&world, &sandbox);
    let mut held = Vec::new();
    let mut turned_away = 0;
    for _ in 0..10_000 {
        match UnixSeqpacket::connect(&path).await {
            // Never reads, and asks again and again.
            Ok(connection) => held.push(connection),
            Err(_) => turned_away += 1,
        }
        if held.len() == 600 {
            held.drain(..300);
        }
    }
    for connection in &held {
        for _ in 0..100 {
            if rustix::net::send(
                connection.as_async_fd(),
                br#"{"type":"teleport"}"#,
                rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL,
            )
            .is_err()
            {
                break;
            }
        }
    }
    drop(held);
    let mut answered = false;
    for _ in 0..1000 {
        // Busy for as long as the supervisor has not noticed that all have gone.
        if let Ok(session) = sandbox.exec(&shell("echo fine")).await {
            assert_eq!(crate::common::output(session, b"").await.stdout, "fine\n");
            answered = true;
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(answered, "still busy ({turned_away} were turned away)");
    world.finish().await;
}

/// What the kernel shows of the supervisor of a sandbox.
fn process(world: &World, sandbox: &Sandbox) -> PathBuf {
    let identity =
        socket(world, sandbox).parent().expect("run").parent().expect("state").join("started.json");
    let identity: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(identity).expect("there")).expect("parses");
    PathBuf::from(format!("/proc/{}", identity["pid"]))
}

/// A line of a `status` file, without its name.
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().to_owned()
}

on_drivers! {
    [native: Native, runc: Runc, crun: Crun, gvisor: Gvisor] [supervisor_holds_no_capability_once_it_serves]
}
on_drivers! { [runc_outside: Runc, crun_outside: Crun, gvisor_outside: Gvisor] [supervisor_outside_can_do_nothing_but_ask] }

async fn supervisor_holds_no_capability_once_it_serves(world: World) {
    let sandbox = world.idle().await;
    let status = std::fs::read_to_string(process(&world, &sandbox).join("status")).expect("readable");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(&status, set), "0000000000000000", "{set} {status}");
    }
    assert_eq!(field(&status, "NoNewPrivs:"), "1", "{status}");
    world.finish().await;
}

/// It is root, for it owns the container's user namespace; but no program that it starts gets what root has elsewhere, and
/// nothing of the machine can be written to.
async fn supervisor_outside_can_do_nothing_but_ask(world: World) {
    let sandbox = world.idle().await;
    let process = process(&world, &sandbox);
    let status = std::fs::read_to_string(process.join("status")).expect("readable");
    assert_eq!(field(&status, "CapBnd:"), "0000000000000000", "{status}");
    let write = |path: &str| {
        let enter = format!("--mount={}", process.join("ns/mnt").display());
        let script = format!("echo > {path}");
        let tried =
            Command::new("nsenter").args([enter.as_str(), "sh", "-c", &script]).output().expect("runs");
        (tried.status.success(), String::from_utf8_lossy(&tried.stderr).into_owned())
    };
    let here = world.directory.path().join("made");
    let here = here.to_str().expect("text");
    for path in ["/etc/made", "/usr/made", "/var/made", here, "/proc/sys/vm/drop_caches"] {
        let (done, said) = write(path);
        assert!(!done && said.contains("Read-only file system"), "{path}: {done} {said}");
    }
    assert_eq!(run(&sandbox, &shell("echo works > /x; cat /x")).await.stdout, "works\n");
    world.finish().await;
}

#[tokio::test]
async fn idle_supervisor_is_small_and_keeps_few_descriptors() {
    let world = World::new();
    let sandbox = world.idle().await;
    let process = process(&world, &sandbox);
    let status = std::fs::read_to_string(process.join("status")).expect("readable");
    let field = |name: &str| field(&status, name);
    let kilobytes: u64 = field("RssAnon:").trim_end_matches(" kB").parse().expect("a number");
    assert!(kilobytes < 512, "{status}");
    println!("supervisor: {} resident, {} of it its own", field("VmRSS:"), field("RssAnon:"));
    let before = descriptors(&process);
    assert!(before.len() <= 10, "{before:#?}");
    assert!(!before.iter().any(|path| path.contains("sandbox.json")), "{before:#?}");
    for _ in 0..3 {
        run(&sandbox, &shell("true")).await;
        sandbox.exec(&crate::common::exec(&["no-such-program"])).await.map(|_| ()).expect_err("is not there");
        sandbox.dial(1).await.expect_err("is closed");
    }
    eventually(|| descriptors(&process) == before).await;
    world.finish().await;
}

fn descriptors(process: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(process.join("fd")).expect("listed").flatten();
    let paths = entries.filter_map(|entry| {
        let path = std::fs::read_link(entry.path()).ok()?;
        Some(format!("{} {}", entry.file_name().display(), path.display()))
    });
    paths.collect()
}

fn send(socket: &OwnedFd, packet: &[u8], fd: &impl AsFd) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds));
    let bytes = [std::io::IoSlice::new(packet)];
    rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL).expect("sent");
}

/// A launch as the engine never asks for one: its specs name absolute directories.
fn launch(image: Image, cwd: &str, script: &str) -> Launch {
    Launch {
        hostname: "box".to_owned(),
        image,
        read_only_root: false,
        capabilities: Default::default(),
        privileged: false,
        memory_dirs: Vec::new(),
        binds: Vec::new(),
        address: None,
        network: false,
        resolv_conf: None,
        hosts: None,
        last_words: None,
        memory_bytes: None,
        processors: None,
        log_bytes: 1 << 20,
        extra_ids: Default::default(),
        user_processes: None,
        main: Main {
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: Vec::new(),
            cwd: cwd.to_owned(),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            stdin: Default::default(),
            terminal: false,
        },
        oci: None,
        beside: None,
    }
}

/// Runs it in a slot that is made by hand; answers with its log.
fn run_by_hand(program: &Path, place: &Path, launch: Launch) -> String {
    const IDS: u32 = 0x7000_0000;
    for name in ["upper", "work", file::RUN] {
        std::fs::create_dir_all(place.join(name)).expect("made");
        std::os::unix::fs::chown(place.join(name), Some(IDS), Some(IDS)).expect("given");
    }
    let path = place.join("launch.json");
    let text = serde_json::to_vec(&LaunchFile { launch }).expect("encodes");
    std::fs::write(&path, text).expect("written");
    let slot = Slot {
        powers: Powers::Machine,
        first_id: IDS,
        supervisor_id: IDS - 1,
        cgroups: Vec::new(),
        cgroup_views: Vec::new(),
        image: None,
    };
    std::os::unix::fs::chown(place.join(file::RUN), Some(IDS - 1), Some(IDS - 1)).expect("given");
    let flags = SocketFlags::CLOEXEC;
    let (control, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("made");
    let directory = std::fs::File::open(place).expect("opens");
    send(&control, &serde_json::to_vec(&slot).expect("encodes"), &directory);
    send(&control, &[0], &std::fs::File::open(&path).expect("opens"));
    let launcher =
        Command::new(program).stdin(theirs).stdout(Stdio::piped()).spawn().expect("the supervisor runs");
    let report = launcher.wait_with_output().expect("ends").stdout;
    match serde_json::from_slice(&report).expect("a report") {
        Report::Started(_) => {}
        Report::Failed(failure) => panic!("{failure:?}"),
    }
    let deadline = std::time::Instant::now() + crate::common::PATIENCE;
    while !place.join(file::RUN).join(file::EXIT).exists() {
        assert!(std::time::Instant::now() < deadline, "it does not end");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::fs::read_to_string(place.join(file::RUN).join(file::LOG)).expect("a log")
}

/// Process 1 is forked before the root is mounted, in a directory of the machine.
#[tokio::test]
async fn relative_working_directory_is_one_of_the_sandbox() {
    let world = World::new();
    let programs = world.directory.path().join("state/bin");
    let version =
        std::fs::read_dir(programs).expect("listed").next().expect("one version").expect("readable");
    let root = world.spec(&[]).root;
    let image = Image { layers: root.layers, host_dirs: root.host_dirs };
    let script = "[ . -ef / ] && echo inside; [ .. -ef / ] && echo and above";
    let place = world.directory.path().join("slot");
    let log = run_by_hand(&version.path().join("asb-supervisor"), &place, launch(image, ".", script));
    assert!(log.contains("stdout F inside\n") && log.contains("stdout F and above\n"), "{log}");
    world.finish().await;
}
