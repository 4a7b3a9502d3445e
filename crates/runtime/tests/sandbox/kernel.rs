//! Sandboxes that share a kernel, as the containers of a Pod under gVisor do.

use asb_runtime::driver::Name;
use asb_runtime::{Error, Exit, Kernel, RootFs, Sandbox, Spec};

use crate::common::{World, ended_by, eventually, exec, log, network_namespace, run, shell, wait};

/// A kernel that others can join, and what they are started in.
struct Shared {
    world: World,
    kernel: Sandbox,
    network: std::fs::File,
}

impl Shared {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Spec)) -> Self {
        let world = World::on(Name::Gvisor);
        let network = network_namespace().await;
        let mut spec = world.spec(&[]);
        (spec.kernel, spec.root) = (Kernel::Shared, RootFs { layers: Vec::new(), host_dirs: Vec::new() });
        change(&mut spec);
        let kernel = world.native.start_in(clone(&network), &spec).await.expect("starts");
        Self { world, kernel, network }
    }

    fn spec(&self, argv: &[&str]) -> Spec {
        Spec { kernel: Kernel::Of(self.kernel.id().clone()), ..self.world.spec(argv) }
    }

    async fn start(&self, argv: &[&str]) -> Sandbox {
        self.join(&self.spec(argv)).await
    }

    async fn join(&self, spec: &Spec) -> Sandbox {
        self.world.native.start_in(clone(&self.network), spec).await.expect("starts")
    }
}

fn clone(network: &std::fs::File) -> std::os::fd::OwnedFd {
    network.try_clone().expect("cloned").into()
}

const SERVER: &str = "import socket
listener = socket.create_server(('127.0.0.1', 8080))
print('listening', flush=True)
while True: listener.accept()[0].sendall(b'answer')";
const CLIENT: &str = "import socket; print(socket.create_connection(('127.0.0.1', 8080)).recv(9).decode())";

#[tokio::test]
async fn those_that_share_a_kernel_share_its_network_and_nothing_else() {
    let shared = Shared::new().await;
    let server = shared.start(&["python3", "-c", SERVER]).await;
    eventually(|| log(&server).contains("listening")).await;
    let client = shared.start(&["sh", "-c", "touch /srv/mine; sleep 1000"]).await;
    assert_eq!(run(&client, &exec(&["python3", "-c", CLIENT])).await.stdout, "answer\n");
    let seen =
        run(&client, &shell("ls /srv; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; stat -c %u /srv/mine")).await;
    assert!(seen.stdout.starts_with("mine\n") && seen.stdout.ends_with("0\n"), "{seen:?}");
    assert!(seen.stdout.contains("sleep 1000") && !seen.stdout.contains("python3"), "{seen:?}");
    let other = run(&server, &shell("ls /srv; hostname")).await;
    assert_eq!(other.stdout, "box\n", "{other:?}");
    server.reach(8080).await.expect("reached from outside");
    client.reach(8080).await.expect("it is one network");
    shared.world.finish().await;
}

#[tokio::test]
async fn one_ends_by_itself_and_another_takes_its_place() {
    let shared = Shared::new().await;
    let stays = shared.start(&["python3", "-c", SERVER]).await;
    for code in [7, 0] {
        let one = shared.start(&["sh", "-c", &format!("echo here; exit {code}")]).await;
        assert_eq!(wait(&one).await.exit, Exit::Code(code));
        assert_eq!(log(&one), "stdout F here\n");
        one.delete().await.expect("deletes");
    }
    let killed = shared.start(&["sleep", "1000"]).await;
    killed.signal(libc::SIGKILL).await.expect("sent");
    assert!(ended_by(wait(&killed).await.exit, libc::SIGKILL));
    let told = shared.start(&["sleep", "1000"]).await;
    told.signal(libc::SIGTERM).await.expect("sent");
    assert!(ended_by(wait(&told).await.exit, libc::SIGTERM));
    eventually(|| log(&stays).contains("listening")).await;
    assert_eq!(run(&stays, &exec(&["python3", "-c", CLIENT])).await.stdout, "answer\n");
    shared.world.finish().await;
}

#[tokio::test]
async fn what_a_killed_supervisor_ran_ends_inside_the_kernel_too() {
    let shared = Shared::new().await;
    let server = shared.start(&["python3", "-c", SERVER]).await;
    let client = shared.start(&[]).await;
    eventually(|| log(&server).contains("listening")).await;
    // As with kill -9: nobody tells the kernel.
    server.delete().await.expect("deletes");
    let refused = format!("try: {CLIENT}\nexcept ConnectionRefusedError: print('refused')");
    for _ in 0..100 {
        if run(&client, &exec(&["python3", "-c", &refused])).await.stdout == "refused\n" {
            return shared.world.finish().await;
        }
    }
    panic!("it still listens");
}

#[tokio::test]
async fn kernel_that_ends_takes_all_along() {
    let shared = Shared::new().await;
    let [one, two] = [shared.start(&["sleep", "1000"]).await, shared.start(&[]).await];
    shared.kernel.signal(libc::SIGKILL).await.expect("sent");
    for member in [one, two] {
        let exit = wait(&member).await.exit;
        assert!(ended_by(exit, libc::SIGKILL), "{exit:?}");
    }
    let late = shared.world.native.start_in(clone(&shared.network), &shared.spec(&["true"])).await;
    assert!(late.is_err(), "there is nothing to join any more");
    shared.world.finish().await;
}

#[tokio::test]
async fn want_of_memory_is_told_of_all_that_had_the_kernel() {
    let shared = Shared::with(|spec| spec.limits.memory_bytes = Some(64 << 20)).await;
    let bystander = shared.start(&["sleep", "1000"]).await;
    let bomb = "x = bytearray(400 << 20)\nfor at in range(0, len(x), 4096): x[at] = 1";
    let bomb = shared.start(&["python3", "-c", bomb]).await;
    assert_eq!(wait(&bomb).await.exit, Exit::OutOfMemory);
    // Whoever takes the kernel away has found out about the others before.
    shared.kernel.delete().await.expect("deletes");
    assert_eq!(wait(&bystander).await.exit, Exit::OutOfMemory);
    shared.world.finish().await;
}

#[tokio::test]
async fn volumes_and_terminals_are_there_for_those_that_join() {
    let shared = Shared::new().await;
    let data = tempfile::tempdir().expect("temporary directory");
    let with_data = |argv: &[&str]| {
        let mut spec = shared.spec(argv);
        spec.mounts = vec![crate::common::volume(data.path(), "/data")];
        spec.last_words = Some("/dev/termination-log".into());
        spec
    };
    let writer = "echo written > /data/x; chown 5:6 /data/x; echo bye > /dev/termination-log";
    let writer = shared.join(&with_data(&["sh", "-c", writer])).await;
    assert_eq!(wait(&writer).await.exit, Exit::Code(0), "{}", log(&writer));
    assert_eq!(writer.last_words().as_deref(), Some("bye\n"));
    let mut spec = with_data(&["sh", "-c", "test -t 0 && cat /data/x && stat -c %u:%g /data/x"]);
    spec.process.terminal = true;
    let reader = shared.join(&spec).await;
    assert_eq!(wait(&reader).await.exit, Exit::Code(0), "{}", log(&reader));
    assert!(log(&reader).contains("written") && log(&reader).contains("5:6"), "{}", log(&reader));
    shared.world.finish().await;
}

#[tokio::test]
async fn only_a_driver_with_a_kernel_of_its_own_can_share_one() {
    let world = World::new();
    let spec = Spec { kernel: Kernel::Shared, ..world.spec(&[]) };
    let error = world.native.start(&spec).await.expect_err("refused");
    assert!(matches!(&error, Error::Invalid(invalid) if invalid.field == "kernel"), "{error:?}");
    world.finish().await;
}

#[tokio::test]
async fn processes_of_one_user_are_counted_for_all_that_share_a_kernel() {
    let shared = Shared::with(|spec| spec.limits.pids = 60).await;
    let mut spec = shared.spec(&[]);
    spec.limits.pids = 60;
    let member = shared.join(&spec).await;
    let script = "import os, sys, time
if not os.path.exists('/.asb/sandboxd'): sys.exit('not inside a sandbox')
for count in range(500):
    try: pid = os.fork()
    except BlockingIOError: break
    if pid == 0: time.sleep(1000)
print(count)
os.kill(-1, 9)";
    let count = run(&member, &exec(&["python3", "-c", script])).await.stdout;
    let count: u32 = count.trim().parse().expect("a number");
    assert!((40..60).contains(&count), "{count} processes");
    shared.world.finish().await;
}
