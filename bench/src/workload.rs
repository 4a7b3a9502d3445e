//! The objects that are created, and what is done with them over the API.

use std::time::Instant;

use anyhow::Context;
use asb_types::{Sandbox, SandboxSpec};
use futures::io::{AsyncBufReadExt as _, AsyncReadExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, LogParams};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::peer::COMMAND;

/// A sandbox whose main process prints a line and ends.
pub fn printing_sandbox(name: &str) -> anyhow::Result<Sandbox> {
    sandbox(name, pod_spec(Some(&COMMAND)))
}

/// A sandbox as `asb run` makes it: it idles until something is run in it.
pub fn idle_sandbox(name: &str) -> anyhow::Result<Sandbox> {
    sandbox(name, pod_spec(None))
}

/// A sandbox that is only an object: suspended, without a Pod.
pub fn suspended_sandbox(name: &str) -> anyhow::Result<Sandbox> {
    let mut sandbox = idle_sandbox(name)?;
    sandbox.spec.operating_mode = asb_types::OperatingMode::Suspended;
    Ok(sandbox)
}

/// A Pod without a Sandbox that prints a line and ends.
pub fn printing_pod(name: &str) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(json!({"metadata": {"name": name}, "spec": pod_spec(Some(&COMMAND))}))?)
}

fn sandbox(name: &str, spec: Value) -> anyhow::Result<Sandbox> {
    let spec: SandboxSpec = serde_json::from_value(json!({"podTemplate": {"spec": spec}}))?;
    Ok(Sandbox::new(name, spec))
}

fn pod_spec(command: Option<&[&str]>) -> Value {
    let mut container = json!({"name": "main", "image": "host"});
    if let Some(command) = command {
        container["command"] = json!(command);
    }
    json!({"restartPolicy": "Never", "containers": [container]})
}

/// Follows the log of a Pod to its first byte; answers with when that came, and when it was printed.
pub async fn first_log_byte(pods: &Api<Pod>, name: &str) -> anyhow::Result<(Instant, Timestamp)> {
    let params = LogParams { follow: true, timestamps: true, ..LogParams::default() };
    let mut log = pods.log_stream(name, &params).await.context("failed to follow the log")?;
    anyhow::ensure!(!log.fill_buf().await?.is_empty(), "the log of {name} is empty");
    let came = Instant::now();
    let mut line = String::new();
    log.read_line(&mut line).await?;
    // To its end, so that the connection is there for the next one.
    log.read_to_end(&mut Vec::new()).await?;
    let (printed, text) = line.split_once(' ').context("a line of the log starts with its time")?;
    anyhow::ensure!(text.trim() == COMMAND[1], "the log of {name} says {text:?}");
    Ok((came, printed.parse()?))
}

/// Runs the command in a Pod; answers with when its first byte came.
pub async fn first_exec_byte(pods: &Api<Pod>, name: &str) -> anyhow::Result<Instant> {
    let params = AttachParams::default().stdin(false).stdout(true).stderr(false);
    let mut process = pods.exec(name, COMMAND, &params).await.context("failed to exec")?;
    let status = process.take_status().context("exec has a status")?;
    let mut stdout = process.stdout().context("exec has an output")?;
    let mut output = vec![stdout.read_u8().await.context("exec printed nothing")?];
    let came = Instant::now();
    stdout.read_to_end(&mut output).await?;
    anyhow::ensure!(output == b"hi\n", "exec printed {:?}", String::from_utf8_lossy(&output));
    let status = status.await.and_then(|status| status.status);
    anyhow::ensure!(status.as_deref() == Some("Success"), "exec ended with {status:?}");
    Ok(came)
}
