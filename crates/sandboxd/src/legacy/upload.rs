//! `POST /upload`: one file, all or nothing.

use std::fs::File;
use std::io;

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use tokio::io::AsyncWriteExt;
use tokio::task::spawn_blocking;

use super::execute::describe;
use super::validation;
use crate::draft::{Draft, Rights};
use crate::multipart::{self, Multipart};
use crate::paths::{self, Root};
use crate::reply::{self, Reply};

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
        let (draft, file) = blocking(move || create(&name)).await?;
        let mut file = tokio::fs::File::from_std(file);
        while let Some(chunk) = parts.chunk().await? {
            file.write_all(&chunk).await?;
        }
        file.flush().await?;
        // Up to the last boundary: without it the file may not be whole.
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

fn create(path: &[u8]) -> Result<(Draft, File), Failure> {
    let base = paths::base_directory();
    std::fs::create_dir_all(&base)?;
    Ok(Draft::create(&Root::open(&base)?, path, Rights::Inherited)?)
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

impl From<paths::Error> for Failure {
    fn from(error: paths::Error) -> Self {
        match error {
            paths::Error::Escape | paths::Error::Nul => Self::Escape,
            paths::Error::Io(error) => Self::Io(error),
        }
    }
}
