//! A sandbox that uses up what it can get: it runs out itself, and nobody else does.

use std::process::Command;

use asb_runtime::driver::Name;
use asb_runtime::{Exec, Exit, Sandbox, Session};
use tokio::io::AsyncReadExt;

use crate::common::{World, eventually, exec, run, shell};

on_drivers! {
    [native: Native, runc: Runc, crun: Crun, gvisor: Gvisor]
    [
        open_files_run_out_for_the_process_that_opens_them_alone,
        inotify_instances_run_out_inside_and_nowhere_else,
        terminals_run_out_inside_and_nowhere_else,
        full_disk_stops_no_sandbox_that_runs_and_deleting_the_culprit_makes_room,
    ]
}

/// Takes as many as it gets of something, prints how many those are, and keeps them.
async fn take_all(sandbox: &Sandbox, one: &str) -> (Session, usize) {
    let script = format!(
        "import ctypes, errno, os, sys
if not os.path.exists('/.asb/sandboxd'): sys.exit('not inside a sandbox')
libc = ctypes.CDLL(None, use_errno=True)
count = 0
while True:
    if {one} < 0: break
    count += 1
if ctypes.get_errno() not in (errno.EMFILE, errno.ENFILE, errno.ENOSPC): sys.exit(str(ctypes.get_errno()))
os.write(1, b'%8d' % count)
os.read(0, 1)"
    );
    let take = Exec { stdin: true, ..exec(&["python3", "-c", &script]) };
    let mut session = sandbox.exec(&take).await.expect("starts");
    let mut count = [0; 8];
    session.stdout.read_exact(&mut count).await.expect("printed how many it has");
    let count = std::str::from_utf8(&count).expect("text").trim().parse().expect("a number");
    (session, count)
}

async fn lives(sandbox: &Sandbox) {
    assert_eq!(run(sandbox, &shell("echo alive")).await.stdout, "alive\n");
}

/// Open files are memory of the kernel, which is counted as the sandbox's.
async fn open_files_run_out_for_the_process_that_opens_them_alone(world: World) {
    let mut spec = world.spec(&[]);
    spec.limits.memory_bytes = Some(64 << 20);
    let greedy = world.native.start(&spec).await.expect("starts");
    let neighbour = world.idle().await;
    let script = "import os, sys
if not os.path.exists('/.asb/sandboxd'): sys.exit('not inside a sandbox')
while True: os.open('/dev/null', os.O_RDONLY)";
    let output = run(&greedy, &exec(&["python3", "-c", script])).await;
    let stopped = output.exit == Exit::OutOfMemory || output.stderr.contains("Too many open files");
    assert!(stopped, "{output:?}");
    lives(&greedy).await;
    lives(&neighbour).await;
    world.finish().await;
}

/// The kernel counts these for each user, and for the owner of a user namespace: that must not be one whom others are, too.
async fn inotify_instances_run_out_inside_and_nowhere_else(world: World) {
    let (greedy, neighbour) = (world.idle().await, world.idle().await);
    let (_held, count) = take_all(&greedy, "libc.inotify_init1(0)").await;
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").expect("readable");
    let most: usize = most.trim().parse().expect("a number");
    // gVisor's are its own; they end with the files that a process may open.
    assert!(count == most || world.driver == Name::Gvisor, "{count}, not all that one user may have");
    rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).expect("the machine has its own");
    let (_other, theirs) = take_all(&neighbour, "libc.inotify_init1(0)").await;
    assert_eq!(theirs, count, "a neighbour has as many of its own");
    lives(&greedy).await;
    world.finish().await;
}

/// The machine has a few thousand for all sandboxes together.
async fn terminals_run_out_inside_and_nowhere_else(world: World) {
    let (greedy, neighbour) = (world.idle().await, world.idle().await);
    let (_held, count) = take_all(&greedy, "libc.open(b'/dev/ptmx', 2)").await;
    // gVisor's are none of the machine's.
    assert!(count == 64 || world.driver == Name::Gvisor, "{count}");
    let (_other, theirs) = take_all(&neighbour, "libc.open(b'/dev/ptmx', 2)").await;
    assert_eq!(theirs, count, "a neighbour has as many of its own");
    lives(&greedy).await;
    world.finish().await;
}

/// A small file system, so that it can be filled.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("asb-test-").tempdir().expect("temporary directory");
        let options = ["-t", "tmpfs", "-o", "size=24m", "asb-test"];
        let mounted = Command::new("mount").args(options).arg(directory.path()).status();
        assert!(mounted.expect("runs").success());
        Self(directory)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// Nothing but the disk bounds what a sandbox writes to its root. One that fills it hurts itself: what runs goes on, and
/// deleting it makes room again.
async fn full_disk_stops_no_sandbox_that_runs_and_deleting_the_culprit_makes_room(world: World) {
    let disk = SmallDisk::new();
    let world = World::at(disk.0.path(), world.driver);
    let talks = "i=0; while echo line $i; do i=$((i+1)); sleep 0.01; done";
    let (greedy, neighbour) =
        (world.start(&["sh", "-c", talks]).await, world.start(&["sh", "-c", talks]).await);
    let fill = "test -e /.asb/sandboxd && cat /dev/zero > /srv/large";
    let filled = run(&greedy, &shell(fill)).await;
    assert!(filled.exit == Exit::Code(1) && filled.stderr.contains("No space left"), "{filled:?}");
    for sandbox in [&greedy, &neighbour] {
        // An exec ends with the main process: it talks on, though its log has no room.
        lives(sandbox).await;
    }
    greedy.delete().await.expect("deletes");
    let size = || neighbour.logs().iter().map(|path| path.metadata().expect("there").len()).sum::<u64>();
    let before = size();
    eventually(|| size() > before).await;
    lives(&neighbour).await;
    lives(&world.idle().await).await;
    world.finish().await;
    drop(disk);
}
