//! The main process's output on disk, a line at a time, within a fixed size.
//!
//! Two files: when `log` has half of what may be kept it becomes `log.1`, and the older half is dropped.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use asb_supervisor::launch::file;
use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, openat, renameat};

use crate::tap::{self, Tap};

/// The longest line kept in one piece.
const LINE: usize = 16 * 1024;
/// Room that rotation never goes below, so that a line always fits.
const LEAST: u64 = 64 * 1024;

pub struct Log {
    directory: OwnedFd,
    file: Option<std::fs::File>,
    written: u64,
    half: u64,
    /// Lines on their way to the file.
    pending: Vec<u8>,
}

/// One of the two streams and the line it is in the middle of.
pub struct Stream {
    pub pipe: OwnedFd,
    name: &'static str,
    partial: Vec<u8>,
    ended: bool,
    /// Who else gets what comes.
    pub taps: Vec<Tap>,
}

impl Log {
    /// Makes its file ahead of time, for the user who will write to it.
    pub fn make(directory: &OwnedFd, owner: u32) -> rustix::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = openat(directory, file::LOG, flags, Mode::from_raw_mode(0o600))?;
        fchown(&file, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))
    }

    pub fn new(directory: OwnedFd, bytes: u64) -> Self {
        let mut log =
            Self { directory, file: None, written: 0, half: (bytes / 2).max(LEAST), pending: Vec::new() };
        log.file = log.create();
        log
    }

    pub fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// Copies what the stream has right now, at most as much as fits the buffer, so that others get their turn.
    pub fn copy(&mut self, stream: &mut Stream, buffer: &mut [u8]) {
        let room = if stream.taps.is_empty() { buffer.len() } else { buffer.len().min(tap::PIECE) };
        let read = match rustix::io::read(&stream.pipe, &mut buffer[..room]) {
            Ok(read) => read,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            Err(_) => 0,
        };
        stream.taps.retain(|tap| tap.give(&buffer[..read]));
        // What is read at once was written at about the same time.
        let now = timestamp(SystemTime::now());
        if read == 0 {
            if !stream.partial.is_empty() {
                self.line(&now, stream.name, 'P', &stream.partial);
                stream.partial = Vec::new();
            }
            stream.ended = true;
        }
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            let room = LINE - stream.partial.len();
            let end = rest.iter().position(|byte| *byte == b'\n');
            match end.filter(|end| *end <= room) {
                Some(end) => {
                    stream.partial.extend_from_slice(&rest[..end]);
                    self.line(&now, stream.name, 'F', &stream.partial);
                    stream.partial.clear();
                    rest = &rest[end + 1..];
                }
                None => {
                    let taken = rest.len().min(room);
                    stream.partial.extend_from_slice(&rest[..taken]);
                    rest = &rest[taken..];
                    if stream.partial.len() == LINE && !rest.is_empty() {
                        self.line(&now, stream.name, 'P', &stream.partial);
                        stream.partial.clear();
                    }
                }
            }
        }
        self.flush();
    }

    fn line(&mut self, now: &str, stream: &str, tag: char, text: &[u8]) {
        let length = (now.len() + stream.len() + text.len() + 5) as u64;
        if self.written + length > self.half {
            self.flush();
            self.rotate();
        }
        self.written += length;
        for part in [now, " ", stream, if tag == 'F' { " F " } else { " P " }] {
            self.pending.extend_from_slice(part.as_bytes());
        }
        self.pending.extend_from_slice(text);
        self.pending.push(b'\n');
    }

    fn flush(&mut self) {
        if let Some(file) = &mut self.file {
            // A full disk loses lines; it must not end the sandbox.
            let _ = file.write_all(&self.pending);
        }
        // A flood of short lines takes room for their time stamps, which is not kept.
        self.pending.clear();
        self.pending.shrink_to(LINE);
    }

    fn rotate(&mut self) {
        let _ = renameat(&self.directory, file::LOG, &self.directory, file::OLD_LOG);
        self.written = 0;
        self.file = self.create();
    }

    fn create(&self) -> Option<std::fs::File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND | OFlags::CLOEXEC;
        openat(&self.directory, file::LOG, flags, Mode::from_raw_mode(0o600)).ok().map(Into::into)
    }
}

impl Stream {
    pub fn new(pipe: OwnedFd, name: &'static str) -> Self {
        Self { pipe, name, partial: Vec::new(), ended: false, taps: Vec::new() }
    }

    /// `stdout` or `stderr`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether nobody holds its other end any more.
    pub fn ended(&self) -> bool {
        self.ended
    }
}

/// RFC 3339 in UTC with nanoseconds.
fn timestamp(time: SystemTime) -> String {
    let elapsed = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = elapsed.as_secs();
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", elapsed.subsec_nanos())
}

/// The Gregorian date of a day counted from 1970-01-01, by eras of 400 years that begin on a 1st of March.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_rfc_3339_across_leap_days() {
        let at = |seconds, nanos| timestamp(UNIX_EPOCH + Duration::new(seconds, nanos));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_782_399, 1), "2000-02-28T23:59:59.000000001Z");
        assert_eq!(at(951_782_400, 0), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(at(1_772_323_200, 0), "2026-03-01T00:00:00.000000000Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000000000Z");
    }
}
