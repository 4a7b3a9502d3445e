//! Runs one command to its end.
//!
//! Whatever happens to the command is an answer, not an HTTP error: older clients send a request again after a 5xx, and a
//! command must not run twice.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::validation::Execute;
use crate::{paths, words};

const DEFAULT_TIMEOUT_SECONDS: f64 = 300.0;
const DEFAULT_MAX_OUTPUT: usize = 16 * 1024 * 1024;
/// How long output is awaited from what a finished command left in the background.
const DRAIN: Duration = Duration::from_secs(1);
/// What `timeout(1)` answers, and what clients expect when their own limit fired.
const TIMED_OUT: i32 = 124;

/// What a command did.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub stdout: String,
    pub stderr: String,
    pub exit_code: i32,
    pub timed_out: bool,
}

/// Runs `request.command` in the base directory. Dropping the future kills the command and all of its process group.
pub async fn execute(request: Execute) -> Outcome {
    match run(&request).await {
        Ok(outcome) => outcome,
        Err(reason) => Outcome {
            stdout: String::new(),
            stderr: format!("Failed to execute command: {reason}"),
            exit_code: 1,
            timed_out: false,
        },
    }
}

async fn run(request: &Execute) -> Result<Outcome, String> {
    let words = words::split(&request.command)?;
    let mut child = spawn(&words)?;
    let limit = max_output();
    let mut stdout = Capture::start(child.process.stdout.take(), limit);
    let mut stderr = Capture::start(child.process.stderr.take(), limit);

    let server_limit = exec_timeout();
    let status = match timeout(request.timeout.unwrap_or(server_limit), child.wait()).await {
        Ok(status) => Some(status.map_err(|error| describe(&error, None))?),
        Err(_) => {
            child.kill().await;
            None
        }
    };
    // Both pipes end with the last process that holds them, which may be one the command left in the background.
    let _ = timeout(DRAIN, async { tokio::join!(stdout.end(), stderr.end()) }).await;

    match (status, request.timeout) {
        (Some(status), _) => Ok(outcome(stdout, stderr, exit_code(status), false)),
        (None, Some(_)) => Ok(outcome(stdout, stderr, TIMED_OUT, true)),
        (None, None) => Err(format!(
            "Command '{}' timed out after {:?} seconds",
            list(&words),
            server_limit.as_secs_f64()
        )),
    }
}

fn outcome(stdout: Capture, stderr: Capture, exit_code: i32, timed_out: bool) -> Outcome {
    let (stdout, stdout_cut) = stdout.take();
    let (mut stderr, stderr_cut) = stderr.take();
    for (name, cut) in [("stdout", stdout_cut), ("stderr", stderr_cut)] {
        if let Some(limit) = cut {
            let separator = if stderr.is_empty() || stderr.ends_with('\n') { "" } else { "\n" };
            stderr += &format!(
                "{separator}[sandboxd: {name} was cut after {limit} bytes; SANDBOX_EXEC_MAX_OUTPUT_BYTES is the limit]\n"
            );
        }
    }
    Outcome { stdout, stderr, exit_code, timed_out }
}

// === The process ===

/// A running command, leader of its own process group.
struct Running {
    process: Child,
    /// `None` once the leader is reaped: from then on the number may belong to somebody else.
    group: Option<Pid>,
}

fn spawn(words: &[String]) -> Result<Running, String> {
    let (program, arguments) = words.split_first().ok_or("list index out of range")?;
    let base = paths::base_directory();
    check_directory(&base)?;
    let process = Command::new(program)
        .args(arguments)
        .current_dir(&base)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| describe(&error, Some(program)))?;
    let group = process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    Ok(Running { process, group })
}

/// Said apart from the command, because a failed spawn does not tell which of the two is missing.
fn check_directory(base: &Path) -> Result<(), String> {
    let problem = match std::fs::metadata(base) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => io::Error::from(rustix::io::Errno::NOTDIR),
        Err(error) => error,
    };
    Err(describe(&problem, Some(&base.to_string_lossy())))
}

// === impl Running ===

impl Running {
    async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.process.wait().await?;
        self.group = None;
        Ok(status)
    }

    async fn kill(&mut self) {
        self.kill_group();
        // SIGKILL cannot be refused, so this ends; a failure means somebody else has reaped it.
        let _ = self.wait().await;
    }

    fn kill_group(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Running {
    /// The client went away, or the daemon ends.
    fn drop(&mut self) {
        self.kill_group();
    }
}

// === Output ===

/// Collects one stream up to a limit, and keeps emptying it beyond, so that the writer never blocks or breaks.
struct Capture {
    kept: watch::Receiver<Kept>,
    limit: usize,
}

#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    cut: bool,
}

// === impl Capture ===

impl Capture {
    fn start(stream: Option<impl AsyncRead + Unpin + Send + 'static>, limit: usize) -> Self {
        let (sender, kept) = watch::channel(Kept::default());
        if let Some(mut stream) = stream {
            tokio::spawn(async move {
                let mut buffer = vec![0; 16 * 1024];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    sender.send_if_modified(|kept| {
                        let room = limit.saturating_sub(kept.bytes.len());
                        kept.bytes.extend_from_slice(&buffer[..read.min(room)]);
                        kept.cut |= read > room;
                        false // nobody waits for bytes, only for the end
                    });
                }
            });
        }
        Self { kept, limit }
    }

    /// Returns when no process holds the stream any more.
    async fn end(&mut self) {
        while self.kept.changed().await.is_ok() {}
    }

    /// What was collected so far, and the limit where it was cut.
    fn take(self) -> (String, Option<usize>) {
        let kept = self.kept.borrow();
        (String::from_utf8_lossy(&kept.bytes).into_owned(), kept.cut.then_some(self.limit))
    }
}

// === Settings and words ===

fn exec_timeout() -> Duration {
    const NAME: &str = "SANDBOX_EXEC_TIMEOUT_SECONDS";
    let default = Duration::from_secs_f64(DEFAULT_TIMEOUT_SECONDS);
    let Ok(text) = std::env::var(NAME) else { return default };
    match text.trim().parse().ok().filter(|&seconds: &f64| seconds > 0.0).map(Duration::try_from_secs_f64) {
        Some(Ok(limit)) => limit,
        _ => {
            eprintln!(
                "warning: {NAME}={text:?} is not a number of seconds above 0; using {DEFAULT_TIMEOUT_SECONDS}"
            );
            default
        }
    }
}

fn max_output() -> usize {
    const NAME: &str = "SANDBOX_EXEC_MAX_OUTPUT_BYTES";
    let Ok(text) = std::env::var(NAME) else { return DEFAULT_MAX_OUTPUT };
    text.trim().parse().unwrap_or_else(|_| {
        eprintln!("warning: {NAME}={text:?} is not a number of bytes; using {DEFAULT_MAX_OUTPUT}");
        DEFAULT_MAX_OUTPUT
    })
}

/// The exit code, or minus the signal that ended the command.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| -signal)).unwrap_or(1)
}

/// An error the way clients have always seen it: `[Errno 2] No such file or directory: 'nosuch'`.
pub fn describe(error: &io::Error, subject: Option<&str>) -> String {
    let text = error.to_string();
    let Some(number) = error.raw_os_error() else { return text };
    let reason = text.split(" (os error").next().unwrap_or_default();
    match subject {
        Some(subject) => format!("[Errno {number}] {reason}: {}", quoted(subject)),
        None => format!("[Errno {number}] {reason}"),
    }
}

fn list(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("[{}]", words.join(", "))
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::from(quote);
    for character in text.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            other if other == quote => quoted.extend(['\\', other]),
            other => quoted.push(other),
        }
    }
    quoted.push(quote);
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_look_the_way_clients_have_always_seen_them() {
        let missing = io::Error::from(rustix::io::Errno::NOENT);
        assert_eq!(describe(&missing, Some("nosuch")), "[Errno 2] No such file or directory: 'nosuch'");
        assert_eq!(describe(&missing, None), "[Errno 2] No such file or directory");
    }

    #[test]
    fn a_command_is_shown_as_a_list_of_quoted_words() {
        let words = ["sleep", "it's", "a\"'b", "x\\\n"].map(str::to_owned);
        assert_eq!(list(&words), r#"['sleep', "it's", 'a"\'b', 'x\\\n']"#);
    }
}
