//! A real kube-apiserver, with etcd, the garbage collector and, if asked, the scheduler, for as long as this value lives.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use crate::rights;

pub struct Kubernetes {
    pub kubeconfig: PathBuf,
    script: Child,
    /// The script stops everything when this closes, also when the test process is killed.
    stdin: Option<ChildStdin>,
}

impl Kubernetes {
    /// Starts one without a scheduler. Building it, the first time, takes about ten minutes.
    pub fn start() -> Self {
        Self::run::<&str>("tools/kubernetes/run", &[])
    }

    /// Starts one with a node that runs Pods, from images in these archives. Building it, the first time,
    /// takes about fifteen minutes.
    pub fn with_node(archives: &[PathBuf]) -> Self {
        Self::run("tools/cluster/run", archives)
    }

    fn run<A: AsRef<OsStr>>(script: &str, arguments: &[A]) -> Self {
        let script = crate::root().join(script);
        let mut child = Command::new(&script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("failed to run {}: {error}", script.display()));
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the script's output can be read");
        assert!(!line.is_empty(), "no real Kubernetes could be started; {} says why above", script.display());
        let stdin = child.stdin.take();
        Self { kubeconfig: line.trim().into(), script: child, stdin }
    }

    /// One with a scheduler for all tests of this process; it stops with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Kubernetes> = OnceLock::new();
        SHARED.get_or_init(|| Self::run("tools/kubernetes/run", &["scheduler"]))
    }

    /// A client that may do everything.
    pub async fn client(&self) -> kube::Client {
        kube::Client::try_from(self.config().await).expect("a client can be made from it")
    }

    /// A client with the rights of an installed controller in all namespaces, and no other: see [`crate::rights`].
    pub async fn controller_client(&self) -> kube::Client {
        let mut config = self.config().await;
        config.auth_info.impersonate = Some(rights::CONTROLLER.to_owned());
        let client = kube::Client::try_from(config).expect("a client can be made from it");
        rights::grant(&self.client().await, &client).await;
        client
    }

    async fn config(&self) -> kube::Config {
        let config =
            kube::config::Kubeconfig::read_from(&self.kubeconfig).expect("the script wrote a kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await;
        config.expect("the kubeconfig is complete")
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.script.wait();
    }
}
