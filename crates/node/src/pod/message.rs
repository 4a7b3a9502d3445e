//! The termination message of a container: what it left in its file, or the end of its log.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use asb_runtime::Sandbox;
use k8s_openapi::api::core::v1::Container;

/// No more of a log stands in for a message.
const BYTES: u64 = 2048;
const LINES: usize = 80;

/// What an ended container has to say, as `terminationMessagePolicy` wants it.
pub fn of(container: Option<&Container>, sandbox: &Sandbox, code: i32) -> Option<String> {
    let policy = container.and_then(|container| container.termination_message_policy.as_deref());
    let left = sandbox.last_words();
    if left.is_some() || code == 0 || policy != Some("FallbackToLogsOnError") {
        return left;
    }
    sandbox.logs().last().and_then(tail)
}

/// The last lines of a log, without what is written about them.
fn tail(log: &PathBuf) -> Option<String> {
    let mut file = std::fs::File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    // Each line begins with a time and a stream; so there is more to read than to keep.
    let from = length.saturating_sub(BYTES + 64 * LINES as u64);
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut text = Vec::new();
    file.take(length - from).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let text = if from == 0 { &*text } else { text.split_once('\n').map_or("", |(_, rest)| rest) };
    last_lines(text)
}

fn last_lines(log: &str) -> Option<String> {
    let said = |line: &str| {
        let mut fields = line.splitn(4, ' ').skip(2);
        let end = if fields.next()? == "F" { "\n" } else { "" };
        Some(format!("{}{end}", fields.next()?))
    };
    let lines: Vec<_> = log.lines().filter_map(said).collect();
    let mut text: String = lines[lines.len().saturating_sub(LINES)..].concat();
    let excess = text.len().saturating_sub(BYTES as usize);
    let cut = (excess..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.drain(..cut);
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_log_is_what_was_said() {
        let log = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P two \n2026-01-01T00:00:00Z stderr F parts\n";
        assert_eq!(last_lines(log).as_deref(), Some("one\ntwo parts\n"));
        let many: String = (0..200).map(|line| format!("t stdout F {line}\n")).collect();
        let kept = last_lines(&many).unwrap();
        assert_eq!((kept.lines().count(), kept.lines().next()), (LINES, Some("120")));
        let long = format!("t stdout F {}\n", "é".repeat(3000));
        assert_eq!(last_lines(&long).unwrap().len(), 2047);
        assert_eq!(last_lines(""), None);
    }
}
