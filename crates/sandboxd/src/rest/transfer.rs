//! `POST /v1/move`, `/v1/copy` and `/v1/directories/{path}`: extensions of this daemon.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use serde::Deserialize;

use super::{Problem, blocking, problem, tree};
use crate::body;
use crate::draft;
use crate::paths::{self, Link, Place, Root};
use crate::reply::{self, Reply};
use crate::routes::State;

const MAX_BODY: usize = 64 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Move,
    Copy,
}

#[derive(Deserialize)]
struct Wanted {
    from: String,
    to: String,
    #[serde(default)]
    overwrite: bool,
}

pub async fn relocate(state: &State, request: Request<Incoming>, kind: Kind) -> Result<Reply, Problem> {
    let body = body::collect(request.into_body(), MAX_BODY).await.map_err(|problem| match problem {
        body::Problem::TooLarge => Problem::TooLarge("the body is larger than 64 KiB"),
        body::Problem::TooSlow => Problem::Invalid("the body did not arrive in time".to_owned()),
        body::Problem::Broken => Problem::Invalid("the body is incomplete".to_owned()),
    })?;
    let wanted: Wanted = serde_json::from_slice(&body).map_err(|error| {
        Problem::Invalid(format!("the body must be {{\"from\", \"to\", \"overwrite\"?}}: {error}"))
    })?;
    let root = state.root();
    blocking(move || act(&Root::open(&root)?, &wanted, kind)).await?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

fn act(root: &Root, wanted: &Wanted, kind: Kind) -> Result<(), Problem> {
    let (from, to) = (paths::clean(wanted.from.as_bytes(), root)?, paths::clean(wanted.to.as_bytes(), root)?);
    let (source, from) = match root.resolve_link(&from)? {
        Link::Entry { parent, name, .. } => (parent, name),
        Link::Missing { .. } => return Err(Problem::NotFound),
        Link::Root(_) => {
            return Err(Problem::Invalid("the sandbox root cannot be moved or copied".to_owned()));
        }
    };
    let (target, to) = destination(root, &to)?;
    match kind {
        Kind::Move => rename(&source, &from, &target, &to, wanted.overwrite).map_err(into_itself),
        Kind::Copy => {
            let temporary = draft::temporary_name();
            tree::copy(&source, &from, &target, &temporary).map_err(copied)?;
            rename(&target, &temporary, &target, &to, wanted.overwrite).map_err(|error| {
                let _ = tree::remove(&target, &temporary);
                into_itself(error)
            })
        }
    }
}

/// The directory is made if it is missing. A link at the end is replaced, not followed.
fn destination(root: &Root, path: &[u8]) -> Result<(OwnedFd, OsString), Problem> {
    match root.resolve_link(path)? {
        Link::Entry { parent, name, .. } => Ok((parent, name)),
        Link::Missing { parent, rest } => Ok(draft::create_parents(parent, rest)?),
        Link::Root(_) => Err(Problem::Conflict(problem::EXISTS)),
    }
}

fn rename(
    source: &OwnedFd,
    from: &OsString,
    target: &OwnedFd,
    to: &OsString,
    overwrite: bool,
) -> Result<(), Errno> {
    if overwrite {
        return rustix::fs::renameat(source, from, target, to);
    }
    match rustix::fs::renameat_with(source, from, target, to, RenameFlags::NOREPLACE) {
        // Some file systems and kernels cannot. Looking first leaves a short time in which another file may appear.
        Err(Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP) => {
            match rustix::fs::statat(target, to, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => rustix::fs::renameat(source, from, target, to),
                Err(error) => Err(error),
            }
        }
        done => done,
    }
}

fn into_itself(error: Errno) -> Problem {
    match error {
        Errno::INVAL => Problem::Invalid("a directory cannot be moved into itself".to_owned()),
        Errno::NOTEMPTY => Problem::Conflict("target directory is not empty"),
        Errno::ISDIR => Problem::Invalid("target path is a directory, the source is not".to_owned()),
        Errno::NOTDIR => Problem::Invalid("target path is a file, the source is a directory".to_owned()),
        Errno::XDEV => {
            Problem::Invalid("source and target are on different file systems; copy and delete".to_owned())
        }
        other => other.into(),
    }
}

fn copied(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::InvalidInput => Problem::Invalid(error.to_string()),
        _ => error.into(),
    }
}

/// Like `mkdir -p`: directories that exist are fine.
pub async fn make_directories(state: &State, path: Vec<u8>) -> Result<Reply, Problem> {
    let root = state.root();
    blocking(move || {
        let root = Root::open(&root)?;
        match root.resolve(&paths::clean(&path, &root)?)? {
            Place::Directory(_) => Ok(()),
            Place::File { .. } => Err(Problem::Conflict("target path exists and is not a directory")),
            Place::Missing { parent, rest } => {
                let (parent, name) = draft::create_parents(parent, rest)?;
                draft::make_directory(&parent, &name)?;
                Ok(())
            }
        }
    })
    .await?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}
