//! `GET /download/{path}`: one file, or one range of it, streamed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use hyper::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_RANGE, LAST_MODIFIED, RANGE,
};
use hyper::{Response, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rustix::fs::{Mode, OFlags};
use tokio::task::spawn_blocking;

use crate::body::Body;
use crate::paths::{self, Error, Place, Root};
use crate::reply::{self, Reply};

/// What may stand in a file name without being encoded.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub async fn download(path: Vec<u8>, headers: &HeaderMap) -> Reply {
    let opened = spawn_blocking(move || open(&path)).await;
    let (mut file, name) = match opened {
        Ok(Ok(found)) => found,
        Ok(Err(Error::Escape)) => return reply::access_denied(),
        Ok(Err(Error::Io(_))) | Err(_) => return not_found(),
    };
    let Ok(metadata) = file.metadata() else { return not_found() };
    let length = metadata.len();
    let modified = httpdate::fmt_http_date(metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
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

/// Only regular files: reading a pipe or a device could wait for ever.
fn open(path: &[u8]) -> Result<(File, OsString), Error> {
    let root = Root::open(&paths::base_directory()).map_err(Error::Io)?;
    let Place::File { parent, name } = root.resolve(path)? else {
        return Err(Error::Io(io::ErrorKind::NotFound.into()));
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(&parent, &name, flags, Mode::empty())?);
    if !file.metadata().map_err(Error::Io)?.is_file() {
        return Err(Error::Io(io::ErrorKind::NotFound.into()));
    }
    Ok((file, name))
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

#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    All,
    /// Both ends included.
    Part {
        from: u64,
        to: u64,
    },
    Nothing,
}

/// Several ranges at once, and ranges we do not understand, get the whole file, as HTTP allows.
fn wanted(headers: &HeaderMap, length: u64, tag: &str, modified: &str) -> Wanted {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if text(IF_RANGE).is_some_and(|condition| condition != tag && condition != modified) {
        return Wanted::All;
    }
    let Some((first, last)) = text(RANGE)
        .and_then(|range| range.trim().strip_prefix("bytes="))
        .filter(|range| !range.contains(','))
        .and_then(|range| range.split_once('-'))
    else {
        return Wanted::All;
    };
    match (first.trim().parse::<u64>(), last.trim().parse::<u64>(), last.trim().is_empty()) {
        (Ok(from), _, true) if from < length => Wanted::Part { from, to: length - 1 },
        (Ok(from), Ok(to), _) if from <= to && from < length => Wanted::Part { from, to: to.min(length - 1) },
        (Ok(from), Ok(to), _) if from > to => Wanted::All,
        (Err(_), Ok(count @ 1..), _) if first.trim().is_empty() && length > 0 => {
            Wanted::Part { from: length.saturating_sub(count), to: length - 1 }
        }
        (Ok(_), Ok(_), _) | (Ok(_), _, true) => Wanted::Nothing,
        (Err(_), Ok(_), _) if first.trim().is_empty() => Wanted::Nothing,
        _ => Wanted::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_honoured_and_anything_odd_gets_the_whole_file() {
        let part = |from, to| Wanted::Part { from, to };
        for (range, answer) in [
            ("bytes=0-3", part(0, 3)),
            ("bytes=4-", part(4, 9)),
            ("bytes=-3", part(7, 9)),
            ("bytes=-30", part(0, 9)),
            ("bytes=5-500", part(5, 9)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=10-12", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=5-4", Wanted::All),
            ("bytes=0-1,3-4", Wanted::All),
            ("lines=1-2", Wanted::All),
            ("bytes=x-y", Wanted::All),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, range.parse().unwrap());
            assert_eq!(wanted(&headers, 10, "\"t\"", "then"), answer, "{range}");
        }
    }

    #[test]
    fn a_range_of_another_version_gets_the_whole_file() {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, "bytes=0-1".parse().unwrap());
        headers.insert(IF_RANGE, "\"old\"".parse().unwrap());
        assert_eq!(wanted(&headers, 10, "\"new\"", "then"), Wanted::All);
        assert_eq!(wanted(&headers, 10, "\"old\"", "then"), Wanted::Part { from: 0, to: 1 });
    }

    #[test]
    fn a_name_that_is_not_plain_is_encoded() {
        assert_eq!(disposition(b"a.txt"), "attachment; filename=\"a.txt\"");
        assert_eq!(disposition("ü x.txt".as_bytes()), "attachment; filename*=utf-8''%C3%BC%20x.txt");
    }
}
