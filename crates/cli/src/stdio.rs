//! Standard streams of this program joined to a command in a sandbox.

use std::pin::pin;
use std::process::ExitCode;

use anyhow::Context;
use futures::SinkExt;
use futures::channel::mpsc;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess, TerminalSize};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Streams;
use crate::container;
use crate::failure::coded;

/// Runs a command in a Pod with our streams; returns its exit code.
pub async fn exec(
    pods: &Api<Pod>,
    pod: &str,
    container: Option<String>,
    command: &[String],
    streams: &Streams,
) -> anyhow::Result<ExitCode> {
    join(begin(pods, pod, container, command, streams).await?, streams).await
}

/// Starts a command in a Pod, for streams like ours.
pub async fn begin(
    pods: &Api<Pod>,
    pod: &str,
    container: Option<String>,
    command: &[String],
    streams: &Streams,
) -> anyhow::Result<AttachedProcess> {
    let params = AttachParams {
        stdin: streams.interactive,
        stdout: true,
        stderr: !streams.tty,
        tty: streams.tty,
        container,
        ..AttachParams::default()
    };
    let mut process = pods.exec(pod, command, &params).await;
    if process.is_err()
        && params.container.is_none()
        && let Some(name) = container::default(pods, pod).await
    {
        process = pods.exec(pod, command, &AttachParams { container: Some(name), ..params }).await;
    }
    process.with_context(|| format!("failed to run a command in `{pod}`"))
}

/// Waits for a signal that is to end this program; answers with the exit code that tells so.
pub async fn ended_by_signal() -> ExitCode {
    let listen = |kind: SignalKind| async move {
        // Without a listener the signal does what it does to any program.
        let Ok(mut signals) = signal(kind) else { return std::future::pending().await };
        signals.recv().await;
        ExitCode::from(128 + u8::try_from(kind.as_raw_value()).unwrap_or(0))
    };
    tokio::select! {
        code = listen(SignalKind::interrupt()) => code,
        code = listen(SignalKind::terminate()) => code,
        code = listen(SignalKind::hangup()) => code,
    }
}

/// Joins our streams to a command until it ends; returns its exit code.
pub async fn join(mut process: AttachedProcess, streams: &Streams) -> anyhow::Result<ExitCode> {
    let _raw = if streams.tty && streams.interactive { RawTerminal::enter() } else { None };
    let status = process.take_status().context("the command's status was taken before")?;
    let stdin = process.stdin().map(|mut to| {
        tokio::spawn(async move {
            let mut from = tokio::io::stdin();
            let mut buffer = vec![0; 16 << 10];
            while let Ok(count @ 1..) = from.read(&mut buffer).await {
                if to.write_all(&buffer[..count]).await.is_err() || to.flush().await.is_err() {
                    return;
                }
            }
            let _ = to.shutdown().await;
        })
    });
    let sizes =
        process.terminal_size().filter(|_| streams.tty).map(|sizes| tokio::spawn(follow_window(sizes)));
    let stdout = process.stdout().map(|from| copy(from, tokio::io::stdout()));
    let stderr = process.stderr().map(|from| copy(from, tokio::io::stderr()));
    let outputs = futures::future::join_all([stdout, stderr].into_iter().flatten());
    let (_, status) = to_the_end(outputs, status).await;
    stdin.into_iter().chain(sizes).for_each(|task| task.abort());
    exit_code(status)
}

/// Waits for all that a command prints and for how it ended. A connection that was lost ends the status but never the
/// streams: then there is neither.
pub async fn to_the_end<P, S>(
    printed: impl Future<Output = P>,
    status: impl Future<Output = Option<S>>,
) -> (Option<P>, Option<S>) {
    let (mut printed, mut status) = (pin!(printed), pin!(status));
    tokio::select! {
        printed = &mut printed => (Some(printed), status.await),
        status = &mut status => match status {
            Some(status) => (Some(printed.await), Some(status)),
            None => (None, None),
        },
    }
}

type Copy = futures::future::BoxFuture<'static, ()>;

fn copy(
    mut from: impl tokio::io::AsyncRead + Send + Unpin + 'static,
    mut to: impl tokio::io::AsyncWrite + Send + Unpin + 'static,
) -> Copy {
    Box::pin(async move {
        let mut buffer = vec![0; 32 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            // Flushed at once: output of a command is shown when it comes.
            if to.write_all(&buffer[..count]).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
    })
}

fn exit_code(
    status: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Status>,
) -> anyhow::Result<ExitCode> {
    let status = status.context("the connection to the command was lost")?;
    if status.status.as_deref() == Some("Success") {
        return Ok(ExitCode::SUCCESS);
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let cause = |reason: &str| {
        let found = causes.iter().find(|cause| cause.reason.as_deref() == Some(reason));
        found.and_then(|cause| cause.message.clone())
    };
    // As a shell tells it.
    for (reason, code) in [("ProgramNotFound", 127), ("ProgramNotExecutable", 126)] {
        if let Some(message) = cause(reason) {
            return Err(coded(message, code));
        }
    }
    match cause("ExitCode").and_then(|code| code.parse::<u8>().ok()) {
        Some(code) => Ok(ExitCode::from(code)),
        None => anyhow::bail!("{}", status.message.unwrap_or_else(|| "the command failed".to_owned())),
    }
}

/// Tells the sandbox the size of our window, now and whenever it changes.
async fn follow_window(mut sizes: mpsc::Sender<TerminalSize>) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
    loop {
        if let Ok(size) = tcgetwinsize(rustix::stdio::stdout()) {
            let _ = sizes.send(TerminalSize { width: size.ws_col, height: size.ws_row }).await;
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

/// Our terminal without line editing, so that keys reach the sandbox; put back when dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Option<Self> {
        let before = tcgetattr(rustix::stdio::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}
