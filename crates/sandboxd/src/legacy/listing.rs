//! `GET /list/{path}` and `GET /exists/{path}`.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use hyper::StatusCode;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::execute::describe;
use crate::paths::{self, Error, Place, Root};
use crate::reply::{self, Reply};

#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    size: i64,
    #[serde(rename = "type")]
    kind: &'static str,
    mod_time: f64,
}

#[derive(Debug, Serialize)]
struct Existence {
    path: String,
    exists: bool,
}

pub async fn list(path: Vec<u8>) -> Reply {
    let not_a_directory = || reply::message(StatusCode::NOT_FOUND, "Path is not a directory");
    let entries = spawn_blocking(move || {
        let root = open_root()?;
        match root.resolve(&path)? {
            Place::Directory(directory) => Ok(Some(entries(&root, &path, &directory).map_err(Error::Io))),
            Place::File { .. } | Place::Missing { .. } => Ok(None),
        }
    });
    match entries.await {
        Ok(Ok(Some(Ok(entries)))) => reply::json(StatusCode::OK, &entries),
        Ok(Ok(Some(Err(Error::Io(error))))) => {
            let reason = describe(&error, None);
            reply::message(StatusCode::INTERNAL_SERVER_ERROR, format!("List files failed: {reason}"))
        }
        Ok(Err(Error::Escape | Error::Nul) | Ok(Some(Err(Error::Escape | Error::Nul)))) => {
            reply::access_denied()
        }
        Ok(Err(Error::Io(_)) | Ok(None)) | Err(_) => not_a_directory(),
    }
}

pub async fn exists(path: Vec<u8>) -> Reply {
    let shown = String::from_utf8_lossy(&path).into_owned();
    let place = spawn_blocking(move || open_root()?.resolve(&path)).await;
    let exists = match place {
        Ok(Err(Error::Escape | Error::Nul)) => return reply::access_denied(),
        Ok(Ok(place)) => !matches!(place, Place::Missing { .. }),
        Ok(Err(Error::Io(_))) | Err(_) => false,
    };
    reply::json(StatusCode::OK, &Existence { path: shown, exists })
}

fn open_root() -> Result<Root, Error> {
    Root::open(&paths::base_directory()).map_err(Error::Io)
}

/// Sorted by name. What vanishes meanwhile is left out.
fn entries(root: &Root, path: &[u8], directory: &OwnedFd) -> io::Result<Vec<Entry>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    let mut entries = Vec::new();
    for item in Dir::new(readable)? {
        let item = item?;
        let name = OsStr::from_bytes(item.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if let Ok(stat) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            let stat = if is_link(&stat) { target(root, path, name).unwrap_or(stat) } else { stat };
            entries.push(entry(name, &stat));
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// What a link leads to. `None` when it dangles or leaves the base directory: then the link itself is shown.
fn target(root: &Root, path: &[u8], name: &OsStr) -> Option<Stat> {
    match root.resolve(&[path, b"/", name.as_bytes()].concat()).ok()? {
        Place::Directory(directory) => rustix::fs::fstat(directory).ok(),
        Place::File { parent, name } => rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok(),
        Place::Missing { .. } => None,
    }
}

fn is_link(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
}

fn entry(name: &OsStr, stat: &Stat) -> Entry {
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Entry {
        name: name.to_string_lossy().into_owned(),
        size: stat.st_size,
        kind: if directory { "directory" } else { "file" },
        mod_time: stat.st_mtime as f64 + stat.st_mtime_nsec as f64 / 1e9,
    }
}
