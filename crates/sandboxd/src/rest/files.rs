//! `GET` and `HEAD /v1/files/{path}`: the content of a file, or what is in a directory.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::time::{Duration, SystemTime};

use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use hyper::{Response, StatusCode};

use super::listing::{self, Listing};
use super::{Problem, blocking};
use crate::body::Body;
use crate::paths::{self, Place, Root};
use crate::range::{Wanted, wanted};
use crate::reply::{self, Reply};
use crate::routes::State;

enum Found {
    File(File),
    Directory(Listing),
}

/// `HEAD` is the same without a body.
pub async fn get(
    state: &State,
    path: Vec<u8>,
    headers: &HeaderMap,
    with_body: bool,
) -> Result<Reply, Problem> {
    let root = state.root();
    let found = blocking(move || {
        let root = Root::open(&root)?;
        let cleaned = paths::clean(&path, &root)?;
        match root.resolve(&cleaned)? {
            Place::Directory(directory) => {
                Ok(Found::Directory(listing::list(&root, &path, &cleaned, &directory)?))
            }
            Place::File { parent, name } => Ok(Found::File(paths::open_regular(&parent, &name)?)),
            Place::Missing { .. } => Err(Problem::NotFound),
        }
    });
    let mut reply = match found.await? {
        Found::Directory(listing) => reply::json_line(StatusCode::OK, &listing),
        Found::File(file) => content(file, headers)?,
    };
    if !with_body {
        let length = hyper::body::Body::size_hint(reply.body()).exact().unwrap_or_default();
        if reply.status() != StatusCode::NOT_MODIFIED {
            reply.headers_mut().insert(CONTENT_LENGTH, length.into());
        }
        *reply.body_mut() = Body::empty();
    }
    Ok(reply)
}

fn content(mut file: File, headers: &HeaderMap) -> Result<Reply, Problem> {
    let metadata = file.metadata()?;
    let length = metadata.len();
    let time = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let modified = reply::http_date(time);
    if is_unchanged(headers, time) {
        let mut reply = reply::empty(StatusCode::NOT_MODIFIED);
        set(&mut reply, LAST_MODIFIED, &modified);
        return Ok(reply);
    }
    let (status, from, count) = match wanted(headers, length, "", &modified) {
        Wanted::All => (StatusCode::OK, 0, length),
        Wanted::Part { from, to } => (StatusCode::PARTIAL_CONTENT, from, to - from + 1),
        Wanted::Nothing => {
            let mut reply = reply::error(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "INVALID_ARGUMENT",
                "range is beyond the end",
            );
            set(&mut reply, CONTENT_RANGE, &format!("bytes */{length}"));
            return Ok(reply);
        }
    };
    if from > 0 {
        file.seek(SeekFrom::Start(from))?;
    }
    let mut reply = Response::new(Body::file(tokio::fs::File::from_std(file), count));
    *reply.status_mut() = status;
    if status == StatusCode::PARTIAL_CONTENT {
        set(&mut reply, CONTENT_RANGE, &format!("bytes {from}-{}/{length}", from + count - 1));
    }
    set(&mut reply, CONTENT_TYPE, "application/octet-stream");
    set(&mut reply, ACCEPT_RANGES, "bytes");
    set(&mut reply, LAST_MODIFIED, &modified);
    Ok(reply)
}

/// HTTP dates have whole seconds.
fn is_unchanged(headers: &HeaderMap, modified: SystemTime) -> bool {
    let text = headers.get(IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok());
    let since = text.and_then(|text| httpdate::parse_http_date(text).ok());
    !headers.contains_key(RANGE) && since.is_some_and(|since| modified < since + Duration::from_secs(1))
}

fn set(reply: &mut Reply, name: HeaderName, value: &str) {
    let value = HeaderValue::from_str(value).expect("only visible ASCII is put into headers here");
    reply.headers_mut().insert(name, value);
}
