//! What a sandbox may use at most.

use asb_runtime::{Exec, Exit, Sandbox, Spec};

use crate::common::{World, eventually, exec, run, shell, volume};

/// Touches more memory than it may have.
const BOMB: &str = "x = bytearray(200 << 20)\nfor at in range(0, len(x), 4096): x[at] = 1";

#[tokio::test]
async fn memory_bomb_beside_the_main_process_leaves_that_alone() {
    let world = World::new();
    let mut spec = world.spec(&[]);
    spec.limits.memory_bytes = Some(64 << 20);
    let sandbox = world.native.start(&spec).await.expect("starts");
    assert_eq!(run(&sandbox, &exec(&["python3", "-c", BOMB])).await.exit, Exit::OutOfMemory);
    assert_eq!(
        run(&sandbox, &shell("kill -9 $$")).await.exit,
        Exit::Signal(libc::SIGKILL),
        "this one was no bomb"
    );
    assert_eq!(run(&sandbox, &shell("echo alive")).await.stdout, "alive\n");
    world.finish().await;
}

#[tokio::test]
async fn fork_bomb_is_bounded_and_deleted() {
    let world = World::new();
    let mut spec = world.spec(&[]);
    spec.limits.pids = 32;
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = "import os, time
count = 0
try:
    while True:
        if os.fork() == 0: time.sleep(1000)
        count += 1
except BlockingIOError: print(count)";
    let mut session = sandbox.exec(&exec(&["python3", "-c", script])).await.expect("starts");
    assert_eq!(session.control.wait().await.expect("ends"), Exit::Code(0));
    let mut count = [0; 2];
    tokio::io::AsyncReadExt::read_exact(&mut session.stdout, &mut count).await.expect("printed");
    assert_eq!(&count, b"29", "the supervisor, the idle process and the forker have the other three");
    assert!(sandbox.exec(&shell("true")).await.is_ok() || sandbox.delete().await.is_ok());
    world.finish().await;
}

#[tokio::test]
async fn processors_are_shared_as_asked_for_when_all_want_them() {
    let world = World::new();
    let start = async |share: u32| {
        // On the same processor, so that there is not enough for both.
        let mut spec = world.spec(&["taskset", "-c", "0", "sh", "-c", "while :; do :; done"]);
        spec.limits.cpu_share_millis = Some(share);
        world.native.start(&spec).await.expect("starts")
    };
    let (small, large) = (start(100).await, start(2000).await);
    let used = |sandbox: &Sandbox| sandbox.stats().cpu_nanos.expect("counted");
    let (before_small, before_large) = (used(&small), used(&large));
    let since = || (used(&small) - before_small, used(&large) - before_large);
    eventually(|| since().0 + since().1 > 400_000_000).await;
    let (little, much) = since();
    assert!(much > 4 * little, "{little} and {much} ns");
    world.finish().await;
}

#[tokio::test]
async fn processor_time_is_limited() {
    let world = World::new();
    let mut spec = world.spec(&[]);
    spec.limits.cpu_millis = Some(200);
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = "import time
wall, cpu = time.monotonic(), time.process_time()
while time.monotonic() - wall < 1: pass
print((time.process_time() - cpu) / (time.monotonic() - wall))";
    let output = run(&sandbox, &exec(&["python3", "-c", script])).await;
    let share: f64 = output.stdout.trim().parse().expect("a number");
    assert!(share < 0.5, "used {share} of a processor");
    world.finish().await;
}

/// Programs that size themselves by what they find, each with its own way to ask: bytes of memory, or processors.
const RUNTIMES: [(&str, &[&str], &str); 8] = [
    ("node", &["node", "-p", "process.constrainedMemory()"], "268435456"),
    ("node", &["node", "-p", "os.totalmem()"], "268435456"),
    ("python3", &["python3", "-c", "import os; print(os.cpu_count())"], "1"),
    ("python3", &["python3", "-c", "print(open('/proc/meminfo').readline())"], "MemTotal: 262144 kB"),
    ("free", &["free", "-b"], "Mem: 268435456 0 268435456 0 0 268435456 Swap: 0"),
    ("grep", &["grep", "-c", "^processor", "/proc/cpuinfo"], "1"),
    (
        "java",
        &["java", "-XX:MaxRAMPercentage=50", "-XX:+PrintFlagsFinal", "-version"],
        " MaxHeapSize                              = 134217728 ",
    ),
    ("java", &["java", "-XshowSettings:system", "-version"], "Effective CPU Count: 1"),
];

/// Go 1.25 and later ask how much processor time they get.
const GO: &str = include_str!("size.go");

on_drivers! {
    [native: Native, runc: Runc, crun: Crun]
    [language_runtimes_size_themselves_by_the_limits_of_their_sandbox]
}

async fn language_runtimes_size_themselves_by_the_limits_of_their_sandbox(world: World) {
    let go = go_program();
    let mut spec = world.spec(&[]);
    (spec.limits.memory_bytes, spec.limits.cpu_millis) = (Some(256 << 20), Some(1000));
    spec.mounts.push(volume(go.path(), "/go-program"));
    let sandbox = world.native.start(&spec).await.expect("starts");
    let files = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null";
    assert_eq!(run(&sandbox, &shell(files)).await.stdout, "268435456\n", "in either version");
    for (program, command, expected) in RUNTIMES {
        assert!(is_here(program), "\n\n  {program} is not on this machine. tools/test installs it.\n\n");
        let output = run(&sandbox, &exec(command)).await;
        let said = output.stdout + &output.stderr;
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert!(words(&said).contains(&words(expected)), "{command:?}: {said}");
    }
    // It does not go below two, where there are two.
    let expected = std::thread::available_parallelism().expect("known").get().min(2);
    assert_eq!(run(&sandbox, &exec(&["/go-program/size"])).await.stderr, format!("{expected}\n"));
    world.finish().await;
}

/// Files that cover those of the kernel cannot be taken away or written to, and a privileged sandbox has none.
#[tokio::test]
async fn sizes_cannot_be_changed_from_inside_and_cover_nothing_in_a_privileged_sandbox() {
    let world = World::new();
    let mut spec = world.spec(&[]);
    (spec.limits.memory_bytes, spec.limits.cpu_millis) = (Some(256 << 20), Some(1000));
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = "for file in meminfo cpuinfo; do umount /proc/$file; echo x > /proc/$file; done; head -n 1 /proc/meminfo";
    let output = run(&sandbox, &shell(script)).await;
    assert_eq!(output.stdout, "MemTotal:         262144 kB\n", "{output:?}");
    spec = Spec { privileged: true, ..world.spec(&[]) };
    (spec.limits.memory_bytes, spec.limits.cpu_millis) = (Some(256 << 20), Some(1000));
    let sandbox = world.native.start(&spec).await.expect("starts");
    let mount = "unshare --user --map-root-user --mount --pid --fork mount -t proc proc /mnt && echo mounted";
    let output = run(&sandbox, &shell(mount)).await;
    assert_eq!(output.stdout, "mounted\n", "{output:?}");
    world.finish().await;
}

#[tokio::test]
async fn sandbox_without_a_limit_of_time_is_told_of_every_processor() {
    let world = World::new();
    let sandbox = world.native.start(&world.spec(&[])).await.expect("starts");
    let online = "/sys/devices/system/cpu/online";
    let inside = run(&sandbox, &exec(&["cat", online])).await.stdout;
    assert_eq!(inside, std::fs::read_to_string(online).expect("readable"));
    world.finish().await;
}

fn is_here(program: &str) -> bool {
    std::process::Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// A program that prints how many processors Go uses: the one that a variable names, where there is no compiler.
fn go_program() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("temporary directory");
    if let Some(built) = std::env::var_os("ASB_TEST_GO_PROGRAM") {
        std::fs::copy(built, directory.path().join("size")).expect("copied");
        return directory;
    }
    std::fs::write(directory.path().join("size.go"), GO).expect("written");
    let built = std::process::Command::new("go")
        .args(["build", "-o", "size", "size.go"])
        .env("CGO_ENABLED", "0")
        .current_dir(directory.path())
        .status();
    assert!(built.is_ok_and(|status| status.success()), "\n\n  Go 1.25 or later is not on this machine.\n\n");
    directory
}

#[tokio::test]
async fn what_a_sandbox_uses_is_counted() {
    let world = World::new();
    let sandbox = world.native.start(&world.spec(&[])).await.expect("starts");
    let idle = sandbox.stats();
    let script = "import time
x = bytearray(32 << 20)
for at in range(0, len(x), 4096): x[at] = 1
end = time.process_time() + 0.2
while time.process_time() < end: pass
print('busy', flush=True)
input()";
    let busy = Exec { stdin: true, ..exec(&["python3", "-c", script]) };
    let mut session = sandbox.exec(&busy).await.expect("starts");
    tokio::io::AsyncReadExt::read_exact(&mut session.stdout, &mut [0; 5]).await.expect("it is busy");
    let stats = sandbox.stats();
    let more = |of: fn(&asb_runtime::Stats) -> Option<u64>| {
        of(&stats).expect("counted") - of(&idle).expect("counted")
    };
    assert!(more(|it| it.cpu_nanos) >= 200_000_000, "{idle:?} {stats:?}");
    assert!(more(|it| it.rss_bytes) >= 32 << 20, "{idle:?} {stats:?}");
    assert!(more(|it| it.working_set_bytes) >= 32 << 20, "{idle:?} {stats:?}");
    // Process 1 and the program. Just after a start its launcher may be counted too.
    assert!(stats.pids >= Some(2) && stats.memory_bytes >= stats.working_set_bytes, "{idle:?} {stats:?}");
    world.finish().await;
}

/// The first version of cgroups does not know who wrote what is written later.
#[tokio::test]
async fn bytes_written_to_a_disk_are_counted_where_the_kernel_can() {
    let world = World::new();
    let data = tempfile::tempdir_in(world.directory.path()).expect("temporary directory");
    let mut spec = world.spec(&[]);
    spec.mounts.push(volume(data.path(), "/data"));
    let sandbox = world.native.start(&spec).await.expect("starts");
    let written = run(&sandbox, &shell("head -c 4194304 /dev/urandom > /data/file && sync /data/file")).await;
    assert_eq!(written.exit, Exit::Code(0), "{written:?}");
    let second =
        std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").is_ok_and(|it| it.contains("io"));
    let counted = sandbox.stats().io_bytes.map(|(_, written)| written);
    assert!(if second { counted >= Some(4 << 20) } else { counted.is_none() }, "{second} {counted:?}");
    world.finish().await;
}
