//! `PUT /v1/files/{path}`: one file, all or nothing.

use std::path::Path;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use tokio::io::AsyncWriteExt;

use super::{Problem, blocking, query};
use crate::draft::{Draft, Rights};
use crate::multipart::{self, Multipart};
use crate::paths::{self, Place, Root};
use crate::reply::{self, Reply};
use crate::routes::State;

const NO_FILE: &str = "multipart body is missing the required \"file\" part";

/// Where the bytes come from.
enum Source {
    Raw(Incoming),
    Part(Multipart<Incoming>),
}

pub async fn put(state: &State, path: Vec<u8>, request: Request<Incoming>) -> Result<Reply, Problem> {
    let mode = query::mode(request.uri().query())?;
    let root = state.root();
    // Looked at before the body, so that a refusal creates no directories.
    let (place, of) = (path.clone(), root.clone());
    blocking(move || check(&of, &place)).await?;
    let mut source = source(request).await?;
    let (draft, file) = blocking(move || {
        let root = Root::open(&root)?;
        let path = paths::clean(&path, &root)?;
        Ok(Draft::create(&root, &path, Rights::Exactly(mode))?)
    })
    .await?;
    let mut file = tokio::fs::File::from_std(file);
    while let Some(chunk) = source.chunk().await? {
        file.write_all(&chunk).await?;
    }
    // `sync_all` alone would hide that the last write failed, and a cut file would be published.
    file.flush().await?;
    file.sync_all().await?;
    blocking(move || Ok(draft.publish()?)).await?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

fn check(root: &Path, path: &[u8]) -> Result<(), Problem> {
    let root = Root::open(root)?;
    match root.resolve(&paths::clean(path, &root)?)? {
        Place::Directory(_) => Err(rustix::io::Errno::ISDIR.into()),
        Place::File { .. } | Place::Missing { .. } => Ok(()),
    }
}

async fn source(request: Request<Incoming>) -> Result<Source, Problem> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_form = kind.trim_start().to_ascii_lowercase().starts_with("multipart/form-data");
    if !is_form {
        return Ok(Source::Raw(request.into_body()));
    }
    let boundary = multipart::boundary(kind)
        .ok_or_else(|| Problem::Invalid("multipart body has no usable boundary".to_owned()))?;
    let mut parts = Multipart::new(request.into_body(), &boundary);
    loop {
        match parts.next().await? {
            Some(part) if part.name == "file" => return Ok(Source::Part(parts)),
            Some(_) => {}
            None => return Err(Problem::Invalid(NO_FILE.to_owned())),
        }
    }
}

impl Source {
    async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        match self {
            Self::Raw(body) => loop {
                let Some(frame) = body.frame().await else { return Ok(None) };
                let frame = frame.map_err(|_| Problem::Invalid("the body is incomplete".to_owned()))?;
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            },
            Self::Part(parts) => {
                let chunk = parts.chunk().await?;
                if chunk.is_none() {
                    // Up to the last boundary: without it the file may not be whole.
                    while parts.next().await?.is_some() {}
                }
                Ok(chunk)
            }
        }
    }
}

impl From<multipart::Error> for Problem {
    fn from(error: multipart::Error) -> Self {
        Self::Invalid(match error {
            multipart::Error::Broken => "multipart body ends before its last boundary".to_owned(),
            multipart::Error::Malformed(reason) => format!("multipart body is malformed: {reason}"),
        })
    }
}
