//! Sandboxes that share ids, IPC and memory with an idle one, as containers of a Pod do; and that nobody else does.

use std::path::Path;

use asb_runtime::{Exit, MemoryDir, Native, Sandbox, SandboxId, Spec, leak};

use crate::common::{World, exec, run, shell, volume, wait};

on_drivers! {
    [native: Native, runc: Runc, crun: Crun]
    [
        files_in_memory_are_the_same_for_all_and_keep_their_owners,
        memory_and_ipc_outlive_those_who_use_them_and_the_engine,
        shared_memory_of_both_kinds_is_the_same_for_all,
        neither_memory_nor_ipc_is_seen_by_others,
    ]
}

/// The idle one, with a volume of a mebibyte in memory at `data`.
async fn common(world: &World, data: &Path) -> Sandbox {
    let id = SandboxId::new(format!("{}-common", world.spec(&[]).id)).expect("valid");
    let memory = MemoryDir { path: data.to_owned(), bytes: 1 << 20, group: 7 };
    world.native.start(&world.native.common(id, "box".to_owned(), vec![memory])).await.expect("starts")
}

fn beside(world: &World, common: &Sandbox, data: &Path) -> Spec {
    Spec {
        beside: Some(common.id().clone()),
        memory_dirs: common.spec().memory_dirs.clone(),
        mounts: vec![volume(data, "/memory")],
        ..world.spec(&[])
    }
}

/// Attaches to, or makes, a System V segment that only its owner may use, and exchanges a word.
const SEGMENT: &str = r#"
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
made = libc.shmget(0x61736201, 4096, 0o600 | (0o1000 if sys.argv[1] == "write" else 0))
if made == -1: sys.exit(f"shmget: {ctypes.get_errno()}")
place = libc.shmat(made, None, 0)
if place in (None, ctypes.c_void_p(-1).value): sys.exit(f"shmat: {ctypes.get_errno()}")
if sys.argv[1] == "write": ctypes.memmove(place, b"word", 5)
else: print(ctypes.string_at(place).decode())
"#;

async fn files_in_memory_are_the_same_for_all_and_keep_their_owners(world: World) {
    let data = tempfile::tempdir().expect("temporary directory");
    world.native.park().await;
    let common = common(&world, data.path()).await;
    let one = world.native.start(&beside(&world, &common, data.path())).await.expect("starts");
    let mut spec = beside(&world, &common, data.path());
    spec.mounts[0].read_only = true;
    let mut part = volume(data.path(), "/part");
    part.sub_path = "a/b".into();
    spec.mounts.push(part);
    let two = world.native.start(&spec).await.expect("starts");
    let script =
        "umask 077; echo secret > /memory/mine; touch /memory/theirs; chown 1000:1000 /memory/theirs";
    assert_eq!(run(&one, &shell(script)).await.exit, Exit::Code(0));
    let look = "cat /memory/mine; stat -c %u:%g:%a /memory /memory/mine /memory/theirs /; touch /part/x; touch /memory/x";
    let seen = run(&two, &shell(look)).await;
    assert_eq!(seen.stdout, "secret\n0:7:3777\n0:7:600\n1000:1000:600\n0:0:755\n", "{seen:?}");
    assert!(seen.stderr.contains("Read-only"), "{seen:?}");
    let full = "ls /memory/a/b; head -c 2000000 /dev/zero > /memory/large 2>/dev/null || echo full; stat -f -c %T /memory";
    assert_eq!(run(&one, &shell(full)).await.stdout, "x\nfull\ntmpfs\n");
    let own = run(&one, &shell("touch /own; stat -c %u /own; ls -d /memory/0 2>&1")).await.stdout;
    assert!(own.starts_with("0\n") && own.contains("No such file"), "{own}");
    assert_eq!(std::fs::read_dir(data.path()).expect("listed").count(), 0, "nothing of it is on disk");
    world.native.unpark().await;
    world.finish().await;
}

async fn memory_and_ipc_outlive_those_who_use_them_and_the_engine(world: World) {
    let data = tempfile::tempdir().expect("temporary directory");
    let common = common(&world, data.path()).await;
    let one = world.native.start(&beside(&world, &common, data.path())).await.expect("starts");
    run(&one, &shell("echo kept > /memory/file; echo kept > /dev/shm/file")).await;
    assert_eq!(run(&one, &exec(&["python3", "-c", SEGMENT, "write"])).await.exit, Exit::Code(0));
    one.delete().await.expect("deleted");
    let next = Native::open(&world.directory.path().join("state")).expect("opens");
    assert_eq!(next.list().await.expect("lists").len(), 1);
    let two = next.start(&beside(&world, &common, data.path())).await.expect("starts");
    let script = format!("cat /memory/file /dev/shm/file; exec python3 -c '{SEGMENT}' read");
    let seen = run(&two, &shell(&script)).await;
    assert_eq!(seen.stdout, "kept\nkept\nword\n", "{seen:?}");
    // Nobody else may get its ids while anybody has them.
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { wait(&two).await.exit }
    });
    let found = next.list().await.expect("lists");
    let common = found.iter().find(|it| it.id() == common.id()).expect("found");
    common.delete().await.expect("deleted");
    assert_eq!(waiting.await.expect("waited"), Exit::Signal(libc::SIGKILL));
    two.delete().await.expect("deleted");
    let traces = leak::check(&world.directory.path().join("state"));
    assert!(traces.is_empty(), "left behind: {traces:#?}");
}

async fn shared_memory_of_both_kinds_is_the_same_for_all(world: World) {
    let data = tempfile::tempdir().expect("temporary directory");
    let common = common(&world, data.path()).await;
    let one = world.native.start(&beside(&world, &common, data.path())).await.expect("starts");
    let two = world.native.start(&beside(&world, &common, data.path())).await.expect("starts");
    let write = run(&one, &exec(&["python3", "-c", SEGMENT, "write"])).await;
    assert_eq!(write.exit, Exit::Code(0), "{write:?}");
    assert_eq!(run(&two, &exec(&["python3", "-c", SEGMENT, "read"])).await.stdout, "word\n");
    run(&one, &shell("umask 077; echo posix > /dev/shm/name")).await;
    let look = "cat /dev/shm/name; stat -c %u:%a /dev/shm; cp /bin/true /dev/shm/; /dev/shm/true || echo no programs";
    let seen = run(&two, &shell(look)).await;
    assert_eq!(seen.stdout, "posix\n0:1777\nno programs\n", "{seen:?}");
    world.finish().await;
}

async fn neither_memory_nor_ipc_is_seen_by_others(world: World) {
    let (data, other) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    let first = common(&world, data.path()).await;
    let one = world.native.start(&beside(&world, &first, data.path())).await.expect("starts");
    run(&one, &shell("chmod 777 /memory; echo a > /memory/a; echo a > /dev/shm/a")).await;
    assert_eq!(run(&one, &exec(&["python3", "-c", SEGMENT, "write"])).await.exit, Exit::Code(0));
    let second = common(&world, other.path()).await;
    let mut strangers = vec![
        world.idle().await,
        world.native.start(&beside(&world, &second, other.path())).await.expect("starts"),
    ];
    let gvisor = Spec { driver: asb_runtime::driver::Name::Gvisor, ..beside(&world, &second, other.path()) };
    let refused = world.native.start(&gvisor).await.expect_err("refused");
    assert!(format!("{refused:?}").contains("beside"), "{refused:?}");
    // Naming the directory of another is not enough.
    let mut thief = beside(&world, &second, data.path());
    thief.memory_dirs = first.spec().memory_dirs.clone();
    assert!(world.native.start(&thief).await.is_err(), "that volume is not the group's");
    thief.memory_dirs.clear();
    strangers.push(world.native.start(&thief).await.expect("starts"));
    for stranger in &strangers {
        let segment = run(stranger, &exec(&["python3", "-c", SEGMENT, "read"])).await;
        assert!(segment.stderr.contains("shmget: 2"), "{segment:?}");
        let seen =
            run(stranger, &shell("ls /dev/shm /memory 2>/dev/null; tail -n +2 /proc/sysvipc/shm")).await;
        assert!(!seen.stdout.lines().any(|line| line == "a" || line.contains("1634951681")), "{seen:?}");
        let ids = |sandbox: &Sandbox| {
            let sandbox = sandbox.clone();
            async move { run(&sandbox, &shell("cat /proc/self/uid_map")).await.stdout }
        };
        assert_ne!(ids(stranger).await, ids(&one).await, "ids are those of the group alone");
    }
    world.finish().await;
}
