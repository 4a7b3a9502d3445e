//! An archive to or from a program in a sandbox, with a bar for those who watch.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess};
use kube::{Api, Client};
use tokio::io::AsyncReadExt;
use tokio_util::io::SyncIoBridge;

use crate::failure::hinted;
use crate::stdio::to_the_end;

/// How long the program inside may take to say why it failed.
const LAST_WORDS: Duration = Duration::from_secs(2);

pub struct Transfer {
    pods: Api<Pod>,
}

impl Transfer {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { pods: Api::namespaced(client, namespace) }
    }

    /// Gives what a program inside prints to `take`.
    pub async fn receive<T>(&self, name: &str, command: &[String], take: T) -> anyhow::Result<()>
    where
        T: FnOnce(Box<dyn Read + Send>) -> anyhow::Result<()> + Send + 'static,
    {
        let mut process = self.start(name, command, false).await?;
        let stdout = process.stdout().context("the command has no output")?;
        let bar = bar("copied");
        let source = Box::new(bar.wrap_read(SyncIoBridge::new(stdout)));
        let taken = tokio::task::spawn_blocking(move || take(source));
        finish(process, taken, &bar).await
    }

    /// Gives what `make` writes to a program inside.
    pub async fn send<M>(&self, name: &str, command: &[String], make: M) -> anyhow::Result<()>
    where
        M: FnOnce(Box<dyn Write + Send>) -> anyhow::Result<()> + Send + 'static,
    {
        let mut process = self.start(name, command, true).await?;
        let stdin = process.stdin().context("the command has no input")?;
        let bar = bar("copied");
        // The program inside sees the end when this is dropped, however it went.
        let pipe = bar.wrap_write(SyncIoBridge::new(stdin));
        let made = tokio::task::spawn_blocking(move || make(Box::new(pipe)));
        finish(process, made, &bar).await
    }

    async fn start(&self, name: &str, command: &[String], stdin: bool) -> anyhow::Result<AttachedProcess> {
        let params = AttachParams { stdin, stdout: true, stderr: true, ..AttachParams::default() };
        let started = self.pods.exec(name, command, &params).await;
        started.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 => {
                hinted(format!("no running sandbox `{name}`"), "`asb ps` lists those that are there")
            }
            other => anyhow::Error::new(other).context(format!("failed to reach sandbox `{name}`")),
        })
    }
}

/// Waits for both sides; what the one inside says about a failure is worth more than what came of it here.
async fn finish(
    mut process: AttachedProcess,
    mut ours: tokio::task::JoinHandle<anyhow::Result<()>>,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let status = process.take_status().context("the command's status was taken before")?;
    let stderr = process.stderr();
    let mut theirs = tokio::spawn(async move {
        let listening = async {
            let mut said = String::new();
            if let Some(mut stderr) = stderr {
                let _ = stderr.read_to_string(&mut said).await;
            }
            said
        };
        let (said, status) = to_the_end(listening, status).await;
        (said.unwrap_or_default(), status)
    });
    let (ours, theirs) = tokio::select! {
        ours = &mut ours => {
            let ours = ours.context("copying failed")?;
            // Having failed, we no longer take what is sent, so the other side may wait for ever.
            let patience = if ours.is_ok() { Duration::MAX } else { LAST_WORDS };
            (ours, tokio::time::timeout(patience, theirs).await)
        }
        theirs = &mut theirs => {
            // Where the program inside has failed, nobody may take what we still send, so we may wait for ever.
            let failed = theirs.as_ref().is_ok_and(|(_, status)| !has_succeeded(status.as_ref()));
            let patience = if failed { LAST_WORDS } else { Duration::MAX };
            let ours = match tokio::time::timeout(patience, ours).await {
                Ok(ours) => ours.context("copying failed")?,
                Err(_) => Ok(()),
            };
            (ours, Ok(theirs))
        }
    };
    bar.finish_and_clear();
    let (said, status) = match theirs {
        Ok(theirs) => theirs.context("copying failed")?,
        Err(_) => return ours,
    };
    let Some(status) = status else {
        return ours.and(Err(anyhow::anyhow!("the connection to the sandbox was lost")));
    };
    if !has_succeeded(Some(&status)) {
        let said = said.trim();
        if said.contains("unexpected argument") {
            let hint = "stop and start it once: it was started by an older asb, which could not copy";
            return Err(hinted("the sandbox cannot copy", hint));
        }
        let why = if said.is_empty() { status.message.unwrap_or_default() } else { said.to_owned() };
        anyhow::bail!("{}", why.escape_debug());
    }
    ours
}

fn has_succeeded(status: Option<&Status>) -> bool {
    status.is_some_and(|status| status.status.as_deref() == Some("Success"))
}

pub fn bar(verb: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {msg} {bytes} {bytes_per_sec}");
    style.into_iter().for_each(|style| bar.set_style(style));
    bar.set_message(verb);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
