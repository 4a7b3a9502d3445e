//! `GET /download/{path}`: one file, or one range of it, streamed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use hyper::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, LAST_MODIFIED,
};
use hyper::{Response, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use tokio::task::spawn_blocking;

use crate::body::Body;
use crate::paths::{self, Error, Place, Root};
use crate::range::{Wanted, wanted};
use crate::reply::{self, Reply};

/// What may stand in a file name without being encoded.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub async fn download(path: Vec<u8>, headers: &HeaderMap) -> Reply {
    let opened = spawn_blocking(move || open(&path)).await;
    let (mut file, name) = match opened {
        Ok(Ok(found)) => found,
        Ok(Err(Error::Escape | Error::Nul)) => return reply::access_denied(),
        Ok(Err(Error::Io(_))) | Err(_) => return not_found(),
    };
    let Ok(metadata) = file.metadata() else { return not_found() };
    let length = metadata.len();
    let modified = reply::http_date(metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
    let tag = format!("\"{:x}-{:x}-{length:x}\"", metadata.mtime(), metadata.mtime_nsec());

    let (status, from, count) = match wanted(headers, length, &tag, &modified) {
        Wanted::All => (StatusCode::OK, 0, length),
        Wanted::Part { from, to } => (StatusCode::PARTIAL_CONTENT, from, to - from + 1),
        Wanted::Nothing => {
            let mut reply = reply::message(StatusCode::RANGE_NOT_SATISFIABLE, "Range not satisfiable");
            set(&mut reply, CONTENT_RANGE, &format!("bytes */{length}"));
            return reply;
        }
    };
    if from > 0 && file.seek(SeekFrom::Start(from)).is_err() {
        return not_found();
    }
    let mut reply = Response::new(Body::file(tokio::fs::File::from_std(file), count));
    *reply.status_mut() = status;
    if status == StatusCode::PARTIAL_CONTENT {
        set(&mut reply, CONTENT_RANGE, &format!("bytes {from}-{}/{length}", from + count - 1));
    }
    set(&mut reply, CONTENT_TYPE, "application/octet-stream");
    set(&mut reply, CONTENT_DISPOSITION, &disposition(name.as_bytes()));
    set(&mut reply, ACCEPT_RANGES, "bytes");
    set(&mut reply, LAST_MODIFIED, &modified);
    set(&mut reply, ETAG, &tag);
    reply
}

fn not_found() -> Reply {
    reply::message(StatusCode::NOT_FOUND, "File not found")
}

fn open(path: &[u8]) -> Result<(File, OsString), Error> {
    let root = Root::open(&paths::base_directory()).map_err(Error::Io)?;
    match root.resolve(path)? {
        Place::File { parent, name } => Ok((paths::open_regular(&parent, &name)?, name)),
        Place::Directory(_) | Place::Missing { .. } => Err(Error::Io(io::ErrorKind::NotFound.into())),
    }
}

fn set(reply: &mut Reply, name: HeaderName, value: &str) {
    let value = HeaderValue::from_str(value).expect("only visible ASCII is put into headers here");
    reply.headers_mut().insert(name, value);
}

fn disposition(name: &[u8]) -> String {
    let encoded = percent_encode(name, &PLAIN).to_string();
    if encoded.as_bytes() == name {
        format!("attachment; filename=\"{encoded}\"")
    } else {
        format!("attachment; filename*=utf-8''{encoded}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_plain_is_encoded() {
        assert_eq!(disposition(b"a.txt"), "attachment; filename=\"a.txt\"");
        assert_eq!(disposition("ü x.txt".as_bytes()), "attachment; filename*=utf-8''%C3%BC%20x.txt");
    }
}
