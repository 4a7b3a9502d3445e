//! Runs one command to its end.
//!
//! Whatever happens to the command is an answer, not an HTTP error: older clients send a request again after a 5xx, and a
//! command must not run twice.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::validation::Execute;
use super::words;
use crate::log;
use crate::paths;
use crate::process::{self, Captured, Cwd, Exit, Failure, Held, Input, Limits, Refused, Table, Wanted};

const FAILED: &str = "Failed to execute command: ";
const DEFAULT_TIMEOUT_SECONDS: f64 = 300.0;
const DEFAULT_MAX_OUTPUT: usize = 16 * 1024 * 1024;
/// What `timeout(1)` answers, and what clients expect when their own limit fired.
const TIMED_OUT: i32 = 124;

/// What a command did.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub stdout: String,
    pub stderr: String,
    pub exit_code: i32,
    pub timed_out: bool,
    #[serde(skip)]
    pub held: Held,
}

/// Runs `request.command` in the base directory. Dropping the future kills the command and all of its process group.
///
/// `Err` means that nothing has run.
pub async fn execute(request: Execute, table: &Table) -> Result<Outcome, Refused> {
    let words = match words::split(&request.command) {
        Ok(words) if words.is_empty() => return Ok(failed("list index out of range")),
        Ok(words) => words,
        Err(reason) => return Ok(failed(reason)),
    };
    let base = paths::base_directory();
    let wanted =
        Wanted { command: &words, environment: &HashMap::new(), cwd: Cwd::Path(&base), input: Input::Null };
    let (spawned, _slot) = match table.spawn(wanted) {
        Ok(spawned) => spawned,
        Err(Refused::Failed(failure)) => return Ok(failed(&reason(failure, &words, &base))),
        Err(refused) => return Err(refused),
    };
    let limit = max_output();
    let server_limit = exec_timeout();
    let time = Some(request.timeout.unwrap_or(server_limit));
    let captured = process::run(spawned, Limits { time, bytes: limit, cost: in_json }).await;
    let exit = captured.exit;
    let (stdout, mut stderr, held) = texts(captured, limit);
    let (exit_code, timed_out) = match (exit, request.timeout) {
        (Some(exit), _) => (exit_code(exit), false),
        (None, Some(_)) => (TIMED_OUT, true),
        (None, None) => {
            let seconds = server_limit.as_secs_f64();
            line(&mut stderr);
            stderr += &format!("{FAILED}Command '{}' timed out after {seconds:?} seconds", list(&words));
            (1, false)
        }
    };
    Ok(Outcome { stdout, stderr, exit_code, timed_out, held })
}

fn failed(reason: &str) -> Outcome {
    Outcome {
        stdout: String::new(),
        stderr: format!("{FAILED}{reason}"),
        exit_code: 1,
        timed_out: false,
        held: Held::default(),
    }
}

fn reason(failure: Failure, words: &[String], base: &Path) -> String {
    match failure {
        Failure::Empty => "list index out of range".to_owned(),
        Failure::Invalid(reason) => reason,
        Failure::NoDirectory(error) => describe(&error, Some(&base.to_string_lossy())),
        Failure::Terminal(error) => describe(&error, None),
        Failure::Start(error) => describe(&error, words.first().map(String::as_str)),
    }
}

fn texts(captured: Captured, limit: usize) -> (String, String, Held) {
    let lengths = (captured.stdout.len(), captured.stderr.len());
    let (stdout, mut stderr) = (text(captured.stdout), text(captured.stderr));
    for (name, cut, kept) in
        [("stdout", captured.stdout_cut, lengths.0), ("stderr", captured.stderr_cut, lengths.1)]
    {
        if cut {
            line(&mut stderr);
            let why = if kept == limit {
                "SANDBOX_EXEC_MAX_OUTPUT_BYTES is the limit"
            } else {
                "too much output is held for other commands"
            };
            stderr += &format!("[sandboxd: {name} was cut after {kept} bytes; {why}]\n");
        }
    }
    (stdout, stderr, captured.held)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The most that a byte takes in JSON: control characters are escaped, and U+FFFD replaces what is not UTF-8.
fn in_json(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..=0x1f => 6,
        0x20..=0x7f => 1,
        0x80.. => "\u{fffd}".len(),
    }
}

/// What is added next starts on a line of its own.
fn line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
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
            log::warn(format_args!(
                "{NAME}={text:?} is not a number of seconds above 0; using {DEFAULT_TIMEOUT_SECONDS}"
            ));
            default
        }
    }
}

fn max_output() -> usize {
    const NAME: &str = "SANDBOX_EXEC_MAX_OUTPUT_BYTES";
    let Ok(text) = std::env::var(NAME) else { return DEFAULT_MAX_OUTPUT };
    text.trim().parse().unwrap_or_else(|_| {
        log::warn(format_args!("{NAME}={text:?} is not a number of bytes; using {DEFAULT_MAX_OUTPUT}"));
        DEFAULT_MAX_OUTPUT
    })
}

/// The exit code, or minus the signal that ended the command.
fn exit_code(exit: Exit) -> i32 {
    match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => -signal,
    }
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
