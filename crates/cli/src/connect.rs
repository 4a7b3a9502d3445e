//! Finds the engine of a data directory, or starts one.

use std::io::BufRead;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use http::{HeaderName, HeaderValue};
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::data_dir::{DataDir, Engine};
use crate::failure::hinted;

/// How long an engine that is just starting may take.
const START: Duration = Duration::from_secs(30);

/// The engine that runs; one is started with these options when there is none.
pub async fn engine(data_dir: &DataDir, options: &[String]) -> anyhow::Result<Engine> {
    data_dir.check()?;
    data_dir.create()?;
    let until = Instant::now() + START;
    loop {
        // An engine that is starting or stopping holds the lock without an announcement.
        if data_dir.is_free()? {
            eprintln!("starting the engine in {}", data_dir.path().display());
            return start(data_dir, options);
        }
        if let Some(engine) = data_dir.engine() {
            return Ok(engine);
        }
        anyhow::ensure!(
            Instant::now() < until,
            "the engine in {} does not get ready",
            data_dir.path().display()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A client of the engine, which is started if need be.
pub async fn client(data_dir: &DataDir, options: &[String]) -> anyhow::Result<kube::Client> {
    engine(data_dir, options).await?;
    local(data_dir, None).await
}

/// A client of the engine that runs; an error with a hint when there is none.
pub async fn running_client(data_dir: &DataDir) -> anyhow::Result<kube::Client> {
    if data_dir.engine().is_none() || data_dir.is_free()? {
        let message = format!("no engine runs in {}", data_dir.path().display());
        return Err(hinted(message, "start one with `asb up`, or let `asb run -- CMD` do it"));
    }
    local(data_dir, None).await
}

/// A client whose requests wait for containers that do not run yet.
pub async fn patient_client(data_dir: &DataDir, patience: Duration) -> anyhow::Result<kube::Client> {
    let prefer = HeaderValue::from_str(&format!("wait={}", patience.as_secs()))?;
    local(data_dir, Some((HeaderName::from_static("prefer"), prefer))).await
}

/// By the socket of the engine; one that is older has none.
async fn local(data_dir: &DataDir, every: Option<(HeaderName, HeaderValue)>) -> anyhow::Result<kube::Client> {
    if let Some(client) = asb_apiserver::local_client(data_dir.path(), every.clone()) {
        return Ok(client);
    }
    let mut config = config(&data_dir.kubeconfig()).await?;
    config.headers.extend(every);
    Ok(kube::Client::try_from(config)?)
}

pub async fn client_from(kubeconfig: &std::path::Path) -> anyhow::Result<kube::Client> {
    Ok(kube::Client::try_from(config(kubeconfig).await?)?)
}

async fn config(kubeconfig: &std::path::Path) -> anyhow::Result<kube::Config> {
    let read = Kubeconfig::read_from(kubeconfig);
    let config = read.with_context(|| format!("failed to read {}", kubeconfig.display()))?;
    Ok(kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?)
}

/// Starts `asb up` in the background and waits until it is ready.
pub fn start(data_dir: &DataDir, options: &[String]) -> anyhow::Result<Engine> {
    use std::os::unix::fs::OpenOptionsExt;
    // Before the first file is written: the directory may be anyone's.
    data_dir.check()?;
    let log =
        std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(data_dir.log());
    let log = log.with_context(|| format!("failed to open {}", data_dir.log().display()))?;
    let program = std::env::current_exe().context("failed to find my own program file")?;
    let mut child = Command::new(program)
        .arg("up")
        .arg("--data-dir")
        .arg(data_dir.path())
        .arg("--json")
        .args(options)
        .env("ASB_BACKGROUND", "1")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("failed to start the engine")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        std::io::BufReader::new(stdout).read_line(&mut line).context("failed to read from the engine")?;
    }
    if line.is_empty() {
        let status = child.wait()?;
        let said = std::fs::read_to_string(data_dir.log()).unwrap_or_default();
        let said =
            said.lines().rev().take(5).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n");
        return Err(hinted(
            format!("the engine did not start ({status}):\n{said}"),
            "run `asb up` to see it start",
        ));
    }
    serde_json::from_str(&line).with_context(|| format!("the engine said {line:?}"))
}
