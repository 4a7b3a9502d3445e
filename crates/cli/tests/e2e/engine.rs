//! An engine of its own for each test, that must leave nothing behind.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub use asb_testing::assert_nothing_left;
use serde_json::Value;

pub const ASB: &str = env!("CARGO_BIN_EXE_asb");

/// The longest that a state may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Engine {
    pub data_dir: tempfile::TempDir,
    /// What `asb up --json` said.
    pub info: Value,
    child: Child,
}

impl Engine {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with more on the command line.
    pub fn start_with(options: &[&str]) -> Self {
        let data_dir = tempfile::tempdir().expect("a temporary directory");
        let (child, info) = up_by(asb_in(data_dir.path(), &[&["up", "--json"], options].concat()));
        Self { data_dir, info, child }
    }

    /// An engine that was started by other means.
    pub fn of(data_dir: tempfile::TempDir, child: Child, info: Value) -> Self {
        Self { data_dir, info, child }
    }

    /// Kills the engine without any warning.
    pub fn kill(&mut self) {
        self.child.kill().expect("the engine runs");
        self.child.wait().expect("the engine can be reaped");
    }

    pub fn restart(&mut self) {
        (self.child, self.info) = up(self.data_dir.path());
    }

    /// The same where a program of the machine is not installed.
    pub fn restart_without(&mut self, program: &str) {
        let places = "/usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin";
        let hide = format!(
            "for place in {places}; do ! test -f $place/{program} || mount --bind /dev/null $place/{program}; done && exec \"$0\" \"$@\""
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &hide, ASB, "up", "--json"]);
        command.env("ASB_DATA_DIR", self.data_dir.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        (self.child, self.info) = up_by(command);
    }

    /// The same on a machine of this name.
    pub fn restart_as(&mut self, host: &str) {
        let rename = "name=$1; shift; echo $name > /proc/sys/kernel/hostname && exec \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", rename, ASB, host, "up", "--json"]);
        command.env("ASB_DATA_DIR", self.data_dir.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        (self.child, self.info) = up_by(command);
    }

    /// How many files, sockets and so on the engine has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("the engine runs").count()
    }

    pub fn asb(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("asb can be started")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        asb_in(self.data_dir.path(), args)
    }

    pub fn asb_with_input(&self, args: &[&str], input: &str) -> Output {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().expect("asb can be started");
        let mut stdin = child.stdin.take().expect("stdin is a pipe");
        stdin.write_all(input.as_bytes()).expect("asb reads its input");
        drop(stdin);
        child.wait_with_output().expect("asb can be waited for")
    }

    /// A program that uses this engine, by `asb` and by `kubectl`.
    pub fn program(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(name);
        command.args(args).env("ASB_DATA_DIR", self.data_dir.path()).env("KUBECONFIG", self.kubeconfig());
        command
    }

    pub fn kubectl(&self, args: &[&str]) -> Output {
        kubectl(&self.kubeconfig(), args, "")
    }

    /// A kubectl that is to be started, with its output in pipes.
    pub fn kubectl_command(&self, args: &[&str]) -> Command {
        kubectl_command(&self.kubeconfig(), args)
    }

    pub fn kubectl_apply(&self, manifest: &str) -> Output {
        kubectl(&self.kubeconfig(), &["apply", "-f", "-"], manifest)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.path().join("kubeconfig")
    }

    pub async fn client(&self) -> kube::Client {
        self.client_with(&[]).await
    }

    /// A client that sends these headers with everything.
    pub async fn client_with(&self, headers: &[(&'static str, &'static str)]) -> kube::Client {
        let config =
            kube::config::Kubeconfig::read_from(self.kubeconfig()).expect("the engine wrote a kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await;
        let mut config = config.expect("the kubeconfig is complete");
        let header =
            |&(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value));
        config.headers.extend(headers.iter().map(header));
        kube::Client::try_from(config).expect("a client can be made from it")
    }

    /// Removes every sandbox and stops the engine; panics if a trace of anything is left.
    pub fn stop(mut self) {
        let removed = self.asb(&["rm", "--all"]);
        assert!(removed.status.success(), "{}", text(&removed));
        // Volumes of Sandboxes without a Pod go a moment later, if there is an engine to see to it.
        assert_nothing_left(self.data_dir.path());
        let down = self.asb(&["down"]);
        assert!(down.status.success(), "{}", text(&down));
        self.child.wait().expect("the engine can be reaped");
        assert_nothing_left(self.data_dir.path());
    }
}

impl Drop for Engine {
    /// A test that failed must not leave sandboxes running for the others.
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.asb(&["rm", "--all"]);
            let _ = self.kubectl(&["delete", "pods", "--all", "-A", "--timeout=20s"]);
            let _ = self.asb(&["down"]);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub fn asb_in(data_dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(ASB);
    command
        .args(args)
        .env("ASB_DATA_DIR", data_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub fn up(data_dir: &Path) -> (Child, Value) {
    up_by(asb_in(data_dir, &["up", "--json"]))
}

fn up_by(mut command: Command) -> (Child, Value) {
    let mut child = command.stderr(Stdio::inherit()).spawn().expect("asb can be started");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("stdout is a pipe"))
        .read_line(&mut line)
        .expect("asb says something");
    let info = serde_json::from_str(&line).unwrap_or_else(|error| panic!("asb up said {line:?}: {error}"));
    (child, info)
}

fn kubectl_command(kubeconfig: &Path, args: &[&str]) -> Command {
    let program = std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into());
    let mut command = Command::new(program);
    command.arg("--kubeconfig").arg(kubeconfig).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The kubectl that the test command built, else the one on PATH.
pub fn kubectl(kubeconfig: &Path, args: &[&str], input: &str) -> Output {
    let mut command = kubectl_command(kubeconfig, args);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap_or_else(|error| {
        panic!("these tests need kubectl (in KUBECTL or on PATH): {:?}: {error}", command.get_program())
    });
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    stdin.write_all(input.as_bytes()).expect("kubectl reads its input");
    drop(stdin);
    child.wait_with_output().expect("kubectl can be waited for")
}

/// Waits for a state.
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < until, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Everything a program said, for messages and loose checks.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
