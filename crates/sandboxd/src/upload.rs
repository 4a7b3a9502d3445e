//! `POST /upload`: one file, all or nothing.
//!
//! The bytes go to a temporary file in the target's directory and take the target's name when the whole body has arrived,
//! so a reader sees the old file or the new one, and a broken upload leaves nothing behind.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use tokio::io::AsyncWriteExt;
use tokio::task::spawn_blocking;

use crate::execute::describe;
use crate::multipart::{self, Multipart};
use crate::paths::{self, Place, Root};
use crate::reply::{self, Reply};
use crate::validation;

/// A plain `file` field is quoted in the answer, up to here.
const MAX_QUOTED: usize = 1024;

pub async fn upload(request: Request<Incoming>) -> Reply {
    let content_type =
        request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(boundary) = multipart::boundary(content_type) else {
        return reply::invalid(validation::file_missing());
    };
    match receive(Multipart::new(request.into_body(), &boundary)).await {
        Ok(filename) => {
            let filename = String::from_utf8_lossy(&filename);
            reply::message(StatusCode::OK, format!("File '{filename}' uploaded successfully."))
        }
        Err(Failure::FileMissing) => reply::invalid(validation::file_missing()),
        Err(Failure::FileIsAField(text)) => reply::invalid(validation::file_is_a_field(&text)),
        Err(Failure::Escape) => reply::access_denied(),
        Err(Failure::Body(multipart::Error::Broken)) => reply::message(
            StatusCode::BAD_REQUEST,
            "File upload failed: the body ends before its last boundary",
        ),
        Err(Failure::Body(multipart::Error::Malformed(reason))) => {
            reply::message(StatusCode::BAD_REQUEST, format!("File upload failed: {reason}"))
        }
        Err(Failure::Io(error)) => {
            let reason = describe(&error, None);
            reply::message(StatusCode::INTERNAL_SERVER_ERROR, format!("File upload failed: {reason}"))
        }
    }
}

enum Failure {
    FileMissing,
    FileIsAField(String),
    Escape,
    Body(multipart::Error),
    Io(io::Error),
}

/// Stores the first part called `file` and gives its name; the other parts are read and forgotten.
async fn receive(mut parts: Multipart<Incoming>) -> Result<Vec<u8>, Failure> {
    loop {
        let part = parts.next().await?.ok_or(Failure::FileMissing)?;
        if part.name != "file" {
            continue;
        }
        let Some(filename) = part.filename else {
            return Err(Failure::FileIsAField(quote(&mut parts).await?));
        };
        let name = filename.clone();
        let (draft, file) = blocking(move || Draft::create(&name)).await?;
        let mut file = tokio::fs::File::from_std(file);
        while let Some(chunk) = parts.chunk().await? {
            file.write_all(&chunk).await?;
        }
        file.flush().await?;
        // Up to the last boundary: without it, nobody knows whether the file is whole.
        while parts.next().await?.is_some() {}
        blocking(move || draft.publish().map_err(Failure::from)).await?;
        return Ok(filename);
    }
}

async fn quote(parts: &mut Multipart<Incoming>) -> Result<String, Failure> {
    let mut text = Vec::new();
    while let Some(chunk) = parts.chunk().await? {
        let room = MAX_QUOTED.saturating_sub(text.len());
        text.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

/// A file that is being written and has no name of its own yet.
struct Draft {
    directory: OwnedFd,
    temporary: OsString,
    name: OsString,
    published: bool,
}

// === impl Draft ===

impl Draft {
    fn create(path: &[u8]) -> Result<(Self, File), Failure> {
        let base = paths::base_directory();
        std::fs::create_dir_all(&base)?;
        let (directory, name, replaced) = match Root::open(&base)?.resolve(path)? {
            Place::Directory(_) => return Err(Errno::ISDIR.into()),
            Place::File { parent, name } => {
                let replaced = rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                if FileType::from_raw_mode(replaced.st_mode) != FileType::RegularFile {
                    return Err(io::Error::other("the target is not a regular file").into());
                }
                (parent, name, Some(replaced))
            }
            Place::Missing { parent, rest } => {
                let (parent, name) = create_parents(parent, rest)?;
                (parent, name, None)
            }
        };
        let (temporary, file) = create_temporary(&directory)?;
        let draft = Self { directory, temporary, name, published: false };
        if let Some(old) = replaced {
            // Replacing must look like overwriting: same rights, and the same owner where we may give files away.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(old.st_mode & 0o7777))?;
            let _ =
                rustix::fs::fchown(&file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)));
        }
        Ok((draft, File::from(file)))
    }

    fn publish(mut self) -> io::Result<()> {
        rustix::fs::renameat(&self.directory, &self.temporary, &self.directory, &self.name)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            let _ = rustix::fs::unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

fn create_parents(mut parent: OwnedFd, rest: Vec<OsString>) -> Result<(OwnedFd, OsString), Failure> {
    let mut rest = rest.into_iter();
    let mut name = rest.next().ok_or(Errno::ISDIR)?;
    for next in rest {
        match rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // A link put here since the walk is not followed: it could lead anywhere.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        parent = rustix::fs::openat(&parent, &name, flags, Mode::empty())?;
        name = next;
    }
    Ok((parent, name))
}

fn create_temporary(directory: &OwnedFd) -> io::Result<(OsString, OwnedFd)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".sandboxd-tmp-{}-{number}", std::process::id());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(directory, &name, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => return Ok((OsStr::from_bytes(name.as_bytes()).to_owned(), file)),
            Err(Errno::EXIST) => {} // left by a daemon that had our process id and was killed
            Err(error) => return Err(error.into()),
        }
    }
}

// === impl Failure ===

impl From<multipart::Error> for Failure {
    fn from(error: multipart::Error) -> Self {
        Self::Body(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<paths::Error> for Failure {
    fn from(error: paths::Error) -> Self {
        match error {
            paths::Error::Escape => Self::Escape,
            paths::Error::Io(error) => Self::Io(error),
        }
    }
}
