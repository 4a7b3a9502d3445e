//! `DELETE /v1/files/{path}`: removes what the path names, never what a link there leads to.

use rustix::fs::{AtFlags, FileType};

use hyper::StatusCode;

use super::{Problem, blocking, problem, query, tree};
use crate::paths::{self, Link, Root};
use crate::reply::{self, Reply};
use crate::routes::State;

pub async fn delete(state: &State, path: Vec<u8>, query: Option<&str>) -> Result<Reply, Problem> {
    let (root, recursive) = (state.root(), query::recursive(query));
    blocking(move || {
        let root = Root::open(&root)?;
        let link = root.resolve_link(&paths::clean(&path, &root)?)?;
        if matches!(link, Link::Missing { .. }) {
            return Err(Problem::NotFound);
        }
        match (link, recursive?) {
            (Link::Missing { .. }, _) => Err(Problem::NotFound),
            (Link::Root(directory), true) => Ok(tree::clear(&directory)?),
            (Link::Root(_), false) => Err(Problem::Conflict(problem::ROOT)),
            (Link::Entry { parent, name, kind: FileType::Directory }, true) => {
                Ok(tree::remove(&parent, &name)?)
            }
            (Link::Entry { parent, name, kind }, _) => {
                let flags = if kind == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                Ok(rustix::fs::unlinkat(&parent, &name, flags)?)
            }
        }
    })
    .await?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}
