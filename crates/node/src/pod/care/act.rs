//! One hook or one probe, done once.

use std::time::Duration;

use asb_runtime::{Exec, Exit, Sandbox};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{Action, grpc, http};
use crate::failure::with_causes;

/// How much of what a command or a server says is told.
pub const SAID: usize = 1024;
const SIGKILL: i32 = 9;
/// How long the last output of a command that has ended is waited for.
const QUIET: Duration = Duration::from_millis(100);

/// Why a hook or probe failed, in the words of its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    Failed(String),
    /// It could not be begun, which says nothing of the container.
    Untried(String),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Failed(why) | Self::Untried(why)) = self;
        f.write_str(why)
    }
}

/// Does it. What is dropped before it is through is stopped.
pub async fn run(sandbox: &Sandbox, action: &Action) -> Result<(), Problem> {
    let done = match action {
        Action::Exec(command) => return exec(sandbox, command).await,
        Action::Http(request) => http::get(sandbox, request).await,
        Action::Tcp(port) => sandbox.reach(*port).await.map(drop).map_err(|error| with_causes(&error)),
        Action::Grpc { port, service } => grpc::check(sandbox, *port, service).await,
        Action::Sleep(time) => {
            tokio::time::sleep(*time).await;
            Ok(())
        }
    };
    done.map_err(Problem::Failed)
}

async fn exec(sandbox: &Sandbox, command: &[String]) -> Result<(), Problem> {
    let exec = Exec { argv: command.to_vec(), env: Vec::new(), cwd: None, stdin: false, terminal: None };
    let session = sandbox.exec(&exec).await.map_err(|error| Problem::Untried(with_causes(&error)))?;
    let mut guard = Guard { control: Some(session.control) };
    let control = guard.control.as_mut().expect("set above");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = {
        let streams = async {
            let stderr = async {
                if let Some(stderr) = session.stderr {
                    collect(stderr, &mut err).await;
                }
            };
            tokio::join!(collect(session.stdout, &mut out), stderr);
        };
        tokio::pin!(streams);
        let mut open = true;
        let exit = loop {
            tokio::select! {
                exit = control.wait() => break exit,
                () = &mut streams, if open => open = false,
            }
        };
        if open {
            // What it left in the background may hold the pipes for good: nothing more is waited for.
            let _ = tokio::time::timeout(QUIET, streams).await;
        }
        exit
    };
    guard.control = None;
    let output = String::from_utf8_lossy(&[out, err].concat()).trim().to_owned();
    let problem = match exit.map_err(|error| Problem::Failed(with_causes(&error)))? {
        Exit::Code(0) => return Ok(()),
        Exit::Code(code) if output.is_empty() => format!("the command ended with exit code {code}"),
        Exit::Code(code) => format!("the command ended with exit code {code}: {output}"),
        other => format!("the command was killed ({other:?})"),
    };
    Err(Problem::Failed(problem))
}

/// Reads to the end, and keeps the beginning.
async fn collect(mut from: impl AsyncRead + Unpin, kept: &mut Vec<u8>) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..count.min(SAID - kept.len().min(SAID))]);
    }
}

/// Kills a command whose time was up before it ended.
struct Guard {
    control: Option<asb_runtime::SessionControl>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut control) = self.control.take() {
            tokio::spawn(async move { control.signal(SIGKILL).await });
        }
    }
}
