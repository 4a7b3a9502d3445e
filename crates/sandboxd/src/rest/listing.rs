//! What is in a directory, sorted by name. Links are shown as their target; those that dangle or leave the root are left out.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use serde::Serialize;

use super::Problem;
use crate::paths::{Place, Root};

#[derive(Serialize)]
pub struct Listing {
    path: String,
    entries: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    size: i64,
    #[serde(rename = "type")]
    kind: &'static str,
    modified_at: String,
    mode: String,
}

/// `asked` is the path as the caller wrote it, `path` the same below the root.
pub fn list(root: &Root, asked: &[u8], path: &[u8], directory: &OwnedFd) -> Result<Listing, Problem> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    let mut entries = Vec::new();
    for item in Dir::new(readable)? {
        let item = item?;
        let name = OsStr::from_bytes(item.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        let stat = if is_link { target(root, path, name) } else { Some(stat) };
        entries.extend(stat.map(|stat| entry(name, &stat)));
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Listing { path: shown(asked), entries })
}

/// The requested path, with a slash before it.
fn shown(asked: &[u8]) -> String {
    let text = String::from_utf8_lossy(asked);
    match text.as_ref() {
        "" | "." => "/".to_owned(),
        absolute if absolute.starts_with('/') => absolute.to_owned(),
        relative => format!("/{relative}"),
    }
}

fn target(root: &Root, path: &[u8], name: &OsStr) -> Option<Stat> {
    match root.resolve(&[path, b"/", name.as_bytes()].concat()).ok()? {
        Place::Directory(directory) => rustix::fs::fstat(directory).ok(),
        Place::File { parent, name } => rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok(),
        Place::Missing { .. } => None,
    }
}

fn entry(name: &OsStr, stat: &Stat) -> Entry {
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Entry {
        name: name.to_string_lossy().into_owned(),
        size: stat.st_size,
        kind: if is_directory { "directory" } else { "file" },
        modified_at: rfc3339(stat.st_mtime),
        mode: format!("{:04o}", stat.st_mode & 0o777),
    }
}

/// Whole seconds, in UTC.
fn rfc3339(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The date of a day counted from 1970-01-01. Years are taken to begin in March, so that a leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    let days = days + 719_468; // since 0000-03-01
    let (era, day) = (days.div_euclid(DAYS_OF_400_YEARS), days.rem_euclid(DAYS_OF_400_YEARS));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_786_010_400, "2026-08-06T10:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    #[test]
    fn the_path_is_shown_with_a_leading_slash() {
        for (asked, wanted) in [("", "/"), (".", "/"), ("notes", "/notes"), ("/notes", "/notes")] {
            assert_eq!(shown(asked.as_bytes()), wanted);
        }
    }
}
