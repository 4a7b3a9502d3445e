//! Real sandboxes on the host image, in a state directory of their own that must be clean at the end.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use asb_runtime::{
    Ended, Exec, Exit, Images, Kernel, Limits, Mount, Native, Process, Sandbox, SandboxId, Session, Spec,
    Stdin, driver, leak,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longer than anything here takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The same tests on several drivers, in a module for each: `on_drivers! { [runc: Runc] [test, other_test] }`.
macro_rules! on_drivers {
    ([$($module:ident: $driver:ident),*] $tests:tt) => { $(on_driver! { $module $driver $tests })* };
}
macro_rules! on_driver {
    ($module:ident $driver:ident [$($(#[$attribute:meta])* $test:ident),* $(,)?]) => {
        mod $module {
            $(#[tokio::test]
            $(#[$attribute])*
            async fn $test() {
                super::$test(crate::common::World::on(asb_runtime::driver::Name::$driver)).await;
            })*
        }
    };
}

/// The same tests on a kernel that others have as well.
macro_rules! on_a_shared_kernel {
    ($module:ident [$($test:ident),* $(,)?]) => {
        mod $module {
            $(#[tokio::test]
            async fn $test() {
                super::$test(crate::common::World::on_a_shared_kernel().await).await;
            })*
        }
    };
}

pub struct World {
    pub native: Native,
    /// What its sandboxes run on.
    kernel: Kernel,
    /// What its sandboxes run under.
    pub driver: driver::Name,
    pub images: Images,
    pub directory: tempfile::TempDir,
}

/// What a program inside printed, and how it ended.
#[derive(Debug)]
pub struct Output {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

impl World {
    pub fn new() -> Self {
        Self::on(driver::Name::Native)
    }

    pub fn on(driver: driver::Name) -> Self {
        Self::at(&std::env::temp_dir(), driver)
    }

    /// One whose sandboxes share a kernel.
    pub async fn on_a_shared_kernel() -> Self {
        let mut world = Self::on(driver::Name::Gvisor);
        world.kernel = Kernel::Shared;
        let kernel = world.idle().await;
        world.kernel = Kernel::Of(kernel.id().clone());
        world
    }

    /// One whose state is below this directory.
    pub fn at(parent: &Path, driver: driver::Name) -> Self {
        assert!(
            rustix::process::getuid().is_root(),
            "\n\n  These tests start real sandboxes and must be run as root.\n\n"
        );
        assert!(
            driver::find(driver).is_some(),
            "\n\n  {driver} is not installed, and so not tested. tools/test installs it; `asb doctor` tells how.\n\n"
        );
        let directory =
            tempfile::Builder::new().prefix("asb-test-").tempdir_in(parent).expect("temporary directory");
        let native = Native::open(&directory.path().join("state")).expect("the driver opens");
        // Built once for all tests, and for the next run of them.
        let images =
            Images::open(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("images")).expect("images open");
        Self { native, kernel: Kernel::Own, driver, images, directory }
    }

    /// A sandbox on the host image that runs `argv`.
    pub fn spec(&self, argv: &[&str]) -> Spec {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let image = self.images.host();
        Spec {
            id: SandboxId::new(id).expect("valid"),
            driver: self.driver,
            kernel: self.kernel.clone(),
            hostname: "box".to_owned(),
            read_only_root: false,
            capabilities: Default::default(),
            privileged: false,
            mounts: Vec::new(),
            memory_dirs: Vec::new(),
            extra_ids: Vec::new(),
            beside: None,
            process: Process {
                stdin: Stdin::Empty,
                terminal: false,
                argv: argv.iter().map(|word| (*word).to_owned()).collect(),
                env: image.config.variables(),
                cwd: image.config.directory(),
                uid: 0,
                gid: 0,
                groups: Vec::new(),
            },
            limits: Limits {
                memory_bytes: Some(256 << 20),
                cpu_millis: None,
                cpu_share_millis: None,
                pids: 128,
                log_bytes: 1 << 20,
            },
            address: None,
            network: false,
            resolv_conf: None,
            hosts: None,
            last_words: None,
            labels: [("test".to_owned(), "yes".to_owned())].into(),
            root: image.root,
        }
    }

    pub async fn start(&self, argv: &[&str]) -> Sandbox {
        self.native.start(&self.spec(argv)).await.expect("starts")
    }

    /// One that idles.
    pub async fn idle(&self) -> Sandbox {
        self.start(&[]).await
    }

    /// Nothing may be left once the sandboxes are deleted.
    pub async fn finish(self) {
        for sandbox in self.native.list().await.expect("lists") {
            sandbox.delete().await.expect("deletes");
        }
        let traces = leak::check(&self.directory.path().join("state"));
        assert!(traces.is_empty(), "left behind: {traces:#?}");
    }
}

/// A test that fails must not leave its sandboxes running.
impl Drop for World {
    fn drop(&mut self) {
        let native = self.native.clone();
        let clean = async move {
            for sandbox in native.list().await.into_iter().flatten() {
                let _ = sandbox.delete().await;
            }
        };
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let _ = std::thread::spawn(move || runtime().map(|runtime| runtime.block_on(clean))).join();
    }
}

pub fn exec(argv: &[&str]) -> Exec {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    Exec { argv, env: Vec::new(), cwd: None, stdin: false, terminal: None }
}

pub fn shell(script: &str) -> Exec {
    exec(&["sh", "-c", script])
}

pub fn volume(source: &Path, target: &str) -> Mount {
    Mount { source: source.to_owned(), sub_path: Default::default(), target: target.into(), read_only: false }
}

/// Runs a program inside to its end.
pub async fn run(sandbox: &Sandbox, exec: &Exec) -> Output {
    output(sandbox.exec(exec).await.expect("starts"), b"").await
}

pub async fn output(mut session: Session, input: &[u8]) -> Output {
    let stdin = session.stdin.take();
    let write = async {
        if let Some(mut stdin) = stdin {
            stdin.write_all(input).await.expect("takes its input");
            stdin.shutdown().await.expect("closes");
        }
    };
    let mut stderr_end = session.stderr.take();
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let read_stderr = async {
        if let Some(end) = &mut stderr_end {
            end.read_to_end(&mut stderr).await.expect("readable");
        }
    };
    let read_stdout = session.stdout.read_to_end(&mut stdout);
    let all = async { tokio::join!(write, read_stdout, read_stderr, session.control.wait()) };
    let ((), read, (), exit) = tokio::time::timeout(PATIENCE, all).await.expect("ends in time");
    read.expect("readable");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Output { exit: exit.expect("ends"), stdout: text(stdout), stderr: text(stderr) }
}

pub async fn wait(sandbox: &Sandbox) -> Ended {
    tokio::time::timeout(PATIENCE, sandbox.wait()).await.expect("ends in time").expect("its end is known")
}

/// However a driver tells of it: as the signal, or as a shell would.
pub fn ended_by(exit: Exit, signal: i32) -> bool {
    exit == Exit::Signal(signal) || exit == Exit::Code(128 + signal)
}

/// The log, without time stamps.
pub fn log(sandbox: &Sandbox) -> String {
    let lines = sandbox.logs().into_iter().flat_map(|path| {
        let text = String::from_utf8_lossy(&std::fs::read(path).expect("readable")).into_owned();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    lines.map(|line| line.split_once(' ').expect("has a time stamp").1.to_owned() + "\n").collect()
}

/// A network namespace that nobody is in.
pub async fn network_namespace() -> std::fs::File {
    let mut holder =
        std::process::Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().expect("runs");
    let path = format!("/proc/{}/ns/net", holder.id());
    let of = |path: &str| std::fs::read_link(path).expect("readable");
    eventually(|| of(&path) != of("/proc/self/ns/net")).await;
    let namespace = std::fs::File::open(&path).expect("opens");
    holder.kill().expect("killed");
    holder.wait().expect("reaped");
    namespace
}

/// Waits for a state.
pub async fn eventually(condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "never happened");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
