//! An engine of our own for one run: a real `asb up` in a temporary data directory, gone afterwards with every trace.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use asb_types::Sandbox;
use http::{HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use tempfile::TempDir;

/// Where everything that a run makes is made.
pub const NAMESPACE: &str = "default";
/// How long a step of the clean-up may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `asb up`.
pub struct Process {
    child: Child,
    /// What it said then: where it listens, as JSON.
    said: String,
    /// From before the program was started until it said that it is ready.
    pub ready_after: Duration,
}

/// An engine with a client, for the length of one run.
pub struct Engine {
    process: Process,
    directory: TempDir,
    pub client: Client,
    /// One whose requests wait for a container that does not run yet.
    patient: Client,
    /// One on the engine's own socket, as `asb` has it.
    local: Client,
}

impl Process {
    pub fn start(asb: &Path, data_dir: &Path) -> anyhow::Result<Self> {
        let log =
            std::fs::File::create(data_dir.join("up.log")).context("failed to make the engine's log")?;
        let begun = Instant::now();
        let mut child = Command::new(asb)
            .args(["up", "--json", "--api", "127.0.0.1:0", "--router", "127.0.0.1:0", "--data-dir"])
            .arg(data_dir)
            .env_remove("ASB_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("failed to run {}", asb.display()))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).context("failed to read from the engine")?;
        }
        let process = Self { child, ready_after: begun.elapsed(), said: line };
        let said = || std::fs::read_to_string(data_dir.join("up.log")).unwrap_or_default();
        anyhow::ensure!(process.said.starts_with('{'), "the engine did not get ready; it said:\n{}", said());
        Ok(process)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end and waits for that; answers with how long it took.
    pub fn stop(mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.terminate()?;
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "the engine ended with {status}");
        Ok(begun.elapsed())
    }

    fn terminate(&self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(pid, rustix::process::Signal::TERM)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.terminate().is_ok() {
            let _ = self.child.wait();
        }
    }
}

impl Engine {
    /// Starts an engine, gives it to `work`, and removes everything, whether that succeeded, failed or was interrupted.
    pub async fn with<T>(
        asb: &Path,
        work: impl AsyncFnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let directory = directory()?;
        let process = Process::start(asb, directory.path())?;
        let kubeconfig = directory.path().join("kubeconfig");
        let mut config = config(&kubeconfig).await?;
        let client = Client::try_from(config.clone())?;
        config.headers.push((HeaderName::from_static("prefer"), HeaderValue::from_static("wait=30")));
        let local = asb_apiserver::local_client(directory.path(), None);
        let local = local.context("the engine does not listen on its socket")?;
        let engine = Self { process, directory, client, patient: Client::try_from(config)?, local };
        let done = tokio::select! {
            done = work(&engine) => done,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        };
        let closed = engine.close().await;
        match (done, closed) {
            (Ok(done), closed) => closed.map(|()| done),
            (Err(error), Ok(())) => Err(error),
            (Err(error), Err(also)) => Err(error.context(format!("and the clean-up failed: {also:#}"))),
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn data_dir(&self) -> &Path {
        self.directory.path()
    }

    /// `ADDRESS:PORT` of its router.
    pub fn router(&self) -> String {
        let said: serde_json::Value = serde_json::from_str(&self.process.said).unwrap_or_default();
        said["router"].as_str().unwrap_or_default().trim_start_matches("http://").to_owned()
    }

    /// Where the runtime keeps the state of sandboxes.
    pub fn sandboxes_dir(&self) -> PathBuf {
        self.directory.path().join("sandboxes")
    }

    pub fn sandboxes(&self) -> Api<Sandbox> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The same without TLS.
    pub fn local_pods(&self) -> Api<Pod> {
        Api::namespaced(self.local.clone(), NAMESPACE)
    }

    /// For logs of Pods that are about to run.
    pub fn coming_pods(&self) -> Api<Pod> {
        Api::namespaced(self.patient.clone(), NAMESPACE)
    }

    async fn close(self) -> anyhow::Result<()> {
        let removed = tokio::time::timeout(PATIENCE, self.remove_sandboxes()).await;
        let removed =
            removed.unwrap_or_else(|_| anyhow::bail!("sandboxes are still there after {PATIENCE:?}"));
        let sandboxes = self.sandboxes_dir();
        let stopped = self.process.stop();
        let left = asb_runtime::leak::check(&sandboxes);
        removed.and(stopped)?;
        anyhow::ensure!(left.is_empty(), "the sandboxes left behind:\n  {}", left.join("\n  "));
        Ok(self.directory.close()?)
    }

    async fn remove_sandboxes(&self) -> anyhow::Result<()> {
        self.sandboxes().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        self.pods().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        while !self.pods().list_metadata(&ListParams::default()).await?.items.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// A directory for one run. Others may pass through it, since containers run as other users; what is in it is closed.
pub fn directory() -> anyhow::Result<TempDir> {
    let directory =
        tempfile::Builder::new().prefix("asb-bench-").tempdir().context("failed to make a directory")?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(directory.path(), mode)?;
    Ok(directory)
}

pub async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    Ok(Client::try_from(config(kubeconfig).await?)?)
}

async fn config(kubeconfig: &Path) -> anyhow::Result<kube::Config> {
    let read = kube::config::Kubeconfig::read_from(kubeconfig);
    let config = read.with_context(|| format!("failed to read {}", kubeconfig.display()))?;
    Ok(kube::Config::from_custom_kubeconfig(config, &Default::default()).await?)
}
